"""One process: caches first, then the leader's lease, then workers; and the way back on stop."""

import gc
from collections.abc import Sequence
from typing import Any, Protocol

import anyio
from loguru import logger
from msgspec import Struct

from controller.runtime.cache import Cache
from controller.runtime.leader import Lease
from controller.runtime.reconcile import Controller
from controller.runtime.reporting import EventRecorder

_FLUSH_S = 3.0
_STUCK_S = 120.0
"""Longer than any step of a task that is well: nothing here waits so long without a sign of life."""

_HUNG_S = 600.0
"""More than work that holds a slot takes: requests have deadlines, and waits for others hold none."""

_BROKEN_S = 30.0
"""Seconds for which a cache may see no changes before the process is no longer ready."""

_PULSE_S = 1.0
_LATE_S = 30.0
"""So far behind the event loop must not be."""


class Service(Protocol):
    """Something that runs beside the work from the first moment to the last."""

    async def run(self) -> None:
        """Runs until cancelled."""


class ManagerOptions(Struct, frozen=True, kw_only=True):
    """What a manager runs.

    Attributes:
        caches: Filled before any controller starts.
        controllers: Run on the leader only.
        recorder: Sends events; flushed on stop.
        services: What others wait by, e.g. `changes.Changes`.
        lease: None if this is the only process.
        grace_s: Seconds that reconciles under way have to end after a stop.
    """

    caches: Sequence[Cache]
    controllers: Sequence[Controller[Any]]
    recorder: EventRecorder
    services: Sequence[Service] = ()
    lease: Lease | None = None
    grace_s: float = 24.0


class Manager:
    """Starts things in order and stops them in reverse."""

    def __init__(self, options: ManagerOptions) -> None:
        self._options = options
        self._finished: anyio.Event | None = None
        self._leads = False
        self._pulse_s = float("inf")

    def works(self) -> bool:
        """Whether the controllers run here, and by the lease nowhere else."""
        lease = self._options.lease
        runs = self._finished is not None and not self._finished.is_set()
        return runs and (lease is None or lease.held())

    def ready(self) -> str | None:
        """None once every cache is filled, or refused and not required, and sees changes."""
        problems = [_problem(cache) for cache in self._options.caches]
        return "; ".join(problem for problem in problems if problem is not None) or None

    def alive(self) -> str | None:
        """None if all that must go on does: event loop, watches, queues, lease; else what does not."""
        options = self._options
        problems = []
        late_s = anyio.current_time() - self._pulse_s
        if late_s > _LATE_S:
            problems.append(f"the event loop is {late_s:.0f} s behind")
        dead = [cache.name for cache in options.caches if cache.silent_s() > _STUCK_S]
        if dead:
            problems.append(f"no sign of life from the watch of {', '.join(dead)} for {_STUCK_S:g} s")
        stalled = [item.name for item in options.controllers if item.stalled_s() > _STUCK_S]
        if stalled:
            text = f"nothing is taken from the queue of {', '.join(stalled)}, though workers are free"
            problems.append(f"{text}, for {_STUCK_S:g} s")
        hung = [item.name for item in options.controllers if item.hung_s() > _HUNG_S]
        if hung:
            text = f"no worker of {', '.join(hung)} has come to an end, or to a wait, though keys are ready"
            problems.append(f"{text}, for {_HUNG_S:g} s")
        if self._leads and options.lease is not None and not options.lease.held():
            problems.append("this process leads, but its lease has not been renewed in time")
        return "; ".join(problems) or None

    async def run(self, stop: anyio.Event) -> None:
        """Runs until `stop` is set.

        Raises:
            ExceptionGroup: Something that must run for ever ended; holds e.g. a LeaseLostError.
        """
        options = self._options
        async with anyio.create_task_group() as services:
            services.start_soon(self._beat)
            for service in (*options.services, options.recorder):
                services.start_soon(service.run)
            for cache in options.caches:
                await services.start(cache.run)
            async with anyio.create_task_group() as work:
                work.start_soon(self._lead)
                await stop.wait()
                await self._drain()
                work.cancel_scope.cancel()
            self._leads = False
            await options.recorder.flush(_FLUSH_S)
            if options.lease is not None:
                await options.lease.release()
            services.cancel_scope.cancel()

    async def _beat(self) -> None:
        while True:
            self._pulse_s = anyio.current_time()
            await anyio.sleep(_PULSE_S)

    async def _lead(self) -> None:
        options = self._options
        for cache in options.caches:
            await cache.settled()
        gc.collect()
        gc.freeze()  # a collection that walks through all that is cached stops everything for up to 40 ms
        sizes = {cache.name: len(cache) for cache in options.caches}
        logger.bind(**sizes).info("The caches are filled")
        async with anyio.create_task_group() as beside:
            if options.lease is not None:
                await options.lease.acquire()
                self._leads = True
                beside.start_soon(options.lease.hold)
                for cache in options.caches:
                    # Beside the work, which reads until what the leader before has done is seen.
                    await beside.start(cache.catch_up)
            self._finished = anyio.Event()
            async with anyio.create_task_group() as controllers:
                for controller in options.controllers:
                    controllers.start_soon(controller.run)
            self._finished.set()

    async def _drain(self) -> None:
        """Stops the intake and gives what is under way its time."""
        controllers = self._options.controllers
        for controller in controllers:
            controller.stop()
        busy = sum(controller.queue.working for controller in controllers)
        logger.bind(under_way=busy).info("Stopping")
        with anyio.move_on_after(self._options.grace_s) as grace:
            if self._finished is not None:
                await self._finished.wait()
        if grace.cancelled_caught:
            logger.warning("The time to end is over; what is still under way is broken off")


def _problem(cache: Cache) -> str | None:
    """Why nobody should rely on a cache now."""
    if not cache.ready:
        return f"{cache.name}: {cache.problem}"
    broken_s = cache.broken_s()
    if broken_s >= _BROKEN_S:
        return f"{cache.name}: no changes have been seen for {broken_s:.0f} s: {cache.break_text}"
    return None
