"""Takes the connections of an HTTP server, so that no caller can wear it out.

Called by `endpoints.py`. Invariant: there are never more connections than allowed, and none stays open
without a request for longer than it may: neither in its handshake, nor with half of a request's head. Where
there are too many, those without a request make room; one that is being answered is never closed for it.
"""

import asyncio
import math
import socket
import ssl
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any

import anyio
import anyio.abc
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from anyio.lowlevel import checkpoint
from loguru import logger
from msgspec import Struct

from controller.runtime.seldom import Seldom

_HTTP = MappingProxyType(
    {
        "access_log": None,
        "max_headers": 32,
        "max_field_size": 4096,
        "auto_decompress": False,  # what is small on the wire may not become large here
    }
)
"""How requests are read: a head holds at most 128 KiB."""
_TELL_S = 60.0
_AGAIN_S = 0.1
_SHOWN = 200


class Limits(Struct, frozen=True):
    """What callers may have.

    Attributes:
        connections: As many may be open at a time, those in their handshake included.
        head_s: Seconds from the begin of a connection, or of a later request, until its whole head is there.
        idle_s: Seconds that a connection is kept after a request. Longer than the 90 s after which clients
            written in Go give one up: who ends it is the caller then, and no request meets its end.
    """

    connections: int = 50
    head_s: float = 10.0
    idle_s: float = 120.0


class _Connection(web.RequestHandler):
    """One connection.

    Attributes:
        answering: Whether a request has come that is not answered yet.
        used: Whether there was a request at all.
        since: When that last changed, by the loop's clock.
        due: When it is closed unless something happens.
        end: Closes it at once.
    """

    __slots__ = ("_body", "_connections", "_idle", "answering", "due", "end", "since", "used")

    def __init__(self, connections: "Connections", server: web.Server, now: float) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **_HTTP)  # type: ignore[arg-type]
        self._connections, self._idle = connections, False
        self.answering = self.used = False
        self._body: StreamReader | None = None
        self.since, self.due = now, now + connections.limits.head_s
        self.end: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- a socket's is one
        self.end = transport.abort
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self.answering and self._body is not None and self._body.is_eof():
            self.end()  # a request before the last one is answered: nobody needs that, and it takes memory
            return
        if self._idle:
            self._idle = False
            self.due = self._loop.time() + self._connections.limits.head_s
        super().data_received(data)

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401 -- aiohttp's own
        """Faults of ours have a trace; what is no HTTP is the caller's, and he may send any amount of it."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError):
            self._connections.malformed(error)
        else:
            super().log_exception(*args, **kw)

    def begin(self, body: StreamReader) -> None:
        """A request's head is there, and its body comes."""
        self._body = body
        self.answering, self.used, self._idle = True, True, False
        self.since, self.due = self._loop.time(), math.inf

    def rest(self) -> None:
        """The request is answered."""
        self.answering, self._idle, self.since = False, True, self._loop.time()
        self.due = self.since + self._connections.limits.idle_s


@web.middleware
async def noting(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Has connections know when they have a request; every application that is served here needs it."""
    connection = request.protocol
    assert isinstance(connection, _Connection)  # noqa: S101 -- nobody else makes any
    connection.begin(request.content)
    try:
        return await handler(request)
    finally:
        connection.rest()


class Connections:
    """The connections of one server.

    Attributes:
        limits: What callers may have.
    """

    def __init__(self, purpose: str, server: web.Server, limits: Limits, tls: ssl.SSLContext | None) -> None:
        """Takes none yet.

        Args:
            purpose: What for, to name it in the log.
            server: Answers the requests.
            limits: What callers may have.
            tls: For TLS.
        """
        self._purpose, self._server, self._tls, self.limits = purpose, server, tls, limits
        self._open: set[_Connection] = set()
        self._tell_again_s = -math.inf
        self._bad = Seldom(most=1)

    async def take(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        """Takes what comes until cancelled.

        Args:
            listener: Listens, and does not block.
            tasks: For handshakes.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, _ = await loop.sock_accept(listener)
            except OSError as error:  # the caller is gone again, or there are no more files
                self._tell(f"it cannot be taken: {error.strerror or error}")
                await anyio.sleep(_AGAIN_S)
                continue
            if self._make_room():
                connection = _Connection(self, self._server, loop.time())
                self._open.add(connection)
                tasks.start_soon(self._greet, connection, caller)
            else:
                caller.close()
            await checkpoint()  # callers who come one upon the other hold up nobody who is there

    async def watch(self) -> None:
        """Closes those that have waited for too long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(min(1.0, self.limits.head_s / 4))
            now = loop.time()
            for connection in [item for item in self._open if item.due <= now]:
                self._close(connection)

    def malformed(self, error: HttpProcessingError) -> None:
        """A caller sent what is no request."""
        unsaid = self._bad.happened()
        if unsaid is not None:
            log = logger.bind(purpose=self._purpose, problem=error.message.strip()[:_SHOWN], unsaid=unsaid)
            log.warning("A request is no HTTP")

    def forget(self, connection: _Connection) -> None:
        """It is closed."""
        self._open.discard(connection)

    async def _greet(self, connection: _Connection, caller: socket.socket) -> None:
        """Brings a connection through its handshake."""
        greeted = False
        with anyio.CancelScope() as scope:
            connection.end = scope.cancel
            try:
                caller.setblocking(False)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    caller,
                    ssl=self._tls,
                    ssl_handshake_timeout=self.limits.head_s if self._tls else None,
                )
                greeted = True
            except OSError:
                pass  # it left, or it does not trust us, which it knows better than we do
            finally:
                if not greeted:
                    self.forget(connection)
                    caller.close()

    def _make_room(self) -> bool:
        """Sees to it that one more is not too many; tells whether that could be done."""
        if len(self._open) < self.limits.connections:
            return True
        idle = [connection for connection in self._open if not connection.answering]
        self._tell(f"there are {len(self._open)} already, and no more are allowed")
        if not idle:
            return False
        # First who has never asked anything, and of these who has been there for the longest time.
        self._close(min(idle, key=lambda connection: (connection.used, connection.since)))
        return True

    def _close(self, connection: _Connection) -> None:
        self.forget(connection)
        connection.end()

    def _tell(self, problem: str) -> None:
        """Logs what is wrong, not more often than somebody would read it."""
        now = asyncio.get_running_loop().time()
        if now >= self._tell_again_s:
            self._tell_again_s = now + _TELL_S
            log = logger.bind(purpose=self._purpose, problem=problem)
            log.warning("A connection is refused, or one without a request is closed for it")
