"""How much memory of a GPU a share is: never more than was granted, exact where the pod is exact. Pure.

The scheduler writes a portion with two decimals (B-4); the pod's own annotations say what was asked for. The
arithmetic is that of whole numbers, since decimal arithmetic rounds to 28 digits and a share may have more.
"""

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil

from msgspec import Struct

from controller.kai import fractions
from controller.kai.names import GPU_FRACTION, GPU_MEMORY, NODE_GPU_MEMORY
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, full_name
from controller.kai.quantity import quantity
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import exact_fraction, portion_of, shown
from controller.runtime.client import Object

MIB = 1024 * 1024
BYTES_FROM = 1048576
"""A node label this large is in bytes; KAI's scheduler draws the line here, too."""

_INTEGER = re.compile(r"[0-9]{1,18}")
_ROUNDING = Fraction(1, 100)
"""A portion has two decimals, and the scheduler takes a card for a little smaller than it is."""


class Card(Struct, frozen=True):
    """A GPU of a node.

    Attributes:
        mib: Its memory, MiB.
        source: Where that is written, in words.
    """

    mib: int
    source: str


class Share(Struct, frozen=True):
    """The memory of each GPU that a pod was granted.

    Attributes:
        mib: MiB, at least 1.
        source: What was asked, in words.
    """

    mib: int
    source: str


class Asked(Struct, frozen=True):
    """Memory of each GPU that a pod asks for.

    Attributes:
        mib: MiB, at least 1.
        annotation: That says so.
    """

    mib: int
    annotation: str


def whole_number(text: object) -> int | None:
    """A positive whole number written in plain digits; None if it is none."""
    return int(text) or None if isinstance(text, str) and _INTEGER.fullmatch(text) else None


def card_of(node: Object) -> Card | Failed:
    """The GPUs of a node by its label; fails with MemoryUnknown if there is none."""
    name = node["metadata"]["name"]
    label = (node["metadata"].get("labels") or {}).get(NODE_GPU_MEMORY)
    if label is None:
        return Failed(Reason.MEMORY_UNKNOWN, f"node {name} has no label {NODE_GPU_MEMORY}")
    value = whole_number(label) or 0
    mib = value // MIB if value >= BYTES_FROM else value
    if mib < 1:
        text = f"label {NODE_GPU_MEMORY} of node {name} is {shown(label)}; it must be a whole number of MiB"
        return Failed(Reason.INVALID_NODE_MEMORY, text)
    unit = f" ({label} bytes)" if mib != value else ""
    return Card(mib, f"the card has {mib} MiB by its label{unit}")


def share_of(request: BindRequest, pod: Object, card: Card) -> Share | Failed:
    """The memory of each GPU that a request grants its pod on such a card."""
    portion = portion_of(request)
    if isinstance(portion, Failed):
        return portion
    asked = asked_mib(pod)
    if isinstance(asked, Failed):
        return asked
    if asked is not None:
        failure = _beyond_grant(request, pod, asked, portion, card)
        return failure or Share(asked.mib, f"from {asked.annotation}")
    fraction = _fraction(request, pod, portion)
    if isinstance(fraction, Failed):
        return fraction
    share, origin = fraction
    mib = portion_mib(share, card)
    source = f"{share} of the card, from {origin}"
    if mib < 1:
        text = f"the limit for pod {full_name(pod)} on node {request.node_name} is less than 1 MiB"
        return Failed(Reason.MEMORY_TOO_SMALL, f"{text}: {source}; {card.source}", retry=False)
    return Share(mib, source)


def portion_mib(portion: Decimal, card: Card) -> int:
    """A portion of a card's memory in MiB, rounded down."""
    numerator, denominator = portion.as_integer_ratio()
    return numerator * card.mib // denominator


def granted_at_most_mib(portion: Decimal, card: Card) -> int:
    """What a portion can have been rounded from, of each GPU in MiB."""
    return ceil((Fraction(portion) + _ROUNDING) * card.mib)


def asked_mib(pod: Object) -> Asked | Failed | None:
    """The memory of each GPU that a pod asks for by an amount; None if it asks by a fraction, or not at all.

    By `gpu-memory` or, since KAI v0.18, by an annotation of its container alone; beside `gpu-fraction` that
    may be what a binder has made of the fraction (N-43).
    """
    name, memory = full_name(pod), annotation(pod, GPU_MEMORY)
    if memory is not None:
        mib = whole_number(memory)
        if mib is not None:
            return Asked(mib, GPU_MEMORY)
        text = (
            f"annotation {GPU_MEMORY} of pod {name} is {shown(memory)}; "
            "it must be a whole number of MiB, such as 4096"
        )
        return Failed(Reason.INVALID_GPU_MEMORY, text, retry=False)
    found = fractions.memory_asked(pod)
    if found is None or annotation(pod, GPU_FRACTION) is not None:
        return None
    source, memory = found
    try:
        mib = int(quantity(memory) // MIB)
    except ValueError:
        mib = 0
    if mib >= 1:
        return Asked(mib, source)
    text = f"annotation {source} of pod {name} is {shown(memory)}; it must be at least 1Mi, such as 4Gi"
    return Failed(Reason.INVALID_GPU_MEMORY, text, retry=False)


def _beyond_grant(
    request: BindRequest, pod: Object, asked: Asked, portion: Decimal, card: Card
) -> Failed | None:
    """Why the scheduler cannot have granted so much memory, if it cannot.

    The annotation may be changed after the scheduler has looked at it; the request's portion cannot.
    """
    asks = f"annotation {asked.annotation} of pod {full_name(pod)} asks for {asked.mib} MiB"
    if asked.mib > card.mib:
        text = f"{asks}, more than a GPU of node {request.node_name} has: {card.source}"
        return Failed(Reason.MEMORY_EXCEEDS_CARD, text, retry=False)
    granted_mib = granted_at_most_mib(portion, card)
    if asked.mib > granted_mib:
        text = (
            f"{asks}, more than the request grants: portion {portion} is at most {granted_mib} MiB, "
            f"with what rounding may have taken off; {card.source}"
        )
        return Failed(Reason.MEMORY_EXCEEDS_GRANT, text)
    return None


def _fraction(request: BindRequest, pod: Object, portion: Decimal) -> tuple[Decimal, str] | Failed:
    """The share of each device, exactly as asked for where that is known, and where that is written.

    The pod's own annotation has all decimals, and is believed if it is what was rounded to the portion.
    """
    exact = exact_fraction(pod, portion)
    if isinstance(exact, Failed):
        return exact
    if exact is not None:
        return exact, GPU_FRACTION
    if not 0 < portion <= 1:
        text = (
            f"spec.receivedGPU.portion is {shown(request.gpu_portion)}; "
            "a share of a GPU is more than 0 and at most 1"
        )
        return Failed(Reason.INVALID_PORTION, text, retry=False)
    return portion, "the request's portion"
