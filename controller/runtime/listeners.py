"""Changes of objects, and those who want to hear of a single one; used by `cache.py`."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from controller.runtime.client import Object
from controller.runtime.store import Key


class Change(Struct, frozen=True):
    """What happened to an object; `old` is None for a new one, `new` is None for a deleted one."""

    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """The object as last seen."""
        seen = self.new if self.new is not None else self.old
        assert seen is not None  # noqa: S101 -- one of the two is always given
        return seen


Listener = Callable[[Change | None], None]
"""Told of each change of one object; None has it look again at what the cache says of itself."""


class Listeners:
    """Listeners by object, and the versions that some of them wait for."""

    def __init__(self) -> None:
        self._of: defaultdict[Key, list[Listener]] = defaultdict(list)
        self._behind: dict[Listener, int] = {}

    @contextmanager
    def place(self, key: Key, listener: Listener, version: int) -> Iterator[None]:
        """Has a listener told of an object for the block, and once when a version, if any, is reached."""
        self._of[key].append(listener)
        if version:
            self._behind[listener] = version
        try:
            yield
        finally:
            self._behind.pop(listener, None)
            self._of[key].remove(listener)
            if not self._of[key]:
                del self._of[key]

    def tell(self, key: Key, change: Change | None) -> None:
        """Tells those who listen to an object."""
        for listener in tuple(self._of.get(key, ())):
            listener(change)

    def reached(self, version: int) -> None:
        """Tells those who wait for a version that is reached."""
        for listener in [listener for listener, wanted in self._behind.items() if wanted <= version]:
            del self._behind[listener]
            listener(None)

    def look_again(self) -> None:
        """Tells all that what they know may not hold any more."""
        for listeners in list(self._of.values()):
            for listener in tuple(listeners):
                listener(None)
