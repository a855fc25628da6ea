"""Reserves the GPUs of a request: has the pod that holds each found or made, and learns its device.

Called by the pipeline for each attempt. Invariants: while a bind uses a group, nobody releases it (`Usage`);
the lock of a group is held for a few requests, never for a wait, and never two at a time; a found pod is
believed only if it is alive, on the right node, and has named its device.
"""

from collections import Counter
from collections.abc import Sequence

import anyio
from msgspec import Struct

from controller.kai.names import GPU_RESOURCE, PODS
from controller.kai.outcome import Failed
from controller.kai.pods import full_name, is_alive, is_finished
from controller.kai.quantity import quantity
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import is_group
from controller.reservation.answer import Answers, Waiting, answer_of
from controller.reservation.manifest import ReservationOptions, device_of
from controller.reservation.members import GroupCaches, Members
from controller.reservation.pods import TRIES, Bind, ReservationPods, by_turns
from controller.reservation.twins import Twins
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Client, Object

_LOOK_AGAIN_S = 0.5


class Reserved(Struct, frozen=True):
    """A reserved GPU.

    Attributes:
        group: The scheduler's name for it.
        device: What the reservation pod reported.
        pod: The reservation pod, as it was when its device was learned.
    """

    group: str
    device: str
    pod: Object


class Reservations:
    """Reserves groups. Releasing them is the work of `GroupReconciler`."""

    def __init__(
        self, client: Client, caches: GroupCaches, options: ReservationOptions, usage: Usage, changes: Changes
    ) -> None:
        self.members = Members(client, caches, options, usage)
        self.pods = ReservationPods(client, caches.reservations, self.members, usage, changes)
        self._cache = caches.reservations
        self._usage = usage
        self._changes = changes
        self._timeout_s = options.timeout_s
        self._twins = Twins(self.members, usage)
        self._answers = Answers(changes, self.members, usage)

    async def reserve(
        self, request: BindRequest, pod: Object, node: Object, waiting: Waiting
    ) -> tuple[Reserved, ...] | Failed:
        """Reserves the request's groups; the caller has marked them as used.

        Args:
            request: The request.
            pod: Its pod.
            node: Its node.
            waiting: Around each wait for somebody else.

        Returns:
            The GPUs, in the order of the request's groups; or why one could not be reserved.

        Raises:
            errors.ApiError: The server was not there, or refused something unforeseen.
        """
        failure = _problem_of_groups(request, node)
        if failure is not None:
            return failure
        bind = Bind(request, pod, node, waiting, anyio.current_time() + self._timeout_s)
        try:
            return await self._reserve(request.gpu_groups, bind)
        except errors.ApiError:
            raise
        except Exception:
            # The wait was in vain: request, pod or node went. Nobody else shall wait for an agent that may
            # never answer, in a pod with the tolerations of a pod that is gone.
            for made in bind.made:
                known = self._cache.get(made["metadata"]["name"], made["metadata"]["namespace"])
                if known is None or device_of(known) is None:
                    self._usage.give_up(made)
            raise

    async def _reserve(self, groups: Sequence[str], bind: Bind) -> tuple[Reserved, ...] | Failed:
        failure = await self._settle_before_new(groups, bind)
        if failure is not None:
            return failure
        found: dict[str, Object] = {}
        # All are made before any is waited for; in the order of their names, as everybody does.
        for group in sorted(groups):
            reservation = await self.pods.find_or_make(group, bind)
            if isinstance(reservation, Failed):
                return reservation
            found[group] = reservation
            failure = self._failure_so_far(found)
            if failure is not None:
                return failure
        found = {group: found[group] for group in groups}
        devices = await self._devices(found, bind)
        if isinstance(devices, Failed):
            return devices
        reserved: list[Reserved] = []
        for group in groups:
            twin = next((other.group for other in reserved if other.device == devices[group]), None)
            if twin is not None:
                text = f"GPU groups {twin} and {group} report the same device {devices[group]}"
                return Failed(Reason.RESERVATION_CONFLICT, text)
            reserved.append(Reserved(group, devices[group], found[group]))
        for gpu in reserved:
            failure = await self._twins.refuse(gpu.group, gpu.pod, gpu.device, bind.user)
            if failure is not None:
                return failure
        return tuple(reserved)

    async def confirm(self, reserved: Sequence[Reserved]) -> Failed | None:
        """Sees whether the GPUs are still held; what the cache does not show is read live.

        Returns:
            Why one is not, or None.

        Raises:
            errors.ApiError: The server was not there.
        """
        for gpu in reserved:
            metadata = gpu.pod["metadata"]
            pod = self._cache.get(metadata["name"], metadata["namespace"])
            if pod is None or not self._is_held(pod, gpu):
                pod = await self.members.read(metadata["name"])
            if pod is None or not self._is_held(pod, gpu):
                name = full_name(gpu.pod)
                text = f"reservation pod {name} of GPU group {gpu.group} has gone, or holds another device"
                return Failed(Reason.RESERVATION_LOST, text)
        return None

    def _is_held(self, pod: Object, gpu: Reserved) -> bool:
        """Whether the pod is this reservation, alive, with this device."""
        same = pod["metadata"]["uid"] == gpu.pod["metadata"]["uid"] and device_of(pod) == gpu.device
        return same and is_alive(pod) and not self._usage.was_removed(pod)

    async def settle(self, node: Object, request: BindRequest, waiting: Waiting) -> Failed | None:
        """Before the Binding: waits until reservations that hold a GPU of the node for nobody are released.

        The scheduler gives away a GPU once its last user has ended; the kubelet refuses the next pod for good
        if it comes before the release. Decided by the caches: normally there are none, and nothing is asked.

        Args:
            node: The node.
            request: What is to be bound; there is no wait unless it takes devices.
            waiting: Around the wait.

        Returns:
            What does not go in time, or None.
        """
        if not request.takes_devices:
            return None
        deadline_s = anyio.current_time() + self._timeout_s
        return await self._settle(node["metadata"]["name"], waiting, deadline_s)

    async def _settle_before_new(self, groups: Sequence[str], bind: Bind) -> Failed | None:
        """The same for reservations that are to be made, each of which takes a GPU as well."""
        if all(any(map(is_alive, self.members.reservations(group))) for group in groups):
            return None
        return await self._settle(bind.node_name, bind.waiting, bind.deadline_s)

    async def _settle(self, node_name: str, waiting: Waiting, deadline_s: float) -> Failed | None:
        unneeded = self.members.unneeded(node_name)
        if not unneeded:
            return None
        what = f"reservation pod {full_name(unneeded[0])}, which nobody needs, to be released"
        async with waiting(what):
            while unneeded:
                left_s = deadline_s - anyio.current_time()
                if left_s <= 0:
                    name = full_name(unneeded[0])
                    text = (
                        f"reservation pod {name}, which nobody needs, holds a GPU of node {node_name} still"
                    )
                    return Failed(Reason.RESERVATION_TIMEOUT, text)
                # Now and then also whether somebody needs it after all: then it stays.
                with anyio.move_on_after(min(left_s, _LOOK_AGAIN_S)):
                    await self._changes.until(*map(_until_released, unneeded))
                unneeded = self.members.unneeded(node_name)
        return None

    def _failure_so_far(self, found: dict[str, Object]) -> Failed | None:
        """Whether one of the reservations will never name a device: then no more are made."""
        for pod in found.values():
            metadata = pod["metadata"]
            if self._usage.was_removed(pod) or not self._cache.has_seen(metadata["resourceVersion"]):
                continue
            answer = answer_of(self._cache.get(metadata["name"], metadata["namespace"]), pod)
            if isinstance(answer, Failed):
                return answer
        return None

    async def _devices(self, found: dict[str, Object], bind: Bind) -> dict[str, str] | Failed:
        """Learns the devices; a reservation that was replaced meanwhile is found anew, in `found` too."""
        devices: dict[str, str] = {}
        for _ in range(TRIES):
            left = {group: pod for group, pod in found.items() if group not in devices}
            answers = await self._answers.of(left, bind.waiting, bind.deadline_s)
            if isinstance(answers, Failed):
                return answers
            devices |= answers
            self._usage.relied_on.update(answers)
            missing = sorted(found.keys() - devices.keys())
            if not missing:
                return devices
            for group in missing:
                reservation = await self.pods.find_or_make(group, bind)
                if isinstance(reservation, Failed):
                    return reservation
                found[group] = reservation
        return by_turns(missing[0])


def _problem_of_groups(request: BindRequest, node: Object) -> Failed | None:
    """What can be said against the groups of a request before any is looked at."""
    groups = request.gpu_groups
    field_name = f"spec.{'selectedFractionalGpuGroups' if request.compute_modes else 'selectedGPUGroups'}"
    named = f"{field_name} names {len(groups)} GPU groups"
    if request.gpu_count is not None and len(groups) > request.gpu_count:
        text = f"{named}, but spec.receivedGPU.count is {request.gpu_count}"
        return Failed(Reason.INVALID_GPU_GROUP, text, retry=False)
    capacity = ((node.get("status") or {}).get("capacity") or {}).get(GPU_RESOURCE)
    # A kubelet whose device plugin is not there yet says 0.
    if capacity is not None and 0 < quantity(capacity) < len(groups):
        return Failed(
            Reason.INVALID_GPU_GROUP, f"{named}, but node {node['metadata']['name']} has {capacity} GPUs"
        )
    for group in groups:
        if not is_group(group):
            text = f"GPU group {group!r} is no legal label value (1 to 63 letters, digits, '-', '_' or '.')"
            return Failed(Reason.INVALID_GPU_GROUP, text, retry=False)
    doubles = [group for group, count in Counter(groups).items() if count > 1]
    if doubles:
        text = f"GPU group {doubles[0]} is named more than once; each share must be of another GPU"
        return Failed(Reason.INVALID_GPU_GROUP, text, retry=False)
    return None


def _until_released(reservation: Object) -> Judged[bool]:
    """Over once this reservation pod holds no GPU."""
    metadata = reservation["metadata"]

    def judge(pod: Object | None) -> bool | None:
        gone = pod is None or pod["metadata"]["uid"] != metadata["uid"] or is_finished(pod)
        return True if gone else None

    return Judged(Target(PODS, metadata["name"], metadata["namespace"]), judge)
