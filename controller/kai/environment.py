"""What a container's environment is made of, and which GPUs it makes the container see. Pure.

The kubelet reads the sources of `envFrom` in their order, a later one replacing what an earlier one said;
then the entries of `env`, which go before all sources, and of which the last of a name counts. What neither
names is as the image has it, and cannot be seen from here.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from controller.kai.names import VISIBLE_DEVICES
from controller.kai.sharing import Target, shown
from controller.runtime.client import Object

_Kind = tuple[str, bool]
"""The prefix of a source, and whether it is the capabilities map."""
_NO_DEVICES = frozenset({"", "void", "none"})
"""With these values of NVIDIA_VISIBLE_DEVICES the container runtime adds no device."""


class Source(Struct, frozen=True):
    """Something whose keys a container takes as variables, all of them.

    Attributes:
        kind: `ConfigMap` or `Secret`.
        name: Of the object.
        prefix: What the container puts before each key; may be empty.
    """

    kind: str
    name: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def could_set(self, variable: str) -> bool:
        """Whether it can have a key that becomes this variable; what it really has may change at any time."""
        return len(variable) > len(self.prefix) and variable.startswith(self.prefix)


class Rivals(Struct, frozen=True):
    """How a variable that has no entry fares among the sources that a container reads whole.

    Attributes:
        read: Whether the map in which we put the variable is among them, so that the container has it.
        before: A source of somebody else that could set the variable, and that ours then replaces.
        after: One that could set it, and that ours does not replace.
    """

    read: bool
    before: Source | None
    after: Source | None


class Sight(Enum):
    """Which GPUs a container sees."""

    SHARE = auto()
    """Those of the share."""
    NOTHING = auto()
    OTHERS = auto()
    """What somebody else says, perhaps all of the node's."""
    UNKNOWN = auto()
    """What its image says."""


class View(Struct, frozen=True):
    """Which GPUs a container sees, and why.

    Attributes:
        sight: What it sees.
        why: Words to follow the container's name; empty for what is as it should be.
    """

    sight: Sight
    why: str = ""


def containers_of(pod: Object) -> Iterator[Object]:
    """All containers of a pod's spec, those first that run first."""
    for name in ("initContainers", "containers"):
        yield from pod["spec"].get(name) or ()


def entry_of(container: Object, variable: str) -> Object | None:
    """The entry for a variable; the last one if there are several."""
    found = None
    for entry in container.get("env") or ():
        if entry["name"] == variable:
            found = entry
    return found


def value_of(entry: Mapping[str, Any]) -> str | None:
    """The plain text that an entry gives its variable; None if it takes it from elsewhere."""
    return None if entry.get("valueFrom") else str(entry.get("value") or "")


def config_map_key(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name and key of the ConfigMap that an entry refers to, if it does."""
    ref = (entry.get("valueFrom") or {}).get("configMapKeyRef")
    return (ref.get("name") or "", ref["key"]) if ref else None


def key_in(target: Target, container: Object, variable: str) -> str | None:
    """The key of the capabilities map that a container takes a variable from, if it does."""
    entry = entry_of(container, variable)
    found = config_map_key(entry) if entry is not None else None
    return found[1] if found is not None and found[0] == target.config_map else None


def place_of(target: Target, variable: str) -> tuple[str, str]:
    """The map in which a variable of the share stands, and its key there: where the target looks for it."""
    key = key_in(target, target.container, variable)
    return (target.env_config_map, variable) if key is None else (target.config_map, key)


def sources_of(container: Object) -> Iterator[Source]:
    """What a container reads whole, in the order in which the kubelet reads it."""
    for item in container.get("envFrom") or ():
        prefix = item.get("prefix") or ""
        for kind in ("ConfigMap", "Secret"):
            ref = item.get(f"{kind[0].lower()}{kind[1:]}Ref")
            if ref:
                yield Source(kind, ref.get("name") or "", prefix)


def pared(target: Target, container: Object, variables: Collection[str], numbered: str = "") -> Object:
    """The container with only what has a say about some variables, however much else it is given.

    All functions here find with it what they find with the whole container, and in no time.

    Args:
        target: The pod's.
        container: Of the same pod.
        variables: Names.
        numbered: One that may be followed by `_` and more; of its entries the first is kept.
    """
    entries: dict[str, Object] = {}
    first: dict[str, Object] = {}
    for entry in container.get("env") or ():
        name = entry["name"]
        if name in variables:
            entries[name] = entry
        elif numbered and not first and _is_numbered(name, numbered):
            first[name] = entry
    # Of the sources of one prefix the last one counts, before and after ours; and of ours the last one. The
    # capabilities map is one of ours for some variables, and like others' for the rest.
    before: dict[_Kind, Object] = {}
    after: dict[_Kind, Object] = {}
    ours: list[Object] = []
    for item in container.get("envFrom") or ():
        prefix, config_map = item.get("prefix") or "", (item.get("configMapRef") or {}).get("name")
        if config_map == target.env_config_map and not item.get("secretRef"):
            if not prefix:
                before, after, ours = _later(before, after), {}, [item]
        elif any(name.startswith(prefix) for name in variables):
            kind = prefix, config_map == target.config_map and not item.get("secretRef")
            after.pop(kind, None)
            after[kind] = item
    kept = {
        "env": [*entries.values(), *first.values()],
        "envFrom": [*before.values(), *ours, *after.values()],
    }
    return {**container, **kept}


def _later(before: Mapping[_Kind, Object], after: Mapping[_Kind, Object]) -> dict[_Kind, Object]:
    return {**{kind: item for kind, item in before.items() if kind not in after}, **after}


def _is_numbered(name: str, variable: str) -> bool:
    head, _, number = name.rpartition("_")
    return head == variable and number.isascii() and number.isdigit()


def rivals_of(target: Target, container: Object, variable: str) -> Rivals:
    """Who else could set a variable that the container is to take from a map that it reads whole."""
    place = place_of(target, variable)
    read, before, after = False, None, None
    for source in sources_of(container):
        is_map = source.kind == "ConfigMap"
        if is_map and source.name == place[0] and f"{source.prefix}{place[1]}" == variable:
            read, before, after = True, after or before, None
        elif source.could_set(variable) and not (is_map and source.name == target.env_config_map):
            after = source
    return Rivals(read, before, after)


def view_of(target: Target, container: Object) -> View:
    """Which GPUs a container of the target's pod sees, as far as the pod says."""
    entry = entry_of(container, VISIBLE_DEVICES)
    if entry is not None:
        return _view_by_entry(target, container, entry)
    ours, _ = place_of(target, VISIBLE_DEVICES)
    rivals = rivals_of(target, container, VISIBLE_DEVICES)
    if rivals.after is not None and rivals.read:
        # Hardly any such source has the key: then the container sees the share.
        why = f"reads {rivals.after} after {ours}, which could replace {VISIBLE_DEVICES}; read {ours} last"
        return View(Sight.OTHERS, why)
    if rivals.after is not None and container["name"] == target.container["name"]:
        why = f"reads {rivals.after}, which could set {VISIBLE_DEVICES}, and does not read {ours} whole"
        return View(Sight.OTHERS, why)
    if rivals.read:
        return View(Sight.SHARE)
    why = (
        f"takes {VISIBLE_DEVICES} from no ConfigMap and does not read {ours} whole, so that its image decides"
    )
    return View(Sight.UNKNOWN, why)


def other_devices_of(target: Target, container: Object) -> Source | None:
    """What could have a container see other GPUs if it has a certain key, which cannot be seen from here.

    Only where nothing else decides: a container with an entry of its own never has such a source.
    """
    if entry_of(container, VISIBLE_DEVICES) is not None:
        return None
    return rivals_of(target, container, VISIBLE_DEVICES).after


def _view_by_entry(target: Target, container: Object, entry: Object) -> View:
    value, found = value_of(entry), config_map_key(entry)
    if value in _NO_DEVICES:
        return View(Sight.NOTHING, f"sets {VISIBLE_DEVICES} itself to {shown(value)}, so that it sees no GPU")
    if found is None:
        to = "" if value is None else f" to {shown(value)}"
        return View(Sight.OTHERS, f"sets {VISIBLE_DEVICES} itself{to}")
    name, key = found
    if name != target.config_map:
        return View(
            Sight.OTHERS, f"takes {VISIBLE_DEVICES} from ConfigMap {name}, not from {target.config_map}"
        )
    if container["name"] == target.container["name"]:
        return View(Sight.SHARE)
    if key == key_in(target, target.container, VISIBLE_DEVICES):
        return View(Sight.SHARE)
    return View(Sight.OTHERS, f"takes {VISIBLE_DEVICES} from key {key} of ConfigMap {name}")
