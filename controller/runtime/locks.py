"""Locks by key, for what must not happen twice at a time although its queue keys differ."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

from controller.runtime.reconcile import Slot

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """One lock for each key that somebody holds or waits for."""

    def __init__(self) -> None:
        self._locks: dict[K, tuple[anyio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: K, slot: Slot) -> AsyncIterator[None]:
        """Holds the key's lock for the block; waits for it with the worker's slot given back."""
        lock, users = self._locks.get(key, (anyio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            if lock.locked():
                async with slot.released():
                    await lock.acquire()
            else:
                lock.acquire_nowait()
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
