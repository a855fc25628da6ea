"""The waits of one attempt for somebody else: others bind meanwhile, long ones are shown, vain ones end.

The one place that decides when waiting is of no use any more because the request, its pod or its node is not
what it was: whoever waits, be it for a reservation, a volume or a device, need not look.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup
from loguru import logger

from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.kai.outcome import Failed, Outcome, Ready
from controller.kai.pods import judge_pod
from controller.kai.reasons import ConditionType, Reason
from controller.kai.request import BindRequest
from controller.runtime import errors
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Object
from controller.runtime.slots import Slot

SHOWN_AFTER_S = 2.0
"""A wait this long is written into the status, for whoever looks."""

_GUARDED_AFTER_S = 1.0
"""What no cache follows is looked after only once a wait has lasted: most are over at once."""

OnWait = Callable[[str, str, Mapping[str, Outcome]], Awaitable[None]]
"""Told of a long wait: condition type, what for, and the outcomes so far. Must not raise."""


class WaitEndedError(Exception):
    """Waiting is of no use any more; leaves the block of the wait, through whatever waits in it.

    Attributes:
        failure: Why.
    """

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Guarded:
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

    def all(self) -> tuple[Judged[Failed], ...]:
        """The objects, each with its judge."""
        request = self.request
        pod_version = self.pod["metadata"].get("resourceVersion", "")
        node_version = self.node["metadata"].get("resourceVersion", "")
        return (
            Judged(Target(BIND_REQUESTS, request.name, request.namespace), lambda _item: self.obsolete()),
            Judged(Target(PODS, request.pod_name, request.namespace, pod_version), self._judge_pod),
            Judged(Target(NODES, request.node_name, version=node_version), self._judge_node),
        )

    def _judge_pod(self, pod: Object | None) -> Failed | None:
        name = f"{self.request.namespace}/{self.request.pod_name}"
        if pod is None:
            return Failed(Reason.POD_NOT_FOUND, f"pod {name} was deleted", retry=False)
        verdict = judge_pod(self.request, pod, self.pod["metadata"]["uid"])
        if isinstance(verdict, Ready):
            return Failed(Reason.ALREADY_BOUND, verdict.message)  # the pipeline looks, and finds it bound
        return verdict

    def _judge_node(self, node: Object | None) -> Failed | None:
        if node is None:
            return Failed(Reason.NODE_GONE, f"node {self.request.node_name} was deleted")
        return None


class Waits:
    """The waits of one attempt."""

    def __init__(
        self, slot: Slot, tasks: TaskGroup, on_wait: OnWait, changes: Changes, guarded: Guarded
    ) -> None:
        self.step: str = ConditionType.BOUND
        self.outcomes: dict[str, Outcome] = {}
        self._slot = slot
        self._tasks = tasks
        self._on_wait = on_wait
        self._changes = changes
        self._guarded = guarded

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """Lets others bind, has the wait shown if it takes long, and ends it once it is of no use.

        Raises:
            WaitEndedError: It is of no use.
        """
        guarding, block, ended = anyio.CancelScope(), anyio.CancelScope(), list[Failed]()
        showing, shown = anyio.CancelScope(), anyio.Event()
        async with self._slot.released():
            self._tasks.start_soon(self._show_later, what, showing, shown)
            self._tasks.start_soon(self._guard, guarding, block, ended)
            try:
                with block:
                    yield
            finally:
                guarding.cancel()
                showing.cancel()
                # A write under way must arrive before the one that follows it.
                with anyio.CancelScope(shield=True):
                    await shown.wait()
        if block.cancelled_caught:
            raise WaitEndedError(ended[0])

    async def _guard(self, scope: anyio.CancelScope, block: anyio.CancelScope, ended: list[Failed]) -> None:
        """Ends the block once one of the guarded objects is not what it was."""
        judged = self._guarded.all()
        followed = [item for item in judged if self._changes.is_followed(item.target)]
        with scope:
            with anyio.move_on_after(_GUARDED_AFTER_S):
                ended.append(await self._changes.until(*followed))
            if not ended:
                try:
                    ended.append(await self._changes.until(*judged))
                except errors.ForbiddenError as error:
                    logger.bind(error=error.message).warning("It cannot be seen whether a wait is in vain")
                    return
            block.cancel()

    async def _show_later(self, what: str, scope: anyio.CancelScope, shown: anyio.Event) -> None:
        try:
            with scope:
                await anyio.sleep(SHOWN_AFTER_S)
                with anyio.CancelScope(shield=True):
                    await self._on_wait(self.step, what, dict(self.outcomes))
        finally:
            shown.set()
