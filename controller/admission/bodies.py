"""The bodies of requests, and how much of them is held at a time.

Called by the server. Invariant: what is held beyond `FREE` of each body stays within one budget, so that
bodies of the usual size are taken whatever others send.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from aiohttp import StreamReader

MAX_BODY = 4 * 1024 * 1024
"""Bytes of one body. etcd keeps no object above 1.5 MiB, and a review of a change holds it twice."""
FREE = 64 * 1024
"""Bytes of each body that are always taken; hardly any pod is larger."""
BUDGET = 24 * 1024 * 1024
"""Bytes of all bodies together, beyond those."""

_MOST_NESTED, _MOST_PARTS = 100_000, 400_000
"""Of a whole body: beginnings of objects and lists, and commas. A pod of as many is nobody's, and a
body of nothing else would become twenty times as large in memory."""


class TooLargeError(Exception):
    """A body is larger than is allowed; the text says how."""


class CrowdedError(Exception):
    """The budget is used up."""


class Bodies:
    """Those that are under way."""

    def __init__(self) -> None:
        self._taken = 0

    @asynccontextmanager
    async def reading(self, content: StreamReader, within_s: float) -> AsyncIterator[bytes]:
        """Reads a body, which counts as long as the context is open.

        Args:
            content: What comes.
            within_s: Seconds in which all of it has to be there.

        Raises:
            TimeoutError: It was not.
            TooLargeError: It is larger than is allowed.
            CrowdedError: There is no room for it now.
        """
        body, taken = bytearray(), 0
        try:
            with anyio.fail_after(within_s):
                async for part in content.iter_any():
                    size = len(body) + len(part)
                    if size > MAX_BODY:
                        raise TooLargeError(f"the body is larger than {MAX_BODY} bytes")
                    more = max(0, size - FREE) - taken
                    if self._taken + more > BUDGET:
                        raise CrowdedError(f"{self._taken} bytes of other reviews are under way")
                    self._taken += more
                    taken += more
                    body += part
            whole = bytes(body)
            del body
            if _is_absurd(whole):
                raise TooLargeError(
                    f"the body has more than {_MOST_NESTED} objects and lists, or {_MOST_PARTS} commas"
                )
            yield whole
        finally:
            self._taken -= taken


def _is_absurd(body: bytes) -> bool:
    """Whether a body has more parts than anybody's; those in texts count, too, so that this takes no time."""
    if len(body) <= _MOST_NESTED:
        return False
    return body.count(b"{") + body.count(b"[") > _MOST_NESTED or body.count(b",") > _MOST_PARTS
