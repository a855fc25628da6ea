"""What tells of which GPU groups a pod has a share: the requests for it, its labels and its annotations.

`Members`, the reconciler of groups and `kai-binder gpus` ask. All pure. Labels and annotations of a pod are
its author's claims; a request is the scheduler's word, but one that found its pod on the node already gave it
nothing, and which kind it is only our own conditions tell. So there are two answers, and the rule of which to
take: what may be somebody's is kept for him (`groups_kept`), and nobody is harmed but by what is certain
(`groups_used`).
"""

from collections.abc import Iterable

from controller.kai import fractions
from controller.kai.names import (
    CONFIG_MAP_PREFIX,
    FRACTION,
    GPU_FRACTION,
    GPU_MEMORY,
    RECEIVED_RESOURCE_TYPE,
)
from controller.kai.pods import annotation, is_finished
from controller.kai.reasons import Phase
from controller.kai.request import bound_its_pod, owner_uid_of
from controller.kai.sharing import groups_of_pod, groups_of_request
from controller.runtime.client import Object

_SHARE_ANNOTATIONS = (GPU_FRACTION, GPU_MEMORY, CONFIG_MAP_PREFIX)


def node_of(pod: Object) -> str:
    """The node that a pod is on; empty if it is on none."""
    return str(pod["spec"].get("nodeName") or "")


def asks_for_share(pod: Object) -> bool:
    """Whether a pod says of itself that it has or wants a share of a GPU."""
    annotations = pod["metadata"].get("annotations") or {}
    asks = any(name in annotations for name in _SHARE_ANNOTATIONS) or fractions.asks_for_share(annotations)
    return asks or annotation(pod, RECEIVED_RESOURCE_TYPE) == FRACTION


def has_succeeded(item: Object) -> bool:
    """Whether a request has bound its pod; asked for each user of each group, so nothing else is read."""
    status = item.get("status")
    return isinstance(status, dict) and status.get("phase") == Phase.SUCCEEDED


def gave_what_it_names(item: Object, pod: Object) -> bool:
    """Whether a request that has succeeded certainly bound this very pod, with the groups that it names now.

    Args:
        item: The request, live or as the cache keeps it. One that another binder ended, or that was stored
            under a CRD without conditions, does not tell.
        pod: The pod.
    """
    status = item["status"]
    return (
        bound_its_pod(status.get("conditions")) is True
        and status.get("observedGeneration") == item["metadata"].get("generation")
        and _is_for(item, pod)
    )


def _is_for(item: Object, pod: Object) -> bool:
    """Whether a request is for this pod: by its owner, or without one because the pod was there before it."""
    uid, made = owner_uid_of(item), pod["metadata"].get("creationTimestamp")
    if uid is not None:
        return bool(uid == pod["metadata"]["uid"])
    asked = item["metadata"].get("creationTimestamp")
    return made is not None and asked is not None and made <= asked  # a later pod of its name is another one


def groups_kept(pod: Object, requests: Iterable[Object], scheduler_name: str) -> frozenset[str]:
    """The groups of whose GPUs a pod may have a share on its node: while it lives, they are not freed.

    Args:
        pod: The pod.
        requests: Those that were made for it.
        scheduler_name: Of the scheduler whose pods share GPUs.
    """
    certain, possible, labelled = _told(pod, [*requests], scheduler_name)
    if certain is not None:
        return certain | possible
    return possible | labelled


def groups_used(pod: Object, requests: Iterable[Object], scheduler_name: str) -> frozenset[str]:
    """The groups of whose GPUs a pod has a share on its node, so far as anybody can tell; of those it keeps.

    Arguments as of `groups_kept`.
    """
    certain, possible, labelled = _told(pod, [*requests], scheduler_name)
    if certain is not None:
        return certain
    if labelled:
        return labelled
    # Bound with a share, but some servers take no labels from a Binding, and they may not be written yet.
    return possible if annotation(pod, RECEIVED_RESOURCE_TYPE) == FRACTION else frozenset()


def _told(
    pod: Object, requests: list[Object], scheduler_name: str
) -> tuple[frozenset[str] | None, frozenset[str], frozenset[str]]:
    """The groups that requests gave for certain (None: none tells), may have given, and by label.

    Of a pod that does not live on a node there are none.
    """
    certain: frozenset[str] | None = None
    possible: frozenset[str] = frozenset()
    if is_finished(pod) or not node_of(pod):
        return certain, possible, possible
    for item in requests:
        if not has_succeeded(item) or (item.get("spec") or {}).get("selectedNode") != node_of(pod):
            continue
        groups = frozenset(groups_of_request(item))
        if gave_what_it_names(item, pod):
            certain = groups | (certain or frozenset())
        else:
            possible |= groups
    labelled = groups_of_pod(pod)
    # The binder's cache has pods of its scheduler only, and does not keep its name.
    if not asks_for_share(pod) or pod["spec"].get("schedulerName", scheduler_name) != scheduler_name:
        labelled &= frozenset().union(*map(groups_of_request, requests))
    return certain, possible, labelled
