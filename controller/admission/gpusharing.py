"""How a pod is prepared for gpusharing: where its container finds which devices it has (B-113…B-116, N-73).

The binder finds the names of both maps by the annotation that is set here, with the same function.
"""

import re
import secrets
from collections.abc import Callable, Iterator

from controller.admission import moved
from controller.admission.draft import Draft
from controller.admission.rules import Rules
from controller.kai.fractions import MEMORY_REQUEST, key, problem_of_name, said
from controller.kai.memory import MIB, whole_number
from controller.kai.names import CONFIG_MAP_PREFIX, GPU_MEMORY, NUM_OF_GPUS, PORTION, VISIBLE_DEVICES
from controller.kai.outcome import Failed
from controller.kai.pods import annotation
from controller.kai.quantity import mebibytes, quantity
from controller.kai.sharing import Target, container_of, target_of
from controller.runtime.client import Object

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Those of the names that Kubernetes makes: no vowels, so that no words come of them."""
_RANDOM = 7
_TAIL = "shared-gpu"
_LONGEST_BASE = 63 - 13 - len(_TAIL) - 1 - 5
_NAMELESS = "pod"


def random_suffix() -> str:
    """What makes the names of one pod's maps differ from those of another pod of the same name."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))


def prepare(draft: Draft, rules: Rules, suffix: Callable[[], str]) -> Failed | None:
    """Has the container with the share wait for both maps and take from them what it was given.

    Args:
        draft: A pod that asks for a share.
        rules: The settings.
        suffix: Makes the random part of the maps' names.
    """
    found = container_of(draft.pod, strict=True)
    if isinstance(found, Failed):
        return found
    index, container = found
    if not annotation(draft.pod, CONFIG_MAP_PREFIX):
        draft.annotate(CONFIG_MAP_PREFIX, f"{base_of(draft.pod, index)}-{suffix()}-{_TAIL}")
    target = target_of(draft.pod, strict=True)
    if isinstance(target, Failed):
        return target
    _request_memory(draft, str(container["name"]))
    place = place_of(index)
    moved.move(draft, place, target)
    for variable in (*(() if rules.nri else (VISIBLE_DEVICES,)), NUM_OF_GPUS, PORTION):
        draft.set_env(place, entry(target, variable))
    draft.read_whole(place, target.env_config_map)
    draft.add_volume(target.config_map)
    return None


def place_of(index: str) -> tuple[str, int]:
    """List and place of a container in its pod's spec, by its index in the names of maps."""
    return ("initContainers", int(index[1:])) if index.startswith("i") else ("containers", int(index))


def entry(target: Target, variable: str, *, optional: bool = False) -> Object:
    """The entry by which a container takes a variable from its capabilities map."""
    reference: Object = {"name": target.config_map, "key": variable}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"configMapKeyRef": reference}}


def base_of(pod: Object, index: str) -> str:
    """What the names of a pod's maps begin with: its owner's name, else its own, made legal (B-114).

    A name that the server is yet to make counts by what it will begin with; so there always is one (D-35).
    """
    longest = _LONGEST_BASE - len(index)
    legal = (_legal(name, longest) for name in _names(pod))
    return next((name for name in legal if name), _NAMELESS)


def _names(pod: Object) -> Iterator[str]:
    metadata = pod["metadata"]
    for owner in (metadata.get("ownerReferences") or ())[:1]:
        yield owner.get("name") or ""
    yield metadata.get("name") or ""
    yield metadata.get("generateName") or ""


def _legal(name: str, longest: int) -> str:
    """The name, cut, with only what the name of a ConfigMap may have; dots stay."""
    cleaned = re.sub(r"[^a-z0-9.]+", "-", name.lower())
    labels = (label.strip("-") for label in cleaned.split("."))
    return ".".join(label for label in labels if label)[:longest].strip(".-")


def _request_memory(draft: Draft, container: str) -> None:
    """Says `gpu-memory` for the container, too, as KAI's component on the node reads it.

    Another amount that is there already is left for the validation to refuse.
    """
    mib, name = whole_number(annotation(draft.pod, GPU_MEMORY)), key(container, MEMORY_REQUEST)
    if mib is None:
        return
    problem = problem_of_name(container, name)
    if problem is not None:
        draft.warnings.append(f"{problem}; so it has no such annotation")
        return
    present = said(draft.pod, container, MEMORY_REQUEST)
    if present is None or _is_amount(present, mib * MIB):
        draft.annotate(name, mebibytes(mib))


def _is_amount(text: str, amount: int) -> bool:
    try:
        return quantity(text) == amount
    except ValueError:
        return False
