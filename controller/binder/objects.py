"""What of pods, nodes and requests is kept in memory: only what somebody reads."""

from controller.runtime.client import Object

_POD_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")
_POD_SPEC = ("nodeName", "schedulingGates", "volumes", "resourceClaims")
_CLAIM_SOURCES = frozenset({"persistentVolumeClaim", "ephemeral"})
_UNREAD_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})


def trim_pod(pod: Object) -> Object:
    """A pod without containers, statuses and the volumes that are no claims: most of its bytes."""
    spec, status = pod["spec"], pod.get("status") or {}
    kept_spec = {name: spec[name] for name in _POD_SPEC if name in spec}
    if "volumes" in kept_spec:
        kept_spec["volumes"] = [item for item in kept_spec["volumes"] if not _CLAIM_SOURCES.isdisjoint(item)]
    kept_status = {name: status[name] for name in ("phase", "conditions") if name in status}
    return {"metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}


def trim_node(node: Object) -> Object:
    """A node's name and labels; its addresses, images and heartbeats are others' business."""
    return {"metadata": _metadata(node)}


def trim_request(request: Object) -> Object:
    """A request without the bookkeeping of who wrote what."""
    request["metadata"].pop("managedFields", None)
    return request


def _metadata(item: Object) -> Object:
    metadata = {name: item["metadata"][name] for name in _POD_METADATA if name in item["metadata"]}
    annotations = metadata.get("annotations")
    if annotations:
        metadata["annotations"] = {
            name: value for name, value in annotations.items() if name not in _UNREAD_ANNOTATIONS
        }
    return metadata
