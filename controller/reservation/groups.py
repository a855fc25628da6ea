"""Releases and mends GPU groups: the reconciler of what `Reservations` made. Its keys are groups.

The caches say when to look; nothing is deleted on their word alone. A group is kept for as long as a request
for it may still be bound, a pod of it lives, or a bind of this process uses it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import anyio
from loguru import logger

from controller.kai.names import FRACTION, GROUP_LABEL, PODS, RECEIVED_RESOURCE_TYPE
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, full_name, is_alive, is_finished
from controller.kai.reasons import Phase
from controller.kai.request import BindRequest, BindStatus, InvalidRequestError
from controller.kai.sharing import groups_of_pod, groups_of_request, is_group, needs_labels
from controller.reservation.devices import chosen, devices_told
from controller.reservation.evidence import node_of
from controller.reservation.manifest import device_of, has_our_name
from controller.reservation.members import NODE_INDEX, POD_INDEX, GroupCaches, pod_key
from controller.reservation.service import Reservations
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.cache import Change, key_of
from controller.runtime.client import Client, Object
from controller.runtime.reconcile import Result
from controller.runtime.reporting import EventRecorder
from controller.runtime.slots import Slot

_RUNNING = "Running"
_LOOK_AGAIN_S = 30.0
_YOUNG_S = 10.0
"""So long a reservation may be there before the request that it was made for shows."""


def groups_of_changed_request(change: Change) -> Iterable[str]:
    """Groups to look at when a request changes."""
    return {
        group for item in (change.old, change.new) if item is not None for group in groups_of_request(item)
    }


def groups_of_changed_reservation(change: Change) -> Iterable[str]:
    """Groups to look at when a reservation pod changes."""
    return {group for item in (change.old, change.new) if item is not None for group in groups_of_pod(item)}


class GroupReconciler:
    """Keeps, mends or frees one group at a time."""

    def __init__(
        self,
        client: Client,
        caches: GroupCaches,
        reservations: Reservations,
        usage: Usage,
        recorder: EventRecorder,
    ) -> None:
        self._client = client
        self._caches = caches
        self._members = reservations.members
        self._pods = reservations.pods
        self._shard = caches.shard
        self._usage = usage
        self._recorder = recorder
        self._first_seen_s: dict[str, dict[str, float]] = {}

    def groups_of_changed_pod(self, change: Change) -> Iterable[str]:
        """Groups to look at when a pod changes: those of its labels, and those that it was given."""
        groups = {
            group for item in (change.old, change.new) if item is not None for group in groups_of_pod(item)
        }
        pod = change.new
        # One that is gone may have been on its node without the cache seeing that, e.g. between two lists.
        if pod is None or node_of(pod):
            for item in self._caches.requests.by_index(POD_INDEX, pod_key(*key_of(change.object))):
                groups.update(groups_of_request(item))
        return groups

    def groups_of_changed_node(self, change: Change) -> Iterable[str]:
        """Groups to look at when a node comes, perhaps from another pool, or goes, perhaps to one.

        Who had it looks after them no more.
        """
        if change.old is not None and change.new is not None:
            return ()
        found = self._caches.reservations.by_index(NODE_INDEX, change.object["metadata"]["name"])
        return frozenset().union(*map(groups_of_pod, found))

    async def reconcile(self, group: str, slot: Slot) -> Result:
        """Looks at one group.

        Raises:
            errors.ApiError: The server did not do what was asked; the group is as before, or better.
        """
        if not is_group(group) or (self._usage.is_used(group) and not self._usage.given_up(group)):
            return Result()  # the bind that uses it has it looked at when it is done
        async with self._usage.locked(group, slot.released):
            for pod in self._usage.given_up(group):
                await self._replace(group, pod)
            if self._usage.is_used(group):
                return Result()
            self._usage.needed_live.discard(group)
            for item in self._members.requests(group):
                await self._label(item, group)
            return await self._keep_or_free(group)

    async def _keep_or_free(self, group: str) -> Result:
        known = self._members.reservations(group)
        self._note_ages(group, known)
        holding = [pod for pod in known if not is_finished(pod)]
        held_nodes = {node_of(pod) for pod in holding}
        lost = [user for user in self._members.users(group) if self._has_lost(user, group, held_nodes)]
        result = await self._evict(group, lost) if lost else Result()
        # From here on only what is ours: what another shard has is its own to release.
        for pod in filter(self._shard.shows, known):
            if is_finished(pod):
                await self._remove_ended(pod)
        holding = [pod for pod in holding if self._shard.shows(pod)]
        nodes = {node_of(pod) for pod in holding}
        if self._members.is_needed(group, nodes):
            is_held = await self._remove_rivals(group)
            return Result(_LOOK_AGAIN_S) if is_held else result
        if holding:
            # Before it is looked who needs them: what is noted on them later is not overlooked.
            versions = await self._shard.versions_of(holding)
            if await self._members.is_needed_live(group, nodes):
                self._usage.needed_live.add(group)
                return Result(_LOOK_AGAIN_S)  # no cache may tell of its end
            return await self._release(group, holding, versions)
        return result

    def _has_lost(self, user: Object, group: str, held_nodes: Container[str]) -> bool:
        """Whether a pod that may have a share has one for sure, and nothing holds its GPU."""
        return node_of(user) not in held_nodes and self._members.has_share(user, group)

    async def _release(
        self, group: str, reservations: Iterable[Object], versions: Mapping[str, str]
    ) -> Result:
        """Removes the reservations of a group that nobody needs; one that may be needed yet has time."""
        young_s = 0.0
        for pod in reservations:
            if left_s := self._young_s(group, pod):
                young_s = max(young_s, left_s)
                continue
            if await self._shard.owns(pod):
                await self._pods.remove(pod, version=versions.get(pod["metadata"]["uid"], ""))
        return Result(young_s or None)

    def _note_ages(self, group: str, known: Iterable[Object]) -> None:
        """Remembers since when others' reservations of a group are there, and forgets those that are gone.

        By our own clock: one that is hours ahead would make each of them old at once.
        """
        now_s, before = anyio.current_time(), self._first_seen_s.pop(group, {})
        uids = [pod["metadata"]["uid"] for pod in known if not has_our_name(pod, group)]
        if uids:
            self._first_seen_s[group] = {uid: before.get(uid, now_s) for uid in uids}

    def _young_s(self, group: str, pod: Object) -> float:
        """For how many seconds more a reservation that nobody seems to need is let be; 0 for one of ours."""
        first_s = self._first_seen_s.get(group, {}).get(pod["metadata"]["uid"])
        return 0.0 if first_s is None else max(0.0, first_s + _YOUNG_S - anyio.current_time())

    async def _replace(self, group: str, pod: Object) -> None:
        """Removes a reservation that was given up, unless it turns out to be of use."""
        found = await self._members.read_again(pod)
        if found is None or await self._is_useful(group, found):
            self._usage.forgive(pod)
        else:
            # It may answer just now: then its change has it looked at again.
            await self._pods.remove(found, version=found["metadata"]["resourceVersion"])

    async def _is_useful(self, group: str, pod: Object) -> bool:
        """Whether a reservation that one bind gave up has answered, or somebody else goes by it."""
        if device_of(pod) is not None or self._members.users(group):
            return True
        return await self._members.is_awaited_elsewhere(group, node_of(pod))

    async def _remove_ended(self, pod: Object) -> None:
        """Removes a reservation whose GPU the kubelet has freed; such a pod never holds one again."""
        found = await self._members.read_again(pod)
        if found is not None and is_finished(found):
            await self._pods.remove(found)

    async def _label(self, item: Object, group: str) -> None:
        """Gives an assigned pod its group labels, where the server did not take them from the Binding."""
        pod = self._members.pod_of(item)
        if pod is None or groups_of_pod(pod) or is_finished(pod):
            return  # a pod with other groups than these is not ours to correct
        try:
            request = BindRequest.parse(item)
        except InvalidRequestError:
            return
        labels = needs_labels(request, pod)
        if isinstance(labels, Failed):
            return
        if pod["spec"].get("nodeName") != request.node_name or BindStatus.of(item).phase == Phase.FAILED:
            return
        if annotation(pod, RECEIVED_RESOURCE_TYPE) != FRACTION and not self._members.has_share(pod, group):
            return  # it was bound before, and without a share
        metadata = pod["metadata"]
        logger.bind(pod=metadata["name"], groups=request.gpu_groups).warning(
            "A bound pod lacks its GPU groups"
        )
        body: Object = {"metadata": {"uid": metadata["uid"], "labels": labels}}
        await self._client.patch(PODS, metadata["name"], body, metadata["namespace"])

    async def _remove_rivals(self, group: str) -> bool:
        """Of several reservations for one GPU keeps the one that its users on the node go by (D-38).

        Returns:
            Whether one stays for what no cache shows, and may not tell of.
        """
        known = self._members.standing(group)
        if len(known) < 2 or not any(isinstance(device_of(pod), str) for pod in known):
            return False
        # Before it is looked who needs them, as in _keep_or_free.
        read = [await self._members.read_again(pod) for pod in known]
        found = [pod for pod in read if pod is not None and is_alive(pod) and group in groups_of_pod(pod)]
        if len(found) < 2:
            return False  # the next change of the cache has it looked at again
        users = await self._members.holders(group, {node_of(pod) for pod in found})
        told = await devices_told(self._client, users)
        unclear = {node_of(pod) for pod in told.unknown}
        is_held = False
        for node in sorted({node_of(pod) for pod in found}):
            here = [pod for pod in found if node_of(pod) == node]
            rivals, is_needed = await self._rivals(group, node, here, told.devices)
            if rivals and (is_needed or node in unclear):
                is_held = True  # any of them may be somebody's
                continue
            for pod in rivals:
                if await self._shard.owns(pod):
                    await self._pods.remove(pod, version=pod["metadata"]["resourceVersion"])
        return is_held

    async def _rivals(
        self, group: str, node: str, here: Sequence[Object], devices: frozenset[str]
    ) -> tuple[list[Object], bool]:
        """Those of a group's reservations on a node that are one too many, and whether they are needed."""
        if self._members.is_needed(group, (node,)):
            _, rivals = chosen(here, devices)
            has_device = any(isinstance(device_of(pod), str) for pod in here)
            rivals = [pod for pod in rivals if has_device and self._shard.shows(pod)]
            return rivals, bool(rivals) and await self._members.is_awaited_elsewhere(group, node)
        # On another node the group is in use.
        rivals = [pod for pod in here if self._shard.shows(pod)]
        if not rivals or any(self._young_s(group, pod) for pod in rivals):
            return rivals, bool(rivals)
        if await self._members.is_needed_live(group, (node,)):
            self._usage.needed_live.add(group)
            return rivals, True
        return rivals, False

    async def _evict(self, group: str, users: Iterable[Object]) -> Result:
        """Deletes pods that run on a GPU which nothing holds for them: it may be given to others (B-78)."""
        if self._caches.reservations.problem is not None:
            return Result(_LOOK_AGAIN_S)  # what cannot be seen is not missing
        running = [user for user in users if (user.get("status") or {}).get("phase") == _RUNNING]
        if not running:
            return Result()
        page = await self._client.list_all(PODS, {"labelSelector": f"{GROUP_LABEL}={group}"})
        nodes = {
            node_of(pod) for pod in page.items if self._members.is_reservation(pod) and not is_finished(pod)
        }
        for user in running:
            if node_of(user) not in nodes:
                await self._evict_one(group, user)
        return Result()

    async def _evict_one(self, group: str, user: Object) -> None:
        metadata = user["metadata"]
        try:
            pod = await self._client.get(PODS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return
        running = (pod.get("status") or {}).get("phase") == _RUNNING
        same = pod["metadata"]["uid"] == metadata["uid"]
        if not same or not running or not is_alive(pod) or not self._members.has_share(pod, group):
            return
        text = f"GPU group {group} has lost its reservation: its GPU may be given to others, so the pod goes"
        reference = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        self._recorder.event(reference, "Warning", "ReservationLost", text)
        logger.bind(pod=full_name(pod), group=group).error(
            "A running pod is deleted: its GPU is no longer reserved"
        )
        await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
