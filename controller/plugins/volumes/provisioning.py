"""Whether a provisioner may and can make a volume for a claim on a node; for volumebinding.

Reads only what the answer depends on: the driver, and its capacities if it tells of them.
"""

from controller.kai.names import CSI_CAPACITIES, CSI_DRIVERS
from controller.kai.selectors import topology_allowed
from controller.plugins.volumes.matching import NO_PROVISIONER, Claim, capacity_suffices
from controller.runtime import errors
from controller.runtime.client import Client, Object


async def why_not_provisioned(
    client: Client, claim: Claim, storage_class: Object, node: Object
) -> str | None:
    """Why a claim cannot be given to its class's provisioner; None if it can."""
    provisioner = storage_class["provisioner"]
    if provisioner == NO_PROVISIONER:
        return "its class has no provisioner"
    if not topology_allowed(storage_class, node):
        return f"the allowedTopologies of its class keep provisioner {provisioner} from making one there"
    if not await _has_room(client, claim, provisioner, node):
        size = claim.item["spec"]["resources"]["requests"]["storage"]
        return f"driver {provisioner} has no room for {size} there, by its CSIStorageCapacity objects"
    return None


async def _has_room(client: Client, claim: Claim, provisioner: str, node: Object) -> bool:
    """Whether the driver, if it tells of its capacities, has enough within the node's reach."""
    try:
        driver = await client.get(CSI_DRIVERS, provisioner)
    except errors.NotFoundError:
        return True
    if not driver["spec"].get("storageCapacity"):
        return True
    capacities = await client.list_all(CSI_CAPACITIES)
    return any(capacity_suffices(capacity, claim, node) for capacity in capacities.items)
