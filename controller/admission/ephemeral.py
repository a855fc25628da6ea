"""Containers that are put into a pod with a share while it runs, as `kubectl debug` does. Pure.

Caller: `review`. They are no part of what was prepared, so they get neither the share nor its limit, and may
see no GPU by what they say themselves. What their images say cannot be seen from here.
"""

from collections.abc import Iterator

from controller.admission.deviceaccess import SEES_NONE
from controller.admission.problems import Problem
from controller.admission.rules import Rules
from controller.kai.environment import entry_of, sources_of, value_of
from controller.kai.limiter import SWITCHES, switched_off
from controller.kai.names import VISIBLE_DEVICES
from controller.kai.pods import annotations_of
from controller.kai.sharing import asks_for_share, shown
from controller.runtime.client import Object


def problems_of_added(old: Object | None, pod: Object, rules: Rules, _user: str) -> list[Problem]:
    """Why ephemeral containers are refused, of those that were not there before.

    Args:
        old: The pod as it is.
        pod: Of our scheduler, as it would be.
        rules: The settings.
    """
    if not asks_for_share(annotations_of(pod)):
        return []
    there = [] if old is None else old["spec"].get("ephemeralContainers") or []
    problems = []
    for number, container in enumerate(pod["spec"].get("ephemeralContainers") or ()):
        if container not in there:
            where = f"spec.ephemeralContainers[{number}]"
            problems += [Problem(f"{where}.{field}", text) for field, text in _wrong(container, rules)]
    return problems


def _wrong(container: Object, rules: Rules) -> Iterator[tuple[str, str]]:
    """What has one see GPUs, or switches the limiter off there; the field, and what is wrong with it."""
    name, entry = container["name"], entry_of(container, VISIBLE_DEVICES)
    sees_none = entry is not None and value_of(entry) in SEES_NONE
    who = f"container {name} has no share of a GPU"
    if entry is not None and not sees_none:
        value = value_of(entry)
        said = "it is taken from elsewhere" if value is None else shown(value)
        yield f"env[{VISIBLE_DEVICES}]", f"Invalid value: {said}: {who}; must be void or none"
    off = switched_off(container) if rules.limits_memory else None
    if off is not None:
        yield "env", f"Forbidden: container {name} {off}"
    if sees_none:
        return
    for variable in (VISIBLE_DEVICES, *(SWITCHES if rules.limits_memory else ())):
        source = next((item for item in sources_of(container) if item.could_set(variable)), None)
        if source is not None and entry_of(container, variable) is None:
            text = f"{who}, and reads {source}, which could set {variable}"
            yield "envFrom", f"Forbidden: {text}; set {VISIBLE_DEVICES} to void beside it"
            return
