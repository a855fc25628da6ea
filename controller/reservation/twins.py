"""Whether the GPU that a reservation reports is another group's as well: then it would be promised twice.

A device plugin that hands out a card in replicas does that; or a kubelet that has forgotten, after a reboot,
which card a reservation pod has. `Reservations` asks once it knows a device. Who was there first keeps the
GPU. The cache says where to look, live looks decide: a reservation that has gone gave its GPU back.
"""

from collections.abc import Container

from controller.kai.outcome import Failed
from controller.kai.pods import full_name, is_alive
from controller.kai.reasons import Reason
from controller.kai.sharing import groups_of_pod
from controller.reservation.evidence import node_of
from controller.reservation.manifest import device_of
from controller.reservation.members import Members
from controller.reservation.usage import Usage
from controller.runtime.client import Object

_UNIQUE = ("GPU-", "MIG-")
"""What names of one device in the world begin with; an index may be counted by anybody in any way."""


class Twins:
    """Sees whether a device is one group's alone."""

    def __init__(self, members: Members, usage: Usage) -> None:
        self._members = members
        self._usage = usage

    async def refuse(self, group: str, reservation: Object, device: str, user: Object) -> Failed | None:
        """Why a group may not go by the device of its reservation: another group has it, and had it before.

        Args:
            group: The group; a bind under way uses it.
            reservation: Its reservation pod; what it was before it named the device will do.
            device: The device.
            user: The pod that is to get a share.

        Returns:
            Why not; or None, and until the bind is over no other group may go by that device.

        Raises:
            errors.ApiError: The server was not there.
        """
        if not device.startswith(_UNIQUE):
            return None
        node = node_of(reservation)
        seen: set[str] = set()
        while twins := self._twins(group, node, device, seen):
            twin, was_assured = twins[0], self._is_assured(twins[0], device)
            seen.add(twin["metadata"]["uid"])
            found = await self._members.read_again(twin)
            if found is None or not is_alive(found) or device_of(found) != device:
                continue
            was_before = was_assured or await self._was_before(found, group, reservation, user)
            if was_before or self._is_assured(twin, device):
                return _conflict(found, group, reservation, device)
        self._usage.assure(group, node, device, reservation)
        return None

    def _twins(self, group: str, node: str, device: str, seen: Container[str]) -> list[Object]:
        """Living reservations of other groups that report this device of this node, so far as is known here.

        Those whose uids were seen before are left out.
        """
        assured = self._usage.assured(node, device)
        return [
            pod
            for pod in (*([assured] if assured is not None else ()), *self._members.reservations_on(node))
            if groups_of_pod(pod)
            and group not in groups_of_pod(pod)
            and (pod is assured or device_of(pod) == device)
            and is_alive(pod)
            and not self._usage.was_removed(pod)
            and pod["metadata"]["uid"] not in seen
        ]

    def _is_assured(self, twin: Object, device: str) -> bool:
        """Whether a bind under way goes by a twin and its device."""
        assured = self._usage.assured(node_of(twin), device)
        return assured is not None and assured["metadata"]["uid"] == twin["metadata"]["uid"]

    async def _was_before(self, twin: Object, group: str, reservation: Object, user: Object) -> bool:
        """Whether another group had a device before this one: by who has users, else by the pods' age."""
        node = node_of(reservation)
        others = [await self._has_users(name, node, user) for name in sorted(groups_of_pod(twin))]
        if any(others) != (ours := await self._has_users(group, node, user)):
            return not ours
        return _age(twin) < _age(reservation)

    async def _has_users(self, group: str, node: str, user: Object) -> bool:
        """Whether any other pod on this node may go by the group's device."""
        uid = user["metadata"]["uid"]
        found = (*self._members.users(group), *await self._members.users_live(group, {node}))
        return any(node_of(pod) == node and pod["metadata"]["uid"] != uid for pod in found)


def _conflict(twin: Object, group: str, reservation: Object, device: str) -> Failed:
    pods = f"reservation pods {full_name(twin)} and {full_name(reservation)}"
    text = f"GPU groups {min(groups_of_pod(twin))} and {group} report the same device {device}, by {pods}"
    return Failed(Reason.RESERVATION_CONFLICT, text)


def _age(reservation: Object) -> tuple[str, str]:
    """The older one has the lesser; of two of one second everybody takes the same one."""
    metadata = reservation["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["name"]
