"""The queue against a plain model of its promises, over random sequences of what is done to it."""

from collections import deque

import anyio
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from controller.runtime.workqueue import Backoff, WorkQueue
from tests.unit.properties.profile import examples

KEYS = st.sampled_from("abc")
ACTS = st.one_of(
    st.tuples(st.just("add"), KEYS),
    st.tuples(st.just("add_after"), KEYS, st.integers(-1, 5)),
    st.tuples(st.just("retry"), KEYS),
    st.tuples(st.just("forget"), KEYS),
    st.tuples(st.just("take")),
    st.tuples(st.just("done"), KEYS),
    st.tuples(st.just("wait"), st.integers(1, 4)),
)


class Promises:
    """What the queue is to do, said as simply as can be; time in whole seconds."""

    def __init__(self) -> None:
        self.now = 0
        self.ready = deque[str]()
        self.working = set[str]()
        self.again = set[str]()
        self.due: dict[str, float] = {}
        self.failures: dict[str, int] = {}

    def add(self, key: str) -> None:
        self.due.pop(key, None)
        if key in self.working:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def add_after(self, key: str, delay_s: float) -> None:
        if delay_s <= 0:
            self.add(key)
        elif key not in self.ready and key not in self.again:
            self.due[key] = min(self.due.get(key, float("inf")), self.now + delay_s)

    def retry(self, key: str) -> None:
        self.failures[key] = self.failures.get(key, 0) + 1
        self.add_after(key, min(2.0 ** (self.failures[key] - 1), 60.0))

    def forget(self, key: str) -> None:
        self.failures.pop(key, None)

    def take(self) -> str | None:
        for key, due_s in sorted(self.due.items(), key=lambda item: item[1]):
            if due_s <= self.now:
                self.add(key)
        if not self.ready:
            return None
        key = self.ready.popleft()
        self.working.add(key)
        return key

    def done(self, key: str) -> None:
        self.working.discard(key)
        if key in self.again:
            self.again.discard(key)
            self.ready.append(key)


async def _try(acts: list[tuple[object, ...]]) -> None:
    queue, promises = WorkQueue[str](Backoff()), Promises()
    for name, *arguments in acts:
        if name == "wait":
            (seconds,) = arguments
            assert isinstance(seconds, int)
            promises.now += seconds
            await trio.sleep(seconds)
        elif name == "take":
            with anyio.move_on_after(0):
                await queue.ready()
            # Keys that fall due at one moment come in any order: it is enough that they come.
            expected, taken = promises.take(), queue.take()
            assert (expected is None) == (taken is None)
            if taken is not None and expected is not None and taken != expected:
                assert taken in promises.ready
                promises.ready.remove(taken)
                promises.ready.append(expected)
                promises.working = (promises.working - {expected}) | {taken}
        elif name == "done":
            if arguments[0] in promises.working:
                promises.done(str(arguments[0]))
                queue.done(str(arguments[0]))
        else:
            getattr(promises, str(name))(*arguments)
            getattr(queue, str(name))(*arguments)
        assert queue.working == len(promises.working), "two workers have one key, or none has it"
    await _drain(queue, promises)


async def _drain(queue: WorkQueue[str], promises: Promises) -> None:
    """Nothing is lost: what is still to come comes, each key once."""
    expected = {*promises.ready, *promises.again, *promises.due}
    for key in sorted(promises.working):
        queue.done(key)
    came = []
    with anyio.move_on_after(1000):
        while (given_key := await queue.get()) is not None:
            came.append(given_key)
            queue.done(given_key)
    assert sorted(came) == sorted(expected)


@examples
@given(st.lists(ACTS, max_size=40))
def test_a_key_is_with_one_worker_and_none_is_lost(acts: list[tuple[object, ...]]) -> None:
    trio.run(_try, acts, clock=MockClock(autojump_threshold=0))


@examples
@given(st.floats(0.001, 100), st.floats(0.001, 1000), st.integers(1, 5000))
def test_delays_grow_up_to_the_most(base_s: float, max_s: float, failures: int) -> None:
    backoff = Backoff(base_s, max_s)
    delay_s, next_s = backoff.delay_s(failures), backoff.delay_s(failures + 1)
    assert min(base_s, max_s) <= delay_s <= next_s <= max_s
    assert next_s == max_s or next_s == 2 * delay_s
