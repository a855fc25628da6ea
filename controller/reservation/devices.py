"""Which devices pods with a share of a GPU were told that they have.

`Members` and the reconciler of groups ask where several reservations compete for one group: the one that
users go by is kept, and none is removed while it is not known by which one somebody goes.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from controller.kai import fractions
from controller.kai.environment import place_of
from controller.kai.names import CONFIG_MAPS, GPU_INDEX, PODS, VISIBLE_DEVICES
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, is_finished
from controller.kai.sharing import Target, target_of
from controller.reservation.manifest import device_of
from controller.runtime import errors
from controller.runtime.client import Client, Object


class Told(Struct, frozen=True):
    """What pods were told.

    Attributes:
        devices: As their reservations report them.
        unknown: Those pods of which it cannot be seen.
    """

    devices: frozenset[str]
    unknown: tuple[Object, ...]


async def devices_told(client: Client, users: Iterable[Object]) -> Told:
    """The devices in the annotations and ConfigMaps of these pods.

    Args:
        client: For live reads.
        users: The pods; those without containers, of which a cache keeps too little, are read.

    Raises:
        errors.ApiError: The server was not there.
    """
    devices: set[str] = set()
    unknown: list[Object] = []
    for user in users:
        pod = user if "containers" in user["spec"] else await _read(client, user)
        if pod is None or is_finished(pod):
            continue
        told = set(_bare([device async for device in _told(client, pod)]))
        devices |= told
        if not told:
            unknown.append(pod)
    return Told(frozenset(devices), tuple(unknown))


def chosen(reservations: Sequence[Object], devices: Collection[str]) -> tuple[Object, list[Object]]:
    """Of the reservations of one group the one that counts, and those that hold a GPU of no user.

    Args:
        reservations: At least one.
        devices: Those that users of the group were told.
    """
    # The one whose device is in use; else one with a device; else the oldest.
    found = sorted(
        reservations,
        key=lambda pod: (
            annotation(pod, GPU_INDEX) not in devices,
            not isinstance(device_of(pod), str),
            pod["metadata"].get("creationTimestamp", ""),
            pod["metadata"]["name"],
        ),
    )
    return found[0], [pod for pod in found[1:] if annotation(pod, GPU_INDEX) not in devices]


async def _read(client: Client, pod: Object) -> Object | None:
    """This very pod by a live read, if there still is one."""
    metadata = pod["metadata"]
    try:
        found = await client.get(PODS, metadata["name"], metadata["namespace"])
    except errors.NotFoundError:
        return None
    return found if found["metadata"]["uid"] == metadata["uid"] else None


async def _told(client: Client, pod: Object) -> AsyncIterator[str]:
    for device in fractions.devices_told(pod):
        yield device
    # Which of its containers has the share depends on the KAI that asked, and where the devices stand on its
    # binder.
    for target in {target.config_map: target for target in _targets(pod)}.values():
        keys = {VISIBLE_DEVICES, place_of(target, VISIBLE_DEVICES)[1]}
        for name in (target.config_map, target.env_config_map):
            try:
                found = await client.get(CONFIG_MAPS, name, pod["metadata"]["namespace"])
            except errors.NotFoundError:
                continue
            for key in keys & (found.get("data") or {}).keys():
                for device in found["data"][key].split(","):
                    yield device


def _targets(pod: Object) -> Iterator[Target]:
    for strict in (False, True):
        target = target_of(pod, strict=strict)
        if not isinstance(target, Failed):
            yield target


def _bare(devices: Iterable[str]) -> Iterator[str]:
    """Devices as their reservations report them, without the kind that the CDI puts before them."""
    return (device.rpartition("=")[2] for device in devices if device)
