"""What pods, nodes and requests say of shared GPUs. Pure.

A GPU that is shared is a *group*: the scheduler names it, a reservation pod holds the whole device, and each
pod with a share carries the group in a label. Contract: B-12, B-17, B-69…B-74, B-84.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec import Struct

from controller.kai import fractions
from controller.kai.fractions import named_container
from controller.kai.names import (
    CONFIG_MAP_PREFIX,
    CONTAINER_NAME,
    DEVICE_COUNT,
    FRACTION,
    GPU_FRACTION,
    GPU_MEMORY,
    GROUP_LABEL,
    GROUP_LABEL_PREFIX,
    is_object_name,
)
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, full_name
from controller.kai.reasons import Reason
from controller.kai.request import MOST_GROUPS, BindRequest
from controller.runtime.client import Object

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_COUNT = re.compile(r"[0-9]{1,9}")
_PORTION = re.compile(r"[0-9]{1,64}(\.[0-9]{1,64})?")
_FRACTION = re.compile(r"\+?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][-+]?[0-9]{1,3})?")
_ROUNDING = Decimal("0.005")
_SHOWN = 64


class Target(Struct, frozen=True):
    """The container that gets the share.

    Attributes:
        container: As in the pod's spec.
        config_map: Name of the ConfigMap with the capabilities, which single variables refer to.
        env_config_map: Name of the ConfigMap that the container reads whole.
    """

    container: Object
    config_map: str
    env_config_map: str


def asks_for_share(annotations: Mapping[str, str]) -> bool:
    """Whether a pod with these annotations asks for a share of a GPU (N-72)."""
    asks = GPU_FRACTION in annotations or GPU_MEMORY in annotations
    return asks or fractions.asks_for_share(annotations)


def is_label_value(text: str) -> bool:
    """Whether a label can have this value, and a selector ask for it."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_group(name: str) -> bool:
    """Whether a group's name can be a label's value, as it must be."""
    return is_label_value(name)


def is_group_label(name: str) -> bool:
    """Whether a label ties a pod to a group: the plain one, or one of several."""
    return name == GROUP_LABEL or name.startswith(GROUP_LABEL_PREFIX)


def groups_of_pod(pod: Object) -> frozenset[str]:
    """The groups in a pod's labels, of either form."""
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    # Asked of each pod again and again: most labels are seen at a glance to be none of ours.
    return frozenset(
        [
            labels[name]
            for name in labels
            if name.startswith(GROUP_LABEL) and labels[name] and is_group_label(name)
        ]
    )


def groups_of_request(item: Object) -> frozenset[str]:
    """The groups that a BindRequest for shares of GPUs names; it may be malformed otherwise.

    None if there are more than any request may name: it is refused, and needs none.
    """
    spec = item.get("spec")
    if not isinstance(spec, dict) or spec.get("receivedResourceType") != FRACTION:
        return frozenset()
    newer, older = spec.get("selectedFractionalGpuGroups"), spec.get("selectedGPUGroups")
    if isinstance(newer, list) and newer:
        groups = [group.get("id") for group in newer if isinstance(group, dict)]
    else:
        groups = older if isinstance(older, list) else []
    if len(groups) > MOST_GROUPS:
        return frozenset()
    return frozenset(group for group in groups if isinstance(group, str) and group)


def device_count_in(text: str) -> int | None:
    """The number in an annotation `gpu-fraction-num-devices`, which may be 0; None if it is none."""
    return int(text) if _COUNT.fullmatch(text) else None


def group_labels(pod: Object, groups: Sequence[str]) -> dict[str, str] | Failed:
    """The labels that tie a pod to its groups: one plain label, or one for each of several devices (B-84).

    It fails if the annotation with the number of devices is no number.
    """
    count = annotation(pod, DEVICE_COUNT)
    if count is not None and device_count_in(count) is None:
        text = f"annotation {DEVICE_COUNT} is {shown(count)}, which is no whole number"
        return Failed(Reason.INVALID_GPU_CONFIG, text, retry=False)
    if len(groups) > 1 or (count is not None and int(count) > 1):
        return {f"{GROUP_LABEL_PREFIX}{group}": group for group in groups}
    return {GROUP_LABEL: groups[0]} if groups else {}


def target_of(pod: Object, *, strict: bool = False) -> Target | Failed:
    """The container that gets the share, and the ConfigMaps that it reads (B-69, B-70).

    It fails if there is no such container, or the pod does not name its ConfigMaps. `strict` as in
    `container_of`.
    """
    prefix = annotation(pod, CONFIG_MAP_PREFIX)
    if not prefix:
        return _misconfigured(
            f"pod {full_name(pod)} has no annotation {CONFIG_MAP_PREFIX}; the admission webhook sets it"
        )
    found = container_of(pod, strict=strict)
    if isinstance(found, Failed):
        return found
    index, container = found
    target = Target(container, f"{prefix}-{index}", f"{prefix}-{index}-evar")
    if not is_object_name(target.env_config_map):
        return _misconfigured(
            f"annotation {CONFIG_MAP_PREFIX} of pod {full_name(pod)} is {shown(prefix)}, "
            f"and {shown(target.env_config_map)} cannot be a ConfigMap's name"
        )
    return target


def container_of(pod: Object, *, strict: bool = False) -> tuple[str, Object] | Failed:
    """The container that gets the share, and its index as in the names of ConfigMaps (B-69, N-40).

    Args:
        pod: The pod.
        strict: Whether annotations of KAI v0.18 decide, and refuse the pod if they make no sense. Else only
            what was before v0.18 counts (N-41), unless the pod was prepared for the container that they name.
    """
    named = named_container(pod)
    if strict:
        if isinstance(named, Failed):
            return named
        if named is not None:
            found = _find(pod, named)
            text = (
                f"pod {full_name(pod)} has no container {shown(named)}, which its annotations of a share name"
            )
            return found or _misconfigured(text)
    elif isinstance(named, str):
        found = _find(pod, named)
        if found is not None and _reads_maps(pod, *found):
            return found
    wanted, containers = annotation(pod, CONTAINER_NAME), pod["spec"].get("containers") or []
    if wanted is None:
        return (
            ("0", containers[0]) if containers else _misconfigured(f"pod {full_name(pod)} has no container")
        )
    text = (
        f"pod {full_name(pod)} has no container {shown(wanted)}, which its annotation {CONTAINER_NAME} names"
    )
    return _find(pod, wanted) or _misconfigured(text)


def _find(pod: Object, wanted: str) -> tuple[str, Object] | None:
    """A container of a pod by its name, and its index as in the names of ConfigMaps."""
    spec = pod["spec"]
    for mark, group in (("i", spec.get("initContainers") or []), ("", spec.get("containers") or [])):
        for index, container in enumerate(group):
            if container["name"] == wanted:
                return f"{mark}{index}", container
    return None


def _reads_maps(pod: Object, index: str, container: Object) -> bool:
    """Whether a container takes its environment from the ConfigMaps of a share for the one at this index."""
    name = f"{annotation(pod, CONFIG_MAP_PREFIX)}-{index}"
    sources = [entry.get("valueFrom") or {} for entry in container.get("env") or []]
    keys = [source.get("configMapKeyRef") or {} for source in sources]
    whole = [source.get("configMapRef") or {} for source in container.get("envFrom") or []]
    return any(source.get("name") in (name, f"{name}-evar") for source in (*keys, *whole))


def _misconfigured(text: str) -> Failed:
    return Failed(Reason.INVALID_GPU_CONFIG, text, retry=False)


def shown(text: str | None) -> str:
    """A value as it is named in a message: in quotes, and cut where nobody would read on."""
    if text is None:
        return "missing"
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def portion_of(request: BindRequest) -> Decimal | Failed:
    """The share of each GPU as the scheduler wrote it: a plain decimal number, rounded to two decimals."""
    text = request.gpu_portion
    if text is None or not _PORTION.fullmatch(text):
        wrong = f"spec.receivedGPU.portion is {shown(text)}; it must be a decimal number such as 0.50"
        return Failed(Reason.INVALID_PORTION, wrong, retry=False)
    return Decimal(text)


def fraction_in(text: str) -> Decimal | None:
    """The number in an annotation `gpu-fraction`, which may be any; None if it is no decimal number.

    As KAI's webhook reads it, which takes `.5` and `5e-1` too, but neither padding nor other scripts' digits.
    """
    return Decimal(text) if _FRACTION.fullmatch(text) else None


def asked_fraction(pod: Object) -> Decimal | Failed | None:
    """The pod's own `gpu-fraction`, with all its decimals; None if there is none.

    It fails if it is no number.
    """
    text = annotation(pod, GPU_FRACTION)
    if text is None:
        return None
    asked = fraction_in(text)
    if asked is not None:
        return asked
    wrong = (
        f"annotation {GPU_FRACTION} of pod {full_name(pod)} is {shown(text)}; "
        "it must be a decimal number such as 0.5"
    )
    return Failed(Reason.INVALID_PORTION, wrong, retry=False)


def exact_fraction(pod: Object, portion: Decimal) -> Decimal | Failed | None:
    """What `asked_fraction` says, if it is what was rounded to this portion; None if it is not."""
    asked = asked_fraction(pod)
    if not isinstance(asked, Decimal):
        return asked
    exponent = portion.as_tuple().exponent
    rounded = isinstance(exponent, int) and exponent >= -2 and portion <= 1
    close = rounded and portion - _ROUNDING <= asked <= portion + _ROUNDING
    return asked if close and 0 < asked <= 1 else None


def needs_labels(request: BindRequest, pod: Object) -> dict[str, str] | Failed:
    """The group labels that an assigned pod of this request lacks; it fails as `group_labels` does."""
    wanted = group_labels(pod, request.gpu_groups)
    if isinstance(wanted, Failed):
        return wanted
    present: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return {name: value for name, value in wanted.items() if present.get(name) != value}
