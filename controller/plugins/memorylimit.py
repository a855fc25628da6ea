"""The GPU memory limit of a share: opt-in, and of no use without gpusharing, which delivers it.

Fails closed: a pod whose limit is not known exactly, or would not reach its container, is not bound. The
arithmetic is decimal, and the limit never is above the card, zero, or empty.
"""

import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controller.api import Reason
from controller.gpu import (
    GPU_FRACTION,
    GPU_MEMORY,
    NODE_GPU_MEMORY,
    GPUConfigError,
    annotation,
    config_map_key,
    reads_whole,
    reference,
    target_of,
)
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Ready
from controller.runtime.client import Client, Object

_INTEGER = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?")
_MIB = 1024 * 1024
_BYTES_FROM = 1048576
"""A node label this large is in bytes; KAI's scheduler draws the line here, too."""
_ROUNDING = Decimal("0.005")
_CUDA_NEEDS_MIB = 345
"""At or below, CUDA cannot start (seen with HAMi-core)."""


def _positive(text: object) -> int:
    if isinstance(text, str) and _INTEGER.fullmatch(text) and int(text) > 0:
        return int(text)
    raise ValueError("a positive whole number is allowed")


class Arguments(BaseModel):
    """Arguments of gpumemorylimit.

    Attributes:
        fallback_memory_mib: Memory of the GPUs of a node that has no label for it, MiB.
        variable: That the limiter in the container reads.
        format: `mebibytes` writes 4096m, `bytes` writes 4294967296.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback_memory_mib: Annotated[int, BeforeValidator(_positive)] | None = Field(
        default=None, alias="fallbackMemoryMiB"
    )
    variable: str = Field(default="CUDA_DEVICE_MEMORY_LIMIT", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    format: Literal["mebibytes", "bytes"] = "mebibytes"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and where it comes from.

    Attributes:
        mib: The limit of each device, MiB.
        source: What was asked, in words.
        card: What is known of the card, in words.
    """

    mib: int
    source: str
    card: str

    def __str__(self) -> str:
        text = f"{self.mib} MiB, {self.source}; {self.card}"
        if self.mib <= _CUDA_NEEDS_MIB:
            text += f". Warning: CUDA does not start with {_CUDA_NEEDS_MIB} MiB or less"
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

    async def prepare(self, context: BindContext) -> Failed | None:
        """Works out the limit and hands it to gpusharing, before a GPU is reserved."""
        limit = limit_of(context, self._arguments.fallback_memory_mib)
        if isinstance(limit, Failed):
            return limit
        undelivered = _undelivered(context.pod, self._arguments.variable)
        if undelivered is not None:
            return Failed(Reason.LIMIT_NOT_DELIVERED, undelivered, retry=False)
        text = f"{limit.mib}m" if self._arguments.format == "mebibytes" else str(limit.mib * _MIB)
        context.container_env[self._arguments.variable] = text
        return None

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Says which limit gpusharing has delivered."""
        if self._arguments.variable not in context.container_env:
            return Failed(Reason.LIMIT_NOT_DELIVERED, f"{self._arguments.variable} was not worked out")
        limit = limit_of(context, self._arguments.fallback_memory_mib)
        return limit if isinstance(limit, Failed) else Ready(str(limit))


def limit_of(context: BindContext, fallback_mib: int | None) -> Limit | Failed:
    """The memory that the container may use of each of its devices.

    Args:
        context: The attempt.
        fallback_mib: Memory of the card if its node does not say, MiB.
    """
    card = _card(context.node, fallback_mib)
    if isinstance(card, Failed):
        return card
    card_mib, where = card
    memory = annotation(context.pod, GPU_MEMORY)
    if memory is not None:
        if not _INTEGER.fullmatch(memory) or int(memory) == 0:
            text = f"annotation {GPU_MEMORY} is {memory!r}; it must be a whole number of MiB, such as 4096"
            return Failed(Reason.INVALID_GPU_MEMORY, text, retry=False)
        limit_mib, source = int(memory), f"from {GPU_MEMORY}"
    else:
        fraction = _fraction(context)
        if isinstance(fraction, Failed):
            return fraction
        share, origin = fraction
        limit_mib = int((share * card_mib).to_integral_value(ROUND_FLOOR))
        source = f"{share} of the card, from {origin}"
    if limit_mib > card_mib:
        text = f"{GPU_MEMORY} asks for {limit_mib} MiB, more than there is: {where}"
        return Failed(Reason.MEMORY_EXCEEDS_CARD, text, retry=False)
    if limit_mib < 1:
        return Failed(
            Reason.MEMORY_TOO_SMALL, f"the limit is less than 1 MiB: {source}; {where}", retry=False
        )
    return Limit(limit_mib, source, where)


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


def _fraction(context: BindContext) -> tuple[Decimal, str] | Failed:
    """The share of each device, exactly as asked for where that is known.

    The scheduler writes two decimals; the pod's own annotation has them all, and is believed if it is what
    was rounded.
    """
    portion_text = context.request.gpu_portion
    if portion_text is None or not _DECIMAL.fullmatch(portion_text):
        text = f"spec.receivedGPU.portion is {portion_text!r}; it must be a decimal number such as 0.50"
        return Failed(Reason.INVALID_PORTION, text, retry=False)
    portion = Decimal(portion_text)
    asked_text = annotation(context.pod, GPU_FRACTION)
    if asked_text is not None:
        if not _DECIMAL.fullmatch(asked_text):
            text = f"annotation {GPU_FRACTION} is {asked_text!r}; it must be a decimal number such as 0.5"
            return Failed(Reason.INVALID_PORTION, text, retry=False)
        asked, (_, _, exponent) = Decimal(asked_text), portion.as_tuple()
        rounded = isinstance(exponent, int) and exponent >= -2
        if 0 < asked <= 1 and rounded and abs(asked - portion) <= _ROUNDING:
            return asked, GPU_FRACTION
    if not 0 < portion <= 1:
        text = f"spec.receivedGPU.portion is {portion_text!r}; a share of a GPU is more than 0 and at most 1"
        return Failed(Reason.INVALID_PORTION, text, retry=False)
    return portion, "the request's portion"


def _undelivered(pod: Object, variable: str) -> str | None:
    """Why the container would not see the limit, if it would not."""
    try:
        target = target_of(pod)
    except GPUConfigError as error:
        return str(error)
    name = target.container["name"]
    entry = reference(target.container, variable)
    if entry is not None:
        found = config_map_key(entry)
        if found is None:
            return f"container {name} sets {variable} itself, so a limit would not reach it"
        if found[0] != target.config_map:
            return (
                f"container {name} takes {variable} from ConfigMap {found[0]}, not from {target.config_map}"
            )
        return None
    if not reads_whole(target.container, target.env_config_map):
        return (
            f"container {name} takes {variable} from no ConfigMap and does not read {target.env_config_map} "
            "whole, so a limit would not reach it"
        )
    return None
