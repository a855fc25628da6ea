"""Metrics and the HTTP endpoints for metrics, liveness and readiness.

Called by the client (requests), queues and controllers (their work), the leader election, and the manager,
which runs `Telemetry` beside everything else. Names, labels and buckets are those of Go's controller-runtime,
so that its dashboards and alerts work unchanged.

Invariant: nothing here blocks or does I/O on the path of work; what takes computing is computed when read.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from aiohttp import web
from anyio.abc import TaskStatus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Checks = Mapping[str, Callable[[], str | None]]
"""Health checks by name; each returns None, or a text that says what is wrong."""
_Handler = Callable[[web.Request], Awaitable[web.Response]]

_RECONCILE_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60),
)
_QUEUE_BUCKETS_S = tuple(10.0**exponent for exponent in range(-8, 4))
_RESULTS = ("success", "error", "requeue", "requeue_after")


class ListenError(Exception):
    """An address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Address:
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


class Metrics:
    """All metrics of a process, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        prefix, by = "controller_runtime_", "controller"
        self._reconciles = counter(f"{prefix}reconcile_total", "Reconciliations", by, "result")
        self._errors = counter(f"{prefix}reconcile_errors_total", "Reconciliations that failed", by)
        self._terminal = counter(f"{prefix}terminal_reconcile_errors_total", "Failures not retried", by)
        self._panics = counter(f"{prefix}reconcile_panics_total", "Exceptions that nobody expected", by)
        self._seconds = histogram(f"{prefix}reconcile_time_seconds", "Its length", _RECONCILE_BUCKETS_S, by)
        self._limit = gauge(f"{prefix}max_concurrent_reconciles", "Reconciliations allowed at a time", by)
        self._active = gauge(f"{prefix}active_workers", "Reconciliations under way", by)

        of = ("name", "controller")
        self._depth = gauge("workqueue_depth", "Keys waiting in the queue", *of, "priority")
        self._adds = counter("workqueue_adds_total", "Keys added", *of)
        self._waited = histogram(
            "workqueue_queue_duration_seconds", "Time from add to work", _QUEUE_BUCKETS_S, *of
        )
        self._worked = histogram(
            "workqueue_work_duration_seconds", "Time of work on a key", _QUEUE_BUCKETS_S, *of
        )
        self._unfinished = gauge("workqueue_unfinished_work_seconds", "Sum of the work under way so far", *of)
        self._longest = gauge(
            "workqueue_longest_running_processor_seconds", "Age of the oldest such work", *of
        )
        self._retries = counter("workqueue_retries_total", "Keys added again after a failure", *of)

        self._requests = counter(
            "rest_client_requests_total", "Requests to the API server", "code", "method", "host"
        )
        self._leader = gauge("leader_election_master_status", "1 while this process leads", "name")
        self._known_requests: dict[tuple[str, str, str], Counter] = {}

    def controller(self, name: str, max_concurrent: int) -> "ControllerMetrics":
        """Returns the metrics of one controller.

        Args:
            name: The value of the label ``controller``.
            max_concurrent: How many reconciliations it allows at a time.
        """
        self._limit.labels(name).set(max_concurrent)
        return ControllerMetrics(
            _results={result: self._reconciles.labels(name, result) for result in _RESULTS},
            _seconds=self._seconds.labels(name),
            _errors=self._errors.labels(name),
            _terminal=self._terminal.labels(name),
            _panics=self._panics.labels(name),
            _active=self._active.labels(name),
        )

    def queue(self, name: str) -> "QueueMetrics":
        """Returns the metrics of one work queue.

        Args:
            name: The value of the labels ``name`` and ``controller``.
        """
        return QueueMetrics(
            _depth=self._depth.labels(name, name, ""),
            _adds=self._adds.labels(name, name),
            _waited=self._waited.labels(name, name),
            _worked=self._worked.labels(name, name),
            _unfinished=self._unfinished.labels(name, name),
            _longest=self._longest.labels(name, name),
            _retries=self._retries.labels(name, name),
        )

    def request(self, method: str, code: str, host: str) -> None:
        """Counts a request to the API server.

        Args:
            method: E.g. ``GET``.
            code: HTTP status, or ``<error>`` if there was no answer.
            host: The server, with its port.
        """
        key = (code, method, host)
        counter = self._known_requests.get(key)
        if counter is None:
            counter = self._known_requests[key] = self._requests.labels(*key)
        counter.inc()

    def leader(self, name: str, held: bool) -> None:
        """Says whether this process holds the Lease `name`."""
        self._leader.labels(name).set(held)

    def render(self) -> bytes:
        """Renders everything in the Prometheus text format 0.0.4."""
        return generate_latest(_WithoutCreated(self._registry))


class _WithoutCreated(Collector):
    """Hides the `_created` series, which controller-runtime has not.

    prometheus_client has only a process-wide switch for this; flipping it would reach into other registries.
    """

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        for metric in self._inner.collect():
            metric.samples = [sample for sample in metric.samples if sample.name != f"{metric.name}_created"]
            yield metric


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    """The metrics of one controller."""

    _results: dict[str, Counter]
    _seconds: Histogram
    _errors: Counter
    _terminal: Counter
    _panics: Counter
    _active: Gauge

    def reconciled(self, result: str, seconds: float) -> None:
        """Counts a finished reconciliation.

        Args:
            result: ``success``, ``error``, ``requeue`` or ``requeue_after``.
            seconds: How long it took.

        Raises:
            KeyError: For any other result.
        """
        self._results[result].inc()
        self._seconds.observe(seconds)

    def error(self, *, terminal: bool = False) -> None:
        """Counts an error, beside the result; a terminal one is not retried."""
        self._errors.inc()
        if terminal:
            self._terminal.inc()

    def panic(self) -> None:
        """Counts an exception that nobody expected, beside the error."""
        self._panics.inc()

    def active(self, delta: int) -> None:
        """Changes the number of reconciliations under way."""
        self._active.inc(delta)


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """The metrics of one work queue."""

    _depth: Gauge
    _adds: Counter
    _waited: Histogram
    _worked: Histogram
    _unfinished: Gauge
    _longest: Gauge
    _retries: Counter

    def added(self) -> None:
        """Counts a key that was added (one that waits already is not added)."""
        self._adds.inc()

    def depth(self, n: int) -> None:
        """Sets the number of keys that wait to be worked on."""
        self._depth.set(n)

    def waited(self, seconds: float) -> None:
        """Records how long a key waited before it was worked on."""
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        """Records how long work on a key took."""
        self._worked.observe(seconds)

    def retried(self) -> None:
        """Counts a key that is added again after a failure."""
        self._retries.inc()

    def track(self, callback: Callable[[], tuple[float, float]]) -> None:
        """Asks for the work under way whenever the metrics are read.

        Args:
            callback: Returns the sum of the ages of all work under way and the age of the oldest, seconds.
        """
        self._unfinished.set_function(lambda: callback()[0])
        self._longest.set_function(lambda: callback()[1])


class Telemetry:
    """The HTTP endpoints: ``/metrics`` on one address, ``/healthz`` and ``/readyz`` on another.

    Attributes:
        metrics_port: The port in use while it runs; None if off.
        health_port: The same for the health endpoints.
    """

    def __init__(
        self, metrics: Metrics, metrics_address: str, health_address: str, live: Checks, ready: Checks
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
                    "/healthz": _check_handler("healthz", self._live),
                    "/readyz": _check_handler("readyz", self._ready),
                },
            ) as health_port,
        ):
            self.metrics_port, self.health_port = metrics_port, health_port
            task_status.started()
            await anyio.sleep_forever()

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _check_handler(name: str, checks: Checks) -> _Handler:
    """Makes the handler of a health endpoint, in the manner of Kubernetes' own (``?verbose`` lists all)."""

    async def handle(request: web.Request) -> web.Response:
        answers = {check: ask() for check, ask in checks.items()}
        failed = [f"{check}: {answer}" for check, answer in answers.items() if answer is not None]
        if "verbose" in request.query:
            lines = [f"[-]{c} failed: {a}" if a is not None else f"[+]{c} ok" for c, a in answers.items()]
            lines.append(f"{name} check {'failed' if failed else 'passed'}")
        else:
            lines = failed or ["ok"]
        return web.Response(text="\n".join(lines) + "\n" * (len(lines) > 1), status=500 if failed else 200)

    return handle


@asynccontextmanager
async def _listening(
    purpose: str, address: Address | None, handlers: Mapping[str, _Handler]
) -> AsyncIterator[int | None]:
    """Listens while the context is open; yields the port in use, None if the address is off."""
    if address is None:
        yield None
        return
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in handlers.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    # All interfaces are two sockets, one per IP family, which would get two different free ports.
    host = address.host or (None if address.port else "0.0.0.0")  # noqa: S104 - asked for
    try:
        try:
            await web.TCPSite(runner, host, address.port).start()
        except OSError as error:
            raise ListenError(
                f"cannot listen on {address} for {purpose}: {error.strerror or error}"
            ) from error
        yield runner.addresses[0][1]
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
