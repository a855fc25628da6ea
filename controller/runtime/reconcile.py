"""The loop itself: changes become keys, keys become calls of a reconciler, its results become delays.

A reconciler is level-triggered: it gets a key, looks at the world as it is, brings it closer to what is
wished, and says when it wants to look again. It raises only what it did not expect.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import anyio
from loguru import logger

from controller.runtime import errors
from controller.runtime.cache import Cache, Change
from controller.runtime.slots import Slot, Slots
from controller.runtime.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended: for now (None), or to be looked at again in so many seconds."""

    requeue_after_s: float | None = None


class Reconciler(Protocol[K_contra]):
    """What a controller runs for each key."""

    async def reconcile(self, key: K_contra, slot: Slot, /) -> Result:
        """Brings the world of this key closer to what is wished.

        Never called twice at a time for one key. Long waits belong into `slot.released()`.
        """


class ControllerObserver(Protocol):
    """What a controller reports of itself."""

    def reconciled(self, result: str, seconds: float, /) -> None:
        """A reconcile ended: success, requeue_after or error."""

    def error(self) -> None:
        """It ended by an error of the API server."""

    def panic(self) -> None:
        """It ended by an exception that nobody foresaw."""

    def active(self, delta: int, /) -> None:
        """So many more workers are busy."""


class Controller(Generic[K]):
    """Runs a reconciler for the keys of a queue, up to `max_concurrent` at a time."""

    def __init__(
        self,
        name: str,
        reconciler: Reconciler[K],
        queue: WorkQueue[K],
        *,
        max_concurrent: int,
        observer: ControllerObserver | None = None,
    ) -> None:
        self.name = name
        self.queue = queue
        self._reconciler = reconciler
        self._workers = Slots(max_concurrent)
        self._sources: list[tuple[Cache, Callable[[Change], Iterable[K]]]] = []
        self._observer = observer

    def watch(self, cache: Cache, to_keys: Callable[[Change], Iterable[K]]) -> None:
        """Has the keys that `to_keys` makes of each change worked on; it must do no I/O.

        `run` begins with what the caches hold: until then, perhaps for weeks on a standby, nothing queues up.
        """
        self._sources.append((cache, to_keys))

    def _begin(self) -> None:
        for cache, to_keys in self._sources:
            enqueue = partial(self._enqueue, to_keys)
            cache.subscribe(enqueue)
            for item in cache:
                enqueue(Change(None, item))

    def _enqueue(self, to_keys: Callable[[Change], Iterable[K]], change: Change) -> None:
        for key in to_keys(change):
            self.queue.add(key)

    def stop(self) -> None:
        """Takes no more keys; `run` returns when those under way are done. Those that wait are cancelled."""
        self.queue.close()
        self._workers.stop()

    async def run(self) -> None:
        """Works until stopped."""
        self._begin()
        async with anyio.create_task_group() as tasks:
            while (key := await self.queue.get()) is not None:
                await self._workers.start()
                tasks.start_soon(self._work, key)

    async def _work(self, key: K) -> None:
        started_s = anyio.current_time()
        if self._observer is not None:
            self._observer.active(1)
        outcome = "success"  # also of a worker that was cancelled while it waited
        try:
            with logger.contextualize(controller=self.name, key=_readable(key)), anyio.CancelScope() as scope:
                outcome = await self._reconcile(key, Slot(self._workers, scope))
            if self._observer is not None:
                self._observer.reconciled(outcome, anyio.current_time() - started_s)
        finally:
            if self._observer is not None:
                self._observer.active(-1)
            self._workers.end()
            self.queue.done(key)

    async def _reconcile(self, key: K, slot: Slot) -> str:
        try:
            result = await self._reconciler.reconcile(key, slot)
        except errors.ApiError as error:
            delay_s = self.queue.retry(key)
            log = logger.bind(request=error.request, error=error.message, retry_in_s=delay_s)
            log.warning("A reconcile was broken off and will be tried again")
            if self._observer is not None:
                self._observer.error()
            return "error"
        except Exception:  # noqa: BLE001 -- one key must not take the others with it
            delay_s = self.queue.retry(key)
            logger.bind(retry_in_s=delay_s).exception("A reconcile failed in an unforeseen way")
            if self._observer is not None:
                self._observer.panic()
            return "error"
        self.queue.forget(key)
        if result.requeue_after_s is None:
            return "success"
        self.queue.add_after(key, result.requeue_after_s)
        return "requeue_after"


def _readable(key: Hashable) -> str:
    return "/".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)
