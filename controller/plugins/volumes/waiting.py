"""Waiting until claims are bound, or until it is clear that they will not be.

Used by the plugin volumebinding. Chosen volumes and nodes are followed only once a wait has lasted a while,
since most are over at once. Request, pod and the node's existence are not its business: the block of the wait
ends with them. Invariant: every cause ends the wait within a second or two, not only at its time limit.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
from msgspec import Struct

from controller.kai.names import NODES, VOLUME_CLAIMS, VOLUMES, is_object_name
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext, Failed, Ready
from controller.plugins.volumes.holds import Holds
from controller.plugins.volumes.leg import Leg
from controller.plugins.volumes.model import Claim, Place, Volume
from controller.runtime import errors
from controller.runtime.changes import Judged, Target
from controller.runtime.client import Object

_GUARDED_AFTER_S = 1.0


class Changed(Struct, frozen=True):
    """What others do with a claim has changed, so that it has to be decided anew."""


Verdict = Ready | Failed | Changed
"""How a wait ended: all claims are bound, one will not be, or things are not what they were."""


class Wait:
    """One wait for claims, until all of them are bound."""

    def __init__(self, context: BindContext, legs: Sequence[Leg], place: Place, claims: Holds) -> None:
        """Makes it.

        Args:
            context: Of the attempt.
            legs: The claims that are not bound, as read or as answered to our own writes.
            place: The node.
            claims: Held by attempts of this process, by uid.
        """
        self._context = context
        self._legs = legs
        self._place = place
        self._claims = claims

    async def run(self) -> Verdict:
        """Waits, without a time limit of its own.

        Raises:
            errors.ApiError: The server does not let us follow the claims.
        """
        works: list[Callable[[], Awaitable[Verdict]]] = [self._follow_claims]
        if any(leg.volume is not None or leg.others for leg in self._legs):
            works.append(self._follow_guards)
        works += [partial(self._freed, leg) for leg in self._legs if leg.rival_is_ours]
        if len(works) == 1:
            return await self._follow_claims()
        verdicts: list[Verdict] = []
        failures: list[errors.ApiError] = []
        async with anyio.create_task_group() as tasks:

            async def wait_for(work: Callable[[], Awaitable[Verdict]]) -> None:
                try:
                    verdicts.append(await work())
                except errors.ApiError as error:
                    failures.append(error)  # raised outside, where the task group cannot wrap it
                tasks.cancel_scope.cancel()

            for work in works:
                tasks.start_soon(wait_for, work)
        if verdicts:
            return verdicts[0]
        raise failures[0]

    async def _follow_claims(self) -> Verdict:
        return await self._context.changes.until(*(self._claim_judge(leg) for leg in self._legs))

    async def _follow_guards(self) -> Verdict:
        await anyio.sleep(_GUARDED_AFTER_S)
        return await self._context.changes.until(*self._guards())

    async def _freed(self, leg: Leg) -> Verdict:
        await self._claims.freed(leg.claim.uid)
        return Changed()

    def _claim_judge(self, leg: Leg) -> Judged[Verdict]:
        def judge(found: Object | None) -> Verdict | None:
            verdict = judge_claim(leg, found, self._place.name)
            if isinstance(verdict, Ready) and not all(other.claim.bound for other in self._legs):
                return None
            return verdict

        claim = leg.claim
        return Judged(Target(VOLUME_CLAIMS, claim.short_name, claim.namespace, claim.version), judge)

    def _guards(self) -> list[Judged[Verdict]]:
        """What beside the claims the wait depends on."""
        guards = [self._volume_guard(leg, leg.volume) for leg in self._legs if leg.volume is not None]
        if guards:
            version = self._context.node["metadata"].get("resourceVersion", "")
            guards.append(Judged(Target(NODES, self._place.name, version=version), self._judge_node))
        nodes = {leg.rival for leg in self._legs if leg.rival and not leg.rival_is_ours}
        guards += [Judged(Target(NODES, name), _judge_rival) for name in sorted(nodes)]
        named = {leg.claim.volume_name: leg for leg in self._legs if leg.others and leg.claim.volume_name}
        guards += [self._named_guard(leg, name) for name, leg in named.items() if is_object_name(name)]
        return guards

    def _volume_guard(self, leg: Leg, volume: Volume) -> Judged[Verdict]:
        def judge(found: Object | None) -> Verdict | None:
            return judge_volume(leg, None if found is None else Volume.of(found), self._place)

        return Judged(Target(VOLUMES, volume.name, version=volume.version), judge)

    def _named_guard(self, leg: Leg, name: str) -> Judged[Verdict]:
        def judge(found: Object | None) -> Changed | None:
            volume = None if found is None else Volume.of(found)
            fits = volume is None or (
                self._place.reaches(volume) and (volume.claim is None or volume.tied_to(leg.claim))
            )
            return None if fits else Changed()

        return Judged(Target(VOLUMES, name), judge)

    def _judge_node(self, found: Object | None) -> Failed | None:
        if found is None:
            return None  # that ends the whole block
        self._place = Place(found, self._place.migrated)
        for leg in self._legs:
            if leg.volume is not None and not self._place.reaches(leg.volume):
                return unreachable(leg.volume, leg.claim, self._place)
        return None


def _judge_rival(found: Object | None) -> Changed | None:
    """A node that is gone gets no volume any more: the claim may be bound for another."""
    return Changed() if found is None else None


def judge_claim(leg: Leg, found: Object | None, node_name: str) -> Verdict | None:
    """Ready if the claim is bound, Failed if it will not be, None if it may become so yet."""
    claim = leg.claim
    if found is None:
        leg.lost = True
        return Failed(Reason.CLAIM_NOT_FOUND, f"claim {claim.name} was deleted while it was being bound")
    now = Claim.of(found)
    if now.uid != claim.uid:
        leg.lost = True
        text = f"claim {claim.name} was deleted and made anew while it was being bound"
        return Failed(Reason.CLAIM_REPLACED, f"{text}: its uid was {claim.uid} and is {now.uid}")
    others, names = leg.others, claim.volume_name
    leg.claim = now
    failure = unusable(now)
    if failure is not None:
        return failure
    if now.bound:
        return Ready()
    if others:
        return _judge_others(leg, names)
    if leg.volume is not None or now.selected_node == node_name:
        return None
    change = f"was changed to {now.selected_node}" if now.selected_node else "was taken off the claim"
    return Failed(
        Reason.PROVISIONING_REFUSED,
        f"provisioning refused node {node_name} for claim {claim.name} (class {claim.class_name}, "
        f"provisioner {leg.provisioner}): the node {change} again",
    )


def _judge_others(leg: Leg, names: str) -> Changed | None:
    """Whether those who have the claim bound still do; `names` is the volume that it named before."""
    now = leg.claim
    if not leg.rival:
        return Changed() if now.volume_name != names else None
    if now.selected_node == leg.rival or now.volume_name or leg.rival_is_ours:
        return None
    return Changed()


def unusable(claim: Claim) -> Failed | None:
    """Why no pod can use a claim, whether it is bound or not."""
    if claim.deleted:
        return Failed(Reason.CLAIM_TERMINATING, f"claim {claim.name} is being deleted")
    if claim.lost:
        text = f"claim {claim.name} has lost volume {claim.volume_name}, which it was bound to"
        return Failed(Reason.CLAIM_UNBOUND, text)
    return None


def judge_volume(leg: Leg, found: Volume | None, place: Place) -> Failed | None:
    """Failed if the chosen volume can no longer become the claim's."""
    claim, volume = leg.claim, leg.volume
    assert volume is not None  # noqa: S101 -- asked only for a chosen one
    text = f"volume {volume.name}, chosen for claim {claim.name} (class {claim.class_name}),"
    if found is None or found.uid != volume.uid:
        leg.lost = True
        return Failed(Reason.VOLUME_NOT_FOUND, f"{text} was deleted before it was bound")
    leg.volume = found
    if found.deleted:
        return Failed(Reason.VOLUME_NOT_FOUND, f"{text} is being deleted")
    if not found.owned_by(claim):
        return Failed(Reason.VOLUME_TAKEN, f"{text} was taken from it: its claimRef was cleared or changed")
    return None if place.reaches(found) else unreachable(found, claim, place)


def unreachable(volume: Volume, claim: Claim, place: Place) -> Failed:
    """The failure of a volume that the node may not use."""
    text = f"volume {volume.name} of claim {claim.name} (class {claim.class_name or 'none'}) cannot be used"
    return Failed(
        Reason.VOLUME_UNREACHABLE,
        f"{text} on node {place.name}: its node affinity asks for {place.demands(volume)}",
    )
