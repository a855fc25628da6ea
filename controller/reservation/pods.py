"""Finds, makes and removes the pod that holds the GPU of a group.

`Reservations` finds or makes, `GroupReconciler` removes. Invariants: there is one pod for a group, since its
name follows from node and group; a former one is gone before the next is made; of what the cache shows
nothing is removed without a live look.
"""

from collections.abc import Container, Iterable

import anyio
from loguru import logger
from msgspec import Struct, field

from controller.kai.names import PODS, USED_BY
from controller.kai.outcome import Failed
from controller.kai.pods import full_name, is_alive
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import groups_of_pod
from controller.reservation.answer import Waiting
from controller.reservation.evidence import node_of
from controller.reservation.image import AgentImage
from controller.reservation.manifest import device_of, mode_of, reservation_name, reservation_pod, stand_in
from controller.reservation.members import Members
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Client, Object

TRIES = 5
"""So often a group's pod is made anew before the bind gives up."""

_UNSEEN_PAUSE_S = 0.2


class Bind(Struct, frozen=True):
    """On whose behalf GPUs are reserved, and until when there is time.

    Attributes:
        request: The request.
        user: The pod that gets a share.
        node: Its node.
        waiting: Around each wait for somebody else.
        deadline_s: By the clock of the event loop.
        made: The reservation pods that were made for it.
    """

    request: BindRequest
    user: Object
    node: Object
    waiting: Waiting
    deadline_s: float
    made: list[Object] = field(default_factory=list)

    @property
    def node_name(self) -> str:
        """Name of the node."""
        return str(self.node["metadata"]["name"])


class ReservationPods:
    """The reservation pods, one for each group in use.

    Attributes:
        image: What they run.
    """

    def __init__(
        self, client: Client, cache: Cache, members: Members, usage: Usage, changes: Changes
    ) -> None:
        self.image = AgentImage(client, members.options)
        self._client = client
        self._cache = cache
        self._members = members
        self._options = members.options
        self._usage = usage
        self._changes = changes

    async def find_or_make(self, group: str, bind: Bind) -> Object | Failed:
        """The living reservation pod of a group on the node; or why there can be none.

        Raises:
            errors.ApiError: The server was not there.
        """
        for _ in range(TRIES):
            async with self._usage.locked(group):
                found: Object | Failed | None = await self._members.find(group, bind.node_name)
                found = found or self._unseen(group)
                if found is None:
                    found = await self._make(group, bind)
            if isinstance(found, Failed):
                return found
            if found is not None:
                checked = _checked(found, group, bind)
                if isinstance(checked, Failed) or await self._is_noted(group, checked, bind):
                    return checked
                continue
            # Outside the lock: the old pod may take its time to go.
            failure = await self._until_gone(reservation_name(bind.node_name, group), bind)
            if failure is not None:
                return failure
        return by_turns(group)

    async def _is_noted(self, group: str, reservation: Object, bind: Bind) -> bool:
        """Notes on another shard's reservation that it is used; False if it is gone.

        Its owner may just have looked who needs it, before there was this request: the note makes it another
        version than the one that he may remove.
        """
        if self._members.shard.shows(reservation) or reservation in bind.made:
            return True
        metadata = reservation["metadata"]
        note = {"uid": metadata["uid"], "annotations": {USED_BY: bind.request.uid}}
        try:
            await self._client.patch(PODS, metadata["name"], {"metadata": note}, metadata["namespace"])
        except (errors.NotFoundError, errors.ConflictError):
            self._usage.unseen.pop(group, None)
            await anyio.sleep(_UNSEEN_PAUSE_S)  # until the cache shows it
            return False
        return True

    def _unseen(self, group: str) -> Object | None:
        """What a bind under way has made and the cache does not show yet."""
        made = self._usage.unseen.get(group)
        if made is None or not self._cache.has_seen(made["metadata"]["resourceVersion"]):
            return made
        del self._usage.unseen[group]  # by now the cache knows better
        return None

    async def _make(self, group: str, bind: Bind) -> Object | Failed | None:
        """Makes the pod, or finds it in spite of the cache; None if a former one has to go first."""
        users = await self._members.sharers_everywhere(group, {bind.node_name})
        failure = why_lost(group, bind.user["metadata"]["uid"], bind.node_name, users, self._usage.relied_on)
        name = reservation_name(bind.node_name, group)
        if failure is not None:
            # It is lost only if a live look does not find it either: a cache may be late.
            found = await self._members.read(name)
            if found is None or not is_alive(found) or self._usage.was_removed(found):
                return failure
            self._usage.forgive(found)
            return found
        former = self._cache.get(name, self._options.namespace)
        if former is None or self._usage.was_removed(former):
            created = await self._create(group, bind)
            if created is not None:
                return created
        return await self._former(name)

    async def _former(self, name: str) -> Object | None:
        """The pod of this name if it counts after all; else None, and it goes if it was there.

        What the cache says of a pod that is to be removed may be old, and so may what it does not say.
        """
        for _ in range(TRIES):
            former = await self._members.read(name)
            if former is None:
                return None
            if is_alive(former) and (device_of(former) or not self._usage.is_given_up(former)):
                self._usage.forgive(former)
                return former
            metadata = former["metadata"]
            # One that lives may answer just now, and then stays.
            version = metadata["resourceVersion"] if is_alive(former) else ""
            if metadata.get("deletionTimestamp") or await self.remove(former, version=version):
                return None
        return None

    async def _create(self, group: str, bind: Bind) -> Object | Failed | None:
        """Makes the pod; None if there is one of that name."""
        failure = await self._scaling_up()
        if failure is not None:
            return failure
        mode = bind.request.compute_mode(group) if bind.request.names_compute_modes else None
        agent = stand_in(self._options, bind.node) or await self.image.agent()
        if isinstance(agent, Failed):
            return agent
        body = reservation_pod(self._options, agent, bind.node, group, bind.user, mode)
        try:
            created = await self._client.create(PODS, body, self._options.namespace)
        except errors.AlreadyExistsError:
            return None
        except errors.StatusError as error:
            if error.says_nothing:
                raise
            name = f"{self._options.namespace}/{body['metadata']['name']}"
            text = f"reservation pod {name} for node {bind.node_name} was rejected: {error.message}"
            return Failed(Reason.RESERVATION_REJECTED, text)
        self._usage.unseen[group] = created
        bind.made.append(created)
        logger.bind(reservation=created["metadata"]["name"], group=group).info("Made a reservation pod")
        return created

    async def _scaling_up(self) -> Failed | None:
        """New GPUs wait while the autoscaler's own pods wait for nodes (B-82)."""
        namespace = self._options.scale_adjust_namespace
        if not namespace:
            return None
        selector = {"fieldSelector": f"metadata.namespace={namespace},status.phase=Pending,spec.nodeName="}
        try:
            page = await self._client.list_all(PODS, selector)
        except errors.StatusError as error:
            if error.transient:
                raise
            logger.bind(error=error.message).warning("It cannot be seen whether the cluster is scaling up")
            return None
        waiting = next(filter(_waits_for_node, page.items), None)
        if waiting is None:
            return None
        text = f"the cluster is scaling up: pod {full_name(waiting)} waits for a node"
        return Failed(Reason.CLUSTER_SCALING_UP, text)

    async def remove(self, reservation: Object, *, version: str = "") -> bool:
        """Deletes this very reservation pod at once; another of its name stays.

        With a resourceVersion it also stays if it was changed since, and is looked at again for that.

        Returns:
            Whether it does not stay.
        """
        metadata = reservation["metadata"]
        try:
            with self._usage.removing(reservation):
                try:
                    await self._client.delete(
                        PODS,
                        metadata["name"],
                        metadata["namespace"],
                        uid=metadata["uid"],
                        version=version,
                        grace_period_s=0,
                    )
                except errors.NotFoundError:
                    return True  # gone before, which the cache may not know: it stays noted as removed
                except errors.ConflictError:
                    if version:
                        raise
                    return True  # another one has its name
        except errors.ConflictError:
            return False  # it was changed, and may live
        log = logger.bind(reservation=metadata["name"], groups=sorted(groups_of_pod(reservation)))
        log.info("Removed a reservation pod")
        return True

    async def _until_gone(self, name: str, bind: Bind) -> Failed | None:
        """Waits until a pod of this name that counts no more is gone."""
        former = self._cache.get(name, self._options.namespace)
        if former is None:
            await anyio.sleep(_UNSEEN_PAUSE_S)  # one that only the server knows is given a moment
            return None
        uid = former["metadata"]["uid"]

        def judge(pod: Object | None) -> bool | None:
            return True if pod is None or pod["metadata"]["uid"] != uid else None

        async with bind.waiting(f"the former reservation pod {full_name(former)} to go"):
            with anyio.move_on_after(bind.deadline_s - anyio.current_time()) as scope:
                await self._changes.until(Judged(Target(PODS, name, self._options.namespace), judge))
        if not scope.cancelled_caught:
            return None
        text = f"the former reservation pod {full_name(former)} does not go"
        return Failed(Reason.RESERVATION_TIMEOUT, text)


def _checked(found: Object, group: str, bind: Bind) -> Object | Failed:
    """The reservation pod if it is that of the group, on the node, in the mode that the request is for."""
    if group not in groups_of_pod(found):
        text = f"reservation pod {full_name(found)} is not labelled as that of GPU group {group}"
        return Failed(Reason.RESERVATION_CONFLICT, text)
    name, node_name = full_name(found), bind.node_name
    if node_of(found) != node_name:
        text = f"GPU group {group} is reserved on node {node_of(found)} by pod {name}, not on {node_name}"
        return Failed(Reason.RESERVATION_CONFLICT, text)
    present, wanted = mode_of(found), bind.request.compute_mode(group)
    if present != wanted:
        text = f"GPU group {group} is reserved for {present} by pod {name}, and the request is for {wanted}"
        return Failed(Reason.COMPUTE_MODE_CONFLICT, text)
    return found


def why_lost(
    group: str, uid: str, node_name: str, users: Iterable[Object], relied_on: Container[str]
) -> Failed | None:
    """Why no reservation may be made anew for a group: it would get another GPU than those who use it have.

    Args:
        group: Its name; there is no reservation for it.
        uid: Of the pod that is to get a share.
        node_name: Where.
        users: The pods that have a share by what is known.
        relied_on: Groups whose device a bind under way goes by.
    """
    if group in relied_on:
        text = f"GPU group {group} has lost its reservation while another pod is being bound to its GPU"
        return Failed(Reason.RESERVATION_LOST, text)
    for other in filter(is_alive, users):
        if node_of(other) == node_name and other["metadata"]["uid"] != uid:
            text = f"GPU group {group} has lost its reservation while pod {full_name(other)} uses its GPU"
            return Failed(Reason.RESERVATION_LOST, text)
    return None


def by_turns(group: str) -> Failed:
    """A group whose pod does not stay."""
    text = f"the reservation pod of GPU group {group} is made and removed by turns"
    return Failed(Reason.RESERVATION_FAILED, text)


def _waits_for_node(pod: Object) -> bool:
    """Whether a scaling pod is alive and was found no node for."""
    if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("nodeName"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "PodScheduled" and item["status"] != "True" for item in conditions)
