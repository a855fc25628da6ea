"""One attempt of a bind: reserve, plugins in order, POST binding; on failure, rollback in reverse.

The pipeline alone turns what plugins raise into outcomes. What it lets through is `ApiError.transient`: the
server was not there, so the attempt says nothing about the request and is not counted. Invariant: a pod that
may be on its node is never rolled back.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import anyio
import orjson
from loguru import logger

from controller.binder.waits import Guarded, OnWait, WaitEndedError, Waits
from controller.kai.names import NUMA_PLACEMENT, PODS, RECEIVED_RESOURCE_TYPE
from controller.kai.outcome import DependencyNotMet, Failed, Outcome, Ready, Skipped, failed_by
from controller.kai.pods import annotation, judge_pod
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import GPUConfigError, group_labels, groups_of_pod, is_group_label
from controller.plugins.base import BindContext, Plugin, Prepared
from controller.plugins.registry import FailurePolicy, PlannedPlugin
from controller.reservation.service import ReservationError, Reservations, Reserved, Usage
from controller.runtime import errors
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object
from controller.runtime.slots import Slot

T = TypeVar("T")

_RESOLVE_BACKOFF_S = 0.25
_RESOLVE_MAX_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """How far an attempt came and how it ended.

    Attributes:
        order: Condition types of all steps, in the order in which they run; `Bound` is not among them.
        outcomes: By condition type, of the steps that ran or were found wanting.
        ending: Of the whole.
        culprit: Condition type of the step that failed; `Bound` if it was none of them.
    """

    order: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    ending: Ready | Failed
    culprit: str = ConditionType.BOUND


_Stop = tuple[str, Failed]
"""The condition type of a step that stops the bind, and its failure."""


@dataclass(frozen=True, slots=True)
class _Step:
    plugin: Plugin
    failure_policy: FailurePolicy
    unmet: str | None

    @property
    def type(self) -> str:
        return self.plugin.condition_type


@dataclass(frozen=True, slots=True)
class Worker:
    """On whose behalf an attempt runs.

    Attributes:
        slot: Given back during waits.
        on_wait: Told of long waits.
        obsolete: Why the request is not to be bound any more, from what is known without asking the server.
    """

    slot: Slot
    on_wait: OnWait
    obsolete: Callable[[], Failed | None]


class Pipeline:
    """The steps of a bind, the same for all requests."""

    def __init__(
        self,
        client: Client,
        plan: Iterable[PlannedPlugin],
        reservations: Reservations,
        usage: Usage,
        changes: Changes,
        on_group_left: Callable[[str], None],
    ) -> None:
        """Makes the plugins.

        Args:
            client: For all requests.
            plan: The plugins in their order.
            reservations: Reserve the GPUs of fractions.
            usage: Where the groups in use are marked.
            changes: Tells of the objects that an attempt waits for.
            on_group_left: Told of a group when no bind uses it any more.
        """
        self.client = client
        self.reservations = reservations
        self.steps = tuple(
            _Step(planned.cls(client, planned.arguments), planned.failure_policy, planned.unmet)
            for planned in plan
        )
        self.labels_are_copied: bool | None = None
        """Whether the server copies a Binding's labels to the pod; None until it was seen."""
        self._usage = usage
        self.changes = changes
        self._on_group_left = on_group_left

    def order(self, *, is_fraction: bool) -> tuple[str, ...]:
        """Condition types of the steps for a request, in the order in which they run."""
        reserve = (ConditionType.GPU_RESERVED,) if is_fraction else ()
        return (*reserve, *(step.type for step in self.steps))

    async def bind(self, request: BindRequest, pod: Object, node: Object, worker: "Worker") -> Attempt:
        """Binds the pod, or finds out why not.

        Args:
            request: The request.
            pod: Its pod, which is not assigned as far as known.
            node: Its node.
            worker: Who does this.

        Raises:
            errors.ApiError: The server was not there; what is done so far stays, and is found done next time.
        """
        return await self._run(request, pod, node, worker, lambda run: run.attempt())

    async def take_back(
        self, request: BindRequest, pod: Object, node: Object, worker: "Worker", failure: Failed
    ) -> Attempt:
        """Takes back what an earlier attempt, perhaps of another process, left; ends with the failure.

        Args:
            request: The request, which cannot be bound.
            pod: Its pod, just read.
            node: Its node, or what is known of it.
            worker: Who does this.
            failure: Why it cannot be bound.

        Raises:
            errors.ApiError: The server was not there.
        """
        return await self._run(request, pod, node, worker, lambda run: run.give_up(failure))

    async def _run(
        self,
        request: BindRequest,
        pod: Object,
        node: Object,
        worker: "Worker",
        work: "Callable[[_Run], Awaitable[tuple[str, Ready | Failed]]]",
    ) -> Attempt:
        interrupted: errors.ApiError | None = None
        groups = request.gpu_groups if request.is_fraction else ()
        with self._usage.of(groups, self._on_group_left):
            async with anyio.create_task_group() as tasks:
                guarded = Guarded(request, pod, node, worker.obsolete)
                waits = Waits(worker.slot, tasks, worker.on_wait, self.changes, guarded)
                run = _Run(self, request, pod, node, waits, worker)
                try:
                    culprit, ending = await work(run)
                except errors.ApiError as error:
                    interrupted = error  # raised outside, where the task group cannot wrap it
        if interrupted is not None:
            raise interrupted
        return Attempt(self.order(is_fraction=request.is_fraction), run.outcomes, ending, culprit)


class _Run:
    """One attempt."""

    def __init__(
        self,
        pipeline: Pipeline,
        request: BindRequest,
        pod: Object,
        node: Object,
        waits: Waits,
        worker: Worker,
    ) -> None:
        self.outcomes = waits.outcomes
        self._pipeline = pipeline
        self._client = pipeline.client
        self._steps = pipeline.steps
        self._request = request
        self._waits = waits
        self._obsolete = worker.obsolete
        self._reserved: tuple[Reserved, ...] = ()
        self._labels: Mapping[str, str] = {}
        self._found: dict[str, object] = {}
        self._annotations_of_plugins: dict[str, str] = {}
        self._context = BindContext(
            request=request,
            pod=pod,
            node=node,
            waiting=waits.waiting,
            changes=pipeline.changes,
        )

    async def attempt(self) -> tuple[str, Ready | Failed]:
        """Runs the steps; returns the culprit's condition type and the ending."""
        stop = (
            await self._prepare()
            or await self._reserve()
            or await self._pre_bind()
            or await self._look_again()
        )
        if stop is None:
            self._waits.step = ConditionType.BOUND
            ending = await self._post_binding()
            if isinstance(ending, Ready):
                await self._post_bind()
                return ConditionType.BOUND, ending
            return await self.give_up(ending)
        culprit, failure = stop
        present = await self._standing()
        if present is not None:
            return ConditionType.BOUND, present  # somebody was faster, perhaps an earlier one of ours
        return culprit, await self._roll_back(failure)

    async def give_up(self, failure: Failed) -> tuple[str, Failed]:
        """Takes back what there is of this request's work; the failure is nobody's in particular."""
        return ConditionType.BOUND, await self._roll_back(failure)

    async def _look_again(self) -> _Stop | None:
        """Whether, after all the waits, the request still stands and its GPUs are still held."""
        obsolete = self._obsolete()
        if obsolete is not None:
            return ConditionType.BOUND, obsolete
        return await self._of_reservations(self._pipeline.reservations.confirm(self._reserved))

    async def _standing(self) -> Ready | None:
        """Whether the pod is on its node although this attempt failed: then nothing may be taken back."""
        try:
            pod = await self._client.get(PODS, self._request.pod_name, self._request.namespace)
        except errors.ApiError as error:
            if error.transient:
                raise
            return None
        verdict = judge_pod(self._request, pod, self._context.pod["metadata"]["uid"])
        return verdict if isinstance(verdict, Ready) else None

    async def _prepare(self) -> _Stop | None:
        """What can be known before anything is touched: needs that the settings rule out, bad input."""
        for step in self._steps:
            if step.unmet and step.failure_policy == "Fail" and step.plugin.concerns(self._context):
                self.outcomes[step.type] = DependencyNotMet(step.unmet)
                return step.type, Failed(Reason.DEPENDENCY_NOT_MET, step.unmet, retry=False)
        container_env: dict[str, str] = {}
        for step in self._steps:
            prepared = await self._guarded(step, self._prepare_step)
            if isinstance(prepared, Failed):
                self.outcomes[step.type] = prepared
                if step.failure_policy == "Fail":
                    return step.type, prepared
            elif prepared is not None:
                self._found[step.type] = prepared.found
                self._annotations_of_plugins |= prepared.annotations
                container_env |= prepared.container_env
        self._context = replace(self._context, container_env=MappingProxyType(container_env))
        return None

    async def _prepare_step(self, step: _Step) -> Prepared | Failed | None:
        concerned = step.plugin.concerns(self._context) and not step.unmet
        return await step.plugin.prepare(self._context) if concerned else None

    async def _reserve(self) -> _Stop | None:
        """Reserves the GPUs of a fraction."""
        if not self._request.is_fraction:
            return None
        self._waits.step = ConditionType.GPU_RESERVED
        return await self._of_reservations(self._take_gpus())

    async def _take_gpus(self) -> None:
        try:
            self._labels = group_labels(self._context.pod, self._request.gpu_groups)
        except GPUConfigError as error:
            raise ReservationError(Reason.INVALID_GPU_CONFIG, str(error), retry=False) from error
        self._reserved = await self._pipeline.reservations.reserve(
            self._request, self._context.pod, self._context.node, self._waits.waiting
        )
        self._context = replace(self._context, gpu_ids=tuple(gpu.device for gpu in self._reserved))
        text = ", ".join(f"group {gpu.group} is GPU {gpu.device}" for gpu in self._reserved)
        self.outcomes[ConditionType.GPU_RESERVED] = Ready(f"{text} of node {self._request.node_name}")

    async def _of_reservations(self, work: Awaitable[None]) -> _Stop | None:
        """Runs work with reservations; what it raises becomes the outcome of that step."""
        try:
            await work
        except ReservationError as error:
            failure = Failed(error.reason, error.message, retry=error.retry)
        except WaitEndedError as error:
            failure = error.failure
        except errors.ApiError as error:
            if error.transient:
                raise
            failure = failed_by(error)
        else:
            return None
        self.outcomes[ConditionType.GPU_RESERVED] = failure
        return ConditionType.GPU_RESERVED, failure

    async def _pre_bind(self) -> _Stop | None:
        """Runs the plugins, up to the first that stops the bind."""
        for step in self._steps:
            if step.type in self.outcomes:
                continue  # failed already while it prepared, and may
            self._waits.step = step.type
            outcome = await self._guarded(step, self._pre_bind_step)
            self.outcomes[step.type] = outcome
            match outcome:
                case DependencyNotMet(message) if step.failure_policy == "Fail":
                    return step.type, Failed(Reason.DEPENDENCY_NOT_MET, message)
                case Failed() if step.failure_policy == "Fail":
                    return step.type, outcome
        return None

    async def _pre_bind_step(self, step: _Step) -> Outcome:
        if not step.plugin.concerns(self._context):
            return Skipped()
        unmet = step.unmet or self._failed_need(step)
        if unmet:
            return DependencyNotMet(unmet)
        return await step.plugin.pre_bind(replace(self._context, found=self._found.get(step.type)))

    async def _guarded(self, step: _Step, run: Callable[[_Step], Awaitable[T]]) -> T | Failed:
        """Runs part of a plugin; what it raises becomes its outcome."""
        try:
            return await run(step)
        except WaitEndedError as error:
            return error.failure
        except errors.ApiError as error:
            if error.transient:
                raise
            return failed_by(error)
        except Exception as error:  # noqa: BLE001 -- a plugin's fault must not end the worker
            logger.bind(plugin=step.plugin.name).exception("A plugin failed in an unforeseen way")
            return Failed(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def _failed_need(self, step: _Step) -> str | None:
        """A plugin that this one needs and that failed without stopping the bind."""
        for other in self._steps:
            outcome = self.outcomes.get(other.type)
            if other.plugin.name in step.plugin.requires and isinstance(outcome, (Failed, DependencyNotMet)):
                return f"{step.plugin.name} needs {other.plugin.name}, which failed: {outcome.message}"
        return None

    async def _post_binding(self) -> Ready | Failed:
        request, metadata = self._request, self._context.pod["metadata"]
        binding: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            # With the uid the server refuses a pod that was replaced since it was read. It copies the
            # annotations, newer ones the labels too, to the pod in the same write as the node.
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "annotations": self._annotations(),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node_name},
        }
        labels = self._labels
        if labels:
            binding["metadata"]["labels"] = labels
        try:
            await self._patch_before_binding(labels)
            await self._client.create(
                PODS, binding, request.namespace, name=request.pod_name, subresource="binding"
            )
        except errors.ApiError as error:
            if error.unclear or isinstance(error, (errors.ConflictError, errors.NotFoundError)):
                return await self._resolve(error)
            if error.transient:
                raise
            return failed_by(error)
        if labels and self._pipeline.labels_are_copied is None:
            await self._see_whether_labels_are_copied(labels)
        return Ready(f"pod {request.namespace}/{request.pod_name} is on node {request.node_name}")

    def _annotations(self) -> dict[str, str]:
        annotations = {
            **self._annotations_of_plugins,
            RECEIVED_RESOURCE_TYPE: self._request.resource_type,
        }
        if self._request.numa_zones:
            annotations[NUMA_PLACEMENT] = orjson.dumps(self._request.numa_zones).decode()
        return annotations

    async def _patch_before_binding(self, labels: Mapping[str, str]) -> None:
        """What a Binding cannot do: change what an earlier bind left; on older servers, label the pod."""
        delta: Object = {}
        if not self._request.numa_zones and annotation(self._context.pod, NUMA_PLACEMENT) is not None:
            delta["annotations"] = {NUMA_PLACEMENT: None}
        # A group that is not the pod's would be reserved for as long as the pod lives; and of the labels of a
        # Binding the server copies only those that the pod does not have.
        present: Mapping[str, str] = self._context.pod["metadata"].get("labels") or {}
        changed = {
            name: labels.get(name)
            for name, value in present.items()
            if is_group_label(name) and labels.get(name) != value
        }
        if self._pipeline.labels_are_copied is False:
            changed |= labels
        if changed:
            delta["labels"] = changed
        if delta:
            await self._patch_pod(delta)

    async def _see_whether_labels_are_copied(self, labels: Mapping[str, str]) -> None:
        """Looks at the first pod that was bound with labels, and labels it if the server did not.

        Whatever fails here is made good by the reconciler of groups: the pod is bound.
        """
        try:
            pod = await self._client.get(PODS, self._request.pod_name, self._request.namespace)
            present = pod["metadata"].get("labels") or {}
            copied = labels.items() <= present.items()
            # A pod that had them before says nothing of the server.
            if not copied or not groups_of_pod(self._context.pod):
                self._pipeline.labels_are_copied = copied
            if not copied:
                await self._patch_pod({"labels": labels})
        except errors.ApiError as error:
            logger.bind(error=error.message).warning("It could not be seen whether a pod has its labels")

    async def _patch_pod(self, delta: Object) -> None:
        """Changes the metadata of this very pod."""
        metadata = self._context.pod["metadata"]
        body: Object = {"metadata": {"uid": metadata["uid"], **delta}}
        await self._client.patch(PODS, metadata["name"], body, metadata["namespace"])

    async def _resolve(self, error: errors.ApiError) -> Ready | Failed:
        """Finds out by live reads whether a bind that was answered with an error happened all the same."""
        request, uid = self._request, self._context.pod["metadata"]["uid"]
        pod = await self._read_pod(error)
        if pod is None:
            return Failed(
                Reason.POD_NOT_FOUND, f"pod {request.namespace}/{request.pod_name} is gone", retry=False
            )
        verdict = judge_pod(request, pod, uid)
        if verdict is not None:
            return verdict
        if error.transient:
            raise error  # the pod waits as before, and so does the request
        return failed_by(error)

    async def _read_pod(self, cause: errors.ApiError) -> Object | None:
        """Reads the pod, for as long as it takes the server to answer; None if there is none."""
        delay_s = _RESOLVE_BACKOFF_S
        while True:
            try:
                return await self._client.get(PODS, self._request.pod_name, self._request.namespace)
            except errors.NotFoundError:
                return None
            except errors.ForbiddenError:
                raise  # without the right to look, nothing may be taken back
            except errors.ApiError as error:
                log = logger.bind(cause=cause.message, error=error.message)
                log.warning("It is unclear whether the pod was bound, and it cannot be read yet")
            async with self._waits.waiting("the API server to say whether the pod is bound"):
                await anyio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RESOLVE_MAX_BACKOFF_S)

    async def _post_bind(self) -> None:
        for step in self._steps:
            try:
                if step.plugin.concerns(self._context):
                    await step.plugin.post_bind(self._context)
            except Exception:  # noqa: BLE001 -- the pod is bound, whatever comes now
                logger.bind(plugin=step.plugin.name).exception("What follows a bind failed in a plugin")

    async def _roll_back(self, ending: Failed) -> Failed:
        """Has every plugin take back its work, in reverse; a failure is added to the message."""
        faults = []
        for step in reversed(self._steps):
            try:
                if step.plugin.concerns(self._context):
                    await step.plugin.rollback(self._context)
            except Exception as error:
                if isinstance(error, errors.ApiError) and error.transient:
                    raise  # the attempt is repeated, and this with it
                logger.bind(plugin=step.plugin.name, error=repr(error)).error("A rollback failed")
                faults.append(f"{step.plugin.name} could not take back its work: {error}")
        try:
            if self._may_have_labels():
                await self._take_off_labels()
        except errors.ApiError as error:
            if error.transient:
                raise
            logger.bind(error=error.message).error("The GPU groups could not be taken off a pod")
            faults.append(f"the pod keeps its GPU group labels: {error.message}")
        if not faults:
            return ending
        return Failed(ending.reason, "; ".join((ending.message, *faults)), retry=ending.retry)

    async def _take_off_labels(self) -> None:
        """Takes the group labels off a pod that did not get to its node: no GPU is held for it there."""
        request, uid = self._request, self._context.pod["metadata"]["uid"]
        try:
            found = await self._client.get(PODS, request.pod_name, request.namespace)
        except errors.NotFoundError:
            return
        metadata, node_name = found["metadata"], found["spec"].get("nodeName")
        if metadata["uid"] != uid or node_name == request.node_name:
            return
        labels: Mapping[str, str] = metadata.get("labels") or {}
        # On another node it may have groups of that one.
        names = [
            name
            for name, value in labels.items()
            if is_group_label(name) and (not node_name or value in request.gpu_groups)
        ]
        if names:
            await self._patch_pod({"labels": dict.fromkeys(names)})

    def _may_have_labels(self) -> bool:
        """Whether the pod met us with labels, or was given them before the binding."""
        before = self._request.is_fraction and self._pipeline.labels_are_copied is False
        return before or bool(groups_of_pod(self._context.pod))
