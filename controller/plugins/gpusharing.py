"""Shares of GPUs: tells the container which devices it has, through two ConfigMaps (B-69…B-74).

What other plugins want the container to be told (`BindContext.container_env`) goes the same way. Invariant:
the condition says what was given, and warns where the pod itself has its containers see something else.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controller.kai.environment import Sight, containers_of, key_in, view_of
from controller.kai.limiter import switched_off
from controller.kai.names import (
    GPU_MEMORY,
    LEGACY_VISIBLE_DEVICES,
    MEMORY_LIMIT,
    NUM_OF_GPUS,
    PORTION,
    SHARING_KEYS,
    VISIBLE_DEVICES,
)
from controller.kai.pods import annotation
from controller.kai.reasons import Reason
from controller.kai.sharing import Target, exact_fraction, portion_of, shown, target_of
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared, Ready
from controller.plugins.configmaps import ConfigMaps, Content
from controller.runtime.client import Client, Object

_CDI_PREFIX = "k8s.device-plugin.nvidia.com/gpu="

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _go_bool(text: object) -> bool:
    """A boolean as Go's strconv.ParseBool reads it, since the operator writes it for Go (B-50)."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("true or false is allowed")


class Arguments(BaseModel):
    """Arguments of gpusharing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cdi_enabled: Annotated[bool, BeforeValidator(_go_bool)] = Field(alias="cdiEnabled")


class GPUSharing(Plugin):
    """Gives a pod its share of one or more GPUs."""

    name = "gpusharing"
    condition_type = "GPUSharing"
    priority = 100
    default_arguments: ClassVar = {"cdiEnabled": "false"}
    arguments_model = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        assert isinstance(arguments, Arguments)  # noqa: S101 -- the registry's promise
        self._cdi = arguments.cdi_enabled
        self._maps = ConfigMaps(client, SHARING_KEYS | {MEMORY_LIMIT})

    def concerns(self, context: BindContext) -> bool:
        """Only fractions are shares."""
        return context.request.is_fraction

    async def prepare(self, context: BindContext) -> Prepared | Failed:
        """Checks the portion, and finds the container and the maps that the pod names."""
        wrong = _wrong_portion(context)
        if wrong is not None:
            return wrong
        target = target_of(context.pod)
        return target if isinstance(target, Failed) else Prepared(found=target)

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Writes both maps."""
        target = context.found
        assert isinstance(target, Target)  # noqa: S101 -- what `prepare` found
        contents = self._contents(context, target)
        if isinstance(contents, Failed):
            return contents
        for content in contents:
            refused = await self._maps.write(context.pod, content)
            if refused is not None:
                return refused
        container, portion = target.container["name"], context.request.gpu_portion
        given = f"container {container} gets {portion} of {self._devices(context)}"
        text = f"{given}, by ConfigMap {target.config_map}"
        return Ready(". Warning: ".join((text, *_warnings(context.pod, target))))

    async def rollback(self, context: BindContext) -> None:
        """Takes back the maps of this pod, unless it runs where they are needed."""
        target = target_of(context.pod)
        if isinstance(target, Failed):
            return
        contents = self._contents(context, target)
        if not isinstance(contents, Failed):
            await self._maps.take_back(context.pod, contents, context.request.node_name)

    def _devices(self, context: BindContext) -> str:
        prefix = _CDI_PREFIX if self._cdi else ""
        return ",".join(f"{prefix}{device}" for device in context.gpu_ids)

    def _contents(self, context: BindContext, target: Target) -> tuple[Content, Content] | Failed:
        portion = context.request.gpu_portion or ""
        return contents_of(target, self._devices(context), portion, context.container_env)


def contents_of(
    target: Target, devices: str, portion: str, others: Mapping[str, str]
) -> tuple[Content, Content] | Failed:
    """What both maps are to hold: each variable stands where its container looks for it.

    Args:
        target: The container with the share.
        devices: The value of NVIDIA_VISIBLE_DEVICES.
        portion: The share of each device, as in the request.
        others: What other plugins want the container to be told, by variable.
    """
    single: dict[str, str] = {}
    whole: dict[str, str] = {}
    for variable, value in ((VISIBLE_DEVICES, devices), *others.items()):
        key = key_in(target, target.container, variable)
        data, name = (whole, variable) if key is None else (single, key)
        if name in data or (key in SHARING_KEYS and variable != VISIBLE_DEVICES):
            text = (
                f"container {target.container['name']} takes {variable} from key {name} of ConfigMap "
                f"{target.config_map}, which holds something else"
            )
            return Failed(Reason.INVALID_GPU_CONFIG, text, retry=False)
        data[name] = value
    shares = {NUM_OF_GPUS: portion, PORTION: portion}
    return (
        Content(target.config_map, shares | single, {LEGACY_VISIBLE_DEVICES: devices}),
        Content(target.env_config_map, whole, {}),
    )


def _warnings(pod: Object, target: Target) -> list[str]:
    """What the pod itself says against its share, in whole sentences."""
    found = []
    for container in containers_of(pod):
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


def _wrong_portion(context: BindContext) -> Failed | None:
    """What is wrong with the request's portion, if anything.

    Zero is what the scheduler's two decimals make of a small share; then the pod must say its real size.
    """
    text, value = shown(context.request.gpu_portion), portion_of(context.request)
    if isinstance(value, Failed):
        return value
    if value > 1:
        wrong = "a share of a GPU is at most 1"
    elif value > 0 or annotation(context.pod, GPU_MEMORY) or _is_tiny(context.pod, value):
        return None
    else:
        wrong = "a share of a GPU is more than 0"
    return Failed(Reason.INVALID_PORTION, f"spec.receivedGPU.portion is {text}; {wrong}", retry=False)


def _is_tiny(pod: Object, zero: Decimal) -> bool:
    return isinstance(exact_fraction(pod, zero), Decimal)
