"""What annotations say of one container's share of GPUs, since KAI v0.18. Pure (N-36…N-41, N-59).

They are an interface to the component that divides GPUs on the node: `nvidia.com/container.<name>.<ending>`.
The webhook writes some, the binder others, people perhaps any.
"""

from controller.kai.names import CONTAINER_NAME
from controller.kai.outcome import Failed
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.runtime.client import Object

MEMORY_REQUEST = "gpu-memory.request"
MEMORY_LIMIT = "gpu-memory.limit"
DEVICES = "gpus.devices"
COMPUTE_MODE = "gpu-compute.mode"
COMPUTE_PORTION = "gpu-compute.portion"
COMPUTE_REQUEST = "gpu-compute.request"

ENDINGS = (MEMORY_REQUEST, MEMORY_LIMIT, DEVICES, COMPUTE_MODE, COMPUTE_PORTION, COMPUTE_REQUEST)

_PREFIX = "nvidia.com/container."
_PORTION_LIMIT = "kai.scheduler/container.{}.gpu-memory.portion.limit"
_CDI = "nvidia.cdi.k8s.io/container.{}"


def key(container: str, ending: str) -> str:
    """The annotation of a container's share with this ending."""
    return f"{_PREFIX}{container}.{ending}"


def portion_limit_key(container: str) -> str:
    """The annotation with the share of a GPU's memory that a container may use at most."""
    return _PORTION_LIMIT.format(container)


def cdi_key(container: str) -> str:
    """The annotation that has a container get devices by the Container Device Interface."""
    return _CDI.format(container)


def named_container(pod: Object) -> str | Failed | None:
    """The container that the annotations name; None if there are none.

    It fails if a key makes no sense, or two containers are named, or another one than
    `gpu-fraction-container-name` says.
    """
    annotations: Object = pod["metadata"].get("annotations") or {}
    names: list[str] = []
    for found in sorted(name for name in annotations if name.startswith(_PREFIX)):
        name = _container_in(found)
        if not name:
            known = ", ".join(ENDINGS)
            return _misconfigured(pod, f"annotation {found} is not {_PREFIX}<container> and one of {known}")
        if name not in names:
            names.append(name)
    if len(names) > 1:
        text = f"annotations {_PREFIX}… are for containers {' and '.join(names)}; only one may share a GPU"
        return _misconfigured(pod, text)
    wanted = annotations.get(CONTAINER_NAME)
    if names and wanted not in (None, names[0]):
        text = f"annotations {_PREFIX}… are for container {names[0]}, but {CONTAINER_NAME} says {wanted!r}"
        return _misconfigured(pod, text)
    return names[0] if names else None


def _container_in(found: str) -> str:
    """The container's name in such a key; empty if there is none, or the ending is unknown."""
    endings = (f".{ending}" for ending in ENDINGS)
    return next((found[len(_PREFIX) : -len(end)] for end in endings if found.endswith(end)), "")


def _misconfigured(pod: Object, text: str) -> Failed:
    return Failed(Reason.INVALID_GPU_CONFIG, f"pod {full_name(pod)}: {text}", retry=False)
