"""The GPU memory limit of a share: opt-in, and of no use without gpusharing, which delivers it.

Fails closed: a pod whose limit is not known exactly, or would not reach its container, is not bound. The
arithmetic is decimal, and the limit never is above the card, zero, or empty.
"""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from controller.kai.limiter import SWITCHES, way_to
from controller.kai.names import GPU_FRACTION, GPU_MEMORY, MEMORY_LIMIT, NODE_GPU_MEMORY, SHARING_KEYS
from controller.kai.pods import annotation, full_name
from controller.kai.reasons import Reason
from controller.kai.sharing import exact_fraction, portion_of, shown, target_of
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared, Ready
from controller.runtime.client import Client, Object

_INTEGER = re.compile(r"[0-9]{1,18}")
_MIB = 1024 * 1024
_BYTES_FROM = 1048576
"""A node label this large is in bytes; KAI's scheduler draws the line here, too."""
_CUDA_NEEDS_MIB = 345
"""At or below, CUDA cannot start (seen with HAMi-core)."""
_ROUNDING = Fraction(1, 100)
"""A portion has two decimals, and the scheduler takes a card for a little smaller than it is."""


def _card_mib(text: object) -> int:
    # What is larger was meant in bytes; a limit worked out from it would be none.
    if isinstance(text, str) and _INTEGER.fullmatch(text) and 0 < int(text) < _BYTES_FROM:
        return int(text)
    raise ValueError(f"a whole number of MiB is allowed, from 1 to {_BYTES_FROM - 1}")


def _free_variable(name: str) -> str:
    if name in SHARING_KEYS:
        raise ValueError("gpusharing sets it; take another one")
    if name in SWITCHES:
        raise ValueError("it switches the limiter off; take another one")
    return name


class Arguments(BaseModel):
    """Arguments of gpumemorylimit.

    Attributes:
        fallback_memory_mib: Memory of the GPUs of a node that has no label for it, MiB.
        variable: That the limiter in the container reads.
        format: `mebibytes` writes 4096m, `bytes` writes 4294967296.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback_memory_mib: Annotated[int, BeforeValidator(_card_mib)] | None = Field(
        default=None, alias="fallbackMemoryMiB"
    )
    variable: Annotated[str, AfterValidator(_free_variable)] = Field(
        default=MEMORY_LIMIT, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    format: Literal["mebibytes", "bytes"] = "mebibytes"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and where it comes from.

    Attributes:
        mib: The limit of each device, MiB.
        source: What was asked, in words.
        card: What is known of the card, in words.
        doubled: Other containers that have the same limit, each for itself.
    """

    mib: int
    source: str
    card: str
    doubled: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.mib} MiB, {self.source}; {self.card}"
        if self.mib <= _CUDA_NEEDS_MIB:
            text += f". Warning: CUDA does not start with {_CUDA_NEEDS_MIB} MiB or less"
        if self.doubled:
            total_mib = self.mib * (len(self.doubled) + 1)
            text += (
                f". Warning: {', '.join(self.doubled)} has the same limit for itself, "
                f"so the pod may use {total_mib} MiB"
            )
        return text


class GPUMemoryLimit(Plugin):
    """Caps the GPU memory that a container with a share can use."""

    name = "gpumemorylimit"
    condition_type = "GPUMemoryLimit"
    requires = ("gpusharing",)
    aliases = ("hamicore",)
    priority = 50
    enabled = False
    arguments_model: ClassVar = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        assert isinstance(arguments, Arguments)  # noqa: S101 -- the registry's promise
        self._arguments = arguments

    def concerns(self, context: BindContext) -> bool:
        """Whole GPUs and MIG instances have limits of their own."""
        return context.request.is_fraction

    async def prepare(self, context: BindContext) -> Prepared | Failed:
        """Works out the limit, before a GPU is reserved; gpusharing delivers it."""
        limit = limit_of(context, self._arguments.fallback_memory_mib)
        if isinstance(limit, Failed):
            return limit
        target = target_of(context.pod)
        if isinstance(target, Failed):
            return target
        variable = self._arguments.variable
        text = f"{limit.mib}m" if self._arguments.format == "mebibytes" else str(limit.mib * _MIB)
        way = way_to(context.pod, target, variable, text, len(context.request.gpu_groups))
        if isinstance(way, Failed):
            return way
        return Prepared(
            container_env={variable: text, **way.variables}, found=replace(limit, doubled=way.doubled)
        )

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Says which limit gpusharing has delivered."""
        if not isinstance(context.found, Limit) or self._arguments.variable not in context.container_env:
            return Failed(Reason.LIMIT_NOT_DELIVERED, f"{self._arguments.variable} was not worked out")
        return Ready(str(context.found))


def limit_of(context: BindContext, fallback_mib: int | None) -> Limit | Failed:
    """The memory that the container may use of each of its devices.

    Args:
        context: The attempt.
        fallback_mib: Memory of the card if its node does not say, MiB.
    """
    card = _card(context.node, fallback_mib)
    if isinstance(card, Failed):
        return card
    portion = portion_of(context.request)
    if isinstance(portion, Failed):
        return portion
    card_mib, where = card
    memory = annotation(context.pod, GPU_MEMORY)
    if memory is not None:
        limit_mib = _granted(context, memory, portion, card)
        if isinstance(limit_mib, Failed):
            return limit_mib
        return Limit(limit_mib, f"from {GPU_MEMORY}", where)
    fraction = _fraction(context, portion)
    if isinstance(fraction, Failed):
        return fraction
    share, origin = fraction
    # As whole numbers: decimal arithmetic rounds to 28 digits, and the share may have more.
    numerator, denominator = share.as_integer_ratio()
    limit_mib = numerator * card_mib // denominator
    source = f"{share} of the card, from {origin}"
    if limit_mib < 1:
        pod, node = full_name(context.pod), context.node["metadata"]["name"]
        text = f"the limit for pod {pod} on node {node} is less than 1 MiB: {source}; {where}"
        return Failed(Reason.MEMORY_TOO_SMALL, text, retry=False)
    return Limit(limit_mib, source, where)


def _granted(context: BindContext, memory: str, portion: Decimal, card: tuple[int, str]) -> int | Failed:
    """The memory that a pod asks for in MiB, if the scheduler can have granted it.

    The annotation may be changed after the scheduler has looked at it; the request's portion cannot.
    """
    pod, (card_mib, where) = full_name(context.pod), card
    if not _INTEGER.fullmatch(memory) or int(memory) == 0:
        text = (
            f"annotation {GPU_MEMORY} of pod {pod} is {shown(memory)}; "
            "it must be a whole number of MiB, such as 4096"
        )
        return Failed(Reason.INVALID_GPU_MEMORY, text, retry=False)
    asked_mib = int(memory)
    asks = f"annotation {GPU_MEMORY} of pod {pod} asks for {asked_mib} MiB"
    if asked_mib > card_mib:
        text = f"{asks}, more than a GPU of node {context.node['metadata']['name']} has: {where}"
        return Failed(Reason.MEMORY_EXCEEDS_CARD, text, retry=False)
    granted_mib = ceil((Fraction(portion) + _ROUNDING) * card_mib)
    if asked_mib > granted_mib:
        text = (
            f"{asks}, more than the request grants: portion {portion} is at most {granted_mib} MiB, "
            f"with what rounding may have taken off; {where}"
        )
        return Failed(Reason.MEMORY_EXCEEDS_GRANT, text)
    return asked_mib


def _card(node: Object, fallback_mib: int | None) -> tuple[int, str] | Failed:
    """Memory of the node's GPUs in MiB, and where that is written."""
    name = node["metadata"]["name"]
    label = (node["metadata"].get("labels") or {}).get(NODE_GPU_MEMORY)
    if label is None:
        if fallback_mib is None:
            text = (
                f"node {name} has no label {NODE_GPU_MEMORY}, and the argument fallbackMemoryMiB is not set"
            )
            return Failed(Reason.MEMORY_UNKNOWN, text)
        return fallback_mib, f"the card is taken to have {fallback_mib} MiB, by fallbackMemoryMiB"
    value = int(label) if _INTEGER.fullmatch(label) else 0
    mib = value // _MIB if value >= _BYTES_FROM else value
    if mib < 1:
        text = f"label {NODE_GPU_MEMORY} of node {name} is {label!r}; it must be a whole number of MiB"
        return Failed(Reason.INVALID_NODE_MEMORY, text)
    unit = f" ({label} bytes)" if mib != value else ""
    return mib, f"the card has {mib} MiB by its label{unit}"


def _fraction(context: BindContext, portion: Decimal) -> tuple[Decimal, str] | Failed:
    """The share of each device, exactly as asked for where that is known, and where that is written.

    The scheduler writes two decimals; the pod's own annotation has them all, and is believed if it is what
    was rounded.
    """
    exact = exact_fraction(context.pod, portion)
    if isinstance(exact, Failed):
        return exact
    if exact is not None:
        return exact, GPU_FRACTION
    if not 0 < portion <= 1:
        text = (
            f"spec.receivedGPU.portion is {shown(context.request.gpu_portion)}; "
            "a share of a GPU is more than 0 and at most 1"
        )
        return Failed(Reason.INVALID_PORTION, text, retry=False)
    return portion, "the request's portion"
