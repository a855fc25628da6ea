"""Releases and mends GPU groups: the reconciler of what `Reservations` made. Its keys are groups.

The caches say when to look; nothing is deleted on their word alone. A group is kept for as long as a request
for it may still be bound, a pod of it lives, or a bind of this process uses it.
"""

from collections.abc import Iterable

from loguru import logger

from controller.kai.names import CONFIG_MAP_PREFIX, GPU_INDEX, GROUP_LABEL, GROUP_LABEL_PREFIX, PODS
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, is_finished, is_owner, live
from controller.kai.reasons import Phase
from controller.kai.request import BindRequest, BindStatus, InvalidRequestError, is_over
from controller.kai.sharing import groups_of_pod, groups_of_request, is_group, needs_labels
from controller.reservation.service import (
    GROUP_INDEX,
    POD_INDEX,
    GroupCaches,
    Reservations,
    Usage,
)
from controller.runtime import errors
from controller.runtime.cache import Change, key_of
from controller.runtime.client import Client, Object
from controller.runtime.reconcile import Result
from controller.runtime.reporting import EventRecorder
from controller.runtime.slots import Slot

_RUNNING = "Running"
_LOOK_AGAIN_S = 30.0


def pod_key(namespace: str, name: str) -> str:
    """How a pod is named in the index of requests."""
    return f"{namespace}/{name}"


def pods_of_request(item: Object) -> Iterable[str]:
    """The pod that a request names, for the index."""
    spec = item.get("spec")
    name = spec.get("podName") if isinstance(spec, dict) else None
    return (pod_key(item["metadata"]["namespace"], name),) if isinstance(name, str) else ()


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
        self._reservations = reservations
        self._usage = usage
        self._recorder = recorder

    def groups_of_changed_pod(self, change: Change) -> Iterable[str]:
        """Groups to look at when a pod changes: those of its labels, and those that it should have."""
        groups = {
            group for item in (change.old, change.new) if item is not None for group in groups_of_pod(item)
        }
        pod = change.new
        if pod is not None and pod["spec"].get("nodeName") and annotation(pod, CONFIG_MAP_PREFIX):
            for item in self._caches.requests.by_index(POD_INDEX, pod_key(*key_of(pod))):
                groups.update(groups_of_request(item))
        return groups

    async def reconcile(self, group: str, slot: Slot) -> Result:
        """Looks at one group.

        Raises:
            errors.ApiError: The server did not do what was asked; the group is as before, or better.
        """
        if self._usage.is_used(group) or not is_group(group):
            return Result()  # the bind that uses it has it looked at when it is done
        async with self._usage.locks.hold(group, slot.released):
            if self._usage.is_used(group):
                return Result()
            requests = self._caches.requests.by_index(GROUP_INDEX, group)
            for item in requests:
                await self._label(item, group)
            users = [pod for pod in self._caches.pods.by_index(GROUP_INDEX, group) if not is_finished(pod)]
            reservations = self._caches.reservations.by_index(GROUP_INDEX, group)
            if users and not reservations and not any(map(self._may_bind, requests)):
                return await self._evict(group, users)
            if users or any(map(self._protects, requests)):
                await self._remove_rivals(group, reservations)
            elif reservations and not await self._is_needed(group, requests):
                for pod in reservations:
                    await self._reservations.remove(pod)
        return Result()

    def _may_bind(self, item: Object) -> bool:
        """Whether a request is still to be bound; a malformed one never is."""
        return not is_over(item)

    def _protects(self, item: Object) -> bool:
        """Whether a request keeps its groups: it is to be bound, or its pod lives."""
        if self._may_bind(item):
            return True
        pod = self._pod_of(item)
        return BindStatus.of(item).phase == Phase.SUCCEEDED and pod is not None and not is_finished(pod)

    def _pod_of(self, item: Object) -> Object | None:
        name = (item.get("spec") or {}).get("podName")
        pod = self._caches.pods.get(str(name), item["metadata"]["namespace"])
        return pod if pod is not None and is_owner(item, pod) else None

    async def _label(self, item: Object, group: str) -> None:
        """Gives an assigned pod its group labels, where the server did not take them from the Binding."""
        pod = self._pod_of(item)
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
        metadata = pod["metadata"]
        logger.bind(pod=metadata["name"], groups=request.gpu_groups).warning(
            "A bound pod lacks its GPU groups"
        )
        body: Object = {"metadata": {"uid": metadata["uid"], "labels": labels}}
        await self._client.patch(PODS, metadata["name"], body, metadata["namespace"])

    async def _is_needed(self, group: str, requests: Iterable[Object]) -> bool:
        """Whether a live look finds a user of the group that the caches do not show."""
        for selector in (f"{GROUP_LABEL}={group}", f"{GROUP_LABEL_PREFIX}{group}={group}"):
            page = await self._client.list_all(PODS, {"labelSelector": selector})
            users = [pod for pod in page.items if not self._is_reservation(pod)]
            if not all(map(is_finished, users)):
                return True
        for item in requests:
            if BindStatus.of(item).phase != Phase.SUCCEEDED:
                continue
            metadata, name = item["metadata"], (item.get("spec") or {}).get("podName")
            try:
                pod = await self._client.get(PODS, str(name), metadata["namespace"])
            except errors.NotFoundError:
                continue
            if is_owner(item, pod) and not is_finished(pod):
                return True
        return False

    async def _remove_rivals(self, group: str, reservations: Iterable[Object]) -> None:
        """Of several reservations for one GPU keeps the one that its users go by (D-38)."""
        alive = list(live(tuple(reservations)))
        if len(alive) < 2 or not any(annotation(pod, GPU_INDEX) for pod in alive):
            return
        kept = await self._reservations.find(group)
        if kept is None or not await self._reservations.is_alive(kept):
            return  # the next change of the cache has it looked at again
        for pod in alive:
            if pod["metadata"]["uid"] != kept["metadata"]["uid"]:
                await self._reservations.remove(pod)

    async def _evict(self, group: str, users: Iterable[Object]) -> Result:
        """Deletes pods that run on a GPU which nothing holds for them: it may be given to others (B-78)."""
        if self._caches.reservations.problem is not None:
            return Result(_LOOK_AGAIN_S)  # what cannot be seen is not missing
        selector = {"labelSelector": f"{GROUP_LABEL}={group}"}
        page = await self._client.list_all(PODS, selector)
        if any(self._is_reservation(pod) for pod in page.items):
            return Result()
        for user in users:
            if (user.get("status") or {}).get("phase") == _RUNNING:
                await self._evict_one(group, user)
        return Result()

    def _is_reservation(self, pod: Object) -> bool:
        """Whether a pod holds a GPU; one that a binder with other settings made elsewhere does, too."""
        here = pod["metadata"]["namespace"] == self._reservations.namespace
        return here or annotation(pod, GPU_INDEX) is not None

    async def _evict_one(self, group: str, user: Object) -> None:
        metadata = user["metadata"]
        try:
            pod = await self._client.get(PODS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return
        running = (pod.get("status") or {}).get("phase") == _RUNNING
        if pod["metadata"]["uid"] != metadata["uid"] or group not in groups_of_pod(pod) or not running:
            return
        if pod["metadata"].get("deletionTimestamp"):
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
        logger.bind(pod=metadata["name"], group=group).error(
            "A running pod is deleted: its GPU is no longer reserved"
        )
        await self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
