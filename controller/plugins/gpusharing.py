"""Shares of GPUs: tells the container which devices it has, through two ConfigMaps (B-69…B-74).

Each map is written whole in one request and belongs to the pod by its uid. A map of a pod that is gone is
replaced; one of another living pod is not touched. What other plugins want the container to be told
(`BindContext.container_env`) goes the same way.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controller.kai.names import CONFIG_MAPS, GPU_MEMORY, PODS
from controller.kai.pods import annotation
from controller.kai.reasons import Reason
from controller.kai.sharing import (
    GPUConfigError,
    Target,
    config_map_key,
    exact_fraction,
    portion_of,
    reference,
    shown,
    target_of,
)
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Ready
from controller.runtime import errors
from controller.runtime.client import Client, Object

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

_LEGACY_VISIBLE_DEVICES = "RUNAI-VISIBLE-DEVICES"
_CDI_PREFIX = "k8s.device-plugin.nvidia.com/gpu="
_WRITE_TRIES = 5

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

    def concerns(self, context: BindContext) -> bool:
        """Only fractions are shares."""
        return context.request.is_fraction

    async def prepare(self, context: BindContext) -> Failed | None:
        """Checks the portion, and that the pod says which container and maps to use."""
        wrong = _wrong_portion(context)
        if wrong is not None:
            return Failed(Reason.INVALID_PORTION, wrong, retry=False)
        try:
            target_of(context.pod)
        except GPUConfigError as error:
            return Failed(Reason.INVALID_GPU_CONFIG, str(error), retry=False)
        return None

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Writes both maps."""
        target = target_of(context.pod)
        prefix = _CDI_PREFIX if self._cdi else ""
        devices = ",".join(f"{prefix}{device}" for device in context.gpu_ids)
        portion = context.request.gpu_portion or ""
        capabilities = {"RUNAI_NUM_OF_GPUS": portion, "GPU_PORTION": portion}
        whole: dict[str, str] = {}
        for variable, value in {VISIBLE_DEVICES: devices, **context.container_env}.items():
            key = _key_in(target, variable)
            if key is None:
                whole[variable] = value
            else:
                capabilities[key] = value
        for name, data in ((target.config_map, capabilities), (target.env_config_map, whole)):
            refused = await self._write(context, name, data, devices)
            if refused is not None:
                return refused
        container = target.container["name"]
        return Ready(f"container {container} gets {portion} of {devices}, by ConfigMap {target.config_map}")

    async def _write(
        self, context: BindContext, name: str, data: Mapping[str, str], devices: str
    ) -> Failed | None:
        """Makes or replaces one map; refuses if it is another living pod's."""
        namespace, body = context.request.namespace, _config_map(context, name, data)
        for attempt in range(1, _WRITE_TRIES + 1):
            try:
                await self.client.create(CONFIG_MAPS, body, namespace)
            except errors.AlreadyExistsError:
                pass
            else:
                return None
            try:
                found = await self.client.get(CONFIG_MAPS, name, namespace)
                owner = await self._living_owner(found, context.pod)
                if owner is not None:
                    text = f"ConfigMap {namespace}/{name} belongs to pod {namespace}/{owner}"
                    return Failed(Reason.CONFIG_MAP_CONFLICT, text)
                await self._replace(found, body, devices)
            except errors.NotFoundError:
                continue  # deleted meanwhile: make it
            except errors.ConflictError:
                if attempt == _WRITE_TRIES:
                    raise
            else:
                return None
        return Failed(
            Reason.CONFIG_MAP_CONFLICT, f"ConfigMap {namespace}/{name} is written by others all the time"
        )

    async def _replace(self, found: Object, body: Object, devices: str) -> None:
        data = dict(body["data"])
        if _LEGACY_VISIBLE_DEVICES in (found.get("data") or {}):
            data[_LEGACY_VISIBLE_DEVICES] = devices
        owners = body["metadata"]["ownerReferences"]
        if found.get("data") == data and found["metadata"].get("ownerReferences") == owners:
            return
        metadata = {**body["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        await self.client.update(
            CONFIG_MAPS, {**body, "metadata": metadata, "data": data}, metadata["namespace"]
        )

    async def _living_owner(self, found: Object, pod: Object) -> str | None:
        """Name of an owner that is neither this pod nor gone, if there is one."""
        metadata = found["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            if owner["uid"] == pod["metadata"]["uid"]:
                continue
            if owner["kind"] != "Pod":
                return f"{owner['kind']} {owner['name']}"
            try:
                other = await self.client.get(PODS, owner["name"], metadata["namespace"])
            except errors.NotFoundError:
                continue
            if other["metadata"]["uid"] == owner["uid"]:
                return str(owner["name"])
        return None

    async def rollback(self, context: BindContext) -> None:
        """Deletes the maps that belong to this pod, unless it runs somewhere after all."""
        try:
            target = target_of(context.pod)
        except GPUConfigError:
            return
        faults = []
        for name in (target.config_map, target.env_config_map):
            try:
                await self._take_back(context, name)
            except errors.ApiError as error:
                faults.append(error)  # the other map must go all the same
        if faults:
            raise faults[0]

    async def _take_back(self, context: BindContext, name: str) -> None:
        namespace = context.request.namespace
        try:
            found = await self.client.get(CONFIG_MAPS, name, namespace)
            ours = context.pod["metadata"]["uid"] in _owner_uids(found)
            if ours and not await self._is_assigned(context):
                await self.client.delete(CONFIG_MAPS, name, namespace, uid=found["metadata"]["uid"])
        except (errors.NotFoundError, errors.ConflictError):
            return

    async def _is_assigned(self, context: BindContext) -> bool:
        try:
            pod = await self.client.get(PODS, context.request.pod_name, context.request.namespace)
        except errors.NotFoundError:
            return False
        same = pod["metadata"]["uid"] == context.pod["metadata"]["uid"]
        return same and bool(pod["spec"].get("nodeName"))


def _config_map(context: BindContext, name: str, data: Mapping[str, str]) -> Object:
    pod = context.pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": context.request.namespace, "ownerReferences": [owner]},
        "data": dict(data),
    }


def _owner_uids(item: Object) -> set[str]:
    return {owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()}


def _key_in(target: Target, variable: str) -> str | None:
    """The key of the capabilities map that the container's variable refers to, if it does."""
    entry = reference(target.container, variable)
    found = config_map_key(entry) if entry is not None else None
    return found[1] if found is not None and found[0] == target.config_map else None


def _wrong_portion(context: BindContext) -> str | None:
    """What is wrong with the request's portion, if anything.

    Zero is what the scheduler's two decimals make of a small share; then the pod must say its real size.
    """
    text = shown(context.request.gpu_portion)
    try:
        value = portion_of(context.request)
    except GPUConfigError as error:
        return str(error)
    if value > 1:
        return f"spec.receivedGPU.portion is {text}; a share of a GPU is at most 1"
    if value == 0 and not annotation(context.pod, GPU_MEMORY) and not _is_tiny(context.pod, value):
        return f"spec.receivedGPU.portion is {text}; a share of a GPU is more than 0"
    return None


def _is_tiny(pod: Object, zero: Decimal) -> bool:
    try:
        return exact_fraction(pod, zero) is not None
    except GPUConfigError:
        return False
