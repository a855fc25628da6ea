"""What a device claim says, and what is to be written into it. Pure; used by the rest of this package.

The objects are those of resource.k8s.io/v1. The older versions differ, as far as they are read or written
here, only in the shape of a device request, see `device_requests`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from controller.runtime.client import Object

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim from going while somebody may use its devices."""

EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation, `true` on the claim that stands for a pod's extended resources."""

EXTENDED_STATUS = "extendedResourceClaimStatus"
"""Where a pod's status names that claim."""

FLAT_VERSIONS = ("v1beta1", "v1alpha3")
"""Versions of resource.k8s.io whose device requests are not yet `exactly` or `firstAvailable`."""

RESERVED_FOR_LIMIT = 256
"""So many pods may share a claim; the API server refuses more."""

Device = tuple[str, str, str]
"""Driver, pool and name of a device: no other one in the cluster has all three."""

_NAME_LIMIT = 253


class PodClaim(Struct, frozen=True):
    """A device claim that a pod uses.

    Attributes:
        entry: Its name in pod.spec.resourceClaims; empty for the one that stands for extended resources.
        name: Of the ResourceClaim; empty if it has not been made yet.
        from_template: Whether it is made for this pod alone.
    """

    entry: str
    name: str
    from_template: bool


def pod_claims(pod: Object) -> list[PodClaim]:
    """The device claims of pod.spec.resourceClaims, but for those that Kubernetes found not to be needed."""
    made = {
        item["name"]: item.get("resourceClaimName")
        for item in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    claims = []
    for item in pod["spec"].get("resourceClaims") or ():
        entry = item["name"]
        if item.get("resourceClaimName"):
            claims.append(PodClaim(entry, item["resourceClaimName"], from_template=False))
        elif entry not in made or made[entry]:
            claims.append(PodClaim(entry, made.get(entry) or "", from_template=True))
    return claims


def controller_uid(claim: Object) -> str | None:
    """The uid of the pod that a claim was made for; None if it belongs to no pod."""
    for owner in claim["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1":
            return str(owner["uid"])
    return None


def allocation_of(claim: Object) -> Object | None:
    """The devices that a claim has, if any."""
    allocation: Object | None = (claim.get("status") or {}).get("allocation")
    return allocation


def reserved_for(claim: Object) -> list[Object]:
    """Who may use a claim."""
    return list((claim.get("status") or {}).get("reservedFor") or ())


def is_reserved(claim: Object, uid: str) -> bool:
    """Whether the claim is reserved for the pod with this uid."""
    return any(item.get("uid") == uid for item in reserved_for(claim))


def with_pod(reserved: Sequence[Object], pod: Object) -> list[Object]:
    """The list with the pod in it, once; fields as kube-scheduler writes them."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    if any(item.get("uid") == uid for item in reserved):
        return list(reserved)
    return [*reserved, {"resource": "pods", "name": name, "uid": uid}]


def without_pod(reserved: Iterable[Object], uid: str) -> list[Object]:
    """The list without the pod."""
    return [item for item in reserved if item.get("uid") != uid]


def results(allocation: Object) -> list[Object]:
    """The devices of an allocation, each with the request that it satisfies."""
    return list((allocation.get("devices") or {}).get("results") or ())


def device_of(result: Object) -> Device:
    """Which device one of an allocation's results is about."""
    return str(result.get("driver")), str(result.get("pool")), str(result.get("device"))


def exclusive(allocation: Object) -> list[Object]:
    """Those results of an allocation whose devices no other allocation may have.

    Who has administrator's access only looks, and a result with a shareID has one of several parts of a
    device. How much is left of such a device, or of counters that devices share (partitionable devices), is
    for the scheduler to know.
    """
    return [item for item in results(allocation) if not item.get("adminAccess") and not item.get("shareID")]


def same_devices(one: Object, other: Object) -> bool:
    """Whether two allocations give the same devices to the same requests.

    The rest is not compared: the server drops fields of features that are off, adds defaults and times, and
    whether the node is right is asked apart.
    """
    return _identities(one) == _identities(other)


def _identities(allocation: Object) -> list[tuple[str, ...]]:
    names = ("request", "driver", "pool", "device", "shareID")
    return sorted(tuple(str(item.get(name) or "") for name in names) for item in results(allocation))


def devices(allocation: Object) -> str:
    """The devices, for messages."""
    texts = [f"{item['device']} of {item['driver']} (pool {item['pool']})" for item in results(allocation)]
    return ", ".join(texts) or "no device"


def users(claim: Object) -> str:
    """Who a claim is reserved for, for messages."""
    names = [str(item.get("name")) for item in reserved_for(claim)]
    if not names:
        return "nobody"
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def device_requests(requests: Iterable[Object], version: str) -> list[Object]:
    """Device requests of v1 in the shape of another version: older ones have no `exactly` around fields."""
    if version not in FLAT_VERSIONS:
        return list(requests)
    flat = []
    for request in requests:
        rest = {name: value for name, value in request.items() if name != "exactly"}
        flat.append({**rest, **(request.get("exactly") or {})})
    return flat


def covers(present: Any, wanted: Any) -> bool:  # noqa: ANN401 -- any JSON
    """Whether `present` says all that `wanted` says; the server adds defaults to what was written."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(
            covers(present.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(present, list) and len(present) == len(wanted) and all(map(covers, present, wanted))
    return bool(present == wanted)


def extended_claim_name(pod: Object) -> str:
    """The name of the claim for a pod's extended resources: no other pod's, and always the same."""
    return _after_pod(pod, f"-extended-resources-{pod['metadata']['uid']}")


def _after_pod(pod: Object, rest: str) -> str:
    """A pod's name, as much as a legal name has room for, and the rest."""
    name: str = pod["metadata"]["name"]
    return name[: _NAME_LIMIT - len(rest)].rstrip("-.") + rest


def extended_claim(pod: Object, requests: Sequence[Object], version: str, *, named: bool = True) -> Object:
    """The claim to be made for a pod's extended resources (B-65).

    Args:
        pod: The pod.
        requests: Its device requests, in the shape of v1.
        version: Of the API that the server has.
        named: Whether it gets the name that follows from the pod; else the server makes one up.
    """
    metadata = pod["metadata"]
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {
            **({"name": extended_claim_name(pod)} if named else {}),
            "generateName": _after_pod(pod, "-extended-resources-"),
            "namespace": metadata["namespace"],
            "annotations": {EXTENDED: "true"},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": device_requests(requests, version)}},
    }


def is_extended_claim_of(claim: Object, pod_uid: str) -> bool:
    """Whether a claim stands for the extended resources of this very pod."""
    annotations = claim["metadata"].get("annotations") or {}
    return annotations.get(EXTENDED) == "true" and controller_uid(claim) == pod_uid
