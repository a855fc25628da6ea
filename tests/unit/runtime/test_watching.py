"""The machine behind each watch, in virtual time, and what it reads. The server is a script."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import anyio
import pytest

from controller.runtime import errors
from controller.runtime.client import Listed, Object, Resource
from controller.runtime.watchevents import Advanced, Changed, Deleted, Event, Refused, UnreadableError, parse
from controller.runtime.watching import Pauses, Watcher, WatchOptions
from controller.runtime.workqueue import Backoff
from tests.unit.runtime.server import THINGS, Server, item, line, refusal

pytestmark = pytest.mark.anyio


class Told:
    """What a watcher has told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def follow(server: Server, for_s: float, *, version: str = "") -> tuple[Watcher, Told]:
    told = Told()
    watcher = Watcher(server, THINGS, told, options=WatchOptions())
    with anyio.move_on_after(for_s):
        await watcher.run(version)
    return watcher, told


async def test_a_list_then_watches_one_after_the_other() -> None:
    server = Server()
    watcher, told = await follow(server, 70)
    assert [call for call, _ in server.calls] == ["list", *["watch 100"] * 4]
    assert told.of(Listed) == [Listed([], "100")]
    assert watcher.broken_s() == 0
    assert watcher.silent_s() < 25


async def test_a_version_that_is_given_is_followed_up_without_a_list() -> None:
    server = Server()
    await follow(server, 15, version="90")
    assert server.calls == [("watch 90", 0)]


async def test_what_happens_is_told_in_order_and_moves_the_version() -> None:
    server = Server()

    async def busy(version: int, on_line: Callable[[bytes], None]) -> None:
        on_line(line("ADDED", item("a", 101)))
        on_line(line("MODIFIED", item("a", 102)))
        on_line(line("DELETED", item("a", 103)))
        on_line(line("BOOKMARK", {"metadata": {"resourceVersion": "110"}}))
        await anyio.sleep_forever()

    server.watches = busy
    watcher, told = await follow(server, 5)
    assert told.events == [
        Listed([], "100"),
        Advanced("100"),
        Changed(item("a", 101)),
        Changed(item("a", 102)),
        Deleted(item("a", 103)),
        Advanced("110"),
    ]
    assert watcher.version == "110"


async def test_failures_are_taken_up_with_delays_that_double_and_begin_anew() -> None:
    """F-47: a followed kind that failed was asked every half second, for ever."""
    server = Server()
    fails = True

    async def broken(version: int, on_line: Callable[[bytes], None]) -> None:
        if fails:
            raise errors.NoAnswerError("WATCH things", "broken")
        await server.quiet(version, on_line)

    server.watches = broken
    told = Told()
    watcher = Watcher(server, THINGS, told, options=WatchOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await anyio.sleep(300)
        watches = [at_s for call, at_s in server.calls if call.startswith("watch")]
        gaps = [later - earlier for earlier, later in pairwise(watches)]
        assert 15 <= len(watches) <= 45
        assert all(7 <= gap <= 15.1 for gap in gaps[6:])
        fails = False
        await anyio.sleep(40)
        assert watcher.broken_s() == 0
        fails = True
        before = len(server.calls)
        await anyio.sleep(25)
        assert len(server.calls) - before >= 3, "the delays begin anew once a watch has held"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("failure", [refusal(500), refusal(400), errors.NoAnswerError("WATCH things", "cut")])
async def test_a_version_at_which_every_watch_breaks_is_given_up_in_the_end(failure: errors.ApiError) -> None:
    """F-47: only a 410 led to a new list."""
    server = Server()

    async def broken(version: int, on_line: Callable[[bytes], None]) -> None:
        if version == 100:
            raise failure
        await server.quiet(version, on_line)

    server.watches = broken
    with anyio.move_on_after(200):
        told = Told()
        watcher = Watcher(server, THINGS, told, options=WatchOptions())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.run)
            await anyio.sleep(30)
            assert server.count("list") == 1, "not after a few"
            server.version = 500
            await tasks.start(_sleep_and_cancel, 120, tasks.cancel_scope)
    assert server.count("list") == 2
    assert watcher.version == "500"
    assert [event.version for event in told.of(Listed)] == ["100", "500"]


async def _sleep_and_cancel(
    seconds: float, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    await anyio.sleep(seconds)
    task_status.started()
    scope.cancel()


async def test_a_server_that_is_away_is_not_listed_anew() -> None:
    server = Server()
    away = False

    async def broken(version: int, on_line: Callable[[bytes], None]) -> None:
        if away:
            raise errors.NoAnswerError("WATCH things", "refused")
        await server.quiet(version, on_line)

    async def no_lists() -> None:
        if away:
            raise errors.NoAnswerError("LIST things", "refused")

    server.watches, server.lists = broken, no_lists
    told = Told()
    watcher = Watcher(server, THINGS, told, options=WatchOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await anyio.sleep(30)
        away, server.opens = True, False
        await anyio.sleep(600)
        assert watcher.broken_s() > 500
        away, server.opens = False, True
        await anyio.sleep(60)
        tasks.cancel_scope.cancel()
    assert server.count("list") == 1
    assert watcher.broken_s() == 0


async def test_a_version_from_the_future_is_found_out() -> None:
    """F-47: after a restore of etcd the server's versions are lower; a watch of ours brings nothing."""
    server = Server()
    told = Told()
    watcher = Watcher(server, THINGS, told, options=WatchOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await anyio.sleep(30)
        server.version = 40
        await anyio.sleep(45)
        tasks.cancel_scope.cancel()
    assert [event.version for event in told.of(Listed)] == ["100", "40"]
    assert server.count("list one") == 1
    assert watcher.version == "40"


async def test_a_server_without_bookmarks_is_not_listed_anew() -> None:
    server = Server()

    async def silent(version: int, on_line: Callable[[bytes], None]) -> None:
        await anyio.sleep(20)

    server.watches = silent
    await follow(server, 300)
    assert server.count("list") == 1


@pytest.mark.parametrize("code", [403, 404])
async def test_a_refusal_of_a_moment_goes_on_at_its_version_and_one_that_lasts_is_told(code: int) -> None:
    """F-34, F-47: neither is the end, and neither is asked hotly."""
    server = Server()
    refused = True

    async def refusing(version: int, on_line: Callable[[bytes], None]) -> None:
        if refused:
            server.opens = False
            raise refusal(code)
        await server.quiet(version, on_line)

    server.opens = False
    server.watches = refusing
    told = Told()
    watcher = Watcher(server, THINGS, told, options=WatchOptions())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await anyio.sleep(20)
        assert server.count("list") == 1
        assert watcher.is_refused
        refused, server.opens = False, True
        await anyio.sleep(60)
        assert not watcher.is_refused
        assert server.count("list") == 1
        refused, server.opens = True, False
        await anyio.sleep(300)
        tasks.cancel_scope.cancel()
    assert 10 < server.count("list") < 40, "what may not be watched is listed from time to time"
    lasted = [event.lasted_s for event in told.of(Refused)]
    assert lasted[0] == 0
    assert max(lasted) > 200


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"{}",
        b"[]",
        b"7",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": null}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "u"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}',
        b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "x"}}}',
        b'{"type": "ERROR", "object": {"code": "many"}}',
        b'{"type": "ERROR", "object": "no"}',
    ],
)
async def test_what_is_no_event_leads_to_a_new_list(content: bytes) -> None:
    """F-52: it ends no process, and what it may have told is not lost."""
    with pytest.raises(UnreadableError):
        parse(content, "WATCH things")
    server = Server()

    async def garbage(version: int, on_line: Callable[[bytes], None]) -> None:
        if server.count("list") == 1:
            on_line(content)
        await server.quiet(version, on_line)

    server.watches = garbage
    await follow(server, 10)
    assert server.count("list") == 2


def test_an_error_event_is_the_error_that_it_names() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    with pytest.raises(errors.GoneError, match="too old"):
        parse(line("ERROR", status), "WATCH things")


@pytest.mark.parametrize("answer", [{}, {"metadata": {}}, {"metadata": None}, {"metadata": 7}])
async def test_an_answer_that_is_no_list_is_a_failure_like_others(answer: Object) -> None:
    """F-52: it ended the process."""
    server = Server()

    class Odd(Server):
        async def list_page(
            self, resource: Resource, params: Mapping[str, str], namespace: str | None = None
        ) -> Object:
            self.note("list")
            return answer if len(self.calls) < 3 else {"metadata": {"resourceVersion": "5"}, "items": []}

    server = Odd()
    _, told = await follow(server, 10)
    assert [event.version for event in told.of(Listed)] == ["5"]


async def test_pauses() -> None:
    pauses = Pauses(Backoff(1, 8))
    waits = []
    for _ in range(6):
        began_s = anyio.current_time()
        await pauses.wait()
        waits.append(anyio.current_time() - began_s)
    for wait_s, full_s in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert full_s / 2 <= wait_s <= full_s
    pauses.reset()
    began_s = anyio.current_time()
    await pauses.wait()
    assert anyio.current_time() - began_s <= 1
