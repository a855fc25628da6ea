"""Which devices pods with a share of a GPU were told that they have.

`Members` asks where several reservations compete for one group: the one that users go by is kept.
"""

from collections.abc import Iterable, Iterator

from controller.kai import fractions
from controller.kai.names import CONFIG_MAP_PREFIX, CONFIG_MAPS
from controller.kai.outcome import Failed
from controller.kai.pods import annotation
from controller.kai.sharing import target_of
from controller.runtime import errors
from controller.runtime.client import Client, Object


async def devices_told(client: Client, users: Iterable[Object]) -> frozenset[str]:
    """The devices in the annotations and ConfigMaps of these pods.

    Raises:
        errors.ApiError: The server was not there.
    """
    devices: set[str] = set()
    for user in users:
        devices.update(_bare(fractions.devices_told(user)))
        if annotation(user, CONFIG_MAP_PREFIX) is None:
            continue
        target = target_of(user)
        if isinstance(target, Failed):
            continue
        for name in (target.config_map, target.env_config_map):
            listed = await _variable(client, name, user["metadata"]["namespace"])
            devices.update(_bare(listed.split(",")))
    return frozenset(devices)


async def _variable(client: Client, name: str, namespace: str) -> str:
    """The devices in a ConfigMap."""
    try:
        found = await client.get(CONFIG_MAPS, name, namespace)
    except errors.NotFoundError:
        return ""
    return str((found.get("data") or {}).get("NVIDIA_VISIBLE_DEVICES", ""))


def _bare(devices: Iterable[str]) -> Iterator[str]:
    """Devices as their reservations report them, without the kind that the CDI puts before them."""
    return (device.rpartition("=")[2] for device in devices if device)
