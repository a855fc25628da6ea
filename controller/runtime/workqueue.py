"""The queue between watches and workers; it knows only hashable keys.

Four promises: a key that is added many times is worked on once; a key is never with two workers at a time,
and what is added meanwhile is worked on afterwards; a delayed key waits its time, unless it is added for at
once, which takes the place of the delay; and none is held back by others: keys of different lanes take
turns, no lane has more than its share with workers, those that wait included, and delayed keys whose time
has come go after those that were added for at once, but each in the end.
"""

import heapq
import sys
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import anyio
from msgspec import Struct

from controller.runtime.lanes import Lanes, Line

K = TypeVar("K", bound=Hashable)

_OVERDUE_S = 1.0
"""So long a delayed key whose time has come lets others go first, and leaves room for those to come."""

_TURNS = 4
"""From then on it is the turn of one such key after so many others."""

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


class Backoff(Struct, frozen=True):
    """Delays that double from `base_s` with each failure, up to `max_s`."""

    base_s: float = 1.0
    max_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        doublings = min(failures - 1, 62)  # beyond, a float has long passed any maximum
        return min(self.base_s * 2.0**doublings, self.max_s)


class _Delayed(Struct, Generic[K], eq=False):
    due_s: float
    key: K

    def __lt__(self, other: "_Delayed[K]") -> bool:
        return self.due_s < other.due_s


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
        self._ready = Line(self._lanes)
        self._late = Line(self._lanes)  # keys that were delayed
        self._passed = 0  # so many keys have gone before the first of these
        self._added_s: dict[K, float] = {}  # keys that are ready, or come again once their worker is done
        self._working_s: dict[K, float] = {}
        self._delayed: list[_Delayed[K]] = []
        self._due_s: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._changed = anyio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready) + len(self._late)

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
        self._add(key, self._ready)

    def _add(self, key: K, line: Line[K]) -> None:
        self._due_s.pop(key, None)
        if self._closed or key in self._added_s:
            return
        self._added_s[key] = anyio.current_time()
        if self._observer is not None:
            self._observer.added()
        if key not in self._working_s:
            self._push(key, line)

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

    async def ready(self, has_room: Callable[[], bool] = lambda: True) -> bool:
        """Waits until a key is ready, and leaves it there; False once the queue is closed.

        Args:
            has_room: Whether a key that was delayed may be taken now; `look_again` has it asked anew.
        """
        while not self._closed:
            self._promote()
            overdue_s = self._until_overdue_s()
            if self._ready.can_give or (self._late.can_give and (overdue_s <= 0 or has_room())):
                return True
            changed = self._changed
            with anyio.move_on_after(min(self._until_due_s(), overdue_s)):
                await changed.wait()
        return False

    def look_again(self) -> None:
        """There may be room now for keys that were delayed."""
        if self._late.can_give:
            self._wake()

    def take(self, *, has_room: bool = True) -> K | None:
        """Gives a key that is ready to the caller, who must call `done` with it; None if there is none.

        `has_room` as in `ready`.
        """
        line = self._next_line(has_room=has_room)
        if self._closed or line is None:
            return None
        key = line.pop()
        self._settle(self._lanes.begin(key))
        self._passed = 0 if line is self._late else self._passed + 1
        now = anyio.current_time()
        self._working_s[key] = now
        added_s = self._added_s.pop(key)
        if self._observer is not None:
            self._observer.depth(len(self))
            self._observer.waited(now - added_s)
        return key

    def _next_line(self, *, has_room: bool) -> Line[K] | None:
        """From which line the next key comes."""
        is_overdue = self._until_overdue_s() <= 0
        if self._ready.can_give and not (is_overdue and self._passed >= _TURNS):
            return self._ready
        return self._late if self._late.can_give and (has_room or is_overdue) else None

    def ready_since_s(self) -> float | None:
        """Since when there has been a key that could be taken; None if there is none."""
        since_s = min(self._ready.since_s(), self._late.since_s())
        return None if since_s == float("inf") else since_s

    def done(self, key: K, *, waited_s: float = 0.0) -> None:
        """Ends the caller's work on the key; if it was added meanwhile, it is ready again.

        Args:
            key: The key.
            waited_s: For so much of the time the worker waited for somebody else.
        """
        since_s = self._working_s.pop(key)
        if self._observer is not None:
            self._observer.worked(anyio.current_time() - since_s - waited_s)
        self._settle(self._lanes.end(key))
        if key in self._added_s and not self._closed:
            self._push(key, self._ready)

    def close(self) -> None:
        """Takes and gives no more keys; those with workers go on until `done`."""
        self._closed = True
        self._wake()

    def _push(self, key: K, line: Line[K]) -> None:
        line.append(key, anyio.current_time())
        if self._observer is not None:
            self._observer.depth(len(self))
        self._wake()

    def _settle(self, lane: Hashable) -> None:
        """Has a lane take turns again, or no more, in both lines."""
        settled = self._ready.settle(lane), self._late.settle(lane)
        if any(settled):
            self._wake()

    def _promote(self) -> None:
        """Moves what is due into the ready line."""
        now = anyio.current_time()
        while self._delayed and self._delayed[0].due_s <= now:
            delayed = heapq.heappop(self._delayed)
            # A key that was added for at once, or moved to an earlier time, left a stale entry behind.
            if self._due_s.get(delayed.key) == delayed.due_s:
                self._add(delayed.key, self._late)

    def _until_due_s(self) -> float:
        return max(0.0, self._delayed[0].due_s - anyio.current_time()) if self._delayed else float("inf")

    def _until_overdue_s(self) -> float:
        """Seconds until the next key that was delayed lets no more others go first."""
        return self._late.next_since_s() + _OVERDUE_S - anyio.current_time()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
