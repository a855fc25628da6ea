"""How many keys of a controller are worked on at a time; one that waits for somebody else does not count.

Used by `reconcile.py`; reconcilers get a `Slot` each. Invariant: no more slots are held than there are, and a
worker that runs holds one, however many waits of its own overlap.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

_RETRYING = 5
"""Work that can wait begins only while less than this part of the slots is busy: what is new finds room."""


class Slots:
    """The slots of a controller, and the workers that wait without one."""

    def __init__(self, limit: int, observe: Callable[[int], None] = lambda _: None) -> None:
        """Makes them, all free.

        Args:
            limit: How many.
            observe: Told of each change of the number that are held: 1 or -1.
        """
        self._free = anyio.Semaphore(limit)
        self._kept_free = limit - max(1, limit // _RETRYING)
        self._freed_s = self._given_back_s = float("-inf")
        self._observe = observe
        self._waiting: set[Slot] = set()
        self._stopping = False

    def free_since_s(self) -> float | None:
        """Since when there has been a free slot; None if there is none."""
        return self._freed_s if self._free.value else None

    def all_held_since_s(self) -> float | None:
        """When a slot was last given back, if all are held; None if one is free."""
        return None if self._free.value else self._given_back_s

    def has_room(self, *, taken: int = 0) -> bool:
        """Whether work that can wait may take a slot: the others are kept free for what is to come.

        `taken` are slots of the caller that count as free.
        """
        return self._free.value + taken > self._kept_free

    async def take(self) -> None:
        """Waits for a free slot and takes it."""
        await self._free.acquire()
        self._observe(1)

    def give_back(self) -> None:
        """Gives a slot back."""
        self._given_back_s = anyio.current_time()
        if not self._free.value:
            self._freed_s = self._given_back_s
        self._free.release()
        self._observe(-1)

    def stop(self) -> None:
        """Cancels the workers that wait, and those that begin to."""
        self._stopping = True
        for slot in self._waiting:
            slot.cancel()

    def begin_wait(self, slot: "Slot") -> None:
        """Notes a worker that waits; after `stop` it is cancelled."""
        self._waiting.add(slot)
        if self._stopping:
            slot.cancel()

    def end_wait(self, slot: "Slot") -> None:
        """Forgets a worker that waited."""
        self._waiting.discard(slot)


class Slot:
    """One worker's hold on a slot; it is given back while the worker waits for somebody else.

    Attributes:
        waited_s: Seconds that the worker has spent in waits so far, for the slot afterwards too.
    """

    def __init__(self, slots: Slots, scope: anyio.CancelScope) -> None:
        """Takes over a slot that was taken.

        Args:
            slots: The controller's.
            scope: Of the worker.
        """
        self.waited_s = 0.0
        self._slots = slots
        self._scope = scope
        self._is_held = True
        self._waits = 0
        self._waits_since_s = 0.0

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Lets another key run as long as this block lasts.

        A worker that waits when the controller stops is cancelled: nobody knows how long it would take, and
        what it did so far is found done next time.
        """
        self._begin_wait()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._end_wait()

    def cancel(self) -> None:
        """Breaks the worker off."""
        self._scope.cancel()

    def end(self) -> None:
        """Gives the slot back for good."""
        if self._is_held:
            self._is_held = False
            self._slots.give_back()

    def _begin_wait(self) -> None:
        self._waits += 1
        if self._is_held:
            self._waits_since_s = anyio.current_time()
        self._slots.begin_wait(self)
        self.end()

    async def _end_wait(self) -> None:
        self._waits -= 1
        if self._waits:
            return  # another wait of this worker goes on: the slot stays with others
        self._slots.end_wait(self)
        await self._slots.take()
        self.waited_s += anyio.current_time() - self._waits_since_s
        self._waits_since_s = anyio.current_time()
        if self._is_held or self._waits:
            self._slots.give_back()  # a wait that began, or ended, meanwhile sees to it
        else:
            self._is_held = True
