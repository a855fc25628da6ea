"""What annotations say of one container's share of GPUs, since KAI v0.18. Pure (N-36…N-41, N-59).

They are an interface to the component that divides GPUs on the node: `nvidia.com/container.<name>.<ending>`.
The webhook writes some, the binder others, people perhaps any.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.kai.names import CONTAINER_NAME
from controller.kai.outcome import Failed
from controller.kai.pods import annotations_of, full_name
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
_CDI_DOMAIN = "nvidia.cdi.k8s.io"
_CDI_PREFIX = f"{_CDI_DOMAIN}/container."


_MOST_TOLD = 5
_LONGEST_NAME = 63
"""Of an annotation, what stands behind the slash."""


def problem_of_name(container: str, name: str) -> str | None:
    """Why there can be no annotation of this name, which has the container's in it; None if there can be."""
    excess = len(name.rpartition("/")[2]) - _LONGEST_NAME
    if excess <= 0:
        return None
    limit = f"more than the {len(container) - excess} characters that annotation {name} allows"
    return f"the name of container {container} has {limit}"


def key(container: str, ending: str) -> str:
    """The annotation of a container's share with this ending."""
    return f"{_PREFIX}{container}.{ending}"


def portion_limit_key(container: str) -> str:
    """The annotation with the share of a GPU's memory that a container may use at most."""
    return _PORTION_LIMIT.format(container)


def portion_limits(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of these names that `portion_limit_key` could have made, and the container in each."""
    head, _, tail = _PORTION_LIMIT.partition("{}")
    for name in names:
        if name.startswith(head) and name.endswith(tail) and len(name) > len(head) + len(tail):
            yield name, name[len(head) : -len(tail)]


RESERVATION_MODE = f"{_PREFIX}resource-reservation.{COMPUTE_MODE}"
"""On a reservation pod: how the users of its GPU share the compute units (N-13); the scheduler reads it."""


def said(pod: Object, container: str, ending: str) -> str | None:
    """What the pod's annotation of a container's share with this ending says."""
    return annotations_of(pod).get(key(container, ending))


def portion_limit(pod: Object, container: str) -> str | None:
    """What the pod says of the share of a GPU's memory that a container may use at most."""
    return annotations_of(pod).get(portion_limit_key(container))


def is_of_share(name: str) -> bool:
    """Whether an annotation of this name may say something of a container's share."""
    return name.startswith((_PREFIX, _PORTION_LIMIT.partition("{}")[0])) or _is_of_cdi(name)


def is_settled(name: str) -> bool:
    """Whether an annotation of this name says what a container asks for; the scheduler goes by it."""
    asks = tuple(f".{ending}" for ending in (MEMORY_REQUEST, MEMORY_LIMIT, COMPUTE_MODE, COMPUTE_REQUEST))
    return (name.startswith(_PREFIX) and name.endswith(asks)) or any(portion_limits([name]))


def is_granted(name: str, *, cdi: bool) -> bool:
    """Whether an annotation of this name says what a container was given, which only a binder knows (N-77).

    Args:
        name: The annotation's.
        cdi: Whether those of the Container Device Interface count: where the container runtime goes by them,
            whoever writes one has any GPU of the node.
    """
    grants = tuple(f".{ending}" for ending in (DEVICES, COMPUTE_PORTION))
    return (cdi and _is_of_cdi(name)) or (name.startswith(_PREFIX) and name.endswith(grants))


def _is_of_cdi(name: str) -> bool:
    """Whether a plugin of the container runtime takes an annotation of this name for devices to give."""
    return name.partition("/")[0] == _CDI_DOMAIN


def devices_of_others(pod: Object, container: str) -> list[str]:
    """What in a pod's annotations has other containers than this one get devices from the container runtime.

    Returns:
        For each annotation words to follow `the pod`: "has container side get devices by annotation …".
    """
    found = []
    for name in sorted(annotations_of(pod)):
        if _is_of_cdi(name) and name != cdi_key(container):
            who = f"container {container_in(name)}" if container_in(name) else "other containers"
            found.append(f"has {who} get devices by annotation {name}")
    return found


def container_in(name: str) -> str | None:
    """The container that an annotation is of; None if its name does not say."""
    if name.startswith(_CDI_PREFIX):
        return name.removeprefix(_CDI_PREFIX)
    return _container_in(name) or None if name.startswith(_PREFIX) else None


def devices_told(pod: Object) -> Iterator[str]:
    """The devices that the annotations of a bound pod name, as they stand there."""
    for name, value in annotations_of(pod).items():
        is_ours = name.startswith(_PREFIX) and name.endswith(f".{DEVICES}")
        if is_ours or name.startswith(_CDI_PREFIX):
            yield from value.split(",")


def asks_for_share(annotations: Mapping[str, str]) -> bool:
    """Whether annotations ask for memory of a GPU, for one container (N-72)."""
    ends = (f".{MEMORY_REQUEST}", f".{MEMORY_LIMIT}")
    return any(name.startswith(_PREFIX) and name.endswith(ends) for name in annotations)


def memory_asked(pod: Object) -> tuple[str, str] | None:
    """The annotation by which one container asks for memory of a GPU, and what it says; None without one.

    A limit alone is the request as well (N-84). Where several containers ask, the pod makes no sense.
    """
    container = named_container(pod)
    if not isinstance(container, str):
        return None
    asked = (
        (key(container, ending), said(pod, container, ending)) for ending in (MEMORY_REQUEST, MEMORY_LIMIT)
    )
    return next(((name, text) for name, text in asked if text is not None), None)


def cdi_key(container: str) -> str:
    """The annotation that has a container get devices by the Container Device Interface."""
    return f"{_CDI_PREFIX}{container}"


def named_container(pod: Object) -> str | Failed | None:
    """The container that the annotations name; None if there are none.

    It fails if a key makes no sense, or two containers are named, or another one than
    `gpu-fraction-container-name` says.
    """
    annotations = annotations_of(pod)
    found_names: dict[str, None] = {}
    for found in sorted(name for name in annotations if name.startswith(_PREFIX)):
        name = _container_in(found)
        if not name:
            known = ", ".join(ENDINGS)
            return _misconfigured(pod, f"annotation {found} is not {_PREFIX}<container> and one of {known}")
        found_names[name] = None
    names = list(found_names)
    if len(names) > 1:
        text = f"annotations {_PREFIX}… are for containers {_joined(names)}; only one may share a GPU"
        return _misconfigured(pod, text)
    wanted = annotations.get(CONTAINER_NAME)
    if names and wanted not in (None, names[0]):
        text = f"annotations {_PREFIX}… are for container {names[0]}, but {CONTAINER_NAME} says {wanted!r}"
        return _misconfigured(pod, text)
    return names[0] if names else None


def _joined(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return " and ".join([*names[:_MOST_TOLD], *([f"{more} more"] if more > 0 else [])])


def _container_in(found: str) -> str:
    """The container's name in such a key; empty if there is none, or the ending is unknown."""
    endings = (f".{ending}" for ending in ENDINGS)
    return next((found[len(_PREFIX) : -len(end)] for end in endings if found.endswith(end)), "")


def _misconfigured(pod: Object, text: str) -> Failed:
    return Failed(Reason.INVALID_GPU_CONFIG, f"pod {full_name(pod)}: {text}", retry=False)
