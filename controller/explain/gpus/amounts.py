"""How many GPUs and MIG slices nodes have and pods take, as Kubernetes counts. Pure."""

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
    """The GPUs and MIG slices that the kubelet sets aside for a pod, as Kubernetes counts containers."""
    spec, total = pod["spec"], dict[str, int]()
    for container in spec.get("containers") or ():
        for name, count in _wants(container).items():
            total[name] = total.get(name, 0) + count
    before, peak = dict[str, int](), dict[str, int]()
    for container in spec.get("initContainers") or ():
        stays = container.get("restartPolicy") == "Always"
        for name, count in _wants(container).items():
            peak[name] = max(peak.get(name, 0), before.get(name, 0) + count)
            if stays:
                before[name] = before.get(name, 0) + count
                total[name] = total.get(name, 0) + count
    return {name: count for name in total | peak if (count := max(total.get(name, 0), peak.get(name, 0)))}


def _wants(container: Object) -> dict[str, int]:
    resources = container.get("resources")
    if not resources:
        return {}
    return _gpus_in(resources.get("requests")) | _gpus_in(resources.get("limits"))


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
