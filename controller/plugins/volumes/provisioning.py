"""Whether a provisioner may and can make a volume for a claim on a node; for volumebinding.

Reads only what the answer depends on: the driver, and its capacities if it tells of them.
"""

from controller.kai.selectors import topology_allowed
from controller.plugins.volumes.model import NO_PROVISIONER, Claim, Place
from controller.plugins.volumes.reads import Reads
from controller.runtime.client import Object


def provisioner_of(storage_class: Object) -> str:
    """Who makes the volumes of a class; empty if nobody does."""
    provisioner = str(storage_class.get("provisioner") or "")
    return "" if provisioner == NO_PROVISIONER else provisioner


async def provisioning_problem(
    reads: Reads, claim: Claim, storage_class: Object, place: Place, not_before_s: float | None
) -> str | None:
    """Why a claim cannot be given to its class's provisioner; None if it can."""
    provisioner = provisioner_of(storage_class)
    if not provisioner:
        return "its class has no provisioner"
    if not topology_allowed(storage_class, place.node):
        return f"the allowedTopologies of its class keep provisioner {provisioner} from making one there"
    if not await reads.tells_capacity(provisioner, not_before_s):
        return None
    capacities = await reads.capacities(not_before_s)
    if any(capacity.suffices(claim, place) for capacity in capacities):
        return None
    return f"driver {provisioner} has no room for {claim.size_text} there, by its CSIStorageCapacity objects"
