"""How hard the API server may be pressed."""

import time
from collections.abc import Callable


class TokenBucket:
    """Lets `qps` callers a second pass, and `burst` at once; in the order in which they came."""

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._last = clock()

    def reserve(self) -> float:
        """Takes a token, on credit if need be.

        Returns:
            Seconds to wait until the token is really there.
        """
        if self._qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._last) * self._qps)
        self._last = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)
