"""What one pod has of a GPU: how much, under which limit, and which devices it was told. Pure.

`picture.py` asks. Where the request that gave the share is still there, it counts as it does for the binder;
without it the pod's own annotations are all there is. What cannot be told is unknown, never guessed.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil

from msgspec import Struct

from controller.kai import fractions
from controller.kai.environment import entry_of, key_in, place_of, value_of
from controller.kai.limiter import switched_off
from controller.kai.memory import MIB, Card, Share, asked_mib, portion_mib, share_of, whole_number
from controller.kai.names import GPU_MEMORY, VISIBLE_DEVICES
from controller.kai.outcome import Failed
from controller.kai.pods import annotation
from controller.kai.quantity import quantity
from controller.kai.reasons import LIMIT_CONDITION
from controller.kai.request import BindRequest, BindStatus, InvalidRequestError
from controller.kai.sharing import Target, asked_fraction, container_of, exact_fraction, portion_of, target_of
from controller.runtime.client import Object

_ROUNDING = Fraction(1, 200)
_LEAST_SHOWN = Fraction(1, 1000)
"""Of two decimals."""
_CONDITION_MIB = re.compile(r"([0-9]{1,18}) MiB, ")
_LIMIT = re.compile(r"([0-9]{1,18})([gGmMkK]?)")
_UNITS: Mapping[str, int] = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}


class Size(Struct, frozen=True):
    """How much of each GPU a pod has.

    Attributes:
        portion: Of the card; None if unknown.
        mib: Memory, MiB; None if unknown.
        slack: By so much the portion may be more than what was meant, since it was rounded.
    """

    portion: Fraction | None = None
    mib: int | None = None
    slack: Fraction = Fraction(0)


class LimitSource(StrEnum):
    """Where a limit of memory is read."""

    CONFIG_MAP = "ConfigMap"
    """Of the pod: what its container is really told."""
    POD = "Pod"
    """The container sets the variable itself, or switches the limiter off."""
    ANNOTATION = "Annotation"
    """KAI's component on the node goes by it, since v0.18."""
    CONDITION = "Condition"
    """Of the request: what the binder says that it has delivered."""
    UNKNOWN = "Unknown"


class Limit(Struct, frozen=True):
    """The limit in force.

    Attributes:
        source: Where that is written.
        mib: MiB; None if there is none, or if it is unknown.
    """

    source: LimitSource
    mib: int | None = None

    def __str__(self) -> str:
        if self.source is LimitSource.UNKNOWN:
            return "limit unknown"
        return "no limit" if self.mib is None else f"limit {self.mib} MiB"


def percent(portion: Fraction) -> str:
    """A portion for people: it reads as 100% only if it is 1, and as 0% only if it is 0."""
    if 0 < portion < _LEAST_SHOWN:
        return "<0.1%"
    thousandths = portion * 1000
    shown = ceil(thousandths) if portion > 1 else int(thousandths)
    return f"{shown / 10:g}%"


UNKNOWN_LIMIT = Limit(LimitSource.UNKNOWN)


def size_of(pod: Object, request: Object | None, card: Card | None) -> Size:
    """How much of each GPU a pod has.

    Args:
        pod: The pod.
        request: The one that gave the share, if it is there.
        card: The GPUs of the node, if they are known.
    """
    parsed = _parsed(request)
    granted = portion_of(parsed) if parsed is not None else None
    if parsed is not None and isinstance(granted, Decimal) and granted > 0:
        if asked_mib(pod) is None:
            exact = exact_fraction(pod, granted)
            return _of_fraction(exact, card) if isinstance(exact, Decimal) else _of_grant(granted, card)
        share = share_of(parsed, pod, card) if card is not None else None
        if card is not None and isinstance(share, Share):
            return _of_mib(share.mib, card)
        return _of_grant(granted, card)
    return _asked(pod, card)


def _parsed(request: Object | None) -> BindRequest | None:
    try:
        return BindRequest.parse(request) if request is not None else None
    except InvalidRequestError:
        return None


def _asked(pod: Object, card: Card | None) -> Size:
    """What the pod says of itself."""
    mib = whole_number(annotation(pod, GPU_MEMORY))
    if mib is None and annotation(pod, GPU_MEMORY) is None:
        asked = asked_fraction(pod)
        if isinstance(asked, Decimal):
            return _of_fraction(asked, card) if 0 < asked <= 1 else Size()
        mib = _written_mib(pod)
    if mib is None:
        return Size()
    return _of_mib(mib, card) if card is not None else Size(mib=mib)


def _of_mib(mib: int, card: Card) -> Size:
    return Size(Fraction(mib, card.mib), mib, Fraction(1, card.mib))


def _of_fraction(portion: Decimal, card: Card | None) -> Size:
    """As a person wrote it, who may have cut off a third."""
    slack = Fraction(1, card.mib) if card is not None else _ROUNDING
    return Size(Fraction(portion), portion_mib(portion, card) if card is not None else None, slack)


def _of_grant(portion: Decimal, card: Card | None) -> Size:
    """As the scheduler wrote it, with two decimals."""
    return Size(Fraction(portion), portion_mib(portion, card) if card is not None else None, _ROUNDING)


def _written_mib(pod: Object) -> int | None:
    """What the annotation says that binders write since KAI v0.18."""
    return _mib_in(pod, fractions.MEMORY_REQUEST)


def _mib_in(pod: Object, ending: str) -> int | None:
    """The memory in an annotation of the container's share, MiB."""
    found = container_of(pod, strict=True)
    text = fractions.said(pod, found[1]["name"], ending) if not isinstance(found, Failed) else None
    try:
        return int(quantity(text) // MIB) or None if text is not None else None
    except ValueError:
        return None


def limiter_mib(text: str) -> int | None:
    """What a limiter in the container makes of its variable, MiB; None if it is no limit.

    Raises:
        ValueError: It is not written as a limiter reads it.
    """
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no limit")
    size = int(match[1]) * _UNITS[match[2].lower()]
    return max(1, size // MIB) if size else None


def config_maps_of(pod: Object) -> tuple[str, ...]:
    """Names of the ConfigMaps that tell a pod's container of its share; none if the pod names none."""
    target = target_of(pod)
    return () if isinstance(target, Failed) else (target.config_map, target.env_config_map)


def limit_of(
    pod: Object, request: Object | None, maps: Mapping[str, Mapping[str, str]] | None, variable: str
) -> Limit:
    """The limit in force, from the surest place that can be read.

    Args:
        pod: The pod.
        request: The one that gave the share, if it is there.
        maps: Data of the pod's ConfigMaps by name; None if they were not read.
        variable: That the limiter in the container reads.
    """
    target = target_of(pod)
    if not isinstance(target, Failed):
        if switched_off(target.container) is not None:
            return Limit(LimitSource.POD)
        own = _own_limit(target, variable)
        if own is not None:
            return own
        if maps is not None:
            told = _told_limit(target, maps, variable)
            if told != Limit(LimitSource.CONFIG_MAP):
                return told
    mib = _mib_in(pod, fractions.MEMORY_LIMIT)
    if mib is not None:
        return Limit(LimitSource.ANNOTATION, mib)
    if maps is not None and not isinstance(target, Failed):
        return Limit(LimitSource.CONFIG_MAP)
    return _reported_limit(request)


def _own_limit(target: Target, variable: str) -> Limit | None:
    """What the container sets itself, in place of any map; None if it does not."""
    entry = entry_of(target.container, variable)
    if entry is None or key_in(target, target.container, variable) is not None:
        return None
    value = value_of(entry)
    return UNKNOWN_LIMIT if value is None else _limit(LimitSource.POD, value)


def _told_limit(target: Target, maps: Mapping[str, Mapping[str, str]], variable: str) -> Limit:
    """What the maps say: the container takes the variable from one of them."""
    key = key_in(target, target.container, variable)
    name = target.env_config_map if key is None else target.config_map
    value = maps.get(name, {}).get(variable if key is None else key)
    return _limit(LimitSource.CONFIG_MAP, value) if value else Limit(LimitSource.CONFIG_MAP)


def _limit(source: LimitSource, text: str) -> Limit:
    try:
        return Limit(source, limiter_mib(text))
    except ValueError:
        return UNKNOWN_LIMIT


def _reported_limit(request: Object | None) -> Limit:
    """What the request's conditions say; a server with KAI's own CRD keeps none."""
    conditions = {item.get("type"): item for item in BindStatus.of(request or {}).conditions}
    found = conditions.get(LIMIT_CONDITION)
    if found is None:
        is_whole = (conditions.get("Bound") or {}).get("status") == "True" and "GPUSharing" in conditions
        return Limit(LimitSource.CONDITION) if is_whole else UNKNOWN_LIMIT
    match = _CONDITION_MIB.match(str(found.get("message") or ""))
    if found.get("status") != "True" or match is None:
        return UNKNOWN_LIMIT
    return Limit(LimitSource.CONDITION, int(match[1]))


def devices_of(pod: Object, maps: Mapping[str, Mapping[str, str]] | None) -> frozenset[str]:
    """The devices that a pod was told, by annotations or by its ConfigMaps; none if that is not known."""
    told = {device.rpartition("=")[2].strip() for device in _told_devices(pod, maps)}
    return frozenset(filter(None, told))


def _told_devices(pod: Object, maps: Mapping[str, Mapping[str, str]] | None) -> Iterator[str]:
    yield from fractions.devices_told(pod)
    target = target_of(pod)
    if maps is None or isinstance(target, Failed):
        return
    name, key = place_of(target, VISIBLE_DEVICES)
    yield from maps.get(name, {}).get(key, "").split(",")
