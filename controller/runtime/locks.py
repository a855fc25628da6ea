"""Locks by key, for what must not happen twice at a time although its queue keys differ; and a signal."""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)

Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the block in which to wait, e.g. `Slot.released`."""


class KeyedLock(Generic[K]):
    """One lock for each key that somebody holds or waits for."""

    def __init__(self) -> None:
        self._locks: dict[K, tuple[anyio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def users(self, key: K) -> int:
        """How many hold the key's lock or wait for it."""
        return self._locks[key][1] if key in self._locks else 0

    @asynccontextmanager
    async def hold(self, key: K, waiting: Waiting | None = None) -> AsyncIterator[None]:
        """Holds the key's lock for the block; a wait for it happens inside of `waiting()`."""
        lock, users = self._locks.get(key, (anyio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            if waiting is not None and lock.locked():
                async with waiting():
                    await lock.acquire()
            else:
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)


class Signal:
    """Tells one waiter that something happened since it last looked."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wakes the waiter, or spares it the next wait."""
        self._event.set()

    async def wait(self) -> None:
        """Waits for `set`, and forgets it."""
        await self._event.wait()
        self._event = anyio.Event()
