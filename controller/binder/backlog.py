"""The requests that are still to be bound, and for how long each has been there.

The composition root has it told of every change that the queue is told of: so it knows of nothing until this
process leads, and then of all. The teller asks for ages, `census` for numbers. Invariant: what is kept is as
large as what is still to be bound, however many requests there are.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from time import monotonic

from msgspec import Struct

from controller.kai.reasons import Phase
from controller.kai.request import is_over
from controller.runtime.cache import Change, Key, key_of
from controller.runtime.client import Object

_RESOLUTION_S = 1.0
"""Of creationTimestamp, which is cut to whole seconds."""


class _Entry(Struct, frozen=True):
    seen_s: float
    has_failed: bool


class Backlog:
    """Requests that are neither bound nor failed for good."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Begins empty.

        Args:
            clock: Seconds that only go forward.
            now: The time as creationTimestamps have it.
        """
        self._clock = clock
        self._now = now
        self._entries: dict[Key, _Entry] = {}
        self._failed = 0

    def noting(self, to_keys: Callable[[Change], Iterable[Key]]) -> Callable[[Change], Iterable[Key]]:
        """The same mapping of changes to keys, which has each change noted here as well."""

        def note_and_map(change: Change) -> Iterable[Key]:
            self.note(change)
            return to_keys(change)

        return note_and_map

    def note(self, change: Change) -> None:
        """Takes in what became of a request."""
        key, item = key_of(change.object), change.new
        entry = self._entries.get(key)
        if item is None or self._is_over(item):
            if entry is not None:
                del self._entries[key]
                self._failed -= entry.has_failed
            return
        has_failed = _phase_of(item) == Phase.FAILED
        if entry is None or entry.has_failed != has_failed:
            self._entries[key] = _Entry(self._clock() if entry is None else entry.seen_s, has_failed)
            self._failed += has_failed - (entry.has_failed if entry is not None else 0)

    @staticmethod
    def _is_over(item: Object) -> bool:
        """As `is_over`; a request is parsed only where its phase leaves the question open."""
        phase = _phase_of(item)
        if phase == Phase.FAILED:
            return is_over(item)
        return phase == Phase.SUCCEEDED or bool(item["metadata"].get("deletionTimestamp"))

    def count(self) -> tuple[int, int]:
        """How many have not been refused so far, and of how many an attempt has failed."""
        return len(self._entries) - self._failed, self._failed

    def age_s(self, item: Object) -> float:
        """Seconds since a request was made, to the millisecond for one that was made while we looked.

        One that was there before is dated by its creationTimestamp; its age is at most a second more.
        """
        entry = self._entries.get(key_of(item))
        seen_s = self._clock() - entry.seen_s if entry is not None else 0.0
        created = item["metadata"].get("creationTimestamp")
        created_s = (self._now() - datetime.fromisoformat(created)).total_seconds() if created else 0.0
        return max(seen_s, created_s - _RESOLUTION_S, 0.0)


def _phase_of(item: Object) -> object:
    status = item.get("status")
    return status.get("phase") if isinstance(status, dict) else None
