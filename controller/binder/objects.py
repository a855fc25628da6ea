"""What of pods, nodes and requests is kept in memory: only what somebody reads, and so much of each at most.

The caches call these for each object that they store. Pods are written by tenants, who may put 256 KiB of
annotations into each, and as much again into labels, volumes or variables. Invariant: what is kept of a pod
has a bound; one that needs more is *cut*, says so, and is read live before it is bound.
"""

from collections.abc import Mapping

import orjson

from controller.kai.fractions import asks_for_share, is_of_share
from controller.kai.limiter import READ_VALUES
from controller.kai.names import (
    CONFIG_MAP_PREFIX,
    CONTAINER_NAME,
    DEVICE_COUNT,
    GPU_FRACTION,
    GPU_FRACTION_LIMIT,
    GPU_INDEX,
    GPU_MEMORY,
    GPU_MEMORY_LIMIT,
    GPU_RESOURCE,
    NUMA_MEMORY_GROUPS,
    NUMA_PLACEMENT,
    POD_BOUND,
    RECEIVED_RESOURCE_TYPE,
)
from controller.kai.pods import CUT
from controller.kai.reasons import LIMIT_CONDITION, ConditionType, Phase, Reason
from controller.kai.request import MOST_GROUPS, bound_its_pod, owners_of
from controller.kai.sharing import is_group, is_group_label
from controller.runtime.client import Object

READ_ANNOTATIONS = frozenset(
    {
        CONFIG_MAP_PREFIX,
        CONTAINER_NAME,
        DEVICE_COUNT,
        GPU_FRACTION,
        GPU_FRACTION_LIMIT,
        GPU_INDEX,
        GPU_MEMORY,
        GPU_MEMORY_LIMIT,
        NUMA_MEMORY_GROUPS,
        NUMA_PLACEMENT,
        RECEIVED_RESOURCE_TYPE,
    }
)
"""Those of pods that the binder and its built-in plugins read, beside those of containers' shares."""

LARGE_ANNOTATIONS_BYTES = 128 * 1024
"""A pod with more is cut, so that it is known of each that is not that as much again has room."""

_BUDGET_BYTES = 8 * 1024
"""As JSON. A pod that shares a GPU, with 30 variables from ConfigMaps, takes half of it."""
_REQUEST_BUDGET_BYTES = 16 * 1024
"""The same of a request, without its status. One with the devices of some claims takes a third of it."""
_CUT_VALUE = 1024
"""Characters; more than any legal value of the annotations has, so that none becomes legal by the cut."""
_CUT_ITEMS = 64

_POD_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "labels"),
    *("creationTimestamp", "deletionTimestamp"),
)
_POD_SPEC = ("nodeName", "schedulingGates", "resourceClaims")
_SHARING = (CONFIG_MAP_PREFIX, GPU_FRACTION, GPU_MEMORY)
_POD_STATUS = ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")
_BOUND = {"type": ConditionType.BOUND, "status": "True", "reason": Reason.RECONCILED}
_FOUND_BOUND = {**_BOUND, "reason": Reason.ALREADY_BOUND}
"""Of requests that have succeeded; nobody changes what is in a cache."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_READ_CHARACTERS = 100


def is_cut(item: Object) -> bool:
    """Whether a pod or request from a cache lacks something needed to bind: it has to be read live."""
    return CUT in item


def trim_pod(pod: Object, *, all_annotations: bool = False) -> Object:
    """A pod without containers, their statuses and the volumes that are no claims: most of its bytes.

    Of a pod that shares a GPU the containers are kept, but of their environment only where it comes from.

    Args:
        pod: As the server sent it, or as trimmed before.
        all_annotations: For plugins from outside, of which nobody knows what they read.
    """
    if is_cut(pod):
        return pod
    spec, status = pod["spec"], pod.get("status") or {}
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    kept_spec = {name: spec[name] for name in _POD_SPEC if name in spec}
    if "volumes" in spec:
        kept_spec["volumes"] = [claim for item in spec["volumes"] for claim in _trim_volume(item)]
    if asks_for_share(annotations) or any(name in annotations for name in _SHARING):
        for name in ("initContainers", "containers"):
            kept_spec[name] = [_trim_container(item) for item in spec.get(name) or ()]
        kept_spec["tolerations"] = spec.get("tolerations") or []
    kept_status = {name: status[name] for name in _POD_STATUS if name in status}
    if "conditions" in status:
        kept_status["conditions"] = [item for item in status["conditions"] or () if item["type"] == POD_BOUND]
    kept: Object = {"metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}
    if annotations:
        kept["metadata"]["annotations"] = {
            name: value
            for name, value in annotations.items()
            if is_read(name) or (all_annotations and name != _LAST_APPLIED)
        }
    too_large = len(orjson.dumps(kept)) > _BUDGET_BYTES
    return _cut(kept) if too_large or size_of(annotations) > LARGE_ANNOTATIONS_BYTES else kept


def is_read(name: str) -> bool:
    """Whether an annotation of a pod is read by anything built in."""
    return name in READ_ANNOTATIONS or is_of_share(name)


def size_of(annotations: Mapping[str, str]) -> int:
    """Bytes of annotations, as the server counts them."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in annotations.items())


def trim_reservation(pod: Object) -> Object:
    """A reservation pod: which GPU it holds, where, and how it fares."""
    metadata, status = _metadata(pod), pod.get("status") or {}
    metadata["creationTimestamp"] = pod["metadata"].get("creationTimestamp", "")
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    metadata["annotations"] = {name: text for name, text in annotations.items() if is_read(name)}
    kept_status = {name: status[name] for name in ("phase", "reason", "message") if name in status}
    return {"metadata": metadata, "spec": {"nodeName": pod["spec"].get("nodeName")}, "status": kept_status}


def trim_node(node: Object) -> Object:
    """A node's name, labels and number of GPUs; its addresses, images and heartbeats are others' business."""
    gpus = ((node.get("status") or {}).get("capacity") or {}).get(GPU_RESOURCE)
    kept: Object = {"metadata": _metadata(node)}
    if gpus is not None:
        kept["status"] = {"capacity": {GPU_RESOURCE: gpus}}
    return kept


def trim_request(request: Object) -> Object:
    """A request without annotations and the bookkeeping of who wrote what.

    Of one that is too large only that is kept by which others judge it: for which pod, node and groups it is,
    and how it stands.
    One that has succeeded stays for as long as its pod, and its conditions, most of its bytes, are for
    people, who read them live; only whether memory is limited is counted, and whether it bound its pod or
    found it bound. Should anything be written to it all the same, the patch does not fit at first, and it is
    read again.
    """
    if is_cut(request):
        return request
    for name in ("managedFields", "annotations"):
        request["metadata"].pop(name, None)
    if _is_large(request):
        return _cut_request(request)
    status = request.get("status")
    if isinstance(status, dict) and status.get("phase") == Phase.SUCCEEDED:
        status["conditions"] = [*_limit_of(status.get("conditions")), *_end_of(status.get("conditions"))]
    return request


def _limit_of(conditions: object) -> list[Object]:
    """The first condition that says whether memory is limited, without its message; they may be anything."""
    for item in conditions if isinstance(conditions, list) else ():
        if isinstance(item, dict) and item.get("type") == LIMIT_CONDITION:
            told = {name: item.get(name) for name in ("type", "status", "reason")}
            return [{name: text[:_CUT_VALUE] for name, text in told.items() if isinstance(text, str)}]
    return []


def _end_of(conditions: object) -> list[Object]:
    """Whether it bound its pod, as one of two conditions that all share."""
    bound = bound_its_pod(conditions)
    return [] if bound is None else [_BOUND if bound else _FOUND_BOUND]


def _metadata(item: Object) -> Object:
    return {name: item["metadata"][name] for name in _POD_METADATA if name in item["metadata"]}


def _trim_volume(volume: Object) -> tuple[Object, ...]:
    """The volume if it is a claim; of the claim that is to be made for it, only that it is."""
    if "persistentVolumeClaim" in volume:
        return ({name: volume[name] for name in ("name", "persistentVolumeClaim")},)
    return ({"name": volume["name"], "ephemeral": {}},) if "ephemeral" in volume else ()


def _trim_container(container: Object) -> Object:
    environment = []
    for item in container.get("env") or ():
        entry = {name: item[name] for name in ("name", "valueFrom") if name in item}
        if "value" in item and item["name"] in READ_VALUES:
            entry["value"] = item["value"][:_READ_CHARACTERS]
        environment.append(entry)
    kept = {"name": container["name"], "env": environment, "envFrom": container.get("envFrom") or []}
    return kept | ({"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {})


def _is_large(request: Object) -> bool:
    try:
        size = len(orjson.dumps([request["metadata"], request.get("spec")]))
    except TypeError:  # it is nested more deeply than what is written may be
        return True
    return size > _REQUEST_BUDGET_BYTES


def _cut_request(request: Object) -> Object:
    metadata, spec = dict(request["metadata"]), request.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    if not isinstance(spec.get("podName"), str) or len(spec["podName"]) > _CUT_VALUE:
        spec = {**spec, "podName": ""}
    owners = metadata.get("ownerReferences") or []
    for name in ("labels", "finalizers"):
        metadata.pop(name, None)
    metadata["ownerReferences"] = owners_of(owners, spec["podName"])[:1]
    kept = {name: spec[name] for name in ("podName", "backoffLimit") if name in spec}
    for name in ("selectedNode", "receivedResourceType"):
        if isinstance(spec.get(name), str):
            kept[name] = spec[name][:_CUT_VALUE]
    for name in ("selectedGPUGroups", "selectedFractionalGpuGroups"):
        if isinstance(spec.get(name), list) and len(spec[name]) <= MOST_GROUPS:
            kept[name] = [group for group in map(_cut_group, spec[name]) if group is not None]
    return {**request, "metadata": metadata, "spec": kept, CUT: True}


def _cut_group(group: object) -> object:
    """A group as either field names it; None if no label can have its name."""
    name = group.get("id") if isinstance(group, dict) else group
    if not isinstance(name, str) or not is_group(name):
        return None
    return {"id": name} if isinstance(group, dict) else name


def _cut(pod: Object) -> Object:
    """Of a pod that is too large, what says which one it is, how it fares, and which GPUs it shares."""
    metadata = dict(pod["metadata"])
    labels: Mapping[str, str] = metadata.get("labels") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    metadata["labels"] = dict([item for item in labels.items() if is_group_label(item[0])][:_CUT_ITEMS])
    metadata["annotations"] = {
        name: value[:_CUT_VALUE] for name, value in annotations.items() if name in READ_ANNOTATIONS
    }
    spec = {name: pod["spec"][name] for name in ("nodeName",) if name in pod["spec"]}
    spec["schedulingGates"] = (pod["spec"].get("schedulingGates") or [])[:_CUT_ITEMS]
    status = {name: pod["status"][name] for name in ("phase", "conditions") if name in pod["status"]}
    return {"metadata": metadata, "spec": spec, "status": status, CUT: True}
