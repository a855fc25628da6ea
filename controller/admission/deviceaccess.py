"""Containers without a GPU see none, whatever their image says (B-118).

Opt-in for all pods of our scheduler. In a pod with a share it is done for the memory limit, too: a container
that sees all GPUs of the node has no limit. An entry for the variable goes before what the image, or a source
that is read whole, says.
"""

from collections.abc import Iterator

from controller.admission.draft import Draft
from controller.admission.problems import Problem
from controller.kai.environment import entry_of, value_of
from controller.kai.names import GPU_RESOURCE, MIG_RESOURCE_PREFIX, VISIBLE_DEVICES
from controller.kai.pods import annotations_of
from controller.kai.quantity import quantity
from controller.kai.sharing import asks_for_share, container_of, shown
from controller.runtime.client import Object

_NONE = "void"
SEES_NONE = frozenset({_NONE, "none"})
"""The values of NVIDIA_VISIBLE_DEVICES that people may set in containers without a GPU."""


def prepare(draft: Draft) -> None:
    """Has each container without a GPU see none, unless it says something of that itself."""
    for place, container in _without(draft.pod):
        if entry_of(container, VISIBLE_DEVICES) is None:
            draft.set_env(place, {"name": VISIBLE_DEVICES, "value": _NONE})


def problems_of_access(pod: Object) -> Iterator[Problem]:
    """The containers without a GPU that would see one."""
    for (group, number), container in _without(pod):
        entry = entry_of(container, VISIBLE_DEVICES)
        if entry is None or value_of(entry) in SEES_NONE:
            continue
        value = value_of(entry)
        said = "it is taken from elsewhere" if value is None else shown(value)
        text = f"Invalid value: {said}: container {container['name']} asks for no GPU; must be void or none"
        yield Problem(f"spec.{group}[{number}].env[{VISIBLE_DEVICES}]", text)


def _without(pod: Object) -> Iterator[tuple[tuple[str, int], Object]]:
    """The containers that get neither the share nor a whole GPU, and their places."""
    found = container_of(pod, strict=True) if asks_for_share(annotations_of(pod)) else None
    target = found[1] if isinstance(found, tuple) else None
    for group in ("initContainers", "containers"):
        for number, container in enumerate(pod["spec"].get(group) or ()):
            if container is not target and not _has_gpu(container):
                yield (group, number), container


def _has_gpu(container: Object) -> bool:
    """Whether a container asks for whole GPUs, or slices of one."""
    return any(True for _ in gpus_of(container, mig=True))


def gpus_of(container: Object, *, mig: bool) -> Iterator[str]:
    """The resources of GPUs that a container asks for.

    Args:
        container: Of a pod.
        mig: Whether slices of a GPU count.
    """
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        for name, value in (resources.get(kind) or {}).items():
            is_gpu = name == GPU_RESOURCE or (mig and name.startswith(MIG_RESOURCE_PREFIX))
            if is_gpu and _is_asked(value):
                yield f"resources.{kind}[{name}]"


def _is_asked(value: object) -> bool:
    """Whether it is more than 0; what is no quantity counts, too."""
    try:
        return quantity(value) > 0
    except ValueError:
        return True
