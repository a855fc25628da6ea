"""What attempts of this process keep from each other while they work on it."""

from collections import Counter

import anyio


class Holds:
    """Keys that attempts hold, each for one purpose; several may share one."""

    def __init__(self) -> None:
        self.purposes: dict[str, str] = {}
        self._holders: Counter[str] = Counter()
        self._freed: dict[str, anyio.Event] = {}

    def take(self, key: str, purpose: str) -> bool:
        """Takes a key, unless it is held for another purpose."""
        if self.purposes.setdefault(key, purpose) != purpose:
            return False
        self._holders[key] += 1
        return True

    def release(self, key: str) -> None:
        """Takes back one `take`."""
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key], self.purposes[key]
            freed = self._freed.pop(key, None)
            if freed is not None:
                freed.set()

    async def freed(self, key: str) -> None:
        """Waits until nobody holds a key."""
        if key in self.purposes:
            await self._freed.setdefault(key, anyio.Event()).wait()
