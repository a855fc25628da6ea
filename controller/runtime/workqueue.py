"""The queue between watches and workers; it knows only hashable keys.

Four promises: a key that is added many times is worked on once; a key is never with two workers at a time,
and what is added meanwhile is worked on afterwards; a delayed key waits its time, unless it is added for at
once, which takes the place of the delay; keys of different lanes take turns, so that one in which a million
keys are ready holds up no other, and none has more than its share with workers, those that wait included.
"""

import heapq
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)

_STALE_ENTRIES = 100
"""So many entries that no longer count may lie about, beside as many as do."""


class QueueObserver(Protocol):
    """What a queue reports of itself."""

    def added(self) -> None:
        """A key came in."""

    def depth(self, waiting: int, /) -> None:
        """So many keys are ready for a worker."""

    def waited(self, seconds: float, /) -> None:
        """A key was ready for so long before a worker took it."""

    def worked(self, seconds: float, /) -> None:
        """A worker had a key for so long."""

    def retried(self) -> None:
        """A key came back after a failure."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `base_s` with each failure, up to `max_s`."""

    base_s: float = 1.0
    max_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        doublings = min(failures - 1, 62)  # beyond, a float has long passed any maximum
        return min(self.base_s * 2.0**doublings, self.max_s)


@dataclass(order=True, slots=True)
class _Delayed(Generic[K]):
    due_s: float
    key: K = field(compare=False)


@dataclass(frozen=True, slots=True)
class Lanes(Generic[K]):
    """How keys share the workers.

    Attributes:
        of: The lane of a key.
        most: Keys of one lane that may be with workers at a time.
    """

    of: Callable[[K], Hashable]
    most: int


class WorkQueue(Generic[K]):
    """Keys to be worked on, each once; see the module's promises."""

    def __init__(
        self, backoff: Backoff, observer: QueueObserver | None = None, lanes: Lanes[K] | None = None
    ) -> None:
        """Makes an empty one.

        Args:
            backoff: Delays of keys that failed.
            observer: Told of what happens.
            lanes: How keys share the workers; None: they come in the order in which they were ready.
        """
        self._backoff = backoff
        self._observer = observer
        self._lanes = lanes or Lanes(lambda _: None, sys.maxsize)
        # By lane, with the time from when on; whose turn it is comes first, full lanes stand apart.
        self._ready: OrderedDict[Hashable, deque[tuple[K, float]]] = OrderedDict()
        self._full: dict[Hashable, deque[tuple[K, float]]] = {}
        self._lane_working: Counter[Hashable] = Counter()
        self._waiting = 0
        self._added_s: dict[K, float] = {}  # keys that are ready, or come again once their worker is done
        self._working_s: dict[K, float] = {}
        self._delayed: list[_Delayed[K]] = []
        self._due_s: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._changed = anyio.Event()
        self._closed = False

    def __len__(self) -> int:
        return self._waiting

    @property
    def working(self) -> int:
        """Keys that are with a worker now."""
        return len(self._working_s)

    def work_s(self) -> tuple[float, float]:
        """Seconds that the keys now being worked on have taken: all together, and the longest."""
        now = anyio.current_time()
        ages = [now - since for since in self._working_s.values()]
        return sum(ages), max(ages, default=0.0)

    def add(self, key: K) -> None:
        """Has the key worked on as soon as a worker is free."""
        self._due_s.pop(key, None)
        if self._closed or key in self._added_s:
            return
        self._added_s[key] = anyio.current_time()
        if self._observer is not None:
            self._observer.added()
        if key not in self._working_s:
            self._push(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Has the key worked on in `delay_s` seconds, or at its earlier due time if it has one."""
        if delay_s <= 0:
            self.add(key)
            return
        due_s = anyio.current_time() + delay_s
        if self._closed or key in self._added_s or self._due_s.get(key, float("inf")) <= due_s:
            return
        self._due_s[key] = due_s
        heapq.heappush(self._delayed, _Delayed(due_s, key))
        if len(self._delayed) > 2 * len(self._due_s) + _STALE_ENTRIES:
            self._delayed = [_Delayed(due_s, key) for key, due_s in self._due_s.items()]
            heapq.heapify(self._delayed)
        self._wake()

    def retry(self, key: K) -> float:
        """Has the key worked on again after its back-off.

        Returns:
            The delay in seconds.
        """
        self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = self._backoff.delay_s(self._failures[key])
        if self._observer is not None:
            self._observer.retried()
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Lets the key's back-off start anew."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """Waits for a key that is ready and gives it to the caller, who must call `done` with it.

        Returns:
            The key, or None once the queue is closed.
        """
        while await self.ready():
            key = self.take()
            if key is not None:
                return key
        return None

    async def ready(self) -> bool:
        """Waits until a key is ready, and leaves it there; False once the queue is closed."""
        while not self._closed:
            self._promote()
            if self._ready:
                return True
            changed = self._changed
            with anyio.move_on_after(self._until_due_s()):
                await changed.wait()
        return False

    def take(self) -> K | None:
        """Gives a key that is ready to the caller, who must call `done` with it; None if there is none."""
        if self._closed or not self._ready:
            return None
        lane, line = self._ready.popitem(last=False)
        key, _ = line.popleft()
        self._waiting -= 1
        self._lane_working[lane] += 1
        self._put_in_line(lane, line)
        now = anyio.current_time()
        self._working_s[key] = now
        added_s = self._added_s.pop(key)
        if self._observer is not None:
            self._observer.depth(self._waiting)
            self._observer.waited(now - added_s)
        return key

    def ready_since_s(self) -> float | None:
        """Since when there has been a key that could be taken; None if there is none."""
        return min((line[0][1] for line in self._ready.values()), default=None)

    def done(self, key: K, *, waited_s: float = 0.0) -> None:
        """Ends the caller's work on the key; if it was added meanwhile, it is ready again.

        Args:
            key: The key.
            waited_s: For so much of the time the worker waited for somebody else.
        """
        since_s = self._working_s.pop(key)
        if self._observer is not None:
            self._observer.worked(anyio.current_time() - since_s - waited_s)
        lane = self._lanes.of(key)
        self._lane_working[lane] -= 1
        if not self._lane_working[lane]:
            del self._lane_working[lane]
        if lane in self._full:
            self._put_in_line(lane, self._full.pop(lane))
            self._wake()
        if key in self._added_s and not self._closed:
            self._push(key)

    def close(self) -> None:
        """Takes and gives no more keys; those with workers go on until `done`."""
        self._closed = True
        self._wake()

    def _push(self, key: K) -> None:
        lane = self._lanes.of(key)
        line = self._full.get(lane) or self._ready.get(lane)
        self._waiting += 1
        if line is not None:
            line.append((key, anyio.current_time()))
        else:
            self._put_in_line(lane, deque([(key, anyio.current_time())]))
        if self._observer is not None:
            self._observer.depth(self._waiting)
        self._wake()

    def _put_in_line(self, lane: Hashable, line: deque[tuple[K, float]]) -> None:
        """Has a lane wait for its turn, or until it may have one."""
        if not line:
            return
        if self._lane_working[lane] < self._lanes.most:
            self._ready[lane] = line
        else:
            self._full[lane] = line

    def _promote(self) -> None:
        """Moves what is due into the ready line."""
        now = anyio.current_time()
        while self._delayed and self._delayed[0].due_s <= now:
            delayed = heapq.heappop(self._delayed)
            # A key that was added for at once, or moved to an earlier time, left a stale entry behind.
            if self._due_s.get(delayed.key) == delayed.due_s:
                self.add(delayed.key)

    def _until_due_s(self) -> float:
        return max(0.0, self._delayed[0].due_s - anyio.current_time()) if self._delayed else float("inf")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
