"""How many keys of a controller are worked on at a time; one that waits for somebody else does not count."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Slot:
    """The right of one worker to run; it is given back while the worker waits for somebody else."""

    def __init__(self, workers: "Slots", scope: anyio.CancelScope) -> None:
        self._workers = workers
        self._scope = scope

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Lets another key run as long as this block lasts.

        A worker that waits when the controller stops is cancelled: nobody knows how long it would take, and
        what it did so far is found done next time.
        """
        self._workers.begin_wait(self._scope)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._workers.end_wait(self._scope)


class Slots:
    """The slots of a controller, and the workers that wait."""

    def __init__(self, limit: int) -> None:
        self._slots = anyio.Semaphore(limit)
        self._waiting: Counter[anyio.CancelScope] = Counter()
        self._stopping = False

    async def start(self) -> None:
        """Waits for a free slot and takes it."""
        await self._slots.acquire()

    def end(self) -> None:
        """Gives a slot back."""
        self._slots.release()

    def begin_wait(self, scope: anyio.CancelScope) -> None:
        """Gives the slot of a worker back while it waits; after `stop` the worker is cancelled."""
        self._waiting[scope] += 1
        self._slots.release()
        if self._stopping:
            scope.cancel()

    async def end_wait(self, scope: anyio.CancelScope) -> None:
        """Takes a slot again for a worker that waited."""
        self._waiting -= Counter((scope,))
        await self._slots.acquire()

    def stop(self) -> None:
        """Cancels the workers that wait, and those that begin to."""
        self._stopping = True
        for scope in self._waiting:
            scope.cancel()
