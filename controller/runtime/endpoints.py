"""The HTTP endpoints for metrics, liveness and readiness.

The composition root runs `Telemetry` beside everything else, and before the API server has answered. Who
serves something of its own does so by `listening`.
Invariant: a check answers from memory, so that a probe is never slow because the API server is.
"""

import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager

import anyio
from aiohttp import web
from anyio.abc import TaskStatus
from msgspec import Struct

from controller.runtime.connections import Connections, Limits, noting
from controller.runtime.metrics import ProcessMetrics

Checks = Mapping[str, Callable[[], str | None]]
"""Health checks by name; each returns None, or a text that says what is wrong."""
_Handler = Callable[[web.Request], Awaitable[web.Response]]

_LIMITS = Limits()


class ListenError(Exception):
    """An address cannot be listened on."""


class Address(Struct, frozen=True):
    """Where to listen.

    Attributes:
        host: Name or IP address; empty for all interfaces.
        port: 0 for any free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address | None":
        """Reads ``:8080``, ``host:port`` or ``[::1]:80``; None for ``0``, which means off.

        Raises:
            ValueError: If it is none of these.
        """
        if text == "0":
            return None
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([A-Za-z0-9._-]*)):(\d{1,5})", text)
        if match is None or int(match[3]) > 65535:
            raise ValueError("must be an address such as :8080, 127.0.0.1:8080 or [::1]:8080, or 0 for off")
        return cls(match[1] or match[2] or "", int(match[3]))

    def overlaps(self, other: "Address") -> bool:
        """Tells whether both cannot be listened on at the same time."""
        everywhere = {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        same_host = self.host == other.host or not everywhere.isdisjoint((self.host, other.host))
        return self.port == other.port != 0 and same_host

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Telemetry:
    """The HTTP endpoints: ``/metrics`` on one address, ``/healthz`` and ``/readyz`` on another.

    Attributes:
        metrics_port: The port in use while it runs; None if off.
        health_port: The same for the health endpoints.
    """

    def __init__(
        self, metrics: ProcessMetrics, metrics_address: str, health_address: str, live: Checks, ready: Checks
    ) -> None:
        """Prepares the endpoints.

        Args:
            metrics: What ``/metrics`` shows.
            metrics_address: ``:8080`` (all interfaces), ``host:port`` or ``0`` (off). Port 0: any free one.
            health_address: The same; must differ unless both are off.
            live: The checks behind ``/healthz``.
            ready: The checks behind ``/readyz``.

        Raises:
            ValueError: If an address cannot be read, or both are the same.
        """
        self._metrics_address, self._health_address = (
            Address.parse(metrics_address),
            Address.parse(health_address),
        )
        if (
            self._metrics_address
            and self._health_address
            and self._metrics_address.overlaps(self._health_address)
        ):
            raise ValueError(
                f"metrics and health need two addresses, not {metrics_address} and {health_address}"
            )
        self._metrics, self._live, self._ready = metrics, live, ready
        self.metrics_port: int | None = None
        self.health_port: int | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; reports started once the ports are open.

        Raises:
            ListenError: If an address is in use or not ours.
        """
        async with (
            _listening("metrics", self._metrics_address, {"/metrics": self._show_metrics}) as metrics_port,
            _listening(
                "health",
                self._health_address,
                {
                    "/healthz": _check_handler("healthz", self._live, status=500),
                    "/readyz": _check_handler("readyz", self._ready, status=503),
                },
            ) as health_port,
        ):
            self.metrics_port, self.health_port = metrics_port, health_port
            task_status.started()
            await anyio.sleep_forever()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        body, kind = self._metrics.render(",".join(request.headers.getall("Accept", ())))
        return web.Response(body=body, headers={"Content-Type": kind, "Vary": "Accept"})


def _check_handler(name: str, checks: Checks, *, status: int) -> _Handler:
    """Makes the handler of a health endpoint, in the manner of Kubernetes' own (``?verbose`` lists all).

    Args:
        name: Of the endpoint.
        checks: What it asks.
        status: HTTP status if one of them fails.
    """

    async def handle(request: web.Request) -> web.Response:
        answers = {check: ask() for check, ask in checks.items()}
        failed = [f"{check}: {answer}" for check, answer in answers.items() if answer is not None]
        if "verbose" in request.query:
            lines = [f"[-]{c} failed: {a}" if a is not None else f"[+]{c} ok" for c, a in answers.items()]
            lines.append(f"{name} check {'failed' if failed else 'passed'}")
        else:
            lines = failed or ["ok"]
        return web.Response(text="\n".join(lines) + "\n" * (len(lines) > 1), status=status if failed else 200)

    return handle


@asynccontextmanager
async def _listening(
    purpose: str, address: Address | None, handlers: Mapping[str, _Handler]
) -> AsyncIterator[int | None]:
    """Answers GETs while the context is open; yields the port in use, None if the address is off."""
    if address is None:
        yield None
        return
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in handlers.items()])
    async with listening(purpose, address, app, end_s=1.0) as port:
        yield port


@asynccontextmanager
async def listening(
    purpose: str,
    address: Address,
    app: web.Application,
    *,
    end_s: float,
    tls: ssl.SSLContext | None = None,
    limits: Limits = _LIMITS,
) -> AsyncIterator[int]:
    """Serves while the context is open; yields the port in use.

    Args:
        purpose: What for, to name it in an error.
        address: Where to listen.
        app: What is served.
        end_s: Seconds that requests under way have in the end.
        tls: For TLS.
        limits: What callers may have.

    Raises:
        ListenError: The address is in use or not ours.
    """
    app.middlewares.append(noting)
    runner = web.AppRunner(app, shutdown_timeout=end_s)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 -- it is set up
    connections = Connections(purpose, runner.server, limits, tls)
    try:
        with ExitStack() as stack:
            listeners = [stack.enter_context(listener) for listener in await _listeners(purpose, address)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connections.watch)
                for listener in listeners:
                    tasks.start_soon(connections.take, listener, tasks)
                failure = None
                try:
                    yield listeners[0].getsockname()[1]
                except Exception as error:  # noqa: BLE001 -- raised below, in no group
                    failure = error
                tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


async def _listeners(purpose: str, address: Address) -> list[socket.socket]:
    try:
        return await _listen(address)
    except OSError as error:
        text = f"cannot listen on {address} for {purpose}: {error.strerror or error}"
        raise ListenError(text) from error


async def _listen(address: Address) -> list[socket.socket]:
    """Where to listen: all interfaces are those of both IP families, as Go has it, on one socket."""
    if address.host in ("", "::") and socket.has_dualstack_ipv6():
        places, dual = [(socket.AF_INET6, ("::", address.port))], True
    else:
        host = address.host or "0.0.0.0"  # noqa: S104 -- asked for
        found = await anyio.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        places, dual = [(family, place[:2]) for family, _, _, _, place in found], False
    listeners: list[socket.socket] = []
    try:
        for family, place in places:
            listeners.append(socket.create_server(place, family=family, dualstack_ipv6=dual, backlog=128))
            listeners[-1].setblocking(False)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
