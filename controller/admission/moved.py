"""Maps under the place that the container with the share had before: nobody writes them. Pure.

The maps' names end with the container's place (B-70). A webhook that is called between two calls of ours may
put another container before it; what was added for the old place then moves along. Only names made of the
pod's own `runai/shared-gpu-configmap` are looked at.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

from controller.admission.draft import Draft
from controller.admission.problems import Problem
from controller.kai.names import CONFIG_MAP_PREFIX
from controller.kai.pods import annotation
from controller.kai.sharing import Target
from controller.runtime.client import Object

_INDEX = r"-i?(?:0|[1-9][0-9]*)(-evar)?"
_GROUPS = ("initContainers", "containers")


def move(draft: Draft, place: tuple[str, int], target: Target) -> None:
    """Has a pod refer to the maps of the container's place now, and to none of another place.

    The container with the share refers to the new ones where it referred to the old ones; other containers,
    one of which may have had the share, no longer do.

    Args:
        draft: A pod that names its maps.
        place: Of the container with the share.
        target: The same container, and its maps.
    """
    follows = _follows(draft.pod, target)
    for group in _GROUPS:
        for number in range(len(draft.pod["spec"].get(group) or ())):
            is_target = (group, number) == place
            draft.change_maps((group, number), partial(_moved, follows, keep=is_target))
    draft.drop_volumes(lambda name: follows(name) is not None)


def problems_of_moved(pod: Object, target: Target) -> Iterator[Problem]:
    """The maps of another place without which the pod would not start."""
    follows = _follows(pod, target)
    for where, reference in _references(pod):
        name = reference.get("name") or ""
        wanted = follows(name)
        if wanted is not None and not reference.get("optional"):
            text = f"Invalid value: {name!r}: nobody writes that ConfigMap, since container"
            yield Problem(where, f"{text} {target.container['name']} stands elsewhere; must be {wanted}")


def _moved(follows: Callable[[str], str | None], name: str, *, keep: bool) -> str | None:
    """The map to refer to instead of this one; None if to none."""
    wanted = follows(name)
    if wanted is None:
        return name
    return wanted if keep else None


def _follows(pod: Object, target: Target) -> Callable[[str], str | None]:
    """From a map's name to the one that took its place; None for those that are as they should be."""
    own = re.compile(re.escape(annotation(pod, CONFIG_MAP_PREFIX) or "") + _INDEX)

    def follows(name: str) -> str | None:
        found = own.fullmatch(name)
        if found is None or name in (target.config_map, target.env_config_map):
            return None
        return target.env_config_map if found[1] else target.config_map

    return follows


def _references(pod: Object) -> Iterator[tuple[str, Object]]:
    """All references of a pod to ConfigMaps, and where they stand."""
    for group in _GROUPS:
        for number, container in enumerate(pod["spec"].get(group) or ()):
            for at, entry in enumerate(container.get("env") or ()):
                reference = (entry.get("valueFrom") or {}).get("configMapKeyRef")
                if reference:
                    yield f"spec.{group}[{number}].env[{at}]", reference
            for at, source in enumerate(container.get("envFrom") or ()):
                if source.get("configMapRef"):
                    yield f"spec.{group}[{number}].envFrom[{at}]", source["configMapRef"]
    for at, volume in enumerate(pod["spec"].get("volumes") or ()):
        if volume.get("configMap"):
            yield f"spec.volumes[{at}]", volume["configMap"]
