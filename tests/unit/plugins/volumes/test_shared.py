"""Answers that attempts share; a server that takes its time is played by functions."""

from functools import partial
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from controller.plugins.volumes.shared import SHARED_S, Name, Shared, SharedObjects, in_parallel
from controller.runtime import errors

pytestmark = pytest.mark.anyio

ROUND_TRIP_S = 0.1


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Server:
    """Answers with the number of the question, after a while."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing = 0

    async def read(self, key: str) -> str:
        self.asked.append(key)
        number = len(self.asked)
        await anyio.sleep(ROUND_TRIP_S)
        if self.failing:
            self.failing -= 1
            raise errors.NoAnswerError(f"GET {key}", "broken")
        return f"{key}{number}"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def shared(server: Server) -> Shared[str, str]:
    return Shared(server.read)


async def test_f_03_all_who_ask_at_a_time_share_one_flight(server: Server, shared: Shared[str, str]) -> None:
    """F-3: a gang reads the same objects once."""
    answers = await in_parallel(*(partial(shared.get, "a") for _ in range(64)))
    assert answers == ["a1"] * 64
    assert server.asked == ["a"]


async def test_an_answer_is_kept_for_a_moment(server: Server, shared: Shared[str, str]) -> None:
    await shared.get("a")
    await anyio.sleep(SHARED_S - 0.01)
    assert await shared.get("a") == "a1"
    await anyio.sleep(0.02)
    assert await shared.get("a") == "a2"


async def test_who_wants_a_newer_one_gets_it(server: Server, shared: Shared[str, str]) -> None:
    await shared.get("a")
    now_s = anyio.current_time()
    assert await shared.get("a", now_s - 10) == "a1"
    assert await shared.get("a", now_s) == "a2"
    assert await shared.get("a", now_s) == "a2", "it was asked for at that moment"


class Making:
    """A server with objects that may come while a question is on its way."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.asked: list[str] = []

    async def read(self, key: Name) -> str | None:
        self.asked.append(key[1])
        found = self.there.get(key[1])
        await anyio.sleep(ROUND_TRIP_S)
        return found

    async def read_all(self, namespace: str) -> dict[str, str]:
        self.asked.append(namespace)
        found = dict(self.there)
        await anyio.sleep(ROUND_TRIP_S)
        return found


async def test_that_there_is_none_is_no_answer_to_a_later_question() -> None:
    """F-3: a claim made a moment later would be said not to exist, and its pod would fail for good."""
    server = Making()
    shared = Shared(server.read)
    assert await shared.get(("ns", "a")) is None
    server.there["a"] = "made"
    assert await shared.get(("ns", "a")) == "made"
    assert await shared.get(("ns", "a")) == "made"
    assert server.asked == ["a", "a"]


async def test_that_there_is_none_is_shared_with_those_who_asked_before() -> None:
    server = Making()
    shared = Shared(server.read)
    answers = await in_parallel(*(partial(shared.get, ("ns", "a")) for _ in range(20)))
    assert answers == [None] * 20
    assert len(server.asked) <= 2


async def test_what_is_made_while_a_question_is_on_its_way_is_found() -> None:
    server = Making()
    shared = Shared(server.read)

    async def ask_later() -> str | None:
        await anyio.sleep(ROUND_TRIP_S / 2)
        server.there["a"] = "made"
        return await shared.get(("ns", "a"))

    answers = await in_parallel(partial(shared.get, ("ns", "a")), ask_later)
    assert answers == [None, "made"]


async def test_what_is_made_after_a_list_is_found() -> None:
    """F-3: a list of a moment ago says nothing of what has come since."""
    server = Making()
    objects = SharedObjects(server.read, server.read_all)
    server.there = {f"old-{number}": "old" for number in range(20)}
    await in_parallel(*(partial(objects.get, ("ns", f"old-{number}")) for number in range(20)))
    assert "ns" in server.asked
    server.there["new"] = "made"
    assert await objects.get(("ns", "new")) == "made"
    assert await objects.get(("ns", "never")) is None
    server.there["never"] = "made after all"
    assert await objects.get(("ns", "never")) == "made after all"


async def test_those_who_come_too_late_for_a_flight_share_the_next(
    server: Server, shared: Shared[str, str]
) -> None:
    answers: list[str] = []

    async def ask(after_s: float) -> None:
        await anyio.sleep(after_s)
        answers.append(await shared.get("a", anyio.current_time()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 0)
        for number in range(20):
            tasks.start_soon(ask, 0.01 + number / 1000)
    assert answers == ["a1", *["a2"] * 20]


async def test_a_failure_is_told_to_those_who_wait_and_forgotten(
    server: Server, shared: Shared[str, str]
) -> None:
    server.failing = 1
    failed: list[str] = []

    async def ask() -> None:
        try:
            await shared.get("a")
        except errors.NoAnswerError as error:
            failed.append(error.message)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert failed == ["broken"] * 3
    assert len(server.asked) == 1
    assert await shared.get("a") == "a2"


async def test_one_who_is_broken_off_does_not_take_the_others_with_him(
    server: Server, shared: Shared[str, str]
) -> None:
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await shared.get("a"))

    first = anyio.CancelScope()

    async def ask_first() -> None:
        with first:
            await shared.get("a")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_first)
        await anyio.sleep(0.01)
        for _ in range(3):
            tasks.start_soon(ask)
        await anyio.sleep(0.01)
        first.cancel()
    assert answers == ["a2"] * 3
    assert len(server.asked) == 2


async def test_what_is_old_is_forgotten(server: Server, shared: Shared[str, str]) -> None:
    for number in range(50):
        await shared.get(f"k{number}")
    assert len(shared) < 50, "some are older than a moment already"
    await anyio.sleep(SHARED_S + 0.01)
    shared.forget_old()
    assert len(shared) == 0


async def test_our_own_write_is_known(server: Server, shared: Shared[str, str]) -> None:
    await shared.get("a")
    began_s = anyio.current_time()
    shared.put("a", "written")
    assert await shared.get("a") == "written"
    assert await shared.get("a", began_s) == "written"
    assert len(server.asked) == 1


# Many objects.


class Objects:
    """Has objects of two namespaces, and counts how it is asked."""

    def __init__(self, *, too_many: bool = False, forbidden: bool = False) -> None:
        self.single: list[Name] = []
        self.lists: list[str] = []
        self._too_many = too_many
        self._forbidden = forbidden

    async def read(self, key: Name) -> str | None:
        self.single.append(key)
        await anyio.sleep(ROUND_TRIP_S)
        return None if key[1] == "gone" else key[1]

    async def read_all(self, namespace: str) -> dict[str, str] | None:
        self.lists.append(namespace)
        await anyio.sleep(ROUND_TRIP_S)
        if self._forbidden:
            text = "may not list"
            raise errors.ForbiddenError("GET things", text, code=403)
        return None if self._too_many else {f"o{number}": f"o{number}" for number in range(100)}


async def ask_for(objects: SharedObjects[str], count: int) -> list[str | None]:
    return await in_parallel(*(partial(objects.get, ("ns", f"o{number}")) for number in range(count)))


async def test_f_03_a_few_are_read_one_by_one_and_many_are_listed() -> None:
    """F-3: a gang with claims of its own costs a few requests."""
    source = Objects()
    objects: SharedObjects[str] = SharedObjects(source.read, source.read_all)
    assert await ask_for(objects, 3) == ["o0", "o1", "o2"]
    assert (len(source.single), source.lists) == (3, [])
    assert await ask_for(objects, 100) == [f"o{number}" for number in range(100)]
    assert (len(source.single), source.lists) == (6, ["ns"])
    assert await objects.get(("ns", "gone")) is None
    assert len(source.single) == 7


@pytest.mark.parametrize("options", [{"too_many": True}, {"forbidden": True}])
async def test_where_a_list_is_of_no_use_they_are_read_one_by_one(options: dict[str, bool]) -> None:
    source = Objects(**options)
    objects: SharedObjects[str] = SharedObjects(source.read, source.read_all)
    for _ in range(3):
        assert await ask_for(objects, 50) == [f"o{number}" for number in range(50)]
        await anyio.sleep(SHARED_S)
    assert source.lists == ["ns"], "for a minute it is not tried again"
    await anyio.sleep(60)
    await ask_for(objects, 50)
    assert source.lists == ["ns", "ns"]


async def test_one_at_a_time_is_never_a_list() -> None:
    source = Objects()
    objects: SharedObjects[str] = SharedObjects(source.read, source.read_all)
    for number in range(50):
        assert await objects.get(("ns", f"o{number}")) == f"o{number}"
        await anyio.sleep(0.5)
    assert source.lists == []


async def test_in_parallel_raises_the_first_failure_as_it_is() -> None:
    async def fail() -> str:
        raise errors.NoAnswerError("GET a", "broken")

    async def last() -> str:
        await anyio.sleep_forever()
        return ""

    with pytest.raises(errors.NoAnswerError, match="broken"):
        await in_parallel(last, fail)
    assert await in_parallel() == []
