"""Reserves the GPU of a group for a bind: finds or makes the pod that holds it and waits for its device.

Invariants: while a bind uses a group, nobody releases it (`Usage`); the lock of a group is held for a few
requests, never for a wait, and never two at a time; a found pod is believed only if it is alive, on the
right node, and has named its device.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import anyio
from loguru import logger

from controller.kai.names import CONFIG_MAP_PREFIX, CONFIG_MAPS, GPU_INDEX, PODS
from controller.kai.outcome import Failed
from controller.kai.pods import annotation, is_finished, live
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import groups_of_pod, is_group, target_of
from controller.reservation.manifest import ReservationOptions, reservation_name, reservation_pod
from controller.runtime import errors
from controller.runtime.cache import Cache, Key, key_of
from controller.runtime.client import Client, Object
from controller.runtime.locks import KeyedLock, Signal

GROUP_INDEX = "group"
POD_INDEX = "pod"

Waiting = Callable[[str], AbstractAsyncContextManager[None]]

_CREATE_TRIES = 5
_GONE_PAUSE_S = 0.2
_REMEMBERED = 1000


class ReservationError(Exception):
    """A GPU could not be reserved.

    Attributes:
        reason: One CamelCase word.
        message: A sentence for people.
        retry: Whether a later attempt may end better.
    """

    def __init__(self, reason: str, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry = retry


@dataclass(frozen=True, slots=True)
class GroupCaches:
    """What is known of groups without asking the server; indexed by group, requests also by pod."""

    requests: Cache
    pods: Cache
    reservations: Cache


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved GPU.

    Attributes:
        group: The scheduler's name for it.
        device: What the reservation pod reported.
        name: Of the reservation pod.
        uid: Of the reservation pod.
    """

    group: str
    device: str
    name: str
    uid: str


class Usage:
    """The groups that binds of this process use right now, and the locks of groups."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.locks: KeyedLock[str] = KeyedLock()
        self.made: dict[str, Object] = {}
        """Reservation pods that binds under way have made, by group, until the cache shows them."""
        self.told: set[str] = set()
        """Groups whose device a bind under way goes by."""

    def is_used(self, group: str) -> bool:
        """Whether a bind is under way that needs the group."""
        return self._counts[group] > 0

    @contextmanager
    def of(self, groups: Iterable[str], left: Callable[[str], None]) -> Iterator[None]:
        """Marks groups as used for the block; `left` is told of each when its last use ends."""
        used = tuple(groups)
        self._counts.update(used)
        try:
            yield
        finally:
            self._counts.subtract(used)
            for group in used:
                if self._counts[group] <= 0:
                    del self._counts[group]
                    self.made.pop(group, None)
                    self.told.discard(group)
                    left(group)


@dataclass(frozen=True, slots=True)
class _Wait:
    """On whose behalf a bind waits, and until when."""

    request: BindRequest
    user: Object
    waiting: Waiting
    deadline_s: float
    user_is_cached: bool


class Reservations:
    """Reserves groups. Releasing them is the work of `GroupReconciler`."""

    def __init__(
        self, client: Client, caches: GroupCaches, options: ReservationOptions, usage: Usage
    ) -> None:
        self._client = client
        self._caches = caches
        self._options = options
        self._usage = usage
        self._removed: deque[str] = deque(maxlen=_REMEMBERED)  # uids, which the cache may still show alive

    @property
    def namespace(self) -> str:
        """Where the reservation pods are."""
        return self._options.namespace

    async def reserve(
        self, request: BindRequest, pod: Object, node: Object, waiting: Waiting
    ) -> tuple[Reserved, ...]:
        """Reserves the request's groups; the caller has marked them as used.

        Args:
            request: The request.
            pod: Its pod.
            node: Its node.
            waiting: Around each wait for somebody else.

        Returns:
            The GPUs, in the order of the request's groups.

        Raises:
            ReservationError: A GPU could not be reserved.
            errors.ApiError: The server was not there.
        """
        _check_groups(request.gpu_groups)
        is_cached = self._caches.pods.get(request.pod_name, request.namespace) is not None
        wait = _Wait(request, pod, waiting, anyio.current_time() + self._options.timeout_s, is_cached)
        held: dict[str, Object] = {}
        # All are made before any is waited for; in the order of their names, as everybody does.
        for group in sorted(request.gpu_groups):
            held[group] = await self._hold(group, node, wait)
        reserved: list[Reserved] = []
        for group in request.gpu_groups:
            pod = held[group]
            device = annotation(pod, GPU_INDEX) or await self._device(group, pod, wait)
            twin = next((other.group for other in reserved if other.device == device), None)
            if twin is not None:
                text = f"GPU groups {twin} and {group} report the same device {device}"
                raise ReservationError(Reason.RESERVATION_CONFLICT, text)
            self._usage.told.add(group)
            reserved.append(Reserved(group, device, pod["metadata"]["name"], pod["metadata"]["uid"]))
        return tuple(reserved)

    async def confirm(self, reserved: Sequence[Reserved]) -> None:
        """Sees whether the GPUs are still held; what the cache does not show is read live.

        Raises:
            ReservationError: One is not.
            errors.ApiError: The server was not there.
        """
        for gpu in reserved:
            pod = self._caches.reservations.get(gpu.name, self.namespace)
            if pod is None or not _holds(pod, gpu):
                pod = await self._read(gpu.name)
            if pod is None or not _holds(pod, gpu):
                name = f"{self.namespace}/{gpu.name}"
                text = f"reservation pod {name} of GPU group {gpu.group} has gone, or holds another device"
                raise ReservationError(Reason.RESERVATION_LOST, text)

    async def _hold(self, group: str, node: Object, wait: _Wait) -> Object:
        """The living reservation pod of a group, found or made."""
        name, namespace = reservation_name(node["metadata"]["name"], group), self._options.namespace
        for _ in range(_CREATE_TRIES):
            async with self._usage.locks.hold(group):
                found = await self.find(group)
                if found is not None:
                    self._usage.made.pop(group, None)
                    return _on_node(found, node, group)
                made = self._usage.made.get(group)
                if made is not None:
                    return _on_node(made, node, group)
                self._refuse_if_lost(group, wait.user)
                former = self._caches.reservations.get(name, namespace)
                if former is None or self._was_removed(former):
                    created = await self._create(group, wait.user, node)
                    if created is not None:
                        self._usage.made[group] = created
                        return _on_node(created, node, group)
                    former = await self._read(name)
                if former is not None:
                    if not _is_dead(former):
                        return _on_node(former, node, group)
                    await self._clear(former)
            # Outside the lock: the old pod may take its time to go.
            await self._gone(name, wait)
        raise ReservationError(
            Reason.RESERVATION_FAILED, f"reservation pod {namespace}/{name} is made and removed by turns"
        )

    async def find(self, group: str) -> Object | None:
        """The living reservation pod of a group that its users go by, if there is one."""
        alive = live(self._caches.reservations.by_index(GROUP_INDEX, group))
        found = [pod for pod in alive if not self._was_removed(pod)]
        if len(found) <= 1:
            return found[0] if found else None
        devices = await self._devices_in_use(group)
        # The one whose device is in use; else one with a device; else the oldest.
        found.sort(
            key=lambda pod: (
                annotation(pod, GPU_INDEX) not in devices,
                not annotation(pod, GPU_INDEX),
                pod["metadata"].get("creationTimestamp", ""),
                pod["metadata"]["name"],
            )
        )
        return found[0]

    async def _devices_in_use(self, group: str) -> frozenset[str]:
        """The devices that the users of a group were told; asked only where reservations compete."""
        devices: set[str] = set()
        for user in live(self._caches.pods.by_index(GROUP_INDEX, group)):
            if annotation(user, CONFIG_MAP_PREFIX) is None:
                continue
            target = target_of(user)
            if isinstance(target, Failed):
                continue
            for name in (target.config_map, target.env_config_map):
                try:
                    found = await self._client.get(CONFIG_MAPS, name, user["metadata"]["namespace"])
                except errors.NotFoundError:
                    continue
                listed = (found.get("data") or {}).get("NVIDIA_VISIBLE_DEVICES", "")
                devices.update(device.rpartition("=")[2] for device in listed.split(",") if device)
        return frozenset(devices)

    async def _create(self, group: str, user: Object, node: Object) -> Object | None:
        """Makes the pod; None if there is one of that name."""
        await self._refuse_while_scaling()
        body = reservation_pod(self._options, node, group, user)
        name = f"{self._options.namespace}/{body['metadata']['name']}"
        try:
            created = await self._client.create(PODS, body, self._options.namespace)
        except errors.AlreadyExistsError:
            return None
        except errors.StatusError as error:
            if error.transient or error.unclear:
                raise
            text = f"reservation pod {name} for node {node['metadata']['name']} was rejected: {error.message}"
            raise ReservationError(Reason.RESERVATION_REJECTED, text) from error
        logger.bind(reservation=name, group=group).info("Made a reservation pod")
        return created

    async def _refuse_while_scaling(self) -> None:
        """New GPUs wait while the autoscaler's own pods wait for nodes (B-82)."""
        namespace = self._options.scale_adjust_namespace
        if not namespace:
            return
        selector = {"fieldSelector": f"metadata.namespace={namespace},status.phase=Pending,spec.nodeName="}
        try:
            page = await self._client.list_all(PODS, selector)
        except errors.StatusError as error:
            if error.transient:
                raise
            logger.bind(error=error.message).warning("It cannot be seen whether the cluster is scaling up")
            return
        names = [pod["metadata"]["name"] for pod in page.items if _waits_for_node(pod)]
        if names:
            text = f"the cluster is scaling up: pod {namespace}/{names[0]} waits for a node"
            raise ReservationError(Reason.CLUSTER_SCALING_UP, text)

    def _refuse_if_lost(self, group: str, user: Object) -> None:
        """Pods that run on the GPU of a lost reservation: a new one would get another GPU than theirs."""
        if group in self._usage.told:
            text = f"GPU group {group} has lost its reservation while another pod is being bound to its GPU"
            raise ReservationError(Reason.RESERVATION_LOST, text)
        for other in live(self._caches.pods.by_index(GROUP_INDEX, group)):
            if other["spec"].get("nodeName") and other["metadata"]["uid"] != user["metadata"]["uid"]:
                name = "/".join(key_of(other))
                text = f"GPU group {group} has lost its reservation while pod {name} uses its GPU"
                raise ReservationError(Reason.RESERVATION_LOST, text)

    async def remove(self, pod: Object) -> None:
        """Deletes this very reservation pod at once; another of its name stays."""
        metadata = pod["metadata"]
        try:
            await self._client.delete(
                PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_period_s=0
            )
        except (errors.NotFoundError, errors.ConflictError):
            self._removed.append(metadata["uid"])  # by somebody else
            return
        self._removed.append(metadata["uid"])
        for group in groups_of_pod(pod):
            self._usage.made.pop(group, None)
        log = logger.bind(reservation=metadata["name"], groups=sorted(groups_of_pod(pod)))
        log.info("Removed a reservation pod")

    def _was_removed(self, pod: Object) -> bool:
        """Whether we deleted it, though the cache may still show it alive."""
        return pod["metadata"]["uid"] in self._removed

    async def _clear(self, former: Object) -> None:
        """Removes a reservation that holds nothing any more; one that goes already is left to go."""
        if not former["metadata"].get("deletionTimestamp"):
            await self.remove(former)

    async def _gone(self, name: str, wait: _Wait) -> None:
        """Waits until no dead pod of this name is known."""
        key = (self._options.namespace, name)
        # One that only the server knows yet is given a moment.
        await anyio.sleep(_GONE_PAUSE_S)
        with self._listening(key, wait) as signal:
            while (pod := self._caches.reservations.get(name, key[0])) is not None and _is_dead(pod):
                self._check_still_wanted(wait)
                async with wait.waiting(f"the former reservation pod {'/'.join(key)} to go"):
                    with anyio.move_on_after(wait.deadline_s - anyio.current_time()) as scope:
                        await signal.wait()
                if scope.cancelled_caught:
                    text = f"the former reservation pod {'/'.join(key)} does not go"
                    raise ReservationError(Reason.RESERVATION_TIMEOUT, text)

    async def _device(self, group: str, made: Object, wait: _Wait) -> str:
        """Waits for the reservation pod to name its device."""
        key, seen, told = key_of(made), False, False
        with self._listening(key, wait) as signal:
            async with wait.waiting(f"reservation pod {'/'.join(key)} to report its GPU"):
                while True:
                    pod = self._caches.reservations.get(key[1], key[0])
                    if pod is not None and _is_older(pod, made):
                        pod = None  # the one before it, which the cache has not seen go yet
                    if pod is None and told and not seen:  # it may have come and gone unseen
                        pod = await self._read(key[1])
                        seen = pod is None
                    elif pod is not None:
                        seen = True
                    if seen:
                        self._usage.made.pop(group, None)
                    device = self._look(made, pod, seen=seen)
                    if device:
                        return device
                    self._check_still_wanted(wait)
                    with anyio.move_on_after(wait.deadline_s - anyio.current_time()) as scope:
                        await signal.wait()
                    if scope.cancelled_caught:
                        self._usage.made.pop(group, None)
                        return await self._last_look(made)
                    told = True

    @contextmanager
    def _listening(self, reservation: Key, wait: _Wait) -> Iterator[Signal]:
        """A signal that is set when the reservation, the request or its pod changes."""
        signal, request = Signal(), wait.request
        with ExitStack() as stack:
            for cache, key in (
                (self._caches.reservations, reservation),
                (self._caches.pods, key_of(wait.user)),
                (self._caches.requests, (request.namespace, request.name)),
            ):
                stack.enter_context(cache.listening(key, signal.set))
            yield signal

    def _look(self, made: Object, pod: Object | None, *, seen: bool) -> str | None:
        """The device, if it is there; an error if it never will be."""
        name = "/".join(key_of(made))
        if pod is None:
            if seen:
                raise ReservationError(Reason.RESERVATION_FAILED, f"reservation pod {name} was deleted")
            return None  # made a moment ago, and the cache lags
        if pod["metadata"]["uid"] != made["metadata"]["uid"]:
            raise ReservationError(Reason.RESERVATION_FAILED, f"reservation pod {name} was replaced")
        if pod["metadata"].get("deletionTimestamp"):
            raise ReservationError(Reason.RESERVATION_FAILED, f"reservation pod {name} is being deleted")
        if is_finished(pod):
            status = pod["status"]
            why = ": ".join(str(status[word]) for word in ("reason", "message") if status.get(word))
            text = f"reservation pod {name} ended with phase {status['phase']}" + (f": {why}" if why else "")
            raise ReservationError(Reason.RESERVATION_FAILED, text)
        return annotation(pod, GPU_INDEX)

    def _check_still_wanted(self, wait: _Wait) -> None:
        request, user = wait.request, wait.user
        item = self._caches.requests.get(request.name, request.namespace)
        if item is None or item["metadata"]["uid"] != request.uid:
            text = f"request {request.namespace}/{request.name} was deleted"
            raise ReservationError(Reason.REQUEST_DELETED, text, retry=False)
        pod = self._caches.pods.get(request.pod_name, request.namespace)
        if pod is None and not wait.user_is_cached:
            return  # not of our scheduler; the bind itself will tell
        if (
            pod is None
            or pod["metadata"].get("deletionTimestamp")
            or pod["metadata"]["uid"] != user["metadata"]["uid"]
            or is_finished(pod)
        ):
            text = f"pod {request.namespace}/{request.pod_name} ended before its GPU was reserved"
            raise ReservationError(Reason.POD_TERMINATING, text, retry=False)

    async def _last_look(self, made: Object) -> str:
        """A live read when the time is over: the cache may have missed what was said."""
        name = "/".join(key_of(made))
        pod = await self._read(made["metadata"]["name"])
        device = self._look(made, pod, seen=True)
        if device:
            return device
        phase = ((pod or {}).get("status") or {}).get("phase", "unknown")
        limit_s = self._options.timeout_s
        text = f"reservation pod {name} reported no GPU within {limit_s:g} s; its phase is {phase}"
        raise ReservationError(Reason.RESERVATION_TIMEOUT, text)

    async def is_alive(self, pod: Object) -> bool:
        """Whether a live read finds this very reservation pod, and alive."""
        found = await self._read(pod["metadata"]["name"])
        return (
            found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"] and not _is_dead(found)
        )

    async def _read(self, name: str) -> Object | None:
        try:
            return await self._client.get(PODS, name, self._options.namespace)
        except errors.NotFoundError:
            return None


def _check_groups(groups: Sequence[str]) -> None:
    for group in groups:
        if not is_group(group):
            text = f"GPU group {group!r} is no legal label value (1 to 63 letters, digits, '-', '_' or '.')"
            raise ReservationError(Reason.INVALID_GPU_GROUP, text, retry=False)
    doubles = [group for group, count in Counter(groups).items() if count > 1]
    if doubles:
        text = f"GPU group {doubles[0]} is named more than once; each share must be of another GPU"
        raise ReservationError(Reason.INVALID_GPU_GROUP, text, retry=False)


def _on_node(found: Object, node: Object, group: str) -> Object:
    wanted, present = node["metadata"]["name"], found["spec"].get("nodeName")
    if present != wanted:
        name = "/".join(key_of(found))
        text = f"GPU group {group} is reserved on node {present} by pod {name}, not on {wanted}"
        raise ReservationError(Reason.RESERVATION_CONFLICT, text)
    return found


def _is_dead(pod: Object) -> bool:
    return is_finished(pod) or bool(pod["metadata"].get("deletionTimestamp"))


def _holds(pod: Object, gpu: Reserved) -> bool:
    """Whether the pod is this reservation, alive, with this device."""
    same = pod["metadata"]["uid"] == gpu.uid and annotation(pod, GPU_INDEX) == gpu.device
    return same and not _is_dead(pod)


def _is_older(pod: Object, other: Object) -> bool:
    """Whether `pod` is another, earlier one of the same name."""
    metadata, later = pod["metadata"], other["metadata"]
    earlier = int(metadata["resourceVersion"]) < int(later["resourceVersion"])
    return earlier and metadata["uid"] != later["uid"]


def _waits_for_node(pod: Object) -> bool:
    """Whether a scaling pod is alive and was found no node for."""
    if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("nodeName"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "PodScheduled" and item["status"] != "True" for item in conditions)
