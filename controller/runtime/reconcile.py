"""The loop itself: changes become keys, keys become calls of a reconciler, its results become delays.

A reconciler is level-triggered: it gets a key, looks at the world as it is, brings it closer to what is
wished, and says when it wants to look again. It raises only what it did not expect.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

import anyio
from loguru import logger
from msgspec import Struct

from controller.runtime import errors
from controller.runtime.cache import Cache, Change, Key, key_of
from controller.runtime.slots import Slot, Slots
from controller.runtime.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Result(Struct, frozen=True):
    """How a reconcile ended.

    Attributes:
        requeue_after_s: Look again in so many seconds; None: not before something changes.
        failed: It did not reach what it was to reach, and has told so itself. Counted as an error, and as a
            terminal one if it is not to look again.
    """

    requeue_after_s: float | None = None
    failed: bool = False


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

    def error(self, *, terminal: bool = False) -> None:
        """It ended by an error; a terminal one is not tried again."""

    def panic(self) -> None:
        """An exception came up that nobody foresaw, beside the error."""

    def active(self, delta: int, /) -> None:
        """So many more workers hold a slot."""


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
        self._slots = Slots(max_concurrent, self._note_slots)
        self._sources: list[tuple[Cache, Callable[[Change], Iterable[K]]]] = []
        self._observer = observer
        self._unmappable: set[tuple[str, Key]] = set()

    def watch(self, cache: Cache, to_keys: Callable[[Change], Iterable[K]]) -> None:
        """Has the keys that `to_keys` makes of each change worked on; it must do no I/O.

        `run` begins with what the caches hold: until then, perhaps for weeks on a standby, nothing queues up.
        """
        self._sources.append((cache, to_keys))

    def _begin(self) -> None:
        for cache, to_keys in self._sources:
            enqueue = partial(self._enqueue, cache, to_keys)
            cache.subscribe(enqueue)
            for item in cache.last_known():
                enqueue(Change(None, item))

    def _enqueue(self, cache: Cache, to_keys: Callable[[Change], Iterable[K]], change: Change) -> None:
        culprit = cache.name, key_of(change.object)
        try:
            keys = tuple(to_keys(change))
        except Exception:
            if culprit not in self._unmappable:
                self._unmappable.add(culprit)
                log = logger.bind(controller=self.name, kind=cache.name, object="/".join(culprit[1]))
                log.exception("A change is passed over: nobody knows what to work on for it")
            if self._observer is not None:
                self._observer.error(terminal=True)
                self._observer.panic()
            return
        self._unmappable.discard(culprit)
        for key in keys:
            self.queue.add(key)

    def _note_slots(self, delta: int) -> None:
        if self._observer is not None:
            self._observer.active(delta)
        if delta < 0:
            self.queue.look_again()

    def stop(self) -> None:
        """Takes no more keys; `run` returns when those under way are done. Those that wait are cancelled."""
        self.queue.close()
        self._slots.stop()

    def stalled_s(self) -> float:
        """Seconds for which keys have been ready and slots free, yet nothing was taken; 0 if all is well."""
        return _since(self.queue.ready_since_s(), self._slots.free_since_s())

    def hung_s(self) -> float:
        """Seconds for which keys have been ready and no worker has let go of its slot; 0 if one is free."""
        return _since(self.queue.ready_since_s(), self._slots.all_held_since_s())

    async def run(self) -> None:
        """Works until stopped."""
        self._begin()
        async with anyio.create_task_group() as tasks:
            while await self.queue.ready(self._slots.has_room):
                await self._slots.take()
                # Not before there is a slot: until then it is in the queue, for whoever asks, and a stop.
                key = self.queue.take(has_room=self._slots.has_room(taken=1))
                if key is None:
                    self._slots.give_back()
                else:
                    tasks.start_soon(self._work, key)

    async def _work(self, key: K) -> None:
        started_s = anyio.current_time()
        outcome = "success"  # also of a worker that was cancelled while it waited
        scope = anyio.CancelScope()
        slot = Slot(self._slots, scope)
        try:
            with logger.contextualize(controller=self.name, key=_readable(key)), scope:
                outcome = await self._reconcile(key, slot)
            if self._observer is not None:
                self._observer.reconciled(outcome, anyio.current_time() - started_s - slot.waited_s)
        finally:
            slot.end()
            self.queue.done(key, waited_s=slot.waited_s)

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
                self._observer.error()
                self._observer.panic()
            return "error"
        self.queue.forget(key)
        if result.requeue_after_s is not None:
            self.queue.add_after(key, result.requeue_after_s)
        if result.failed:
            if self._observer is not None:
                self._observer.error(terminal=result.requeue_after_s is None)
            return "error"
        return "success" if result.requeue_after_s is None else "requeue_after"


def _since(*times_s: float | None) -> float:
    """Seconds since the last of these; 0 if one of them has not come."""
    known = [time_s for time_s in times_s if time_s is not None]
    return anyio.current_time() - max(known) if len(known) == len(times_s) else 0.0


def _readable(key: Hashable) -> str:
    return "/".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)
