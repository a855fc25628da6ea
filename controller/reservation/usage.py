"""Which groups the binds of this process use, and what it knows of their reservations ahead of the caches.

Callers: the pipeline marks the groups of an attempt, `Reservations` and `GroupReconciler` read and note.
Invariants: while a bind uses a group nobody releases it; what two tasks may do to a group they do under its
lock, and nobody holds two of those at a time. No I/O.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from controller.kai.sharing import groups_of_pod
from controller.runtime.client import Object
from controller.runtime.locks import KeyedLock, Waiting

_REMEMBERED = 1000


class Usage:
    """The groups in use, their locks, and the reservation pods that count otherwise than the cache shows.

    Attributes:
        unseen: Reservation pods that binds under way have made, by group, until the cache shows them.
        relied_on: Groups whose device a bind under way goes by.
        needed_live: Groups of which a live look, but not the caches, showed that somebody needs them.
    """

    def __init__(self) -> None:
        self.unseen: dict[str, Object] = {}
        self.relied_on: set[str] = set()
        self._assured: dict[tuple[str, str], tuple[str, Object]] = {}  # by node and device
        self._assured_of: dict[str, set[tuple[str, str]]] = {}
        self.needed_live: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._look_at: dict[str, Callable[[str], None]] = {}
        self._locks: KeyedLock[str] = KeyedLock()
        self._given_up: dict[str, Object] = {}
        self._given_up_of: dict[str, set[str]] = {}  # uids by group
        self._removed: dict[str, None] = {}  # by uid, oldest first

    def is_used(self, group: str) -> bool:
        """Whether a bind is under way that needs the group."""
        return self._counts[group] > 0

    def locked(self, group: str, waiting: Waiting | None = None) -> AbstractAsyncContextManager[None]:
        """Has the group to oneself for the block, which is for a few requests, never for a wait."""
        return self._locks.hold(group, waiting)

    @contextmanager
    def of(self, groups: Iterable[str], look_at: Callable[[str], None]) -> Iterator[None]:
        """Marks groups as used for the block.

        Args:
            groups: Their names.
            look_at: Told of a group when its last use ends, or when its reservation is of no use any more.
        """
        used = tuple(groups)
        self._counts.update(used)
        self._look_at.update(dict.fromkeys(used, look_at))
        try:
            yield
        finally:
            self._counts.subtract(used)
            for group in used:
                if self._counts[group] <= 0:
                    del self._counts[group]
                    self._look_at.pop(group, None)
                    self.unseen.pop(group, None)
                    self.relied_on.discard(group)
                    for held in self._assured_of.pop(group, ()):
                        if self._assured.get(held, ("", {}))[0] == group:
                            del self._assured[held]
                    look_at(group)

    def assure(self, group: str, node_name: str, device: str, reservation: Object) -> None:
        """Has a device be this group's alone until its last use ends, or it turns out to be another's."""
        self._assured[node_name, device] = group, reservation
        self._assured_of.setdefault(group, set()).add((node_name, device))

    def assured(self, node_name: str, device: str) -> Object | None:
        """The reservation pod of the group that a bind under way has seen to have this device alone."""
        _, reservation = self._assured.get((node_name, device), ("", None))
        return reservation

    def give_up(self, reservation: Object) -> None:
        """Has a reservation pod replaced unless it turns out to have named its device after all."""
        uid = reservation["metadata"]["uid"]
        self._given_up[uid] = reservation
        for group in groups_of_pod(reservation):
            self._given_up_of.setdefault(group, set()).add(uid)
            if group in self._look_at:
                self._look_at[group](group)

    def is_given_up(self, reservation: Object) -> bool:
        """Whether it is to be replaced."""
        return reservation["metadata"]["uid"] in self._given_up

    def given_up(self, group: str) -> list[Object]:
        """The reservation pods of a group that are to be replaced."""
        return [self._given_up[uid] for uid in self._given_up_of.get(group, ())]

    def forgive(self, reservation: Object) -> None:
        """Takes `give_up` back: it has answered, or is gone."""
        known = self._given_up.pop(reservation["metadata"]["uid"], None)
        if known is None:
            return
        for group in groups_of_pod(known):
            uids = self._given_up_of[group]
            uids.discard(known["metadata"]["uid"])
            if not uids:
                del self._given_up_of[group]

    @contextmanager
    def removing(self, reservation: Object) -> Iterator[None]:
        """Nobody goes by this reservation pod from now on, though the cache may still show it alive.

        If the block raises, the pod was not removed, and counts again.
        """
        uid = reservation["metadata"]["uid"]
        self._removed[uid] = None
        try:
            yield
        except BaseException:
            self._removed.pop(uid, None)
            raise
        self.forgive(reservation)
        for group in groups_of_pod(reservation):
            made = self.unseen.get(group)
            if made is not None and made["metadata"]["uid"] == uid:
                del self.unseen[group]
        while len(self._removed) > _REMEMBERED:
            del self._removed[next(iter(self._removed))]

    def was_removed(self, reservation: Object) -> bool:
        """Whether we deleted it, or are about to."""
        return reservation["metadata"]["uid"] in self._removed
