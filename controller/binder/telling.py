"""Tells the world what became of a request: the pod's condition, the request's status, events.

The reconciler calls it at the end of an attempt, the pipeline during long waits. Invariants: the pod is told
before the request's end is written, so that an attempt which is broken off between the two is done over; an
ending is written until it is stored or the request is gone; events come last and decide nothing.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import anyio
from loguru import logger
from msgspec import Struct

from controller.binder import status as statuses
from controller.binder.measures import Measures
from controller.binder.patches import bare, json_patch, refreshed
from controller.binder.status import Event, Report, Standing
from controller.kai.names import BIND_REQUESTS, PODS
from controller.kai.outcome import Ending, Failed, Outcome
from controller.kai.pods import full_name
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest
from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.client import Client, Object, Patch
from controller.runtime.reconcile import Result
from controller.runtime.reporting import EventRecorder, merge_condition, reference
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff

_POD_TRIES = 5
"""So often the pod's condition is tried to be written while the server does not do its part."""

_POD_TRIES_500 = 3
"""So often while it fails (500): that may be etcd's end, or a webhook that is down for longer."""

_AT_ONCE = 2
"""So many refusals of a status for what it is are answered without a delay."""


class Counts(Struct, frozen=True):
    """Where attempts are counted.

    Attributes:
        measures: The metrics.
        age_s: Tells of a request for how many seconds it has been there.
    """

    measures: Measures
    age_s: Callable[[Object], float]


class Teller:
    """Writes what others are to know."""

    def __init__(
        self, client: Client, requests: Cache, recorder: EventRecorder, backoff: Backoff, counts: Counts
    ) -> None:
        """Makes it.

        Args:
            client: For all writes.
            requests: Knows the status that was written last.
            recorder: Sends the events.
            backoff: Delays between attempts, and between tries to write.
            counts: Where attempts are counted.
        """
        self._client = client
        self._requests = requests
        self._recorder = recorder
        self._backoff = backoff
        self._counts = counts

    def latest(self, item: Object) -> Object:
        """The same request as the cache has it now, perhaps with a status that we wrote meanwhile."""
        metadata = item["metadata"]
        held = self._requests.get(metadata["name"], metadata["namespace"])
        return held if held is not None and held["metadata"]["uid"] == metadata["uid"] else item

    def standing(self, item: Object) -> Standing:
        """How a request that is worked on stands now."""
        return Standing.of(item, self.latest(item))

    async def tell(
        self, item: Object, request: BindRequest, pod: Object | None, ending: Ending, slot: Slot
    ) -> Result:
        """Tells the pod and the request how an attempt ended; says when to look again.

        Args:
            item: The request as it was read.
            request: The same, parsed.
            pod: Its pod; None if there is none.
            ending: The attempt.
            slot: Given back between tries.
        """
        now = datetime.now(UTC)
        report = statuses.report(request, self.standing(item), ending, now, self._backoff)
        if isinstance(ending.verdict, Failed):
            self._count_failure(ending.culprit, ending.verdict, report)
        else:
            self._counts.measures.succeeded(self._counts.age_s(item))
            logger.bind(pod=request.pod_name, node=request.node_name).info("Bound a pod")
        is_stored = await self._write(item, pod, report, ending.order, now, slot)
        if not is_stored and isinstance(ending.verdict, Failed):
            return Result()
        of_absent: Object = {"metadata": {"namespace": request.namespace, "name": request.pod_name}}
        self._send_events(item, pod or of_absent, report)
        return report.result

    async def refuse(
        self, item: Object, pod: Object | None, failure: Failed, order: tuple[str, ...], slot: Slot
    ) -> Result:
        """Tells a request that it cannot be understood, and the pod that waits, if it is known.

        Returns when to look again.
        """
        now = datetime.now(UTC)
        name = full_name(pod) if pod is not None else ""
        report = statuses.refused(name, self.standing(item), failure, order, now, self._backoff)
        self._count_failure(ConditionType.BOUND, failure, report)
        if not await self._write(item, pod, report, order, now, slot):
            return Result()
        self._send_events(item, pod, report)
        return report.result

    async def begin_anew(self, item: Object) -> Object:
        """Takes back that a request has failed; the same as it is then.

        Raises:
            errors.ApiError: It could not be written; the request is as before.
        """
        await self._patch_status(item, statuses.anew())
        return self.latest(item)

    async def _write(
        self,
        item: Object,
        pod: Object | None,
        report: Report,
        order: tuple[str, ...],
        now: datetime,
        slot: Slot,
    ) -> bool:
        """Writes a report's condition and status; False if the request is gone."""
        if pod is not None and report.pod_condition is not None:
            is_last = report.result.requeue_after_s is None
            await self._write_pod_condition(pod, report.pod_condition, now, slot, is_last=is_last)
        return await self._write_status(item, report.status, order, slot)

    def _send_events(self, item: Object, pod: Object | None, report: Report) -> None:
        if pod is not None and report.pod_event is not None:
            self._send(reference(pod, "v1", "Pod"), report.pod_event)
        if report.request_event is not None:
            self._send(reference(item, BIND_REQUESTS.version, "BindRequest"), report.request_event)

    async def show_waiting(
        self, item: Object, order: tuple[str, ...], waits: Mapping[str, str], outcomes: Mapping[str, Outcome]
    ) -> None:
        """Shows in the status what is waited for, by condition type; a failure to do so is only logged."""
        status = statuses.waiting(self.standing(item), order, waits, outcomes, datetime.now(UTC))
        try:
            await self._patch_status(self.latest(item), status)
        except errors.ApiError as error:
            logger.bind(error=error.message).warning("It could not be shown that a request waits")

    def interrupted(self, error: errors.ApiError) -> None:
        """Told of an attempt that the server was not there for: there is nothing to write."""
        self._counts.measures.interrupted(error)

    def _count_failure(self, step: str, failure: Failed, report: Report) -> None:
        is_final = report.result.requeue_after_s is None
        self._counts.measures.failed(step, failure.reason, final=is_final)
        if failure.reason == Reason.REQUEST_CHANGED:
            logger.info("The spec of a request was changed while it was worked on")
            return
        logger.bind(
            reason=report.status["reason"],
            attempts=report.status["failedAttempts"],
            retry_in_s=report.result.requeue_after_s,
        ).warning("A bind failed")

    async def _write_pod_condition(
        self, pod: Object, condition: Object, now: datetime, slot: Slot, *, is_last: bool
    ) -> None:
        """Writes it, unless the pod says so already; it may not undo or repeat what is done.

        `is_last`: no attempt follows that would tell the pod again.
        """
        metadata = pod["metadata"]
        present = (pod.get("status") or {}).get("conditions") or []
        same = ("type", "status", "reason", "message")
        if any(all(old.get(name) == condition[name] for name in same) for old in present):
            return
        # Strategic: the list is merged by type, so the conditions of others stay.
        dated = merge_condition(present, condition, now)
        body: Object = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [dated]}}
        for tries in range(1, _POD_TRIES + 1):
            try:
                await self._client.patch(
                    PODS,
                    metadata["name"],
                    body,
                    metadata["namespace"],
                    subresource="status",
                    how=Patch.STRATEGIC,
                    is_brief=True,
                )
            except errors.ApiError as error:
                log = logger.bind(pod=metadata["name"], error=error.message)
                log.warning("The pod's condition could not be written")
                most = _POD_TRIES if error.transient else _POD_TRIES_500 if is_last else 1
                passing = error.says_nothing
                if not passing or tries >= most:
                    return
                async with slot.released():
                    await anyio.sleep(self._backoff.delay_s(tries))
            else:
                return

    async def _write_status(self, item: Object, status: Object, order: tuple[str, ...], slot: Slot) -> bool:
        """Writes until it is stored; False if the request is gone. `order` as in `Ending`."""
        whole, item, tries = status, self.latest(item), 0
        while True:
            try:
                await self._patch_status(item, status)
            except errors.NotFoundError:
                return False
            except errors.ApiError as error:
                refusal, tries = error, tries + 1
            else:
                return True
            try:
                present = item if refusal.transient else await self._read_again(item)
            except errors.ApiError as error:
                refusal, present = error, item  # so it is not known what was wrong
            if present is None:
                return False
            if isinstance(refusal, errors.InvalidError):
                # The status was not as we knew it, or the schema does not take ours.
                is_news = present.get("status") != item.get("status")
                status = refreshed(whole, order, present) if is_news else bare(whole)
            item = present
            if isinstance(refusal, errors.InvalidError) and tries <= _AT_ONCE:
                continue
            delay_s = self._backoff.delay_s(tries)
            log = logger.bind(error=refusal.message, retry_in_s=delay_s)
            log.warning("The status could not be written and will be tried again")
            async with slot.released():
                await anyio.sleep(delay_s)

    async def _patch_status(self, item: Object, status: Object) -> None:
        metadata, patch = item["metadata"], json_patch(item, status)
        stored = await self._client.patch(
            BIND_REQUESTS,
            metadata["name"],
            patch,
            metadata["namespace"],
            subresource="status",
            how=Patch.JSON,
        )
        self._requests.observe(stored)

    async def _read_again(self, item: Object) -> Object | None:
        """The request as it is now; None if it was deleted, perhaps made anew: the scheduler does that.

        Raises:
            errors.ApiError: It could not be read.
        """
        metadata = item["metadata"]
        try:
            present = await self._client.get(BIND_REQUESTS, metadata["name"], metadata["namespace"])
        except errors.NotFoundError:
            return None
        return present if present["metadata"]["uid"] == metadata["uid"] else None

    def _send(self, regarding: Mapping[str, str], event: Event) -> None:
        self._recorder.event(regarding, event.kind, event.reason, event.message)
