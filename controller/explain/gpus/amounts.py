"""How many GPUs and MIG slices nodes have and pods take, as Kubernetes counts. Pure."""

from collections.abc import Set

from controller.kai.names import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from controller.kai.quantity import quantity
from controller.runtime.client import Object

_PLAIN = 10


def has_gpus(node: Object) -> bool:
    """Whether a node is to be shown even if no pod uses its GPUs."""
    return any(amount for name, amount in allocatable(node).items() if _is_gpu(name))


def _is_gpu(resource: str) -> bool:
    return resource == GPU_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)


def allocatable(node: Object) -> dict[str, int]:
    """What a node says that may be allocated of GPUs and MIG slices."""
    return _gpus_in((node.get("status") or {}).get("allocatable"))


def amounts_of(pod: Object) -> dict[str, int]:
    """The GPUs and MIG slices that the kubelet sets aside for a pod, as Kubernetes counts containers.

    What a driver gives by a claim is not among them, though the container asks for it by the same name.
    """
    spec, total, claimed = pod["spec"], dict[str, int](), _claimed(pod)
    for container in spec.get("containers") or ():
        for name, count in _wants(container, claimed).items():
            total[name] = total.get(name, 0) + count
    before, peak = dict[str, int](), dict[str, int]()
    for container in spec.get("initContainers") or ():
        stays = container.get("restartPolicy") == "Always"
        for name, count in _wants(container, claimed).items():
            peak[name] = max(peak.get(name, 0), before.get(name, 0) + count)
            if stays:
                before[name] = before.get(name, 0) + count
                total[name] = total.get(name, 0) + count
    return {name: count for name in total | peak if (count := max(total.get(name, 0), peak.get(name, 0)))}


def _claimed(pod: Object) -> set[tuple[object, object]]:
    """Container and resource of what a claim for extended resources gives."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return {
        (item.get("containerName"), item.get("resourceName")) for item in status.get("requestMappings") or ()
    }


def _wants(container: Object, claimed: Set[tuple[object, object]]) -> dict[str, int]:
    resources = container.get("resources")
    if not resources:
        return {}
    wanted = _gpus_in(resources.get("requests")) | _gpus_in(resources.get("limits"))
    return {name: count for name, count in wanted.items() if (container.get("name"), name) not in claimed}


def _gpus_in(amounts: object) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in amounts.items() if isinstance(amounts, dict) else ():
        if _is_gpu(name):
            found[name] = _count(amount)
    return found


def _count(amount: object) -> int:
    """A number of devices; 0 for what is none."""
    if isinstance(amount, str) and len(amount) < _PLAIN and amount.isascii() and amount.isdigit():
        return int(amount)  # as nearly all are, and cheaper
    try:
        return max(0, int(quantity(amount)))
    except ValueError:
        return 0
