"""Lines of keys that are ready, in lanes that take turns; `WorkQueue` has two of them.

A lane is whatever keys have in common that must not hold up others, such as a namespace. Invariant: a lane
stands either among those that take turns or, while as many of its keys as may be are with workers, apart;
giving a key costs the same however many lanes and keys there are.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from msgspec import Struct, field

K = TypeVar("K", bound=Hashable)


class Lanes(Struct, Generic[K], frozen=True):
    """How keys share the workers.

    Attributes:
        of: The lane of a key.
        most: Keys of one lane that may be with workers at a time.
        working: How many keys of each lane are; lanes without any are not there.
    """

    of: Callable[[K], Hashable]
    most: int
    working: Counter[Hashable] = field(default_factory=Counter)

    def is_full(self, lane: Hashable) -> bool:
        """Whether no further key of the lane may be given to a worker."""
        return self.working[lane] >= self.most

    def begin(self, key: K) -> Hashable:
        """Notes that a worker has the key; gives its lane."""
        lane = self.of(key)
        self.working[lane] += 1
        return lane

    def end(self, key: K) -> Hashable:
        """Notes that no worker has the key any more; gives its lane."""
        lane = self.of(key)
        self.working[lane] -= 1
        if not self.working[lane]:
            del self.working[lane]
        return lane


class Line(Generic[K]):
    """Keys that are ready, each with the time from when on."""

    def __init__(self, lanes: Lanes[K]) -> None:
        self._lanes = lanes
        self._turns: OrderedDict[Hashable, deque[tuple[K, float]]] = OrderedDict()  # whose turn it is first
        self._full: dict[Hashable, deque[tuple[K, float]]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """All keys, those of full lanes included."""
        return self._waiting

    @property
    def can_give(self) -> bool:
        """Whether there is a key of a lane that is not full."""
        return bool(self._turns)

    def append(self, key: K, now_s: float) -> None:
        """Takes a key in, as the last one of its lane."""
        lane = self._lanes.of(key)
        self._waiting += 1
        keys = self._full.get(lane) or self._turns.get(lane)
        if keys is not None:
            keys.append((key, now_s))
        else:
            self._put(lane, deque([(key, now_s)]))

    def pop(self) -> K:
        """Gives the first key of the lane whose turn it is, which goes behind the others; see `can_give`.

        The caller then has the lane settled in each line, since it may be full now.
        """
        lane, keys = self._turns.popitem(last=False)
        key, _ = keys.popleft()
        self._waiting -= 1
        if keys:
            self._turns[lane] = keys
        return key

    def settle(self, lane: Hashable) -> bool:
        """Has a lane take turns, or stand apart, as it is full or not; whether it takes turns anew."""
        if self._lanes.is_full(lane):
            if lane in self._turns:
                self._full[lane] = self._turns.pop(lane)
            return False
        keys = self._full.pop(lane, None)
        if keys is not None:
            self._turns[lane] = keys
        return keys is not None

    def next_since_s(self) -> float:
        """Since when the key that would be given next has been ready; infinity if there is none."""
        for keys in self._turns.values():
            return keys[0][1]
        return float("inf")

    def since_s(self) -> float:
        """Since when there has been a key that could be given; infinity if there is none."""
        return min((keys[0][1] for keys in self._turns.values()), default=float("inf"))

    def _put(self, lane: Hashable, keys: deque[tuple[K, float]]) -> None:
        (self._full if self._lanes.is_full(lane) else self._turns)[lane] = keys
