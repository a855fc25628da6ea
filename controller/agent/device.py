"""The one device that the container was given, as NVIDIA's management library (NVML) sees it.

Called once, by `command`. Invariant: what is returned is one device that the container runtime can be told by
name; of a card that is cut by MIG it is the slice, since the card as a whole was never given. The library is
let go of afterwards: what it holds in the driver is given back while the agent idles.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

_CARD = re.compile(r"GPU-[A-Za-z0-9][-A-Za-z0-9]{0,95}")
_SLICE = re.compile(r"MIG-[A-Za-z0-9][-A-Za-z0-9/]{0,95}")
_SHOWN = 8
"""So many devices are named in a message."""

_INSTALL = "install it (pip install 'kai-binder[agent]'), or run the image of kai-binder, which has it"
_RUNTIME = (
    "check that the node has the driver, that NVIDIA's container runtime starts this container "
    "(--runtime-class-name of the binder), and that NVIDIA_DRIVER_CAPABILITIES has utility"
)
_REPAIR = "reset the GPU or restart the node, and keep pods away from it until then"
_ADVICE: Mapping[str, str] = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": f"the container has no libnvidia-ml.so.1: {_RUNTIME}",
    "NVML_ERROR_DRIVER_NOT_LOADED": f"the node's NVIDIA driver is not loaded: {_RUNTIME}",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the library and the kernel module of the NVIDIA driver are of "
    "different versions, as after an upgrade: reload the module or restart the node",
    "NVML_ERROR_NO_PERMISSION": "the NVIDIA driver does not let this user ask: check the security contexts "
    "of the reservation pods and the mode of /dev/nvidia* on the node",
    "NVML_ERROR_GPU_IS_LOST": f"the GPU is lost, it has fallen off the bus: {_REPAIR}",
    "NVML_ERROR_RESET_REQUIRED": f"the GPU has to be reset: {_REPAIR}",
    "NVML_ERROR_OPERATING_SYSTEM": f"the operating system blocks the NVIDIA driver: {_RUNTIME}",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the NVIDIA driver of the node is too old: it lacks what is asked for",
}


class DeviceError(Exception):
    """There is not exactly one device; the text says what was found and what to do."""


def names_device(text: str) -> bool:
    """Whether a text has the form of a UUID, unlike the indexes that old agents wrote."""
    return text.startswith(("GPU-", "MIG-"))


def discover(environ: Mapping[str, str]) -> str:
    """Asks NVML for the device.

    Args:
        environ: The environment; of it only NVIDIA_VISIBLE_DEVICES is looked at, for messages.

    Returns:
        The UUID, `GPU-…` of a whole card, `MIG-…` of a slice.

    Raises:
        DeviceError: There is none, more than one, or nothing that could tell.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeviceError(f"the Python package nvidia-ml-py cannot be used ({error}): {_INSTALL}") from error
    given = f"NVIDIA_VISIBLE_DEVICES is {environ.get('NVIDIA_VISIBLE_DEVICES', 'not set')}"
    try:
        with _library(pynvml):
            return _only_device(pynvml, given)
    except pynvml.NVMLError as error:
        raise DeviceError(_explained(pynvml, error)) from error
    except UnicodeDecodeError as error:
        raise DeviceError(_no_uuid(error.object)) from error


@contextmanager
def _library(nvml: Any) -> Iterator[None]:  # noqa: ANN401 -- a module without types
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):  # what was learned is true all the same
            nvml.nvmlShutdown()


def _only_device(nvml: Any, given: str) -> str:  # noqa: ANN401 -- as above
    count = nvml.nvmlDeviceGetCount()
    if count == 0:
        raise DeviceError(
            f"no GPU is visible ({given}): the device plugin gave this pod none that works; check its log, "
            "and nvidia-smi on the node"
        )
    if count > 1:
        cards = [_uuid_or_fault(nvml, index) for index in range(min(count, _SHOWN))]
        raise DeviceError(_too_many("GPUs", count, cards, given))
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    if not _is_cut(nvml, card):
        return _checked(nvml.nvmlDeviceGetUUID(card), _CARD)
    slices = [_checked(nvml.nvmlDeviceGetUUID(handle), _SLICE) for handle in _slices(nvml, card)]
    if not slices:
        raise DeviceError(
            f"MIG is on for GPU {nvml.nvmlDeviceGetUUID(card)}, but none of its slices is visible ({given}): "
            "give this pod a slice, or turn MIG off on the node"
        )
    if len(slices) > 1:
        raise DeviceError(_too_many("MIG slices", len(slices), slices[:_SHOWN], given))
    return slices[0]


def _is_cut(nvml: Any, card: object) -> bool:  # noqa: ANN401 -- as above
    """Whether MIG is on now; most cards do not know it, old drivers neither."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(card)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(nvml: Any, card: object) -> Iterator[object]:  # noqa: ANN401 -- as above
    """Those that this container may use; others are there, and are not told of."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            continue


def _checked(uuid: str, form: re.Pattern[str]) -> str:
    if not form.fullmatch(uuid):
        raise DeviceError(_no_uuid(uuid))
    return uuid


def _uuid_or_fault(nvml: Any, index: int) -> str:  # noqa: ANN401 -- as above
    """What a message calls a card of several; one that does not answer must not hide the others."""
    try:
        return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    except (nvml.NVMLError, UnicodeDecodeError) as error:
        return f"one without a UUID ({error})"


def _no_uuid(found: object) -> str:
    return f"NVML calls the device {repr(found)[:200]}, which is no UUID: check nvidia-smi -L on the node"


def _too_many(what: str, count: int, named: list[str], given: str) -> str:
    more = f" and {count - len(named)} more" if count > len(named) else ""
    found = f"{count} {what} are visible ({', '.join(named)}{more}; {given})"
    return (
        f"{found}, and it must be one: nothing but the "
        "device plugin may choose the devices of this pod; check its RuntimeClass and the container runtime"
    )


def _explained(nvml: Any, error: Any) -> str:  # noqa: ANN401 -- as above
    """One sentence for an error of NVML."""
    for name, advice in _ADVICE.items():
        if error.value == getattr(nvml, name):
            return f"{advice} (NVML: {error})"
    return f"NVML cannot say which GPU this is: {error} (code {error.value}); check nvidia-smi on the node"
