"""What a limiter in the container reads, and whether the pod's own settings get round the limit. Pure.

HAMi-core takes the limit of a device from `<variable>_<n>`, where n is 0 for the first one that the container
sees, and from the variable alone only where there is none. What the image sets cannot be seen from here: of
that only what is delivered to the container is replaced.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from controller.kai.environment import (
    Rivals,
    Sight,
    Source,
    config_map_key,
    containers_of,
    entry_of,
    key_in,
    other_devices_of,
    pared,
    place_of,
    rivals_of,
    sources_of,
    value_of,
    view_of,
)
from controller.kai.fractions import devices_of_others
from controller.kai.names import SHARING_KEYS, VISIBLE_DEVICES
from controller.kai.outcome import Failed
from controller.kai.pods import full_name
from controller.kai.reasons import Reason
from controller.kai.sharing import Target, shown
from controller.runtime.client import Object

CUDA_NEEDS_MIB = 345
"""With a limit at or below, CUDA cannot start (seen with HAMi-core)."""

SWITCHES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "CUDA_DISABLE_CONTROL": frozenset({"", "0", "f", "F", "false", "FALSE", "False"}),
        "CUDA_REDIRECT": frozenset({""}),
    }
)
"""Variables that switch HAMi-core off, and the values with which they do not."""

READ_VALUES = frozenset({VISIBLE_DEVICES, *SWITCHES})
"""Variables whose plain values are looked at."""

_ON: Mapping[str, str] = MappingProxyType({"CUDA_DISABLE_CONTROL": "false", "CUDA_REDIRECT": ""})


class Way(Struct, frozen=True):
    """How a limit reaches all containers that see the GPUs.

    Attributes:
        variables: To be delivered beside the limit, in place of what others might say under these names.
        doubled: Names of other containers that have the limit, each for itself, while the first one runs.
        doubtful: Other containers that may see GPUs without a limit, and why, in words. That keeps no pod
            from its node: they do not read the share's, and what else they read hardly ever says anything of
            GPUs.
    """

    variables: Mapping[str, str]
    doubled: tuple[str, ...]
    doubtful: tuple[str, ...] = ()


def switched_off(container: Object) -> str | None:
    """What in a container's own entries switches a limiter off, in words to follow its name."""
    for name, harmless in SWITCHES.items():
        entry = entry_of(container, name)
        if entry is None or value_of(entry) in harmless:
            continue
        value = value_of(entry)
        to = "" if value is None else f" to {shown(value)}"
        return f"sets {name} itself{to}, which switches the limiter off"
    return None


def oddities_of(pod: Object, target: Target, *, nri: bool) -> list[str]:
    """What the pod itself says against its share, in whole sentences.

    Args:
        pod: The pod.
        target: Its container with the share.
        nri: Whether a plugin of the container runtime gives the devices that annotations name.
    """
    given = devices_of_others(pod, target.container["name"]) if nri else ()
    found = [f"the pod {what}, so that it may see other GPUs as well" for what in given]
    target = replace(target, container=pared(target, target.container, READ_VALUES))
    for whole in containers_of(pod):
        container = pared(target, whole, READ_VALUES)
        name, view = container["name"], view_of(target, container)
        if name == target.container["name"]:
            sees, odd = True, view.sight is not Sight.SHARE
        else:
            sees = view.sight in (Sight.SHARE, Sight.OTHERS)
            odd = view.sight is Sight.OTHERS
        if odd:
            beyond = ", so that it may see other GPUs as well" if view.sight is Sight.OTHERS else ""
            found.append(f"container {name} {view.why}{beyond}")
        off = switched_off(container) if sees else None
        if off is not None:
            found.append(f"container {name} {off}")
    return found


def way_to(pod: Object, target: Target, variable: str, value: str, devices: int) -> Way | Failed:
    """Whether a limit would reach each container that sees the GPUs, and nothing there would undo it.

    Args:
        pod: The pod.
        target: Its container with the share.
        variable: The variable that the limiter reads.
        value: What it will be.
        devices: How many GPUs the container sees.
    """
    for given in devices_of_others(pod, target.container["name"]):  # whatever the settings say: no limit
        text = f"pod {full_name(pod)} {given}, so that it may use more than its share"
        return Failed(Reason.LIMIT_NOT_DELIVERED, text, retry=False)
    guarded = {**{f"{variable}_{number}": value for number in range(devices)}, **_ON}
    looked_at = {variable, VISIBLE_DEVICES, *SWITCHES, *guarded}
    covers: dict[str, str] = {}
    doubled, doubtful = [], []
    target = replace(target, container=pared(target, target.container, looked_at, variable))
    for whole in (target.container, *_others(pod, target)):
        container = pared(target, whole, looked_at, variable)
        own = container["name"] == target.container["name"]
        view = view_of(target, container)
        if not own and view.sight in (Sight.NOTHING, Sight.UNKNOWN):
            source = other_devices_of(target, container)
            if source is not None:
                doubtful.append(
                    f"container {container['name']} reads {source}, which could set {VISIBLE_DEVICES}"
                )
            continue
        undelivered = _undelivered(target, container, variable)
        beyond = f"{view.why}, so that it may use more than its share" if view.sight is Sight.OTHERS else None
        wrong = (undelivered or beyond) if own else (beyond or undelivered)
        wrong = wrong or _undone(target, container, variable, guarded)
        if wrong is not None:
            too = "" if own else "sees the GPU as well, and "
            text = f"container {container['name']} of pod {full_name(pod)} {too}{wrong}"
            return Failed(Reason.LIMIT_NOT_DELIVERED, text, retry=False)
        covers |= {
            name: safe
            for name, safe in guarded.items()
            if _rivals(target, container, name).before is not None
        }
        if not own and _stays(pod, container):
            doubled.append(str(container["name"]))
    return Way(covers, tuple(doubled), tuple(doubtful))


def _others(pod: Object, target: Target) -> Iterator[Object]:
    return (item for item in containers_of(pod) if item["name"] != target.container["name"])


def _stays(pod: Object, container: Object) -> bool:
    """Whether a container runs for as long as the pod does."""
    if container.get("restartPolicy") == "Always":
        return True
    return any(item["name"] == container["name"] for item in pod["spec"].get("containers") or ())


def _undelivered(target: Target, container: Object, variable: str) -> str | None:
    """Why the container would not have the limit under the variable itself, if it would not."""
    entry = entry_of(container, variable)
    expected = key_in(target, target.container, variable)
    if entry is None:
        return _unread(target, container, variable, expected)
    found = config_map_key(entry)
    if found is None:
        return f"sets {variable} itself, so a limit would not reach it"
    name, key = found
    if name != target.config_map:
        return f"takes {variable} from ConfigMap {name}, not from {target.config_map}"
    # The key under which the devices stand may be any.
    if key in SHARING_KEYS or key == key_in(target, target.container, VISIBLE_DEVICES) or key != expected:
        return f"takes {variable} from key {key} of ConfigMap {name}, which holds something else"
    return None


def _unread(target: Target, container: Object, variable: str, expected: str | None) -> str | None:
    """Why the container, which has no entry for the variable, would not have it from a map read whole."""
    ours, rivals = place_of(target, variable)[0], rivals_of(target, container, variable)
    env_map = target.env_config_map
    if not rivals.read and expected is not None and _reads(container, env_map):
        return (
            f"takes {variable} from {env_map}, while container {target.container['name']} takes it elsewhere"
        )
    if not rivals.read:
        return (
            f"takes {variable} from no ConfigMap and does not read {env_map} whole, "
            "so a limit would not reach it"
        )
    if rivals.after is not None:
        return f"reads {rivals.after} after {ours}, which could replace {variable}; read {ours} last"
    return None


def _reads(container: Object, config_map: str) -> bool:
    """Whether a container reads a map whole, key by key as it stands there."""
    return Source("ConfigMap", config_map, "") in sources_of(container)


def _undone(target: Target, container: Object, variable: str, guarded: Iterable[str]) -> str | None:
    """What in the container would undo a limit that reaches it, if anything."""
    for item in container.get("env") or ():
        head, _, number = item["name"].rpartition("_")
        if head == variable and number.isascii() and number.isdigit():
            return f"sets {item['name']} itself, which goes before {variable}"
    wrong = switched_off(container)
    if wrong is not None:
        return wrong
    ours = target.env_config_map
    for name in guarded:
        rivals = _rivals(target, container, name)
        if rivals.after is not None and rivals.read:
            return f"reads {rivals.after} after {ours}, which could set {name}; read {ours} last"
        if rivals.after is not None:
            return f"reads {rivals.after}, which could set {name}, and does not read {ours} after it"
    return None


def _rivals(target: Target, container: Object, name: str) -> Rivals:
    """Who could set a variable to something harmful; nobody if the container has an entry of that name."""
    if entry_of(container, name) is not None:
        return Rivals(read=False, before=None, after=None)
    return rivals_of(target, container, name)
