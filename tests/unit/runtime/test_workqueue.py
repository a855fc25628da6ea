"""The queue's promises, in virtual time."""

from collections import Counter

import anyio
import pytest

from controller.runtime.lanes import Lanes
from controller.runtime.workqueue import Backoff, WorkQueue

pytestmark = pytest.mark.anyio


def make() -> WorkQueue[str]:
    return WorkQueue(Backoff())


async def drained(queue: WorkQueue[str]) -> list[str]:
    """All keys that are ready now, each taken and done."""
    keys = []
    with anyio.move_on_after(0):
        while (key := await queue.get()) is not None:
            keys.append(key)
            queue.done(key)
    return keys


async def next_at(queue: WorkQueue[str]) -> tuple[str | None, float]:
    """The next key and when it was ready, in seconds from now; the key is done."""
    started_s = anyio.current_time()
    key = await queue.get()
    if key is not None:
        queue.done(key)
    return key, round(anyio.current_time() - started_s, 6)


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.depths: list[int] = []
        self.waits: list[float] = []
        self.works: list[float] = []

    def added(self) -> None:
        self.counts["added"] += 1

    def retried(self) -> None:
        self.counts["retried"] += 1

    def depth(self, waiting: int, /) -> None:
        self.depths.append(waiting)

    def waited(self, seconds: float, /) -> None:
        self.waits.append(seconds)

    def worked(self, seconds: float, /) -> None:
        self.works.append(seconds)


# Each key once, and never twice at a time.


async def test_keys_come_in_the_order_in_which_they_were_added() -> None:
    queue = make()
    for key in ("c", "a", "b"):
        queue.add(key)
    assert await drained(queue) == ["c", "a", "b"]


async def test_a_key_that_is_added_many_times_is_given_once() -> None:
    queue = make()
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 1
    assert await drained(queue) == ["a"]


async def test_a_key_that_is_added_while_in_work_is_given_afterwards_and_not_before() -> None:
    queue = make()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.add("b")
    assert await queue.get() == "b"
    queue.done("a")
    assert await drained(queue) == ["a"]


async def test_no_key_is_ever_with_two_workers() -> None:
    queue: WorkQueue[int] = WorkQueue(Backoff())
    busy: set[int] = set()
    rounds: Counter[int] = Counter()

    async def work() -> None:
        while (key := await queue.get()) is not None:
            assert key not in busy
            busy.add(key)
            rounds[key] += 1
            queue.add(key) if rounds[key] < 20 else None
            await anyio.sleep(0.01 * (key + 1))
            busy.remove(key)
            queue.done(key)

    async with anyio.create_task_group() as workers:
        for _ in range(8):
            workers.start_soon(work)
        for step in range(50):
            queue.add(step % 3)
            await anyio.sleep(0.005)
        await anyio.sleep(10)
        queue.close()
    assert set(rounds) == {0, 1, 2}
    assert min(rounds.values()) >= 20


async def test_an_add_wakes_a_waiting_worker() -> None:
    queue = make()
    async with anyio.create_task_group() as tasks:

        async def later() -> None:
            await anyio.sleep(3)
            queue.add("a")

        tasks.start_soon(later)
        assert await next_at(queue) == ("a", 3.0)


async def test_ten_thousand_keys() -> None:
    queue: WorkQueue[int] = WorkQueue(Backoff())
    seen: set[int] = set()
    for key in range(10_000):
        queue.add(key)
        queue.add_after(key + 10_000, 1.0 + key / 1000)
    while len(seen) < 20_000:
        key_ = await queue.get()
        assert key_ is not None
        assert key_ not in seen
        seen.add(key_)
        queue.done(key_)
    assert len(queue) == 0


async def test_a_cancelled_wait_loses_no_key() -> None:
    queue = make()
    with anyio.move_on_after(1):
        await queue.get()
    queue.add("a")
    assert await drained(queue) == ["a"]


# Delays.


async def test_a_delayed_key_waits_its_time() -> None:
    queue = make()
    queue.add_after("b", 20)
    queue.add_after("a", 10)
    assert await next_at(queue) == ("a", 10.0)
    assert await next_at(queue) == ("b", 10.0)


@pytest.mark.parametrize("delay_s", [0.0, -1.0])
async def test_no_delay_is_at_once(delay_s: float) -> None:
    queue = make()
    queue.add_after("a", delay_s)
    assert await next_at(queue) == ("a", 0.0)


async def test_an_add_takes_the_place_of_a_delay() -> None:
    queue = make()
    queue.add_after("a", 10)
    queue.add("a")
    assert await next_at(queue) == ("a", 0.0)
    queue.add_after("z", 60)
    assert await next_at(queue) == ("z", 60.0)


async def test_a_delay_does_not_put_off_a_key_that_is_ready() -> None:
    queue = make()
    queue.add("a")
    queue.add_after("a", 10)
    assert await next_at(queue) == ("a", 0.0)
    queue.add_after("z", 60)
    assert await next_at(queue) == ("z", 60.0)


@pytest.mark.parametrize("delays_s", [(5, 10), (10, 5)])
async def test_the_earlier_due_time_wins(delays_s: tuple[float, float]) -> None:
    queue = make()
    for delay_s in delays_s:
        queue.add_after("a", delay_s)
    assert await next_at(queue) == ("a", 5.0)
    queue.add_after("z", 60)
    assert await next_at(queue) == ("z", 60.0), "the later due time is stale"


async def test_a_stale_entry_does_not_bring_a_newer_delay_forward() -> None:
    queue = make()
    queue.add_after("a", 10)
    queue.add("a")
    await queue.get()
    queue.done("a")
    queue.add_after("a", 30)
    assert await next_at(queue) == ("a", 30.0)


async def test_stale_entries_do_not_pile_up() -> None:
    queue = make()
    for _ in range(10_000):
        queue.add_after("a", 3600)
        queue.add("a")
        await queue.get()
        queue.done("a")
    assert len(queue._delayed) < 1000
    queue.add_after("a", 7200)
    queue.add_after("b", 100)
    assert await next_at(queue) == ("b", 100.0)
    assert await next_at(queue) == ("a", 7100.0)


async def test_a_delay_that_ends_while_the_key_is_in_work_is_kept() -> None:
    queue = make()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 5)
    await anyio.sleep(6)
    queue.add("b")
    assert await queue.get() == "b"
    queue.done("a")
    assert await next_at(queue) == ("a", 0.0)


# Back-off.


async def test_backoff_doubles_up_to_a_minute_and_starts_anew_after_a_success() -> None:
    queue = make()
    assert [queue.retry("a") for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    queue.forget("a")
    assert queue.retry("a") == 1
    assert queue.retry("b") == 1, "keys have nothing to do with each other"


def test_backoff_does_not_overflow() -> None:
    assert Backoff().delay_s(5_000) == 60
    assert Backoff(base_s=1e-9, max_s=1e9).delay_s(5_000) == 1e9


async def test_a_retried_key_comes_after_its_backoff() -> None:
    queue = make()
    queue.add("a")
    for expected_s in (1.0, 2.0, 4.0):
        assert await queue.get() == "a"
        queue.retry("a")
        queue.done("a")
        await anyio.sleep(expected_s - 0.1)
        assert await drained(queue) == []
        await anyio.sleep(0.1)


async def test_news_of_a_key_does_not_wait_for_its_backoff() -> None:
    queue = make()
    queue.retry("a")
    queue.add("a")
    assert await next_at(queue) == ("a", 0.0)


# The end.


async def test_a_closed_queue_gives_and_takes_nothing() -> None:
    queue = make()
    queue.add("a")
    queue.add_after("b", 1)
    queue.close()
    queue.add("c")
    queue.add_after("d", 1)
    await anyio.sleep(5)
    assert await queue.get() is None


async def test_close_wakes_all_workers_that_wait() -> None:
    queue = make()
    got: list[str | None] = []

    async def work() -> None:
        got.append(await queue.get())

    async with anyio.create_task_group() as workers:
        for _ in range(3):
            workers.start_soon(work)
        await anyio.sleep(1)
        queue.close()
    assert got == [None, None, None]


async def test_what_is_in_work_may_end_after_close() -> None:
    queue = make()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.close()
    assert queue.working == 1
    queue.done("a")
    assert queue.working == 0


async def test_a_key_that_is_ready_stays_until_it_is_taken() -> None:
    """F-49: whoever waits for a key may find, afterwards, that he cannot take it yet."""
    queue = make()
    assert queue.ready_since_s() is None
    async with anyio.create_task_group() as tasks:
        ready: list[bool] = []

        async def wait() -> None:
            ready.append(await queue.ready())

        tasks.start_soon(wait)
        await anyio.sleep(1)
        assert ready == []
        queue.add("a")
    assert ready == [True]
    assert len(queue) == 1
    assert queue.ready_since_s() == pytest.approx(anyio.current_time())
    assert queue.take() == "a"
    assert queue.take() is None


async def test_nothing_is_taken_after_close() -> None:
    """F-49: one more reconcile started after stop."""
    queue = make()
    queue.add("a")
    queue.close()
    assert queue.take() is None
    assert await queue.ready() is False


# What is told of it.


async def test_the_observer_sees_it_all() -> None:
    recorder = Recorder()
    queue: WorkQueue[str] = WorkQueue(Backoff(), recorder)
    queue.add("a")
    queue.add("a")
    await anyio.sleep(2)
    await queue.get()
    await anyio.sleep(3)
    queue.retry("a")
    queue.done("a")
    assert recorder.counts == {"added": 1, "retried": 1}
    assert recorder.depths == [1, 0]
    assert recorder.waits == [pytest.approx(2)]
    assert recorder.works == [pytest.approx(3)]


async def test_waits_for_others_are_no_work() -> None:
    """F-50: they counted as work, for minutes."""
    recorder = Recorder()
    queue: WorkQueue[str] = WorkQueue(Backoff(), recorder)
    queue.add("a")
    await queue.get()
    await anyio.sleep(70)
    queue.done("a", waited_s=60)
    assert recorder.works == [pytest.approx(10)]


async def test_ages_of_the_work_under_way() -> None:
    queue = make()
    assert queue.work_s() == (0.0, 0.0)
    queue.add("a")
    await queue.get()
    await anyio.sleep(5)
    queue.add("b")
    await queue.get()
    await anyio.sleep(1)
    together_s, longest_s = queue.work_s()
    assert (round(together_s, 6), round(longest_s, 6)) == (7, 6)


# Lanes.


def laned(most: int = 100) -> WorkQueue[tuple[str, int]]:
    return WorkQueue(Backoff(), lanes=Lanes(lambda key: key[0], most))


async def test_lanes_take_turns() -> None:
    queue = laned()
    for number in range(1000):
        queue.add(("flood", number))
    queue.add(("a", 1))
    queue.add(("b", 1))
    queue.add(("a", 2))
    assert len(queue) == 1003
    taken = [queue.take() for _ in range(6)]
    assert taken == [("flood", 0), ("a", 1), ("b", 1), ("flood", 1), ("a", 2), ("flood", 2)]
    assert len(queue) == 997


async def test_no_lane_has_more_than_its_share_with_workers() -> None:
    queue = laned(most=2)
    for number in range(4):
        queue.add(("flood", number))
    assert [queue.take(), queue.take(), queue.take()] == [("flood", 0), ("flood", 1), None]
    assert len(queue) == 2
    assert queue.ready_since_s() is None, "nothing could be taken"
    queue.add(("a", 1))
    assert await queue.get() == ("a", 1)
    queue.add(("flood", 1))  # while it is with a worker
    queue.done(("flood", 1))
    assert await queue.get() == ("flood", 2)
    assert queue.take() is None
    queue.done(("flood", 0))
    queue.done(("flood", 2))
    assert [await queue.get(), await queue.get()] == [("flood", 3), ("flood", 1)]
    assert len(queue) == 0


async def test_whoever_waits_for_a_full_lane_is_woken() -> None:
    queue = laned(most=1)
    queue.add(("a", 1))
    queue.add(("a", 2))
    assert queue.take() == ("a", 1)
    async with anyio.create_task_group() as tasks:

        async def finish() -> None:
            await anyio.sleep(3)
            queue.done(("a", 1))

        tasks.start_soon(finish)
        assert await next_of(queue) == (("a", 2), 3)


async def next_of(queue: WorkQueue[tuple[str, int]]) -> tuple[tuple[str, int] | None, float]:
    started_s = anyio.current_time()
    return await queue.get(), round(anyio.current_time() - started_s, 6)


async def test_lanes_leave_nothing_behind() -> None:
    queue = laned(most=1)
    for number in range(1000):
        queue.add((f"lane-{number}", 1))
        queue.add((f"lane-{number}", 2))
    while (key := queue.take()) is not None:
        queue.done(key)
    assert (len(queue), queue.working) == (0, 0)
    for line in (queue._ready, queue._late):
        assert not line._turns
        assert not line._full
    assert not queue._lanes.working


# What was delayed.


async def test_what_was_delayed_goes_after_what_is_new() -> None:
    queue = make()
    queue.add_after("late", 1)
    await anyio.sleep(1.5)
    queue.add("new")
    assert await drained(queue) == ["new", "late"]


async def test_what_was_delayed_goes_in_the_end() -> None:
    """A second later it is its turn after four others, for as long as others come."""
    queue = make()
    for name in ("late-1", "late-2"):
        queue.add_after(name, 1)
    await anyio.sleep(1)
    for number in range(20):
        queue.add(f"new-{number}")
    assert (await queue.get(), await queue.get()) == ("new-0", "new-1")
    await anyio.sleep(1)
    keys = [await queue.get() for _ in range(10)]
    assert [keys.index("late-1"), keys.index("late-2")] == [2, 7]
    assert len(queue) == 10


async def test_what_was_delayed_waits_for_room_but_not_for_long() -> None:
    queue = make()
    queue.add_after("late", 1)
    await anyio.sleep(1)
    assert queue.take(has_room=False) is None
    with anyio.move_on_after(0.5) as scope:
        await queue.ready(lambda: False)
    assert scope.cancelled_caught
    started_s = anyio.current_time()
    assert await queue.ready(lambda: False)
    assert anyio.current_time() - started_s == pytest.approx(0.5)
    assert queue.take(has_room=False) == "late"


async def test_room_that_comes_up_is_used_at_once() -> None:
    queue, room = make(), [False]
    queue.add_after("late", 1)
    await anyio.sleep(1)
    started_s = anyio.current_time()
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            assert await queue.ready(lambda: room[0])

        tasks.start_soon(wait)
        await anyio.sleep(0.1)
        room[0] = True
        queue.look_again()
    assert anyio.current_time() - started_s == pytest.approx(0.1)
