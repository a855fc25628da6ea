"""The webhook asks the binder's metrics which plugins it runs, over real HTTP."""

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest
from aiohttp import web
from loguru import logger

from controller.admission.comparison import Agreement
from controller.admission.measures import Comparison
from tests.polling import eventually

pytestmark = pytest.mark.anyio
TOLD = "the binder and its admission webhook run different plugins: b"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Binder:
    """Answers with a text or not at all; "a" is the same as the webhook, empty tells nothing."""

    def __init__(self) -> None:
        self.text, self.status, self.silent = "a", 200, False
        self.found: list[Comparison] = []
        self.logged: list[str] = []
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        if self.silent:
            await anyio.sleep_forever()
        return web.Response(text=self.text, status=self.status)

    def compare(self, text: str) -> Sequence[str] | None:
        return None if not text else [] if text == "a" else [text]

    def agreement(self, url: str = "") -> Agreement:
        return Agreement(url or self.url, self.compare, self.found.append, interval_s=0.01, timeout_s=0.2)

    async def seen(self, found: Comparison) -> None:
        """Waits for two more comparisons that end so."""
        before = len(self.found)
        await eventually(lambda: self.found[before:].count(found) >= 2)


@pytest.fixture
async def binder() -> AsyncIterator[Binder]:
    made = Binder()
    app = web.Application()
    app.router.add_get("/metrics", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    sink = logger.add(made.logged.append, format="{level} {message} {extra}")
    yield made
    logger.remove(sink)
    await runner.cleanup()


async def test_a_difference_is_told_while_it_lasts(binder: Binder) -> None:
    agreement = binder.agreement()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agreement.run)
        await binder.seen("same")
        assert not agreement.warnings
        binder.text = "b"
        await binder.seen("different")
        assert list(agreement.warnings) == [TOLD]
        binder.text = "a"
        await binder.seen("same")
        assert not agreement.warnings
        tasks.cancel_scope.cancel()
    levels = [line.split()[0] for line in binder.logged]
    assert levels == ["INFO", "WARNING", "INFO"], "each change once"
    assert TOLD in binder.logged[1]


async def test_a_binder_that_says_nothing_of_plugins_is_told_once(binder: Binder) -> None:
    """KAI's own binder is one."""
    binder.text = ""
    agreement = binder.agreement()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agreement.run)
        await binder.seen("untold")
        tasks.cancel_scope.cancel()
    assert not agreement.warnings
    (told,) = binder.logged
    assert "does not say which plugins it runs" in told


@pytest.mark.parametrize("fault", ["status", "silence", "nobody", "endless"])
async def test_no_answer_is_told_once(binder: Binder, fault: str) -> None:
    binder.status = 500 if fault == "status" else 200
    binder.silent = fault == "silence"
    binder.text = "x" * (9 * 1024 * 1024) if fault == "endless" else "a"
    agreement = binder.agreement("http://127.0.0.1:1/metrics" if fault == "nobody" else "")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agreement.run)
        await binder.seen("unanswered")
        tasks.cancel_scope.cancel()
    (told,) = binder.logged
    assert "cannot be compared" in told
    assert "'problem': ''" not in told


async def test_the_last_verdict_stands_while_there_is_no_answer(binder: Binder) -> None:
    binder.text = "b"
    agreement = binder.agreement()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agreement.run)
        await binder.seen("different")
        binder.status = 503
        await binder.seen("unanswered")
        assert list(agreement.warnings) == [TOLD]
        binder.status, binder.text = 200, "a"
        await binder.seen("same")
        assert not agreement.warnings
        tasks.cancel_scope.cancel()
