"""What of pods, nodes and requests is kept in memory: only what somebody reads."""

from controller.kai.names import CONFIG_MAP_PREFIX, GPU_FRACTION, GPU_MEMORY
from controller.runtime.client import Object

_POD_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")
_POD_SPEC = ("nodeName", "schedulingGates", "volumes", "resourceClaims")
_SHARING = (CONFIG_MAP_PREFIX, GPU_FRACTION, GPU_MEMORY)
_POD_STATUS = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus")
_CLAIM_SOURCES = frozenset({"persistentVolumeClaim", "ephemeral"})
_UNREAD_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})


def trim_pod(pod: Object) -> Object:
    """A pod without containers, their statuses and the volumes that are no claims: most of its bytes.

    Of a pod that shares a GPU the containers are kept, but of their environment only where it comes from.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    kept_spec = {name: spec[name] for name in _POD_SPEC if name in spec}
    if "volumes" in kept_spec:
        kept_spec["volumes"] = [item for item in kept_spec["volumes"] if not _CLAIM_SOURCES.isdisjoint(item)]
    if any(name in (pod["metadata"].get("annotations") or {}) for name in _SHARING):
        for name in ("initContainers", "containers"):
            kept_spec[name] = [_trim_container(item) for item in spec.get(name) or ()]
        kept_spec["tolerations"] = spec.get("tolerations") or []
    kept_status = {name: status[name] for name in _POD_STATUS if name in status}
    return {"metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}


def trim_reservation(pod: Object) -> Object:
    """A reservation pod: which GPU it holds, where, and how it fares."""
    metadata, status = _metadata(pod), pod.get("status") or {}
    metadata["creationTimestamp"] = pod["metadata"].get("creationTimestamp", "")
    kept_status = {name: status[name] for name in ("phase", "reason", "message") if name in status}
    return {"metadata": metadata, "spec": {"nodeName": pod["spec"].get("nodeName")}, "status": kept_status}


def trim_node(node: Object) -> Object:
    """A node's name and labels; its addresses, images and heartbeats are others' business."""
    metadata = _metadata(node)
    metadata.pop("annotations", None)
    return {"metadata": metadata}


def trim_request(request: Object) -> Object:
    """A request without the bookkeeping of who wrote what."""
    request["metadata"].pop("managedFields", None)
    return request


def _trim_container(container: Object) -> Object:
    environment = [
        {name: item[name] for name in ("name", "valueFrom") if name in item}
        for item in container.get("env") or ()
    ]
    return {"name": container["name"], "env": environment, "envFrom": container.get("envFrom") or []}


def _metadata(item: Object) -> Object:
    metadata = {name: item["metadata"][name] for name in _POD_METADATA if name in item["metadata"]}
    annotations = metadata.get("annotations")
    if annotations:
        metadata["annotations"] = {
            name: value for name, value in annotations.items() if name not in _UNREAD_ANNOTATIONS
        }
    return metadata
