"""The claims of a pod as they are: which may be used, which are bound, and to volumes in reach of its node.

Used by volumebinding before a GPU is reserved, and by each attempt. It only reads.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from controller.kai.reasons import Reason
from controller.plugins.base import BindContext, Failed
from controller.plugins.volumes.leg import Leg
from controller.plugins.volumes.model import Claim, Place, Volume
from controller.plugins.volumes.provisioning import provisioner_of
from controller.plugins.volumes.reads import Reads
from controller.plugins.volumes.shared import in_parallel
from controller.plugins.volumes.waiting import unreachable, unusable
from controller.runtime.client import Object


class Inspection:
    """The claims of one pod, on one node.

    Attributes:
        legs: The claims by their names, in the pod's order; those that are settled are not read again.
        classes: The storage classes of those that are not bound.
        place: The node.
    """

    def __init__(self, context: BindContext, reads: Reads) -> None:
        self.legs: dict[str, Leg] = {}
        self.classes: dict[str, Object] = {}
        self.place = Place(context.node)
        self._migrations_known = False
        self._pod = context.pod
        self._namespace = context.request.namespace
        self._reads = reads

    @property
    def open(self) -> list[Leg]:
        """The claims that are not settled."""
        return [leg for leg in self.legs.values() if not leg.settled]

    async def look(self, not_before_s: float | None) -> Failed | None:
        """Reads all claims that are not settled, and what they depend on.

        Args:
            not_before_s: As for `Reads`.

        Returns:
            Why the pod cannot have them on this node.
        """
        names = dict(claim_names(self._pod))
        unknown = [name for name in names if name not in self.legs or not self.legs[name].settled]
        found = await in_parallel(
            *(partial(self._read_claim, name, names[name], not_before_s) for name in unknown)
        )
        legs = dict(self.legs)
        for name, claim in zip(unknown, found, strict=True):
            if isinstance(claim, Failed):
                return claim
            legs[name] = Leg(claim)
        self.legs = {name: legs[name] for name in names}
        failures = await in_parallel(*(partial(self._check, leg, not_before_s) for leg in self.open))
        return next((failure for failure in failures if failure is not None), None)

    async def settle(self, not_before_s: float) -> Failed | None:
        """Looks at the volumes of the claims that have been bound since they were read."""
        bound = [leg for leg in self.open if leg.claim.bound]
        failures = await in_parallel(*(partial(self._check_bound, leg, not_before_s) for leg in bound))
        return next((failure for failure in failures if failure is not None), None)

    async def know_place(self, volumes: Iterable[Volume]) -> None:
        """Finds out what has migrated on the node, if that decides about one of these volumes."""
        if not self._migrations_known and any(volume.source for volume in volumes):
            migrated = await self._reads.migrated_plugins(self.place.name)
            self.place, self._migrations_known = replace(self.place, migrated=migrated), True

    async def _read_claim(self, name: str, ephemeral: bool, not_before_s: float | None) -> Claim | Failed:
        """A claim that may be used."""
        pod = self._pod["metadata"]
        claim = await self._reads.claim(self._namespace, name, not_before_s)
        if claim is None:
            hint = ", which the ephemeral volume controller has to make" if ephemeral else ""
            text = f"claim {self._namespace}/{name}{hint} does not exist"
            return Failed(Reason.CLAIM_NOT_FOUND, text)
        if ephemeral and pod["uid"] not in claim.controllers:
            text = f"claim {claim.name} has the name of an ephemeral volume of pod {pod['name']}, but was not"
            return Failed(Reason.CLAIM_NOT_OWNED, f"{text} made for this pod (uid {pod['uid']})")
        return unusable(claim) or claim

    async def _check(self, leg: Leg, not_before_s: float | None) -> Failed | None:
        if leg.claim.bound:
            return await self._check_bound(leg, not_before_s)
        if leg.claim.problem:
            text = f"claim {leg.claim.name} is not bound, and cannot be: {leg.claim.problem}"
            return Failed(Reason.CLAIM_UNBOUND, text)
        if leg.claim.volume_name:
            return await self._check_named(leg, not_before_s)
        return await self._check_class(leg, not_before_s)

    async def _check_bound(self, leg: Leg, not_before_s: float | None) -> Failed | None:
        """Whether the volume that a claim is bound to can be used."""
        claim, chosen = leg.claim, leg.volume
        if chosen is None or chosen.name != claim.volume_name:  # one that we have chosen was judged already
            leg.volume = await self._reads.volume(claim.volume_name, not_before_s)
            if leg.volume is None:
                text = f"claim {claim.name} is bound to volume {claim.volume_name}, which does not exist"
                return Failed(Reason.VOLUME_NOT_FOUND, text)
            await self.know_place([leg.volume])
            if not self.place.reaches(leg.volume):
                return unreachable(leg.volume, claim, self.place)
        leg.settled = True
        return None

    async def _check_named(self, leg: Leg, not_before_s: float | None) -> Failed | None:
        """Whether a claim may get the volume that it names itself, once there is one."""
        claim = leg.claim
        volume = await self._reads.volume(claim.volume_name, not_before_s)
        if volume is None:
            return None
        await self.know_place([volume])
        if volume.claim is not None and not volume.tied_to(claim):
            owner = f"{volume.claim.namespace}/{volume.claim.name}"
            text = f"claim {claim.name} is not bound, and cannot be: volume {volume.name}, which it names, is"
            return Failed(Reason.CLAIM_UNBOUND, f"{text} kept for claim {owner}")
        return None if self.place.reaches(volume) else unreachable(volume, claim, self.place)

    async def _check_class(self, leg: Leg, not_before_s: float | None) -> Failed | None:
        """Whether an unbound claim is for us to have bound."""
        name, problem = leg.claim.class_name, ""
        found = await self._reads.storage_class(name, not_before_s) if name else None
        if not name:
            problem = "it has no storage class that would have it wait for a pod"
        elif found is None:
            problem = f"its class {name} does not exist"
        elif found.get("volumeBindingMode") != "WaitForFirstConsumer":
            problem = f"its class {name} does not have it wait for a pod (volumeBindingMode Immediate)"
        else:
            self.classes[name], leg.provisioner = found, provisioner_of(found)
        if not problem:
            return None
        text = f"claim {leg.claim.name} is not bound, and only the volume controller can bind it"
        return Failed(Reason.CLAIM_UNBOUND, f"{text}: {problem}")


def claim_names(pod: Object) -> Iterator[tuple[str, bool]]:
    """Names of the pod's claims, and whether each is a generic ephemeral volume's."""
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"], False
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}", True
