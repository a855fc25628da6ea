"""How hard the API server may be pressed.

As upstream's clients do it, each kind has a bucket of its own, so that binds do not hold up events; and
lists have one apart from the single objects of their kind, so that a cache that begins anew and the binds do
not queue behind each other. Watches are not limited: there are few, and each lasts.
"""

import time
from collections.abc import Callable, Hashable

import anyio


class TokenBucket:
    """Lets `qps` callers a second pass, and `burst` at once; in the order in which they came."""

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._last_s = clock()

    async def take(self, limit_s: float) -> bool:
        """Waits for a token; a caller that is cancelled meanwhile takes none.

        Args:
            limit_s: Seconds that the caller can wait at most.

        Returns:
            False, at once, if the token would come later than that; none is taken then.
        """
        wait_s = self._reserve()
        if wait_s <= 0:
            return True
        taken = False
        try:
            if wait_s <= limit_s:
                await anyio.sleep(wait_s)
                taken = True
        finally:
            if not taken:
                self._tokens += 1.0
        return taken

    def _reserve(self) -> float:
        """Takes a token, on credit if need be; returns the seconds until it is really there."""
        if self._qps <= 0:
            return 0.0
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._qps)
        self._last_s = now_s
        self._tokens -= 1.0
        return -self._tokens / self._qps


class RateLimits:
    """Buckets of one size: one for each key."""

    def __init__(self, qps: float, burst: int) -> None:
        """Makes no bucket yet.

        Args:
            qps: Requests a second for each key, on average; not positive means no limit.
            burst: Requests for each key that may go out at once.
        """
        self._qps = qps
        self._burst = burst
        self._buckets: dict[Hashable, TokenBucket] = {}

    async def take(self, key: Hashable, limit_s: float) -> bool:
        """As `TokenBucket.take`, from the bucket of this key."""
        if self._qps <= 0:
            return True
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._qps, self._burst)
        return await bucket.take(limit_s)
