"""Whether a pod can have a device claim, and whether its devices are prepared. Pure; used by attempt.py."""

from collections.abc import Iterable

from msgspec import Struct

from controller.kai.outcome import Failed, Ready
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.kai.selectors import node_selected
from controller.plugins.claims.model import (
    RESERVED_FOR_LIMIT,
    allocation_of,
    controller_uid,
    device_of,
    devices,
    exclusive,
    is_reserved,
    reserved_for,
    results,
    same_devices,
    users,
)
from controller.runtime import errors
from controller.runtime.client import Object


def usage_failure(claim: Object, pod: Object, *, from_template: bool) -> Failed | None:
    """Why this pod must not use this claim, whatever its devices are; None if it may.

    Only a claim that was made for a pod has to belong to it: one that a pod names may have any owner.
    """
    name, owner = full_name(claim), controller_uid(claim)
    pod_name, pod_uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    if claim["metadata"].get("deletionTimestamp"):
        return Failed(Reason.CLAIM_TERMINATING, f"claim {name} is being deleted")
    if not from_template or owner == pod_uid:
        return None
    if owner is not None:
        text = f"claim {name} was made for the pod with uid {owner}"
        return Failed(Reason.CLAIM_NOT_OWNED, f"{text}, not for pod {pod_name} with uid {pod_uid}")
    text = f"claim {name} should come from a template of pod {pod_name}, but that pod is not its owner"
    return Failed(Reason.CLAIM_NOT_OWNED, text)


def devices_failure(claim: Object, wanted: Object | None, pod: Object, node: Object) -> Failed | None:
    """Why this pod cannot have this claim with these devices on this node; None if it can.

    Args:
        claim: As the server has it.
        wanted: The allocation that the request brings for it, if any.
        pod: The pod.
        node: The node.
    """
    name, node_name, present = full_name(claim), node["metadata"]["name"], allocation_of(claim)
    if present is None and wanted is None:
        text = f"claim {name} has no devices, and the request for node {node_name} brings none for it"
        return Failed(Reason.CLAIM_UNALLOCATED, text)
    if present is not None and wanted is not None and not same_devices(present, wanted):
        text = f"claim {name} has {devices(present)} already, reserved for {users(claim)}; the request"
        text = f"{text} for node {node_name} wants {devices(wanted)}"
        return Failed(Reason.ALLOCATION_CONFLICT, text)
    allocation = present or wanted or {}
    if not node_selected(allocation.get("nodeSelector"), node):
        text = f"claim {name} has {devices(allocation)}, which cannot be used on node {node_name}"
        text = f"{text}: its node selector is {allocation['nodeSelector']}"
        return Failed(Reason.ALLOCATION_CONFLICT, text)
    if len(reserved_for(claim)) >= RESERVED_FOR_LIMIT and not is_reserved(claim, pod["metadata"]["uid"]):
        return _full(claim, RESERVED_FOR_LIMIT, node_name)
    return None


def taken_failure(claim: Object, wanted: Object, other: Object | None, node_name: str) -> Failed | None:
    """Why a claim cannot get its devices beside another claim; None if that one, if there is one, has none.

    A claim in deletion has its devices until they are taken from it.
    """
    if other is None or other["metadata"]["uid"] == claim["metadata"]["uid"]:
        return None
    given = {device_of(item) for item in exclusive(allocation_of(other) or {})}
    taken = [item for item in exclusive(wanted) if device_of(item) in given]
    if not taken:
        return None
    what = devices({"devices": {"results": taken}})
    text = f"claim {full_name(claim)} cannot get {what} on node {node_name}"
    text = f"{text}: claim {full_name(other)} has that already, reserved for {users(other)}"
    return Failed(Reason.ALLOCATION_CONFLICT, text)


def write_failure(error: errors.InvalidError, claim: Object, allocation: Object, node_name: str) -> Failed:
    """What it means that the server does not take a reservation."""
    causes = (error.body.get("details") or {}).get("causes") or ()
    # Servers before 1.32.1 or so allow 32, and some call the list too long instead of too many.
    if any(
        cause.get("reason") == "FieldValueTooMany"
        or (cause.get("reason") == "FieldValueTooLong" and cause.get("field") == "status.reservedFor")
        for cause in causes
    ):
        return _full(claim, len(reserved_for(claim)), node_name)
    # Since Kubernetes 1.36 a right is missing in these words, not as a 403.
    forbidden = any("resourceclaims/binding" in str(cause.get("message")) for cause in causes)
    text = f"claim {full_name(claim)} cannot get {devices(allocation)} on node {node_name}"
    return Failed(Reason.FORBIDDEN if forbidden else Reason.REJECTED, f"{text}: {error.message}")


def _full(claim: Object, limit: int, node_name: str) -> Failed:
    # Users come and go: the next attempt may find a place.
    text = f"claim {full_name(claim)} is reserved for {limit} pods, which is the limit: {users(claim)}"
    return Failed(Reason.CLAIM_FULL, f"{text}; it has no room for one on node {node_name}")


class Readiness(Struct, frozen=True):
    """Whether devices that need preparing before a bind are prepared.

    Attributes:
        waits_for: What is still to come, for messages; empty if nothing is.
        failure: Why it will not come; empty unless a driver said so.
    """

    waits_for: str = ""
    failure: str = ""


def readiness(claim: Object) -> Readiness:
    """Compares the binding conditions of a claim's devices with what their drivers have reported."""
    waits_for = ""
    for result in results(allocation_of(claim) or {}):
        awaited = result.get("bindingConditions") or ()
        if not awaited:
            continue
        said = _device_conditions(claim, result)
        device = f"device {result['device']} of claim {full_name(claim)}"
        for type_ in result.get("bindingFailureConditions") or ():
            condition = said.get(type_) or {}
            if condition.get("status") == "True":
                text = f"{device} cannot be used: {type_}, {condition.get('message') or 'no message'}"
                return Readiness(failure=text)
        lacking = [type_ for type_ in awaited if (said.get(type_) or {}).get("status") != "True"]
        if lacking:
            waits_for = f"{device} to be {', '.join(lacking)}"
    return Readiness(waits_for)


def _device_conditions(claim: Object, result: Object) -> dict[str, Object]:
    """What the driver has reported of one device, by the conditions' types."""
    for device in (claim.get("status") or {}).get("devices") or ():
        if all(device.get(name) == result.get(name) for name in ("driver", "pool", "device", "shareID")):
            return {item["type"]: item for item in device.get("conditions") or ()}
    return {}


def judge_devices(claims: Iterable[Object], node_name: str) -> Ready | Failed | None:
    """Ready if no device needs preparing any more, Failed if one cannot be had, None if it may come."""
    states = [readiness(claim) for claim in claims]
    for state in states:
        if state.failure:
            # The request names the device, so that another attempt would get the same one.
            return Failed(Reason.DEVICE_NOT_READY, f"{state.failure}, on node {node_name}", retry=False)
    return None if any(state.waits_for for state in states) else Ready()
