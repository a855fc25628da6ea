"""One attempt of a bind: prepare, reserve, plugins in order, assign; on failure, undo.

The reconciler calls it; it alone turns what goes wrong into an ending. Invariant: a pod that may be on its
node is never undone. An attempt that the server was not there for says nothing about its request and is
`Interrupted`: what is done so far stays, and is found done next time.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import anyio
from loguru import logger
from msgspec import Struct
from msgspec.structs import replace

from controller.binder.assignment import Assignment, Wish
from controller.binder.chain import Chain, Stop
from controller.binder.measures import UNDO, AttemptClock, Measures
from controller.binder.steps import Step
from controller.binder.undo import Undo
from controller.binder.waits import Caller, Guarded, Waits
from controller.kai.names import PODS
from controller.kai.outcome import (
    Attempted,
    Ending,
    Failed,
    HandedOver,
    Interrupted,
    Ready,
    WaitEndedError,
    failed_by,
)
from controller.kai.pods import judge_pod
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest
from controller.kai.sharing import group_labels
from controller.plugins.base import BindContext, Plugin
from controller.plugins.registry import BUILT_IN, PlannedPlugin, PluginConfigError
from controller.reservation.service import Reservations, Reserved
from controller.reservation.usage import Usage
from controller.runtime import errors
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object


class SharedGPUs(Struct, frozen=True):
    """What an attempt needs of GPU groups.

    Attributes:
        reservations: Reserve the GPUs of fractions.
        usage: Where the groups in use are marked.
        on_left: Told of a group when no bind uses it any more.
    """

    reservations: Reservations
    usage: Usage
    on_left: Callable[[str], None]


class Pipeline:
    """The steps of a bind, the same for all requests."""

    def __init__(
        self,
        client: Client,
        plan: Iterable[PlannedPlugin],
        gpus: SharedGPUs,
        changes: Changes,
        measures: Measures,
    ) -> None:
        """Makes the plugins.

        Args:
            client: For all requests.
            plan: The plugins in their order.
            gpus: The GPU groups.
            changes: Tells of the objects that an attempt waits for.
            measures: Where the time of attempts is recorded.

        Raises:
            PluginConfigError: A plugin cannot be made.
        """
        self.client = client
        self.gpus = gpus
        self.changes = changes
        self.measures = measures
        self.assignment = Assignment(client)
        self.undoing = Undo(client, self.assignment)
        self.steps = tuple(
            Step(_made(planned, client), planned.failure_policy, planned.unmet, planned.cls not in BUILT_IN)
            for planned in plan
        )

    def order(self, *, is_fraction: bool) -> tuple[str, ...]:
        """Condition types of the steps for a request, in the order in which they run."""
        reserve = (ConditionType.GPU_RESERVED,) if is_fraction else ()
        return (*reserve, *(step.type for step in self.steps))

    async def bind(self, request: BindRequest, pod: Object, node: Object, caller: Caller) -> Attempted:
        """Binds the pod, or finds out why not.

        Args:
            request: The request.
            pod: Its pod, which is not assigned as far as known.
            node: Its node.
            caller: Who wants this.
        """
        return await self._run(request, pod, node, caller, lambda attempt: attempt.bind())

    async def undo(
        self, request: BindRequest, pod: Object, node: Object, caller: Caller, failure: Failed
    ) -> Attempted:
        """Takes back what an earlier attempt, perhaps of another process, left; ends with the failure.

        Args:
            request: The request, which cannot be bound.
            pod: Its pod, just read.
            node: Its node, or what is known of it.
            caller: Who wants this.
            failure: Why it cannot be bound.
        """
        return await self._run(request, pod, node, caller, lambda attempt: attempt.undo(failure))

    async def _run(
        self,
        request: BindRequest,
        pod: Object,
        node: Object,
        caller: Caller,
        work: "Callable[[_Attempt], Awaitable[Attempted]]",
    ) -> Attempted:
        groups = request.gpu_groups if request.is_fraction else ()
        with self.gpus.usage.of(groups, self.gpus.on_left):
            ending: Attempted
            async with anyio.create_task_group() as tasks:
                guarded = Guarded(request, pod, node, caller.obsolete)
                clock = AttemptClock(self.measures)
                waits = Waits(caller, tasks, self.changes, guarded, clock)
                context = BindContext(
                    request=request, pod=pod, node=node, waiting=waits.waiting, changes=self.changes
                )
                # It does not raise: the task group would wrap that.
                ending = await work(_Attempt(self, context, waits, caller))
                clock.stop(waits.outcomes)
            return ending


def _made(planned: PlannedPlugin, client: Client) -> Plugin:
    try:
        return planned.cls(client, planned.arguments)
    except Exception as error:
        raise PluginConfigError([f"plugin {planned.cls.name} cannot be made: {error!r}"]) from error


class _Attempt:
    """One attempt, used once."""

    def __init__(self, pipeline: Pipeline, context: BindContext, waits: Waits, caller: Caller) -> None:
        self._pipeline = pipeline
        self._client = pipeline.client
        self._request = context.request
        self._context = context
        self._waits = waits
        self._outcomes = waits.outcomes
        self._caller = caller
        self._chain = Chain(pipeline.steps, waits.outcomes, self._enter)
        self._labels: Mapping[str, str] = {}
        self._reserved: tuple[Reserved, ...] = ()

    def _enter(self, step: str) -> None:
        self._waits.step = step

    async def bind(self) -> Attempted:
        """Runs all steps."""
        return await self._to_its_end(self._forward)

    async def undo(self, failure: Failed) -> Attempted:
        """Takes back what there is of this request's work; the failure is nobody's in particular."""
        return await self._to_its_end(partial(self._undo, ConditionType.BOUND, failure))

    async def _to_its_end(self, work: Callable[[], Awaitable[Ending | HandedOver]]) -> Attempted:
        """Runs the work; whatever it raises becomes an ending."""
        order = self._pipeline.order(is_fraction=self._request.is_fraction)
        try:
            return await work()
        except errors.ApiError as error:
            return Interrupted(order, self._outcomes, self._waits.step, error)
        except Exception as error:  # noqa: BLE001 -- it must reach the status, or nobody would know
            return self._ending(Stop(ConditionType.BOUND, _unforeseen(error)))

    async def _forward(self) -> Ending | HandedOver:
        """From step to step, to the node or back."""
        try:
            stop = (
                await self._prepare()
                or await self._reserve()
                or await self._chain.pre_bind(self._context)
                or await self._look_again()
            )
            if stop is None:
                return await self._assign()
        except WaitEndedError as ended:
            stop = self._stopped(self._waits.step, ended.verdict)
        except errors.ApiError:
            raise
        except Exception as error:  # noqa: BLE001 -- what was done must be undone
            stop = self._stopped(self._waits.step, _unforeseen(error))
        if isinstance(stop.verdict, Failed):
            present = await self._present() if self._has_to_look(stop.verdict) else None
            if present is None:
                return await self._undo(stop.step, stop.verdict)
            stop = Stop(stop.step, present)  # somebody was faster, perhaps an earlier attempt of ours
        return self._ending(stop, was_found=True)

    def _stopped(self, step: str, verdict: Ready | Failed) -> Stop:
        if isinstance(verdict, Failed) and step != ConditionType.BOUND:
            self._outcomes[step] = verdict
        return Stop(step, verdict)

    def _ending(self, stop: Stop, *, was_found: bool = False) -> Ending:
        order = self._pipeline.order(is_fraction=self._request.is_fraction)
        found = was_found and isinstance(stop.verdict, Ready)
        return Ending(order, self._outcomes, stop.verdict, stop.step, was_found=found)

    async def _prepare(self) -> Stop | None:
        stop = await self._chain.prepare(self._context)
        self._context = replace(self._context, container_env=self._chain.variables)
        return stop

    async def _reserve(self) -> Stop | None:
        """Reserves the GPUs of a fraction."""
        if not self._request.is_fraction:
            return None
        self._waits.step = ConditionType.GPU_RESERVED
        return await self._of_reservations(self._take_gpus())

    async def _take_gpus(self) -> Failed | None:
        labels = group_labels(self._context.pod, self._request.gpu_groups)
        if isinstance(labels, Failed):
            return labels
        self._labels = labels
        reserved = await self._pipeline.gpus.reservations.reserve(
            self._request, self._context.pod, self._context.node, self._waits.waiting
        )
        if isinstance(reserved, Failed):
            return reserved
        self._reserved = reserved
        self._context = replace(self._context, gpu_ids=tuple(gpu.device for gpu in self._reserved))
        text = ", ".join(f"group {gpu.group} is GPU {gpu.device}" for gpu in self._reserved)
        self._outcomes[ConditionType.GPU_RESERVED] = Ready(f"{text} of node {self._request.node_name}")
        return None

    async def _of_reservations(
        self, work: Awaitable[Failed | None], step: str = ConditionType.GPU_RESERVED
    ) -> Stop | None:
        """Runs work with reservations; why it failed, or what it raises, becomes the outcome of that step."""
        try:
            failure = await work
        except errors.ApiError as error:
            if error.transient:
                raise
            failure = failed_by(error)
        return self._stopped(step, failure) if failure is not None else None

    async def _look_again(self) -> Stop | None:
        """Whether, after all the waits, the request still stands and its GPUs are held, or free, for it."""
        reservations, context = self._pipeline.gpus.reservations, self._context
        self._waits.step = ConditionType.BOUND
        settled = reservations.settle(context.node, self._request, self._waits.waiting)
        stop = await self._of_reservations(settled, ConditionType.BOUND)
        if stop is not None:
            return stop
        obsolete = self._caller.obsolete()
        if obsolete is not None:
            return Stop(ConditionType.BOUND, obsolete)
        return await self._of_reservations(reservations.confirm(self._reserved))

    async def _assign(self) -> Ending | HandedOver:
        """Gives the pod its node; the answer is final, so nobody has to look once more."""
        self._waits.step, self._waits.may_end = ConditionType.BOUND, False
        wish = Wish(
            request=self._request,
            pod=self._context.pod,
            labels=self._labels,
            annotations=self._chain.annotations(),
        )
        assigned = await self._pipeline.assignment.assign(wish, self._waits.waiting)
        if isinstance(assigned.verdict, Failed):
            return await self._undo(ConditionType.BOUND, assigned.verdict)
        await self._chain.post_bind(self._context)
        return self._ending(Stop(ConditionType.BOUND, assigned.verdict), was_found=assigned.was_found)

    def _has_to_look(self, failure: Failed) -> bool:
        """Whether it matters if the pod is on its node: something is taken back, or no attempt follows."""
        undoes = self._request.is_fraction or self._chain.undoes(self._context)
        return undoes or self._caller.is_final(failure)

    async def _present(self) -> Ready | None:
        """Whether the pod is on its node although this attempt failed: then nothing may be undone."""
        try:
            pod = await self._client.get(PODS, self._request.pod_name, self._request.namespace)
        except errors.ApiError as error:
            if error.says_nothing:
                raise
            return None
        verdict = judge_pod(self._request, pod, self._context.pod["metadata"]["uid"])
        return verdict if isinstance(verdict, Ready) else None

    async def _undo(self, step: str, failure: Failed) -> Ending | HandedOver:
        self._waits.may_end = False
        self._waits.clock.enter(UNDO)
        if await self._caller.is_handed_over(failure):
            return HandedOver()
        context = replace(self._context, final=self._caller.is_final(failure))
        failure = await self._pipeline.undoing.undo(context, self._chain, failure)
        return self._ending(Stop(step, failure))


def _unforeseen(error: Exception) -> Failed:
    logger.exception("A bind failed in an unforeseen way")
    return Failed(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
