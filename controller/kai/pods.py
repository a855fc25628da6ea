"""What a pod says of itself: whose it is, whether it is alive, whether it may still be bound. Pure.

The one answer to each of these questions, for all that bind, prepare, reserve and explain.
"""

from collections.abc import Iterator, Mapping, Sequence

from controller.kai.outcome import Failed, Ready
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest, owner_uid_of
from controller.runtime.client import Object

ANNOTATIONS_LIMIT_BYTES = 256 * 1024
"""What all annotations of an object may have together, names and values, by Kubernetes' rule."""

CUT = "cut"
"""Stands in what a cache keeps of a pod or request if that lacks something needed to bind: see objects.py."""

_FINISHED = frozenset({"Succeeded", "Failed"})


def full_name(item: Object) -> str:
    """An object as messages name it: namespace/name, or the name alone where there is no namespace.

    One that has no name yet, since the server is to make it, is named by what the name will begin with.
    """
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}…"
    return f"{namespace}/{name}" if namespace else str(name)


def annotations_of(pod: Object) -> Mapping[str, str]:
    """A pod's annotations."""
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return annotations


def annotation(pod: Object, name: str) -> str | None:
    """A pod's annotation."""
    return annotations_of(pod).get(name)


def is_owner(item: Object, pod: Object) -> bool:
    """Whether a pod is the one that a BindRequest was made for, so far as the request says.

    Args:
        item: The request as the API server has it; it may be malformed.
        pod: A pod of the request's pod name and namespace.
    """
    uid = owner_uid_of(item)
    return uid is None or pod["metadata"]["uid"] == uid


def is_alive(pod: Object) -> bool:
    """Whether the pod is neither finished nor about to go."""
    return not is_finished(pod) and not pod["metadata"].get("deletionTimestamp")


def is_finished(pod: Object) -> bool:
    """Whether the pod's containers have ended for good, so that it holds no GPU."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def live(pods: Sequence[Object]) -> Iterator[Object]:
    """Those pods that are alive."""
    return filter(is_alive, pods)


def judge_pod(request: BindRequest, pod: Object, uid: str | None) -> Ready | Failed | None:
    """Whether this pod still is to be bound.

    Args:
        request: The request.
        pod: The pod as it is.
        uid: Of the pod that the decision was made for; None if the request does not say.

    Returns:
        Ready if it is on the chosen node already, Failed if it cannot be bound, None if it waits to be.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    name, node_name = request.full_pod_name, spec.get("nodeName")
    if uid is not None and metadata["uid"] != uid:
        text = f"pod {name} was replaced: the request is for uid {uid}, the present pod has {metadata['uid']}"
        return Failed(Reason.POD_REPLACED, text, retry=False)
    if node_name == request.node_name:
        return Ready(f"pod {name} is on node {node_name}")
    if node_name:
        text = f"pod {name} is on node {node_name} already, not on {request.node_name}"
        return Failed(Reason.ALREADY_BOUND_ELSEWHERE, text, retry=False)
    if metadata.get("deletionTimestamp"):
        return Failed(Reason.POD_TERMINATING, f"pod {name} is being deleted", retry=False)
    if is_finished(pod):
        text = f"pod {name} has ended: its phase is {pod['status']['phase']}"
        return Failed(Reason.POD_FINISHED, text, retry=False)
    gates = spec.get("schedulingGates")
    if gates:
        names = ", ".join(gate["name"] for gate in gates)
        return Failed(Reason.POD_GATED, f"pod {name} is held back by its scheduling gates: {names}")
    return None
