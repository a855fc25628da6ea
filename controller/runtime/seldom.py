"""What anybody can have said is said so often that somebody can read it, and counted beyond.

For log records that callers cause whom nobody knows. Invariant: however often it happens, so many records in
a time are written, and each says how many were left out before it.
"""

import math

import anyio


class Seldom:
    """One kind of record."""

    def __init__(self, most: int, every_s: float = 60.0) -> None:
        """Nothing has happened yet.

        Args:
            most: Records that may be written in each `every_s` seconds.
            every_s: Seconds.
        """
        self._most, self._every_s = most, every_s
        self._since_s = -math.inf
        self._said = self._unsaid = 0

    def happened(self) -> int | None:
        """To be called each time.

        Returns:
            How many were left out since the last record, if one is to be written now; else None.
        """
        now = anyio.current_time()
        if now - self._since_s >= self._every_s:
            self._since_s, self._said = now, 0
        if self._said >= self._most:
            self._unsaid += 1
            return None
        self._said += 1
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
