"""From a request's key to a bound pod and a written status.

Read, guard, attempt, tell: each is a method here, and the last two lead to rooms of their own. Invariants:
every ending is told before the key returns to the queue, so that no bind is repeated because a write was
lost; and what was decided long ago is checked against the pod that there is now.
"""

from collections.abc import Iterable
from contextlib import suppress

from loguru import logger
from msgspec.structs import replace

from controller.binder.decisions import must_be_confirmed
from controller.binder.mended import GivenUp
from controller.binder.objects import is_cut
from controller.binder.pipeline import Pipeline
from controller.binder.telling import Teller
from controller.binder.work import Caches, Kept, Work
from controller.kai.names import BIND_REQUESTS, NODES, PODS, is_object_name
from controller.kai.outcome import (
    Attempted,
    Ending,
    Failed,
    HandedOver,
    Interrupted,
    Ready,
    failed_by,
)
from controller.kai.pods import is_owner, judge_pod
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest, InvalidRequestError, is_over
from controller.runtime import errors
from controller.runtime.cache import Change, Key, key_of
from controller.runtime.client import Client, Object
from controller.runtime.locks import KeyedLock
from controller.runtime.reconcile import Result
from controller.runtime.slots import Slot

_SHOWN_AFTER = 2
"""So many interruptions in a row are shown in the status: one says little."""

_BLIND_S = 5.0
"""A request that the cache may not see now is looked for again after this time."""


def keys_to_bind(change: Change) -> Iterable[Key]:
    """Keys for the queue: new, changed by the scheduler or a person, deleted.

    A change of status or metadata alone is our own doing, or nobody's business, and must not end a back-off.
    One that comes in finished, as most do at a start, needs no work.
    """
    old, new = change.old, change.new
    if old is None and new is not None and is_over(new):
        return ()
    if old is not None and new is not None:
        same_spec = old["metadata"].get("generation") == new["metadata"].get("generation")
        if same_spec and not new["metadata"].get("deletionTimestamp"):
            return ()
    return (key_of(change.object),)


class BindRequestReconciler:
    """Binds the pods that requests name."""

    def __init__(self, client: Client, caches: Caches, pipeline: Pipeline, teller: Teller) -> None:
        self._client = client
        self._caches = caches
        self._pipeline = pipeline
        self._teller = teller
        self._pods: KeyedLock[Key] = KeyedLock()
        self._interruptions: dict[Key, int] = {}  # in a row, of requests that are still to be bound
        self._kept: dict[Key, Kept] = {}  # of requests that are to be tried again, for whatever reason
        self._given_up = GivenUp()

    async def reconcile(self, key: Key, slot: Slot) -> Result:
        """Brings one request to its end, or one attempt further.

        Raises:
            errors.ApiError: The server was not there; the request is as before.
        """
        await self._undo_kept(key, slot)
        item = await self._find_request(key)
        if item is None and self._caches.requests.is_blind:
            return Result(requeue_after_s=_BLIND_S)  # it may be there, and no change would tell of it later
        if item is None:
            self._given_up.forget(key)
        elif self._given_up.is_mended(item):
            item = await self._teller.begin_anew(item)
        if item is None or is_over(item):
            self._interruptions.pop(key, None)
            return Result()
        try:
            request = BindRequest.parse(item)
        except InvalidRequestError as error:
            result = await self._refuse(item, Failed(Reason.INVALID_REQUEST, str(error), retry=False), slot)
            self._given_up.note(item, self._teller.latest(item))
            return result
        work = self._work(item, request, slot)
        # Two requests may name one pod: the second has to see what became of the first.
        async with self._pods.hold((request.namespace, request.pod_name), slot.released):
            if work.obsolete() is not None:
                return Result()  # it was deleted or changed while it waited for the other
            pod: Object | None = None
            try:
                pod, verdict = await self._find_pod(request)
                if verdict is None and request.is_fraction and not request.gpu_groups:
                    return await self._discard(work)
                await self._undo_former(key, pod, slot)
                ending = await self._attempt(work, pod, verdict)
            except errors.ApiError as error:
                ending = self._unattempted(work, error)
            except Exception as error:  # noqa: BLE001 -- it must reach the status, or nobody would know
                logger.exception("A bind failed in an unforeseen way")
                failure = Failed(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
                ending = Ending(work.order, {}, failure)
            return await self._tell(work, pod, ending)

    async def _find_request(self, key: Key) -> Object | None:
        """The request; read live if the cache keeps only a part of it, or may lack what ended it.

        The leader before us may have ended it unseen by our cache. Else a pod could be bound whose request
        the scheduler reads as failed for good, and attempts that were counted would be forgotten.
        """
        namespace, name = key
        requests = self._caches.requests
        held = requests.get(name, namespace)
        if held is None or is_over(held):
            return held
        if not is_cut(held) and requests.has_caught_up(name, namespace):
            return held
        try:
            found = await self._client.get(BIND_REQUESTS, name, namespace)
        except errors.NotFoundError:
            return None
        if found["metadata"]["uid"] != held["metadata"]["uid"]:
            return None  # of another one the watch will tell
        requests.observe(found)
        held = requests.get(name, namespace)
        return found if held is not None and is_cut(held) else held

    def _work(self, item: Object, request: BindRequest, slot: Slot) -> Work:
        return Work(
            item=item,
            request=request,
            slot=slot,
            client=self._client,
            caches=self._caches,
            teller=self._teller,
            order=self._pipeline.order(is_fraction=request.is_fraction),
        )

    async def _undo_kept(self, key: Key, slot: Slot) -> None:
        """Takes back what an attempt left for the next one, if that will not come.

        Raises:
            errors.ApiError: The server was not there; it is still to be done.
        """
        kept = self._kept.get(key)
        if kept is None:
            return
        request = kept.work.request
        if kept.in_vain(self._caches.pods.get(request.pod_name, request.namespace)) is None:
            return
        async with self._pods.hold((request.namespace, request.pod_name), slot.released):
            await self._undo_in_vain(key, kept, slot)

    async def _undo_former(self, key: Key, pod: Object | None, slot: Slot) -> None:
        """The same for a former pod of the name, which a cache showed until now; its name is held.

        What an attempt for this pod may leave could not be noted beside it.
        """
        kept = self._kept.get(key)
        if kept is not None and pod is not None and not kept.is_of(pod):
            await self._undo_in_vain(key, kept, slot)

    async def _undo_in_vain(self, key: Key, kept: Kept, slot: Slot) -> None:
        request, present = kept.work.request, None
        with suppress(errors.NotFoundError):
            present = await self._client.get(PODS, request.pod_name, request.namespace)
        failure = kept.in_vain(present)
        if failure is None:
            return  # it is there, though no cache shows it: the retry comes
        if present is None or not kept.is_of(present) or not present["spec"].get("nodeName"):
            node: Object = {"metadata": {"name": request.node_name}}
            work = replace(kept.work, slot=slot)
            ending = await self._pipeline.undo(request, kept.pod, node, work, failure)
            if isinstance(ending, Interrupted):
                raise ending.error
        self._kept.pop(key, None)

    async def _find_pod(self, request: BindRequest) -> tuple[Object | None, Ready | Failed | None]:
        """Reads the pod, and judges it; a last word is said only after a live read."""
        pod = self._caches.pods.get(request.pod_name, request.namespace)
        if pod is not None and not is_cut(pod) and not self._may_be_bound_unseen(request, pod):
            verdict = judge_pod(request, pod, request.owner_uid)
            if not must_be_confirmed(request, verdict):
                return pod, verdict
        try:
            pod = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            return None, Failed(Reason.POD_NOT_FOUND, f"pod {request.full_pod_name} does not exist")
        return pod, judge_pod(request, pod, request.owner_uid)

    async def _refuse(self, item: Object, failure: Failed, slot: Slot) -> Result:
        """Ends a request that cannot be understood."""
        spec, namespace = item.get("spec"), item["metadata"]["namespace"]
        name = spec.get("podName") if isinstance(spec, dict) else None
        order = self._pipeline.order(is_fraction=False)
        if not isinstance(name, str) or not is_object_name(name):
            return await self._teller.refuse(item, None, failure, order, slot)
        # Another request may be binding the pod.
        async with self._pods.hold((namespace, name), slot.released):
            try:
                pod = await self._client.get(PODS, name, namespace)
            except errors.ApiError as error:
                if error.says_nothing:
                    raise
                return await self._teller.refuse(item, None, failure, order, slot)
            waits = is_owner(item, pod) and not pod["spec"].get("nodeName")
            return await self._teller.refuse(item, pod if waits else None, failure, order, slot)

    def _may_be_bound_unseen(self, request: BindRequest, pod: Object) -> bool:
        """Whether the leader before us may have bound the pod, while work of that bind could be discarded.

        Without reservations and claims there is none: the Binding is refused, and the pod is looked at then.
        """
        status = pod.get("status") or {}
        claims = pod["spec"].get("resourceClaims") or status.get("extendedResourceClaimStatus")
        if not request.is_fraction and not claims and request.extended_claim is None:
            return False
        return not self._caches.pods.has_caught_up()

    async def _attempt(self, work: Work, pod: Object | None, verdict: Ready | Failed | None) -> Attempted:
        """Guards, then the pipeline."""
        request = work.request
        if pod is not None and verdict is None:
            node = await self._find_node(request)
            if node is not None:
                return await self._pipeline.bind(request, pod, node, work)
        if verdict is None:
            verdict = Failed(Reason.NODE_GONE, f"node {request.node_name} does not exist")
        if pod is None or isinstance(verdict, Ready) or verdict.reason == Reason.POD_REPLACED:
            return Ending(work.order, {}, verdict, was_found=isinstance(verdict, Ready))
        # An attempt that was broken off may have left its work on a pod that cannot be bound any more.
        stub: Object = {"metadata": {"name": request.node_name}}
        return await self._pipeline.undo(request, pod, stub, work, verdict)

    async def _find_node(self, request: BindRequest) -> Object | None:
        node = self._caches.nodes.get(request.node_name)
        if node is not None:
            return node
        try:
            return await self._client.get(NODES, request.node_name)
        except errors.NotFoundError:
            return None

    def _unattempted(self, work: Work, error: errors.ApiError) -> Ending | Interrupted:
        """The ending of an attempt whose pod or node could not be read."""
        if error.says_nothing:  # nobody's fault, and nothing is known of the pod
            return Interrupted(work.order, {}, ConditionType.BOUND, error)
        return Ending(work.order, {}, failed_by(error))

    async def _discard(self, work: Work) -> Result:
        """Deletes a share of no GPU: left by a conversion that failed, no attempt can mend it (B-36).

        Raises:
            errors.ApiError: The server did not delete it.
        """
        request = work.request
        try:
            await self._client.delete(BIND_REQUESTS, request.name, request.namespace, uid=request.uid)
        except (errors.NotFoundError, errors.ConflictError):
            return Result()  # it is gone, or another one has its name
        log = logger.bind(pod=request.pod_name, node=request.node_name)
        log.warning("Deleted a request for a share of a GPU that names no GPU group")
        return Result()

    async def _tell(self, work: Work, pod: Object | None, ending: Attempted) -> Result:
        """Has the ending written, and says when to look again.

        Raises:
            errors.ApiError: There is no ending yet.
        """
        key = key_of(work.item)
        if isinstance(ending, HandedOver):
            self._interruptions.pop(key, None)
            self._kept.pop(key, None)
            logger.bind(pod=work.request.pod_name).info(
                "A request has gone to another shard while it was worked on"
            )
            return Result()
        if isinstance(ending, Ending):
            self._interruptions.pop(key, None)
            self._keep(work, pod, ending.verdict)
            result = await self._teller.tell(work.item, work.request, pod, ending, work.slot)
            self._given_up.note(work.item, self._teller.latest(work.item))
            return result
        self._teller.interrupted(ending.error)
        self._interruptions[key] = self._interruptions.get(key, 0) + 1
        if pod is not None:
            self._note(work, pod)  # how far it came is not known, so all may have to be undone
        if self._interruptions[key] >= _SHOWN_AFTER:
            error = ending.error
            what = f"the API server, which did not do its part: {error.request}: {error.message}"
            await work.show_waiting(ending.step, what, ending.outcomes)
        raise ending.error

    def _keep(self, work: Work, pod: Object | None, verdict: Ready | Failed) -> None:
        """Notes whether a part of the attempt's work is kept for a retry.

        Before the ending is written: the request may be gone by then. What was kept for a former pod of the
        name stays noted until it is taken back.
        """
        key = key_of(work.item)
        if pod is None:
            return
        if isinstance(verdict, Failed) and not work.is_final(verdict):
            self._note(work, pod)
        elif key in self._kept and self._kept[key].is_of(pod):
            del self._kept[key]

    def _note(self, work: Work, pod: Object) -> None:
        """Unless it is still owed to a former pod: then nothing was begun for this one."""
        key = key_of(work.item)
        if key not in self._kept or self._kept[key].is_of(pod):
            self._kept[key] = Kept(work, pod)
