"""The waits of one attempt for somebody else: others bind meanwhile, long ones are shown, vain ones end.

The one place that decides when waiting is of no use any more because the request, its pod or its node is not
what it was: whoever waits, be it for a reservation, a volume or a device, need not look.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from loguru import logger
from msgspec import Struct

from controller.binder.measures import AttemptClock
from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.kai.outcome import Failed, Outcome, Ready, WaitEndedError
from controller.kai.pods import judge_pod
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest
from controller.runtime import errors
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Object
from controller.runtime.slots import Slot

SHOWN_AFTER_S = 2.0
"""A wait this long is written into the status, for whoever looks."""

CLOSING_S = 2.0
"""So long a write of the status that shows a wait may go on once the wait is over, or everything ends."""

_GUARDED_AFTER_S = 1.0
"""What no cache follows is looked after only once a wait has lasted: most are over at once."""


class Caller(Protocol):
    """On whose behalf an attempt runs: one request, as it is now."""

    @property
    def slot(self) -> Slot:
        """Given back during waits."""

    def obsolete(self) -> Failed | None:
        """Why the request is not to be bound any more, from what is known without asking the server."""

    def is_final(self, failure: Failed) -> bool:
        """Whether no further attempt follows one that failed so."""

    async def is_handed_over(self, failure: Failed) -> bool:
        """Whether, by a live look, the request is another shard's: asked before anything is undone.

        `failure` is why it would be.

        Raises:
            errors.ApiError: The server was not there.
        """

    async def show_waiting(self, step: str, what: str, outcomes: Mapping[str, Outcome]) -> None:
        """Told of a long wait: condition type, what for, and the outcomes so far. Does not raise."""


class Guarded(Struct, frozen=True):
    """What every wait of an attempt depends on.

    Attributes:
        request: The request.
        pod: Its pod, as read.
        node: Its node, as read.
        obsolete: Why the request is not to be bound any more, by what is known without asking the server.
    """

    request: BindRequest
    pod: Object
    node: Object
    obsolete: Callable[[], Failed | None]

    def all(self) -> tuple[Judged[Ready | Failed], ...]:
        """The objects, each with its judge."""
        request = self.request
        pod_version = self.pod["metadata"].get("resourceVersion", "")
        node_version = self.node["metadata"].get("resourceVersion", "")
        return (
            Judged(Target(BIND_REQUESTS, request.name, request.namespace), lambda _item: self.obsolete()),
            Judged(Target(PODS, request.pod_name, request.namespace, pod_version), self._judge_pod),
            Judged(Target(NODES, request.node_name, version=node_version), self._judge_node),
        )

    def _judge_pod(self, pod: Object | None) -> Ready | Failed | None:
        if pod is None:
            text = f"pod {self.request.full_pod_name} was deleted"
            return Failed(Reason.POD_NOT_FOUND, text, retry=False)
        return judge_pod(self.request, pod, self.pod["metadata"]["uid"])

    def _judge_node(self, node: Object | None) -> Failed | None:
        if node is None:
            return Failed(Reason.NODE_GONE, f"node {self.request.node_name} was deleted")
        return None


class Waits:
    """The waits of one attempt."""

    def __init__(
        self, caller: Caller, tasks: TaskGroup, changes: Changes, guarded: Guarded, clock: AttemptClock
    ) -> None:
        self.clock = clock
        self._step: str = ConditionType.BOUND
        self.outcomes: dict[str, Outcome] = {}
        self.may_end = True
        """Whether a wait ends once it is of no use: not while an attempt is undone, or its end is unclear."""
        self._caller = caller
        self._tasks = tasks
        self._changes = changes
        self._guarded = guarded

    @property
    def step(self) -> str:
        """Condition type of the step that the attempt is in."""
        return self._step

    @step.setter
    def step(self, step: str) -> None:
        self._step = step
        self.clock.enter(step)

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """Lets others bind, has the wait shown if it takes long, and ends it once it is of no use.

        Raises:
            WaitEndedError: It is of no use.
        """
        guarding, block, ended = anyio.CancelScope(), anyio.CancelScope(), list[Ready | Failed]()
        showing = _Showing()
        async with self._caller.slot.released():
            self._tasks.start_soon(self._show_later, what, showing)
            if self.may_end:
                self._tasks.start_soon(self._guard, guarding, block, ended)
            try:
                with block, self.clock.waiting():
                    yield
            finally:
                guarding.cancel()
                await showing.close()
        if block.cancelled_caught:
            raise WaitEndedError(ended[0])

    async def _guard(
        self, scope: anyio.CancelScope, block: anyio.CancelScope, ended: list[Ready | Failed]
    ) -> None:
        """Ends the block once one of the guarded objects is not what it was."""
        judged = self._guarded.all()
        with scope:
            with anyio.move_on_after(_GUARDED_AFTER_S):
                ended.append(await self._until(self._followed(judged)))
            if not ended:
                ended.append(await self._until(judged))
            block.cancel()

    async def _until(self, judged: Sequence[Judged[Ready | Failed]]) -> Ready | Failed:
        """The first verdict; what the server does not let us see is left out."""
        while True:
            try:
                return await self._changes.until(*judged)
            except errors.ForbiddenError as error:
                log = logger.bind(error=error.message)
                log.warning("It cannot be seen of each object whether a wait is in vain")
            judged = self._followed(judged)

    def _followed(self, judged: Sequence[Judged[Ready | Failed]]) -> list[Judged[Ready | Failed]]:
        return [item for item in judged if self._changes.is_followed(item.target)]

    async def _show_later(self, what: str, showing: "_Showing") -> None:
        with showing.over():
            with showing.before:
                await anyio.sleep(SHOWN_AFTER_S)
            if not showing.before.cancelled_caught:
                with showing.write:
                    await self._caller.show_waiting(self.step, what, dict(self.outcomes))


class _Showing:
    """What becomes of showing one wait: it has not begun, is being written, or is over."""

    def __init__(self) -> None:
        self.before = anyio.CancelScope()
        self.write = anyio.CancelScope(shield=True)
        self._over = anyio.Event()

    @contextmanager
    def over(self) -> Iterator[None]:
        """Says at the end of the block that nothing is written any more."""
        try:
            yield
        finally:
            self._over.set()

    async def close(self) -> None:
        """Has nothing more begun, and lets a write under way arrive before whatever follows it."""
        self.before.cancel()
        with anyio.move_on_after(CLOSING_S, shield=True):
            await self._over.wait()
        self.write.cancel()
