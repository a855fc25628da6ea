"""Shares of GPUs: tells the container which devices it has, through two ConfigMaps (B-69…B-74).

What other plugins want the container to be told (`BindContext.container_env`) goes the same way. Invariant:
the condition says what was given, and warns where the pod itself has its containers see something else.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import ClassVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from controller.kai.environment import key_in
from controller.kai.fractions import cdi_key
from controller.kai.limiter import oddities_of
from controller.kai.memory import Asked, asked_mib
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
from controller.plugins.annotations import device_names, memory_request, refusal_of_name
from controller.plugins.arguments import GoBool
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared, Ready
from controller.plugins.configmaps import ConfigMaps, Content
from controller.runtime.client import Client, Object

_NOT_KNOWN = frozenset({Reason.MEMORY_UNKNOWN, Reason.INVALID_NODE_MEMORY})


class Arguments(BaseModel):
    """Arguments of gpusharing.

    Attributes:
        cdi_enabled: Whether devices are named as the Container Device Interface does.
        nri_plugin_enabled: Whether a plugin of the container runtime gives the devices, by an annotation.
            NVIDIA_VISIBLE_DEVICES is not set then (N-45).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cdi_enabled: GoBool = Field(alias="cdiEnabled")
    nri_plugin_enabled: GoBool = Field(default=False, alias="nriPluginEnabled")


class _Found(Struct, frozen=True):
    """What `prepare` found: the container and its maps, and a sentence to warn with."""

    target: Target
    warning: str = ""


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
        self._nri = arguments.nri_plugin_enabled
        self._maps = ConfigMaps(client, SHARING_KEYS | {MEMORY_LIMIT})

    def concerns(self, context: BindContext) -> bool:
        """Only fractions are shares."""
        return context.request.is_fraction

    async def prepare(self, context: BindContext) -> Prepared | Failed:
        """Checks the portion, and finds the container and the maps that the pod names."""
        wrong = _wrong_portion(context)
        if wrong is not None:
            return wrong
        strict = context.request.names_compute_modes
        target = target_of(context.pod, strict=strict)
        if isinstance(target, Failed):
            return target
        container = target.container["name"]
        impossible = refusal_of_name(context, container, cdi_key(container)) if self._nri else None
        if impossible is not None:
            return impossible
        memory = memory_request(context, container) if strict else {}
        if isinstance(memory, Failed):
            unknown = "its memory is not known: " if memory.reason in _NOT_KNOWN else ""
            return Prepared(found=_Found(target, f"{unknown}{memory.message}"))
        return Prepared(annotations=memory, found=_Found(target))

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Writes both maps."""
        found = context.found
        assert isinstance(found, _Found)  # noqa: S101 -- what `prepare` found
        target = found.target
        contents = self._contents(context, target)
        if isinstance(contents, Failed):
            return contents
        for content in contents:
            refused = await self._maps.write(context.pod, content)
            if refused is not None:
                return refused
        container, devices = target.container["name"], self._devices(context)
        text = f"container {container} gets {context.request.gpu_portion} of {devices}"
        text = f"{text}, by ConfigMap {target.config_map}"
        if self._nri:
            text = f"{text}, and its devices by annotation {cdi_key(container)}"
        warnings = oddities_of(context.pod, target, nri=self._nri)
        warnings += [found.warning] if found.warning else []
        return Ready(
            ". Warning: ".join((text, *warnings)), {cdi_key(container): devices} if self._nri else {}
        )

    async def rollback(self, context: BindContext) -> None:
        """Takes back the maps of this pod, unless it runs where they are needed."""
        target = target_of(context.pod, strict=context.request.names_compute_modes)
        if isinstance(target, Failed):
            return
        contents = self._contents(context, target)
        if not isinstance(contents, Failed):
            await self._maps.take_back(context.pod, contents, context.request.node_name)

    def _devices(self, context: BindContext) -> str:
        return device_names(context.gpu_ids, cdi=self._cdi)

    def _contents(self, context: BindContext, target: Target) -> tuple[Content, Content] | Failed:
        portion = context.request.gpu_portion or ""
        devices = None if self._nri else self._devices(context)
        return contents_of(target, devices, portion, context.container_env)


def contents_of(
    target: Target, devices: str | None, portion: str, others: Mapping[str, str]
) -> tuple[Content, Content] | Failed:
    """What both maps are to hold: each variable stands where its container looks for it.

    Args:
        target: The container with the share.
        devices: The value of NVIDIA_VISIBLE_DEVICES; None if the container gets its devices otherwise.
        portion: The share of each device, as in the request.
        others: What other plugins want the container to be told, by variable.
    """
    single: dict[str, str] = {}
    whole: dict[str, str] = {}
    visible = {} if devices is None else {VISIBLE_DEVICES: devices}
    for variable, value in {**visible, **others}.items():
        key = key_in(target, target.container, variable)
        data, name = (whole, variable) if key is None else (single, key)
        if name in data or (key in SHARING_KEYS and variable != VISIBLE_DEVICES):
            text = (
                f"container {target.container['name']} takes {variable} from key {name} of ConfigMap "
                f"{target.config_map}, which holds something else"
            )
            return Failed(Reason.INVALID_GPU_CONFIG, text, retry=False)
        data[name] = value
    legacy = () if devices is None else (LEGACY_VISIBLE_DEVICES,)
    shares = {NUM_OF_GPUS: portion, PORTION: portion}
    return (
        Content(target.config_map, shares | single, dict.fromkeys(legacy, devices or "")),
        Content(target.env_config_map, whole, {}),
    )


def _wrong_portion(context: BindContext) -> Failed | None:
    """What is wrong with the request's portion, if anything.

    Zero is what the scheduler's two decimals make of a small share; then the pod must say its real size.
    """
    text, value = shown(context.request.gpu_portion), portion_of(context.request)
    if isinstance(value, Failed):
        return value
    if value > 1:
        wrong = "a share of a GPU is at most 1"
    elif value > 0 or _says_amount(context.pod) or _is_tiny(context.pod, value):
        return None
    else:
        wrong = "a share of a GPU is more than 0"
    return Failed(Reason.INVALID_PORTION, f"spec.receivedGPU.portion is {text}; {wrong}", retry=False)


def _says_amount(pod: Object) -> bool:
    return bool(annotation(pod, GPU_MEMORY)) or isinstance(asked_mib(pod), Asked)


def _is_tiny(pod: Object, zero: Decimal) -> bool:
    return isinstance(exact_fraction(pod, zero), Decimal)
