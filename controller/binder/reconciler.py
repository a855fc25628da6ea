"""From a request's key to a bound pod and a written status.

Read, guard, let the pipeline work, write what came of it. Every ending is written before the key returns to
the queue, so a bind is never repeated because a write was lost; and what was decided long ago is checked
against the pod that there is now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
from loguru import logger

from controller.binder import status as statuses
from controller.binder.pipeline import Attempt, Pipeline, Worker
from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.kai.outcome import Failed, Outcome, Ready, failed_by
from controller.kai.pods import judge_pod
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest, BindStatus, InvalidRequestError, backoff_limit_of, is_over
from controller.runtime import errors
from controller.runtime.cache import Cache, Change, Key, key_of
from controller.runtime.client import Client, Object, Patch
from controller.runtime.locks import KeyedLock
from controller.runtime.reconcile import Result
from controller.runtime.reporting import EventRecorder, merge_condition
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff


@dataclass(frozen=True, slots=True)
class Caches:
    """What the reconciler reads without asking the server."""

    requests: Cache
    pods: Cache
    nodes: Cache
    reservations: Cache

    def all(self) -> tuple[Cache, ...]:
        """Each of them."""
        return self.requests, self.pods, self.nodes, self.reservations


def keys_to_bind(change: Change) -> Iterable[Key]:
    """Keys for the queue: new, changed by the scheduler or a person, deleted.

    A change of status or metadata alone is our own doing, or nobody's business, and must not end a back-off.
    """
    old, new = change.old, change.new
    if old is not None and new is not None:
        same_spec = old["metadata"].get("generation") == new["metadata"].get("generation")
        if same_spec and not new["metadata"].get("deletionTimestamp"):
            return ()
    return (key_of(change.object),)


class BindRequestReconciler:
    """Binds the pods that requests name."""

    def __init__(
        self, client: Client, caches: Caches, pipeline: Pipeline, recorder: EventRecorder, backoff: Backoff
    ) -> None:
        self._client = client
        self._caches = caches
        self._pipeline = pipeline
        self._recorder = recorder
        self._backoff = backoff
        self._pods: KeyedLock[Key] = KeyedLock()

    async def reconcile(self, key: Key, slot: Slot) -> Result:
        """Brings one request to its end, or one attempt further.

        Raises:
            errors.ApiError: The server was not there; the request is as before.
        """
        item = self._caches.requests.get(key[1], key[0])
        if item is None or is_over(item):
            return Result()
        try:
            request = BindRequest.parse(item)
        except InvalidRequestError as error:
            attempt = self._unattempted(Failed(Reason.INVALID_REQUEST, str(error), retry=False), None)
            return await self._conclude(item, None, None, attempt, slot)
        if request.is_fraction and not request.gpu_groups:
            return await self._discard(item, request, slot)
        # Two requests may name one pod: the second has to see what became of the first.
        async with self._pods.hold((request.namespace, request.pod_name), slot.released):
            if self._obsolete(item) is not None:
                return Result()  # it was deleted or changed while it waited for the other
            pod: Object | None = None
            try:
                attempt, pod = await self._attempt(item, request, slot)
            except errors.ApiError:
                raise
            except Exception as error:  # noqa: BLE001 -- it must reach the status, or nobody would know
                logger.exception("A bind failed in an unforeseen way")
                failure = Failed(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
                attempt = self._unattempted(failure, request)
            return await self._conclude(item, request, pod, attempt, slot)

    def _obsolete(self, item: Object) -> Failed | None:
        """Why a request that was read before is not to be bound any more, as far as the cache knows."""
        metadata = item["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        held = self._caches.requests.get(metadata["name"], metadata["namespace"])
        if held is None or held["metadata"]["uid"] != metadata["uid"]:
            return Failed(Reason.REQUEST_DELETED, f"request {name} was deleted", retry=False)
        if is_over(held):
            return Failed(Reason.REQUEST_DELETED, f"request {name} is over", retry=False)
        if held["metadata"].get("generation") != metadata.get("generation"):
            return Failed(Reason.REQUEST_CHANGED, f"request {name} was changed while it was worked on")
        return None

    def _unattempted(self, ending: Ready | Failed, request: BindRequest | None) -> Attempt:
        order = self._pipeline.order(is_fraction=request is not None and request.is_fraction)
        return Attempt(order, {}, ending)

    async def _discard(self, item: Object, request: BindRequest, slot: Slot) -> Result:
        """Deletes a share of no GPU: left by a conversion that failed, no attempt can mend it (B-36)."""
        try:
            await self._client.delete(BIND_REQUESTS, request.name, request.namespace, uid=request.uid)
        except (errors.NotFoundError, errors.ConflictError):
            return Result()  # it is gone, or another one has its name
        except errors.ApiError as error:
            if error.transient:
                raise
            return await self._conclude(
                item, request, None, self._unattempted(failed_by(error), request), slot
            )
        log = logger.bind(pod=request.pod_name, node=request.node_name)
        log.warning("Deleted a request for a share of a GPU that names no GPU group")
        return Result()

    async def _attempt(self, item: Object, request: BindRequest, slot: Slot) -> tuple[Attempt, Object | None]:
        """Guards, then the pipeline.

        Returns:
            The attempt, and the pod if there is one.
        """

        async def on_wait(type_: str, what: str, outcomes: Mapping[str, Outcome]) -> None:
            await self._show_waiting(item, request, {type_: what}, outcomes)

        worker = Worker(slot, on_wait, lambda: self._obsolete(item))
        try:
            pod, verdict = await self._find_pod(request)
            node = await self._find_node(request) if verdict is None else None
        except errors.ApiError as error:
            if error.transient:
                raise
            return self._unattempted(failed_by(error), request), None
        if pod is not None and verdict is None and node is not None:
            return await self._pipeline.bind(request, pod, node, worker), pod
        if verdict is None:
            verdict = Failed(Reason.NODE_GONE, f"node {request.node_name} does not exist")
        if pod is None or isinstance(verdict, Ready) or verdict.reason == Reason.POD_REPLACED:
            return self._unattempted(verdict, request), pod
        # An attempt that was broken off may have left its work on a pod that cannot be bound any more.
        stub: Object = {"metadata": {"name": request.node_name}}
        return await self._pipeline.take_back(request, pod, stub, worker, verdict), pod

    async def _find_pod(self, request: BindRequest) -> tuple[Object | None, Ready | Failed | None]:
        """The pod and what is to be said of it; a last word is said only after a live read."""
        pod = self._caches.pods.get(request.pod_name, request.namespace)
        if pod is not None:
            verdict = judge_pod(request, pod, request.owner_uid)
            # Without an owner the pod may be an earlier one of that name, whose end the cache has not seen.
            unsure = isinstance(verdict, Ready) and request.owner_uid is None
            if not isinstance(verdict, Failed) and not unsure:
                return pod, verdict
        try:
            pod = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            text = f"pod {request.namespace}/{request.pod_name} does not exist"
            return None, Failed(Reason.POD_NOT_FOUND, text)
        return pod, judge_pod(request, pod, request.owner_uid)

    async def _find_node(self, request: BindRequest) -> Object | None:
        node = self._caches.nodes.get(request.node_name)
        if node is not None:
            return node
        try:
            return await self._client.get(NODES, request.node_name)
        except errors.NotFoundError:
            return None

    async def _conclude(
        self, item: Object, request: BindRequest | None, pod: Object | None, attempt: Attempt, slot: Slot
    ) -> Result:
        """Writes the status, then what others are told; says when to look again."""
        generation, now = item["metadata"].get("generation", 0), datetime.now(UTC)
        item = self._latest(item)
        old = BindStatus.of(item)
        if isinstance(attempt.ending, Ready):
            assert request is not None  # noqa: S101 -- what was not understood was not bound
            report = statuses.succeeded(request, generation, old, attempt, now)
            logger.bind(pod=request.pod_name, node=request.node_name).info("Bound a pod")
        else:
            limit = backoff_limit_of(item)
            report = statuses.failed(request, generation, old, attempt, now, self._backoff, limit=limit)
            logger.bind(
                reason=report.status["reason"],
                attempts=report.status["failedAttempts"],
                retry_in_s=report.result.requeue_after_s,
            ).warning("A bind failed")
        stored = await self._write_status(item, report.status, attempt.order, slot)
        if not stored and not isinstance(attempt.ending, Ready):
            return Result()
        if request is not None:
            await self._tell_pod(request, pod, report, now)
        if report.request_event is not None:
            event = report.request_event
            self._recorder.event(_reference(item), event.kind, event.reason, event.message)
        return report.result

    def _latest(self, item: Object) -> Object:
        """The same request as the cache has it now, perhaps with a status that we wrote meanwhile."""
        metadata = item["metadata"]
        held = self._caches.requests.get(metadata["name"], metadata["namespace"])
        return held if held is not None and held["metadata"]["uid"] == metadata["uid"] else item

    async def _write_status(self, item: Object, status: Object, order: Sequence[str], slot: Slot) -> bool:
        """Writes until it is stored; False if the request is gone. `order` as in `Attempt`."""
        tries = 0
        while True:
            try:
                await self._patch_status(item, status)
            except errors.NotFoundError:
                return False
            except errors.ApiError as error:
                tries += 1
                present = item if error.transient else await self._read_again(item)
                if present is None:
                    return False
                item, status = present, statuses.refreshed(status, order, present)
                if tries == 1 and isinstance(error, errors.InvalidError):
                    continue  # the status was not as we knew it
                delay_s = self._backoff.delay_s(tries)
                log = logger.bind(error=error.message, retry_in_s=delay_s)
                log.warning("The status could not be written and will be tried again")
                async with slot.released():
                    await anyio.sleep(delay_s)
            else:
                return True

    async def _patch_status(self, item: Object, status: Object) -> None:
        metadata, patch = item["metadata"], statuses.json_patch(item, status)
        stored = await self._client.patch(
            BIND_REQUESTS,
            metadata["name"],
            patch,
            metadata["namespace"],
            subresource="status",
            how=Patch.JSON,
        )
        self._caches.requests.observe(stored)

    async def _read_again(self, item: Object) -> Object | None:
        """The request as it is now; None if it was deleted, perhaps made anew: the scheduler does that."""
        metadata = item["metadata"]
        try:
            present = await self._client.get(BIND_REQUESTS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return None
        except errors.ApiError:
            return item
        return present if present["metadata"]["uid"] == metadata["uid"] else None

    async def _show_waiting(
        self, item: Object, request: BindRequest, waits: Mapping[str, str], outcomes: Mapping[str, Outcome]
    ) -> None:
        generation, now = item["metadata"].get("generation", 0), datetime.now(UTC)
        item = self._latest(item)
        order = self._pipeline.order(is_fraction=request.is_fraction)
        status = statuses.waiting(generation, BindStatus.of(item), order, waits, outcomes, now)
        try:
            await self._patch_status(item, status)
        except errors.ApiError as error:
            logger.bind(error=error.message).warning("It could not be shown that a request waits")

    async def _tell_pod(
        self, request: BindRequest, pod: Object | None, report: statuses.Report, now: datetime
    ) -> None:
        """Condition and event on the pod; neither may undo or repeat what is done."""
        if pod is not None and report.pod_condition is not None:
            await self._patch_pod_condition(pod, report.pod_condition, now)
        if report.pod_event is not None:
            event = report.pod_event
            reference = {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": request.namespace,
                "name": request.pod_name,
            }
            if pod is not None:
                reference["uid"] = pod["metadata"]["uid"]
            self._recorder.event(reference, event.kind, event.reason, event.message)

    async def _patch_pod_condition(self, pod: Object, condition: Object, now: datetime) -> None:
        metadata = pod["metadata"]
        present = (pod.get("status") or {}).get("conditions") or []
        same = ("type", "status", "reason", "message")
        if any(all(old.get(name) == condition[name] for name in same) for old in present):
            return
        # Strategic: the list is merged by type, so the conditions of others stay.
        dated = merge_condition(present, condition, now)
        body: Object = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [dated]}}
        try:
            await self._client.patch(
                PODS, metadata["name"], body, metadata["namespace"], subresource="status", how=Patch.STRATEGIC
            )
        except errors.ApiError as error:
            logger.bind(pod=metadata["name"], error=error.message).warning(
                "The pod's condition could not be written"
            )


def _reference(item: Object) -> dict[str, str]:
    metadata = item["metadata"]
    return {
        "apiVersion": BIND_REQUESTS.version,
        "kind": "BindRequest",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
