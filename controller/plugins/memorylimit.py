"""The GPU memory limit of a share: opt-in, and of no use without gpusharing, which delivers it.

Fails closed: a pod whose limit is not known exactly, or would not reach its container, is not bound. The
arithmetic is decimal, and the limit never is above the card, zero, or empty.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from controller.kai.limiter import CUDA_NEEDS_MIB, SWITCHES, way_to
from controller.kai.memory import BYTES_FROM, MIB, Card, card_of, share_of, whole_number
from controller.kai.names import GPU_FRACTION_LIMIT, GPU_MEMORY_LIMIT, MEMORY_LIMIT, SHARING_KEYS
from controller.kai.pods import annotation
from controller.kai.reasons import LIMIT_CONDITION, Reason
from controller.kai.sharing import target_of
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared, Ready
from controller.runtime.client import Client, Object


def _card_mib(text: object) -> int:
    # What is larger was meant in bytes; a limit worked out from it would be none.
    mib = whole_number(text)
    if mib is not None and mib < BYTES_FROM:
        return mib
    raise ValueError(f"a whole number of MiB is allowed, from 1 to {BYTES_FROM - 1}")


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


class Limit(Struct, frozen=True):
    """A limit and where it comes from.

    Attributes:
        mib: The limit of each device, MiB.
        source: What was asked, in words.
        card: What is known of the card, in words.
        doubled: Other containers that have the same limit, each for itself.
        doubtful: Other containers that may see GPUs without a limit, and why.
        ignored: Annotations of the pod that ask for another limit.
    """

    mib: int
    source: str
    card: str
    doubled: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.mib} MiB, {self.source}; {self.card}"
        if self.mib <= CUDA_NEEDS_MIB:
            text += f". Warning: CUDA does not start with {CUDA_NEEDS_MIB} MiB or less"
        if self.doubled:
            total_mib = self.mib * (len(self.doubled) + 1)
            text += (
                f". Warning: {', '.join(self.doubled)} has the same limit for itself, "
                f"so the pod may use {total_mib} MiB"
            )
        for why in self.doubtful:
            text += f". Warning: {why}, so that it may use GPUs without a limit"
        if self.ignored:
            names = " and ".join(self.ignored)
            text += f". Warning: {names} was not followed: the limit is what was granted"
        return text


class GPUMemoryLimit(Plugin):
    """Caps the GPU memory that a container with a share can use."""

    name = "gpumemorylimit"
    condition_type = LIMIT_CONDITION
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
        target = target_of(context.pod, strict=context.request.names_compute_modes)
        if isinstance(target, Failed):
            return target
        variable = self._arguments.variable
        text = f"{limit.mib}m" if self._arguments.format == "mebibytes" else str(limit.mib * MIB)
        way = way_to(context.pod, target, variable, text, len(context.request.gpu_groups))
        if isinstance(way, Failed):
            return way
        found = replace(limit, doubled=way.doubled, doubtful=way.doubtful)
        return Prepared(container_env={variable: text, **way.variables}, found=found)

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
    card = card_of(context.node)
    if isinstance(card, Failed) and card.reason == Reason.MEMORY_UNKNOWN:
        if fallback_mib is None:
            return replace(card, message=f"{card.message}, and the argument fallbackMemoryMiB is not set")
        card = Card(fallback_mib, f"the card is taken to have {fallback_mib} MiB, by fallbackMemoryMiB")
    if isinstance(card, Failed):
        return card
    share = share_of(context.request, context.pod, card)
    if isinstance(share, Failed):
        return share
    return Limit(share.mib, share.source, card.source, ignored=_ignored(context.pod))


def _ignored(pod: Object) -> tuple[str, ...]:
    """Annotations that ask for another limit than what was granted; only nvfractions goes by them (N-59)."""
    asked = {
        GPU_MEMORY_LIMIT: annotation(pod, GPU_MEMORY_LIMIT),
        GPU_FRACTION_LIMIT: annotation(pod, GPU_FRACTION_LIMIT),
    }
    return tuple(name for name, value in asked.items() if value is not None)
