"""Which pods are refused: those that the binder could never bind, and what only the binder may write. Pure.

Callers: `review`, for new and for changed pods (B-119, N-77…N-85). A new pod is judged as a whole, by the
functions by which the binder judges; a changed one only by what changed, so that an old pod that would be
refused today can still end.
"""

from collections.abc import Iterator, Mapping

from controller.admission.asked import problems_of_container, problems_of_texts, warning_of_share
from controller.admission.deviceaccess import gpus_of, problems_of_access
from controller.admission.moved import problems_of_moved
from controller.admission.problems import Problem, field_of, forbidden, guarded
from controller.admission.rules import Rules
from controller.kai.environment import containers_of
from controller.kai.fractions import (
    MEMORY_REQUEST,
    cdi_key,
    container_in,
    is_granted,
    is_settled,
    key,
    portion_limit_key,
    problem_of_name,
)
from controller.kai.limiter import CUDA_NEEDS_MIB, Way, oddities_of, way_to
from controller.kai.memory import whole_number
from controller.kai.names import (
    CONFIG_MAP_PREFIX,
    CONTAINER_NAME,
    DEVICE_COUNT,
    GPU_FRACTION,
    GPU_FRACTION_LIMIT,
    GPU_MEMORY,
    GPU_MEMORY_LIMIT,
)
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, annotations_of, full_name
from controller.kai.sharing import Target, asks_for_share, container_of, device_count_in, target_of
from controller.runtime.client import Object

SETTLED = frozenset(
    {
        *(GPU_FRACTION, GPU_MEMORY, GPU_FRACTION_LIMIT, GPU_MEMORY_LIMIT),
        *(DEVICE_COUNT, CONTAINER_NAME, CONFIG_MAP_PREFIX),
    }
)
"""What is settled with the pod, beside what `is_settled` names."""
_MOST_DEVICES = 16
"""As many variables of single devices are looked at; more differ in their number only."""


def problems_of_new(pod: Object, rules: Rules, user: str, *, prepared: bool = True) -> list[Problem]:
    """Why a new pod is refused; empty if it is not.

    Args:
        pod: Of our scheduler.
        rules: The settings.
        user: Who makes it.
        prepared: Whether the pod is as `mutation` left it, so that what it added has to be there.
    """
    annotations = annotations_of(pod)
    problems = list(_of_grants(pod, {}, rules, user))
    if asks_for_share(annotations):
        problems += _of_share(pod, rules, prepared=prepared)
    problems += problems_of_texts(annotations)
    if rules.block_visible_devices and prepared:
        problems += problems_of_access(pod)
    return problems


def problems_of_change(old: Object, pod: Object, rules: Rules, user: str) -> list[Problem]:
    """Why a change of a pod is refused: what only the binder may write, and what was settled with the pod.

    Args:
        old: The pod as it is.
        pod: As it would be.
        rules: The settings.
        user: Who changes it.
    """
    before, after = annotations_of(old), annotations_of(pod)
    problems = list(_of_grants(pod, before, rules, user))
    if rules.is_binder(user):
        return problems
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and (name in SETTLED or is_settled(name)):
            text = "it is settled when the pod is made, since the scheduler decides by it; make the pod anew"
            problems.append(forbidden(name, text))
    return problems


def problems_of_another(old: Object | None, pod: Object, rules: Rules, user: str) -> list[Problem]:
    """Why a pod of another scheduler is refused: only for what the node believes, whoever schedules the pod.

    Args:
        old: The pod as it is; None if it is new.
        pod: As it would be.
        rules: The settings.
        user: Who makes or changes it.
    """
    return list(_of_grants(pod, {} if old is None else annotations_of(old), rules, user))


def warnings_of_new(pod: Object, rules: Rules) -> list[str]:
    """What the author of a new pod, which is not refused, is to be told of its share."""
    annotations = annotations_of(pod)
    if not asks_for_share(annotations):
        return []
    tiny = warning_of_share(annotations)
    found = [tiny] if tiny is not None else []
    if not rules.shares_by_annotations:
        asked = [name for name in (GPU_MEMORY_LIMIT, GPU_FRACTION_LIMIT) if name in annotations]
        found += [f"{field_of(name)} is not followed: the plugin nvfractions is off" for name in asked]
    target = target_of(pod, strict=True) if rules.shares_by_maps else None
    if not isinstance(target, Target):
        return found
    found += oddities_of(pod, target, nri=rules.nri)
    mib = whole_number(annotations.get(GPU_MEMORY))
    if rules.limits_memory and mib is not None and mib <= CUDA_NEEDS_MIB:
        text = f"{field_of(GPU_MEMORY)} is {mib} MiB: CUDA does not start with a limit of"
        found.append(f"{text} {CUDA_NEEDS_MIB} MiB or less")
    way = _way(pod, target, rules) if rules.limits_memory else None
    if isinstance(way, Failed):
        found.append(f"{way.message}; the pod is bound without a limit of GPU memory")
    elif way is not None:
        found += [f"{why}, so that it may use GPUs without a limit" for why in way.doubtful]
        if way.doubled:
            who = ", ".join(way.doubled)
            found.append(f"{who} sees the GPU as well and has the same limit of memory for itself")
    return found


def _of_share(pod: Object, rules: Rules, *, prepared: bool) -> Iterator[Problem]:
    """What is wrong with a pod that asks for a share, beside the texts that do not name a container."""
    annotations = annotations_of(pod)
    if not rules.shares_by_maps and not rules.shares_by_annotations:
        asks = next(name for name in sorted(annotations) if asks_for_share({name: ""}))
        text = (
            "GPU sharing is off: set BINDER_PLUGINS__GPUSHARING__ENABLED=true, for the webhook and the binder"
        )
        yield forbidden(asks, text)
    yield from _of_whole_gpus(pod)
    found = container_of(pod, strict=True)
    if isinstance(found, Failed):
        yield _of_container(pod, found)
        return
    container = str(found[1]["name"])
    yield from problems_of_container(annotations, container)
    yield from _of_names(annotations, container, rules)
    if rules.shares_by_maps and (prepared or annotations.get(CONFIG_MAP_PREFIX)):
        yield from _of_maps(pod, rules, prepared=prepared)


def _of_whole_gpus(pod: Object) -> Iterator[Problem]:
    for group in ("initContainers", "containers"):
        for number, container in enumerate(pod["spec"].get(group) or ()):
            for name in gpus_of(container, mig=False):
                text = "Forbidden: a pod that asks for a share of a GPU may not ask for whole ones as well"
                yield Problem(f"spec.{group}[{number}].{name}", text)


def _of_container(pod: Object, failure: Failed) -> Problem:
    """The share is for no container, or not for one only."""
    names = ", ".join(str(container["name"]) for container in containers_of(pod))
    there = f"; the pod's containers are {names}" if names else ""
    named = annotation(pod, CONTAINER_NAME) is not None
    return Problem(field_of(CONTAINER_NAME) if named else "spec.containers", f"{failure.message}{there}")


def _of_names(annotations: Mapping[str, str], container: str, rules: Rules) -> Iterator[Problem]:
    """A container whose name does not fit into the annotations that it must get."""
    wanted = []
    if rules.shares_by_maps and rules.nri:
        wanted.append(cdi_key(container))
    if rules.shares_by_annotations:
        wanted.append(key(container, MEMORY_REQUEST))
        if GPU_FRACTION_LIMIT in annotations:
            wanted.append(portion_limit_key(container))
    for name in wanted:
        problem = problem_of_name(container, name)
        if problem is not None:
            yield Problem("spec.containers", problem)


def _of_maps(pod: Object, rules: Rules, *, prepared: bool) -> Iterator[Problem]:
    """What keeps the share, or its limit, from reaching the container by ConfigMaps."""
    target = target_of(pod, strict=True)
    if isinstance(target, Failed):
        yield Problem(field_of(CONFIG_MAP_PREFIX), target.message)
        return
    if not prepared:
        return
    yield from problems_of_moved(pod, target)
    if rules.limits_memory and rules.demands_limit:
        way = _way(pod, target, rules)
        if isinstance(way, Failed):
            yield Problem("spec.containers", way.message)


def _way(pod: Object, target: Target, rules: Rules) -> Way | Failed:
    """How a limit would reach its container; which limit, only the binder knows."""
    devices = device_count_in(annotation(pod, DEVICE_COUNT) or "1") or 1
    return way_to(pod, target, rules.limit_variable, "1m", min(devices, _MOST_DEVICES))


def _of_grants(pod: Object, before: Mapping[str, str], rules: Rules, user: str) -> Iterator[Problem]:
    """What says what a container was given, and was written by somebody else, or of no container (N-77)."""
    names = {container["name"] for container in containers_of(pod)}
    for name, text in sorted(annotations_of(pod).items()):
        if not is_granted(name, cdi=rules.nri) or before.get(name) == text:
            continue
        container = container_in(name)
        if not rules.is_binder(user):
            who = rules.binder_account or "the binder's account, which is not set"
            yield guarded(name, f"it says which GPUs a container was given; only {who} may write it")
        elif container not in names:
            yield forbidden(name, f"pod {full_name(pod)} has no container {container or 'of that name'}")
