"""How many GPUs and MIG slices nodes have and pods take, as Kubernetes counts. Pure."""

from collections import defaultdict

from controller.kai.names import GPU_RESOURCE, MIG_PREFIX
from controller.kai.quantity import quantity
from controller.runtime.client import Object


def has_gpus(node: Object) -> bool:
    """Whether a node is to be shown even if no pod uses its GPUs."""
    return any(amount for name, amount in allocatable(node).items() if _is_gpu(name))


def _is_gpu(resource: str) -> bool:
    return resource == GPU_RESOURCE or resource.startswith(MIG_PREFIX)


def allocatable(node: Object) -> dict[str, int]:
    """What a node says that may be allocated of GPUs and MIG slices."""
    return _gpus_in((node.get("status") or {}).get("allocatable"))


def amounts_of(pod: Object) -> dict[str, int]:
    """The GPUs and MIG slices that the kubelet sets aside for a pod, as Kubernetes counts containers."""
    total, before = defaultdict[str, int](int), defaultdict[str, int](int)
    peak: dict[str, int] = {}
    for container in pod["spec"].get("containers") or ():
        for name, count in _wants(container).items():
            total[name] += count
    for container in pod["spec"].get("initContainers") or ():
        stays = container.get("restartPolicy") == "Always"
        for name, count in _wants(container).items():
            peak[name] = max(peak.get(name, 0), before[name] + count)
            if stays:
                before[name] += count
                total[name] += count
    return {name: count for name in total | peak if (count := max(total.get(name, 0), peak.get(name, 0)))}


def _wants(container: Object) -> dict[str, int]:
    resources = container.get("resources") or {}
    return _gpus_in(resources.get("requests")) | _gpus_in(resources.get("limits"))


def _gpus_in(amounts: object) -> dict[str, int]:
    found = {}
    for name, amount in amounts.items() if isinstance(amounts, dict) else ():
        if _is_gpu(name):
            try:
                found[name] = max(0, int(quantity(amount)))
            except ValueError:
                continue
    return found
