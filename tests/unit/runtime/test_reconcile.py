"""The loop: workers, slots, and what becomes of results and exceptions."""

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import pytest

from controller.runtime import errors
from controller.runtime.locks import KeyedLock, Signal
from controller.runtime.reconcile import Controller, Result
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff, WorkQueue

pytestmark = pytest.mark.anyio

Work = Callable[[str, Slot], Awaitable[Result]]


class Told:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.busy = 0
        self.most_busy = 0

    def reconciled(self, result: str, seconds: float, /) -> None:
        self.results.append(result)
        self.seconds.append(round(seconds, 3))

    def error(self, *, terminal: bool = False) -> None:
        self.counts["error"] += 1
        if terminal:
            self.counts["terminal"] += 1

    def panic(self) -> None:
        self.counts["panic"] += 1

    def active(self, delta: int, /) -> None:
        self.busy += delta
        self.most_busy = max(self.most_busy, self.busy)


class Reconciler:
    """Runs a function, and remembers when it was called for which key."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.calls: list[tuple[str, float]] = []
        self._started_s = anyio.current_time()

    async def reconcile(self, key: str, slot: Slot, /) -> Result:
        self.calls.append((key, round(anyio.current_time() - self._started_s, 3)))
        return await self._work(key, slot)


async def run(
    work: Work, keys: list[str], *, for_s: float, max_concurrent: int = 1, told: Told | None = None
) -> list[tuple[str, float]]:
    """Lets a controller work on the keys for some virtual time; gives the calls of its reconciler."""
    reconciler = Reconciler(work)
    queue: WorkQueue[str] = WorkQueue(Backoff())
    controller = Controller("test", reconciler, queue, max_concurrent=max_concurrent, observer=told)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        for key in keys:
            queue.add(key)
        await anyio.sleep(for_s)
        controller.stop()
    return reconciler.calls


async def test_success_is_the_end_of_it() -> None:
    async def work(key: str, slot: Slot) -> Result:
        return Result()

    told = Told()
    assert await run(work, ["a", "b"], for_s=100, told=told) == [("a", 0), ("b", 0)]
    assert told.results == ["success", "success"]
    assert told.busy == 0


async def test_a_result_says_when_to_look_again() -> None:
    async def work(key: str, slot: Slot) -> Result:
        return Result(requeue_after_s=40)

    told = Told()
    assert await run(work, ["a"], for_s=100, told=told) == [("a", 0), ("a", 40), ("a", 80)]
    assert told.results == ["requeue_after"] * 3


async def test_an_exception_is_retried_with_backoff_and_hurts_nobody_else(logs: list[str]) -> None:
    async def work(key: str, slot: Slot) -> Result:
        if key == "bad":
            raise RuntimeError("a surprise")
        return Result()

    told = Told()
    calls = await run(work, ["bad", "good"], for_s=20, told=told)
    assert [at_s for key, at_s in calls if key == "bad"] == [0, 1, 3, 7, 15]
    assert ("good", 0) in calls
    assert told.counts == {"error": 5, "panic": 5}, "F-50"
    assert all(line.startswith("ERROR") for line in logs if "unforeseen" in line)
    assert "a surprise" in "".join(logs)
    assert "'key': 'bad'" in "".join(logs)


async def test_an_error_of_the_server_is_a_warning_and_is_retried(logs: list[str]) -> None:
    async def work(key: str, slot: Slot) -> Result:
        raise errors.NoAnswerError("GET pods a", "no answer within 30 s")

    told = Told()
    calls = await run(work, ["a"], for_s=5, told=told)
    assert [at_s for _, at_s in calls] == [0, 1, 3]
    assert told.counts == {"error": 3}
    assert [line.split()[0] for line in logs] == ["WARNING"] * 3
    assert "no answer within 30 s" in logs[0]


async def test_backoff_starts_anew_after_a_success() -> None:
    outcomes = iter([False, False, True, False, True])

    async def work(key: str, slot: Slot) -> Result:
        if next(outcomes):
            return Result(requeue_after_s=100)
        raise RuntimeError

    calls = await run(work, ["a"], for_s=105)
    assert [at_s for _, at_s in calls] == [0, 1, 3, 103, 104]


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_no_more_than_the_allowed_number_works_at_a_time(limit: int) -> None:
    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(1)
        return Result()

    told = Told()
    calls = await run(work, [str(n) for n in range(30)], for_s=100, max_concurrent=limit, told=told)
    assert len(calls) == 30
    assert told.most_busy == min(limit, 30)
    assert max(at_s for _, at_s in calls) == -(-30 // limit) - 1


async def test_who_waits_lets_others_work() -> None:
    """One slot, twenty keys that wait for something: the others are worked on all the same."""
    running = 0
    most_running = 0

    async def work(key: str, slot: Slot) -> Result:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        if key.startswith("waits"):
            running -= 1
            async with slot.released():
                await anyio.sleep(60)
            running += 1
            most_running = max(most_running, running)
        await anyio.sleep(0.1)
        running -= 1
        return Result()

    waiting = [f"waits-{n}" for n in range(20)]
    told = Told()
    calls = await run(work, [*waiting, "a", "b", "c"], for_s=300, told=told)
    assert {key: at_s for key, at_s in calls if not key.startswith("waits")} == {"a": 0, "b": 0.1, "c": 0.2}
    assert len(told.results) == 23
    assert most_running == 1, "who has waited must wait for a free slot before it goes on"


async def test_a_key_is_in_the_queue_until_there_is_a_slot() -> None:
    """F-49: it left the queue before, so that its depth and its times read wrong."""

    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(10)
        return Result()

    queue: WorkQueue[str] = WorkQueue(Backoff())
    controller = Controller("test", Reconciler(work), queue, max_concurrent=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        for key in "abc":
            queue.add(key)
        await anyio.sleep(5)
        assert (len(queue), queue.working) == (2, 1)
        await anyio.sleep(10)
        assert (len(queue), queue.working) == (1, 1)
        controller.stop()


async def test_one_that_waits_beside_an_empty_queue_gets_its_slot_back() -> None:
    """F-49: the loop holds no slot while it waits for a key."""

    async def work(key: str, slot: Slot) -> Result:
        async with slot.released():
            await anyio.sleep(5)
        ended.append(key)
        return Result()

    ended: list[str] = []
    await run(work, ["a"], for_s=6)
    assert ended == ["a"]


async def test_overlapping_waits_of_one_worker_free_one_slot() -> None:
    """F-50: a worker holds one slot, so it can give back no more, whatever it waits for at a time."""
    running = 0
    most_running = 0

    async def work(key: str, slot: Slot) -> Result:
        nonlocal running, most_running

        async def wait(seconds: float) -> None:
            async with slot.released():
                await anyio.sleep(seconds)

        if key == "waits":
            async with anyio.create_task_group() as tasks:
                for seconds in (30, 40, 50):
                    tasks.start_soon(wait, seconds)
            return Result()
        running += 1
        most_running = max(most_running, running)
        await anyio.sleep(1)
        running -= 1
        return Result()

    told = Told()
    calls = await run(work, ["waits", *"abcdef"], for_s=100, told=told)
    assert len(calls) == 7
    assert most_running == 1
    assert (told.most_busy, told.busy) == (1, 0)


async def test_those_that_wait_are_not_active_and_their_waits_are_not_their_work() -> None:
    """F-50: 50 of 2 workers were active, and reconciles took minutes."""

    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(1)
        async with slot.released():
            await anyio.sleep(60)
        await anyio.sleep(2)
        return Result()

    told = Told()
    await run(work, [str(n) for n in range(10)], for_s=300, max_concurrent=2, told=told)
    assert told.most_busy == 2
    assert told.seconds == [3.0] * 10


async def test_a_failure_that_the_reconciler_told_itself_is_an_error() -> None:
    """F-50: a failed bind comes as a result, since its status says what happened; it counts all the same."""

    async def work(key: str, slot: Slot) -> Result:
        first = not told.results
        return Result(40, failed=True) if first else Result(failed=True)

    told = Told()
    assert await run(work, ["a"], for_s=100, told=told) == [("a", 0), ("a", 40)]
    assert told.results == ["error", "error"]
    assert told.counts == {"error": 2, "terminal": 1}


async def test_a_queue_from_which_nothing_is_taken() -> None:
    """F-51: keys that are ready beside free slots are a sign that nobody works; busy slots are none."""

    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(100)
        return Result()

    queue: WorkQueue[str] = WorkQueue(Backoff())
    controller = Controller("test", Reconciler(work), queue, max_concurrent=1)
    assert controller.stalled_s() == 0
    queue.add("a")
    queue.add("b")
    await anyio.sleep(50)
    assert controller.stalled_s() == pytest.approx(50), "nobody runs it"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        await anyio.sleep(90)
        assert len(queue) == 1
        assert controller.stalled_s() == 0
        controller.stop()


async def test_workers_hang_if_none_gives_its_slot_back() -> None:
    async def work(key: str, slot: Slot) -> Result:
        if key == "waits":
            async with slot.released():
                await anyio.sleep(1000)
        await anyio.sleep(100)
        return Result()

    queue: WorkQueue[str] = WorkQueue(Backoff())
    controller = Controller("test", Reconciler(work), queue, max_concurrent=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        await anyio.sleep(1000)
        queue.add("a")
        await anyio.sleep(10)
        queue.add("b")
        await anyio.sleep(70)
        assert controller.hung_s() == 0, "nobody waits for them"
        queue.add("c")
        await anyio.sleep(10)
        assert controller.hung_s() == 10
        await anyio.sleep(15)
        assert controller.hung_s() == 0, "a has ended"
        queue.add("waits")
        queue.add("d")
        await anyio.sleep(50)
        assert controller.hung_s() == 0, "one that waits holds no slot"
        controller.stop()


async def test_a_slot_is_given_back_and_taken_again_when_the_wait_fails() -> None:
    async def work(key: str, slot: Slot) -> Result:
        async with slot.released():
            raise RuntimeError

    calls = await run(work, ["a", "b"], for_s=2)
    assert sorted(calls) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


async def test_a_key_added_while_in_work_is_worked_on_again() -> None:
    queue: WorkQueue[str] = WorkQueue(Backoff())

    async def work(key: str, slot: Slot) -> Result:
        if len(reconciler.calls) < 3:
            queue.add(key)
        await anyio.sleep(1)
        return Result()

    reconciler = Reconciler(work)
    controller = Controller("test", reconciler, queue, max_concurrent=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run)
        queue.add("a")
        await anyio.sleep(10)
        controller.stop()
    assert reconciler.calls == [("a", 0), ("a", 1), ("a", 2)]


async def test_stop_lets_work_under_way_end_and_starts_nothing_new() -> None:
    ended: list[str] = []

    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(30)
        ended.append(key)
        return Result()

    calls = await run(work, ["a", "b", "c"], for_s=10, max_concurrent=2)
    assert sorted(calls) == [("a", 0), ("b", 0)], "F-49"
    assert sorted(ended) == ["a", "b"]


async def test_stop_cancels_those_that_wait_for_somebody_else() -> None:
    ended: list[str] = []

    async def work(key: str, slot: Slot) -> Result:
        if key == "works":
            await anyio.sleep(30)
        else:
            async with slot.released():
                await anyio.sleep_forever()
        ended.append(key)
        return Result()

    await run(work, ["waits", "works", "waits-too"], for_s=10, max_concurrent=3)
    assert ended == ["works"]


async def test_a_wait_that_begins_after_stop_is_cancelled_too() -> None:
    async def work(key: str, slot: Slot) -> Result:
        await anyio.sleep(20)
        async with slot.released():
            await anyio.sleep_forever()
        return Result()

    assert await run(work, ["a"], for_s=10) == [("a", 0)]


@pytest.mark.parametrize("inside_released", [True, False])
async def test_cancellation_passes(inside_released: bool, logs: list[str]) -> None:
    async def work(key: str, slot: Slot) -> Result:
        if inside_released:
            async with slot.released():
                await anyio.sleep_forever()
        await anyio.sleep_forever()
        return Result()

    reconciler = Reconciler(work)
    queue: WorkQueue[str] = WorkQueue(Backoff())
    controller = Controller("test", reconciler, queue, max_concurrent=2)
    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(controller.run)
            for key in "abcd":
                queue.add(key)
    assert scope.cancelled_caught
    assert logs == [], "a cancelled reconcile is no failure"
    assert queue.working <= 1


async def test_time_outs_of_the_reconciler_itself_are_failures() -> None:
    async def work(key: str, slot: Slot) -> Result:
        with anyio.fail_after(1):
            await anyio.sleep_forever()
        return Result()

    told = Told()
    await run(work, ["a"], for_s=1.5, told=told)
    assert told.results == ["error"]


# Locks by key.


async def test_a_keyed_lock_is_held_by_one_and_forgotten_by_all() -> None:
    lock: KeyedLock[str] = KeyedLock()
    inside: Counter[str] = Counter()
    log: list[tuple[str, float]] = []

    async def work(key: str) -> None:
        async with lock.hold(key):
            inside[key] += 1
            assert inside[key] == 1
            await anyio.sleep(1)
            inside[key] -= 1
            log.append((key, anyio.current_time()))

    started_s = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for key in "aabba":
            tasks.start_soon(work, key)
    assert len(lock) == 0
    assert round(anyio.current_time() - started_s, 3) == 3


async def test_a_wait_for_a_keyed_lock_can_be_cancelled() -> None:
    lock: KeyedLock[str] = KeyedLock()

    async def hold() -> None:
        async with lock.hold("a"):
            await anyio.sleep(2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.sleep(0.5)
        with anyio.move_on_after(1) as scope:
            async with lock.hold("a"):
                pytest.fail("held twice")
        assert scope.cancelled_caught
        assert len(lock) == 1
    assert len(lock) == 0
    async with lock.hold("a"):
        pass


async def test_who_waits_for_a_keyed_lock_gives_back_its_slot() -> None:
    lock: KeyedLock[str] = KeyedLock()

    async def work(key: str, slot: Slot) -> Result:
        if key == "free":
            return Result()
        async with lock.hold("shared", slot.released), slot.released():
            await anyio.sleep(10)
        return Result()

    told = Told()
    calls = await run(work, ["a", "b", "c", "free"], for_s=100, told=told)
    assert ("free", 0) in calls
    assert len(told.results) == 4


async def test_a_signal_given_before_the_wait_is_not_lost() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    await signal.wait()
    with anyio.move_on_after(1) as scope:
        await signal.wait()
    assert scope.cancelled_caught
