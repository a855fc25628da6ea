"""How many GPUs are shared, by whom and under how many limits: numbers for the metrics.

The composition root has it told of every group that the releasing queue is told of: so it knows of nothing
until this process leads, and then of all. Invariant: a group is looked at again only after something of it
has changed, by the same changes that the releasing of GPUs relies on; and only what the caches say counts.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from controller.kai.pods import is_finished
from controller.kai.reasons import LIMIT_CONDITION, Phase, Reason
from controller.kai.request import BindStatus
from controller.reservation.evidence import node_of
from controller.reservation.manifest import device_of
from controller.reservation.members import GroupCaches, Members
from controller.reservation.usage import Usage
from controller.runtime.cache import Change
from controller.runtime.client import Object

STATES = USED, EXPECTED, UNANSWERED, UNNEEDED = "used", "expected", "unanswered", "unneeded"
"""Of a reservation: pods share its GPU; a request is for it; so, too, but no device is named; neither."""

_MOST_CHANGED = 1000
"""So many groups may have changed before they are looked at, even if nobody reads the metrics."""


class Shares(Struct, frozen=True):
    """Sums over GPU groups; with shards, over the reservations on the pool's nodes and the pool's pods.

    Attributes:
        used: Reservations whose GPU pods share.
        expected: Those that a request is for, but no pod yet.
        unanswered: Of the same, those that have named no device.
        unneeded: Those that no pod and no request is for.
        shares: Pods that have a share, once for each of their GPUs.
        limited: Of these, those whose request says that a limit of memory was set.
        unreserved: Of these, those whose GPU no reservation holds.
    """

    used: int = 0
    expected: int = 0
    unanswered: int = 0
    unneeded: int = 0
    shares: int = 0
    limited: int = 0
    unreserved: int = 0

    def numbers(self) -> tuple[int, ...]:
        """All of them, in their order."""
        numbers = self.used, self.expected, self.unanswered, self.unneeded
        return *numbers, self.shares, self.limited, self.unreserved


_NOTHING = Shares()


class Ledger:
    """Keeps the numbers of each group, and their sums."""

    def __init__(self, caches: GroupCaches, members: Members, usage: Usage) -> None:
        self._caches = caches
        self._members = members
        self._usage = usage
        self._changed: set[str] = set()
        self._groups: dict[str, Shares] = {}
        self._unsure: set[str] = set()  # they may become another state's without a change that is told
        self._sums = [0] * len(_NOTHING.numbers())

    def noting(self, to_groups: Callable[[Change], Iterable[str]]) -> Callable[[Change], Iterable[str]]:
        """The same mapping of changes to groups, which has each group noted here as well."""

        def map_and_note(change: Change) -> Iterable[str]:
            groups = tuple(to_groups(change))
            if groups:
                self._changed.update(groups)
                if len(self._changed) > _MOST_CHANGED:
                    self._catch_up()
            return groups

        return map_and_note

    def sums(self) -> Shares | None:
        """The sums now; None if the caches do not show all that there is."""
        if not self._caches.complete:
            return None
        self._changed |= self._unsure
        self._catch_up()
        return Shares(*self._sums)

    def _catch_up(self) -> None:
        changed, self._changed = self._changed, set()
        for group in changed:
            before, after = self._groups.get(group, _NOTHING), self._look(group)
            if after == before:
                continue
            pairs = zip(before.numbers(), after.numbers(), strict=True)
            self._sums = [total + new - old for total, (old, new) in zip(self._sums, pairs, strict=True)]
            if after == _NOTHING:
                del self._groups[group]
            else:
                self._groups[group] = after

    def _look(self, group: str) -> Shares:
        holding = [pod for pod in self._members.reservations(group) if not is_finished(pod)]
        users = self._members.users(group)
        numbers = dict.fromkeys(STATES, 0)
        # Those on other pools' nodes hold GPUs, too, but who goes by them is known, and counted, there.
        for pod in filter(self._members.shard.shows, holding):
            numbers[self._state(group, pod, users)] += 1
        nodes = {node_of(pod) for pod in holding}
        told_by_no_change = group in self._usage.needed_live or self._usage.is_used(group)
        (self._unsure.add if told_by_no_change or numbers[UNNEEDED] else self._unsure.discard)(group)
        sharing = [user for user in users if self._members.has_share(user, group)]
        return Shares(
            **numbers,
            shares=len(sharing),
            limited=sum(map(self._is_limited, sharing)),
            unreserved=sum(node_of(user) not in nodes for user in sharing),
        )

    def _state(self, group: str, pod: Object, users: Iterable[Object]) -> str:
        node = node_of(pod)
        # A live look may have found users that no cache shows.
        if group in self._usage.needed_live or any(node_of(user) == node for user in users):
            return USED
        if not self._members.is_needed(group, (node,)) and not self._usage.is_used(group):
            return UNNEEDED
        return EXPECTED if device_of(pod) is not None else UNANSWERED

    def _is_limited(self, user: Object) -> bool:
        """Whether the request that bound a pod says that its memory is limited."""
        for request in self._members.requests_for(user):
            status = BindStatus.of(request)
            if status.phase != Phase.SUCCEEDED:
                continue
            told = [item for item in status.conditions if item.get("type") == LIMIT_CONDITION]
            if told and told[0].get("reason") == Reason.RECONCILED:
                return True
        return False
