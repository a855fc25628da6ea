"""One attempt of a bind: reserve, plugins in order, POST binding; on failure, rollback in reverse.

The pipeline alone turns what plugins raise into outcomes. What it lets through is `ApiError.transient`: the
server was not there, so the attempt says nothing about the request and is not counted. Invariant: a pod that
may be on its node is never rolled back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import orjson
from anyio.abc import TaskGroup
from loguru import logger

from controller.api import NUMA_PLACEMENT, PODS, RECEIVED_RESOURCE_TYPE, BindRequest, ConditionType, Reason
from controller.plugins.base import (
    BindContext,
    DependencyNotMet,
    Failed,
    Outcome,
    Plugin,
    Ready,
    Skipped,
)
from controller.plugins.registry import FailurePolicy, PlannedPlugin
from controller.runtime import errors
from controller.runtime.client import Client, Object
from controller.runtime.reconcile import Slot

WAITING_SHOWN_AFTER_S = 2.0
"""A wait this long is written into the status, for whoever looks."""

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


OnWait = Callable[[str, str, Mapping[str, Outcome]], Awaitable[None]]
"""Told of a long wait: condition type, what for, and the outcomes so far. Must not raise."""


@dataclass(frozen=True, slots=True)
class _Step:
    plugin: Plugin
    failure_policy: FailurePolicy
    unmet: str | None

    @property
    def type(self) -> str:
        return self.plugin.condition_type


class Pipeline:
    """The steps of a bind, the same for all requests."""

    def __init__(self, client: Client, plan: Iterable[PlannedPlugin]) -> None:
        self._client = client
        self._steps = tuple(
            _Step(planned.cls(client, planned.arguments), planned.failure_policy, planned.unmet)
            for planned in plan
        )

    def order(self, *, is_fraction: bool) -> tuple[str, ...]:
        """Condition types of the steps for a request, in the order in which they run."""
        reserve = (ConditionType.GPU_RESERVED,) if is_fraction else ()
        return (*reserve, *(step.type for step in self._steps))

    async def bind(
        self, request: BindRequest, pod: Object, node: Object, slot: Slot, on_wait: OnWait
    ) -> Attempt:
        """Binds the pod, or finds out why not.

        Args:
            request: The request.
            pod: Its pod, which is not assigned as far as known.
            node: Its node.
            slot: Of the worker that does this.
            on_wait: Told of long waits.

        Raises:
            errors.ApiError: The server was not there; what is done so far stays, and is found done next time.
        """
        interrupted: errors.ApiError | None = None
        async with anyio.create_task_group() as tasks:
            run = _Run(self._client, self._steps, request, pod, node, slot, on_wait, tasks)
            try:
                culprit, ending = await run.attempt()
            except errors.ApiError as error:
                interrupted = error  # raised outside, where the task group cannot wrap it
        if interrupted is not None:
            raise interrupted
        return Attempt(self.order(is_fraction=request.is_fraction), run.outcomes, ending, culprit)


class _Run:
    """The state of one attempt."""

    def __init__(
        self,
        client: Client,
        steps: Sequence[_Step],
        request: BindRequest,
        pod: Object,
        node: Object,
        slot: Slot,
        on_wait: OnWait,
        tasks: TaskGroup,
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._client = client
        self._steps = steps
        self._request = request
        self._slot = slot
        self._on_wait = on_wait
        self._tasks = tasks
        self._current: str = ConditionType.BOUND
        self._context = BindContext(request=request, pod=pod, node=node, gpu_ids=(), waiting=self._waiting)

    async def attempt(self) -> tuple[str, Ready | Failed]:
        """Runs the steps; returns the culprit's condition type and the ending."""
        culprit, failure = await self._prepare()
        if failure is None:
            self._current = ConditionType.BOUND
            ending = await self._post_binding()
            if isinstance(ending, Ready):
                await self._post_bind()
                return ConditionType.BOUND, ending
            failure = ending
        return culprit, await self._roll_back(failure)

    async def _prepare(self) -> tuple[str, Failed | None]:
        """Reserves and runs the plugins, up to the first that stops the bind."""
        for step in self._steps:
            # Before anything is touched: what the settings rule out cannot be bound.
            if step.unmet and step.failure_policy == "Fail" and step.plugin.concerns(self._context):
                self.outcomes[step.type] = DependencyNotMet(step.unmet)
                return step.type, Failed(Reason.DEPENDENCY_NOT_MET, step.unmet, retry=False)
        if self._request.is_fraction:
            refused = Failed(
                Reason.UNSUPPORTED, "this version of the binder does not reserve shared GPUs", retry=False
            )
            self.outcomes[ConditionType.GPU_RESERVED] = refused
            return ConditionType.GPU_RESERVED, refused
        for step in self._steps:
            self._current = step.type
            outcome = await self._run_step(step)
            self.outcomes[step.type] = outcome
            match outcome:
                case DependencyNotMet(message) if step.failure_policy == "Fail":
                    return step.type, Failed(Reason.DEPENDENCY_NOT_MET, message)
                case Failed() if step.failure_policy == "Fail":
                    return step.type, outcome
        return ConditionType.BOUND, None

    async def _run_step(self, step: _Step) -> Outcome:
        try:
            if not step.plugin.concerns(self._context):
                return Skipped()
            unmet = step.unmet or self._failed_need(step)
            if unmet:
                return DependencyNotMet(unmet)
            return await step.plugin.pre_bind(self._context)
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
        annotations = {RECEIVED_RESOURCE_TYPE: request.resource_type}
        if request.numa_zones:
            annotations[NUMA_PLACEMENT] = orjson.dumps(request.numa_zones).decode()
        binding: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            # With the uid the server refuses a pod that was replaced since it was read. It copies the
            # annotations to the pod in the same write as the node.
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node_name},
        }
        try:
            if not request.numa_zones and NUMA_PLACEMENT in (metadata.get("annotations") or {}):
                await self._forget_numa_placement()
            await self._client.create(
                PODS, binding, request.namespace, name=request.pod_name, subresource="binding"
            )
        except errors.ApiError as error:
            if error.unclear or isinstance(error, (errors.ConflictError, errors.NotFoundError)):
                return await self._resolve(error)
            if error.transient:
                raise
            return failed_by(error)
        return Ready(f"pod {request.namespace}/{request.pod_name} is on node {request.node_name}")

    async def _forget_numa_placement(self) -> None:
        """Takes off the placement that an earlier decision left on the pod; a Binding can only add."""
        metadata = self._context.pod["metadata"]
        body: Object = {"metadata": {"uid": metadata["uid"], "annotations": {NUMA_PLACEMENT: None}}}
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
            except errors.ApiError as error:
                log = logger.bind(cause=cause.message, error=error.message)
                log.warning("It is unclear whether the pod was bound, and it cannot be read yet")
            async with self._waiting("the API server to say whether the pod is bound"):
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
            except Exception as error:  # noqa: BLE001 -- the others must be taken back all the same
                logger.bind(plugin=step.plugin.name, error=repr(error)).error("A rollback failed")
                faults.append(f"{step.plugin.name} could not take back its work: {error}")
        if not faults:
            return ending
        return Failed(ending.reason, "; ".join((ending.message, *faults)), retry=ending.retry)

    @asynccontextmanager
    async def _waiting(self, what: str) -> AsyncIterator[None]:
        """Lets others bind, and has the wait shown if it takes long."""
        scope, told = anyio.CancelScope(), anyio.Event()
        async with self._slot.released():
            self._tasks.start_soon(self._tell_later, what, scope, told)
            try:
                yield
            finally:
                scope.cancel()
                # A write under way must arrive before the one that follows it.
                with anyio.CancelScope(shield=True):
                    await told.wait()

    async def _tell_later(self, what: str, scope: anyio.CancelScope, told: anyio.Event) -> None:
        try:
            with scope:
                await anyio.sleep(WAITING_SHOWN_AFTER_S)
                with anyio.CancelScope(shield=True):
                    await self._on_wait(self._current, what, dict(self.outcomes))
        finally:
            told.set()


def judge_pod(request: BindRequest, pod: Object, uid: str | None) -> Ready | Failed | None:
    """Whether this pod still is to be bound.

    Args:
        request: The request.
        pod: The pod as it is.
        uid: Of the pod that the decision was made for; None if the request does not say.

    Returns:
        Ready if it is on the chosen node already, Failed if it cannot be bound, None if it waits to be.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    name = f"{request.namespace}/{request.pod_name}"
    node_name = spec.get("nodeName")
    phase = (pod.get("status") or {}).get("phase")
    if uid is not None and metadata["uid"] != uid:
        text = f"pod {name} was replaced: the request is for uid {uid}, the present pod has {metadata['uid']}"
        return Failed(Reason.POD_REPLACED, text, retry=False)
    if node_name == request.node_name:
        return Ready(f"pod {name} is on node {node_name}")
    if node_name:
        text = f"pod {name} is on node {node_name} already, not on {request.node_name}"
        return Failed(Reason.ALREADY_BOUND_ELSEWHERE, text, retry=False)
    if metadata.get("deletionTimestamp"):
        return Failed(Reason.POD_TERMINATING, f"pod {name} is being deleted", retry=False)
    if phase in ("Succeeded", "Failed"):
        return Failed(Reason.POD_FINISHED, f"pod {name} has ended: its phase is {phase}", retry=False)
    gates = spec.get("schedulingGates")
    if gates:
        names = ", ".join(gate["name"] for gate in gates)
        return Failed(Reason.POD_GATED, f"pod {name} is held back by its scheduling gates: {names}")
    return None


def failed_by(error: errors.ApiError) -> Failed:
    """The failure that an answer of the server means."""
    match error:
        case errors.ForbiddenError():
            reason = Reason.FORBIDDEN
        case errors.ConflictError():
            reason = Reason.CONFLICT
        case errors.ServerError():
            reason = Reason.SERVER_ERROR
        case _:
            reason = Reason.REJECTED
    return Failed(reason, f"{error.request}: {error.message}")
