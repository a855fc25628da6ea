"""The metrics of a process, by the names, labels and buckets of Go's controller-runtime.

Called by the client (requests), queues and controllers (their work) and the leader election; who measures
something else has metrics of its own beside these, in the same registry. Invariant: nothing here blocks or
does I/O on the path of work; what takes computing is computed when read.
"""

import re
from collections.abc import Callable, Iterable

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from controller.runtime.calls import Call

_RECONCILE_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60),
)
_QUEUE_BUCKETS_S = tuple(10.0**exponent for exponent in range(-8, 4))
_RESULTS = ("success", "error", "requeue", "requeue_after")


class ProcessMetrics:
    """What every process has: its own figures, its requests to the API server, a registry for more.

    Attributes:
        registry: Where more metrics may be put before the first `render`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server",
            ("code", "method", "host"),
            registry=self.registry,
        )
        self._known_requests: dict[tuple[str, str, str], Counter] = {}

    def request(self, call: Call, code: str, host: str) -> None:
        """Counts a request to the API server.

        Args:
            call: The request.
            code: HTTP status, or ``<error>`` if there was no answer.
            host: The server, with its port.
        """
        key = (code, call.method, host)
        counter = self._known_requests.get(key)
        if counter is None:
            counter = self._known_requests[key] = self._requests.labels(*key)
        counter.inc()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Renders everything in the format that a reader wants most: OpenMetrics 1.0.0, or the older text.

        Args:
            accept: The reader's header of this name.

        Returns:
            The text and its Content-Type.
        """
        registry = _WithoutCreated(self.registry)
        if wants_openmetrics(accept):
            body: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
            return body, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def wants_openmetrics(accept: str) -> bool:
    """Whether the reader with this Accept header understands OpenMetrics 1, and likes no other text more."""
    best = {True: 0.0, False: 0.0}
    for part in accept.split(","):
        kind, *parameters = (text.strip() for text in part.lower().split(";"))
        values = dict(text.partition("=")[::2] for text in parameters)
        is_open = kind == "application/openmetrics-text"
        if is_open and values.get("version", "1.0.0").partition(".")[0] != "1":
            continue
        weight = values.get("q", "1")
        if is_open or kind in ("text/plain", "text/*", "*/*"):
            q = float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 0.0
            best[is_open] = max(best[is_open], q)
    return best[True] > 0.0 and best[True] >= best[False]


class Metrics(ProcessMetrics):
    """All metrics of a process that reconciles."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry

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
        self._active = gauge(f"{prefix}active_workers", "Reconciliations that hold a slot", by)

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

        self._leader = gauge("leader_election_master_status", "1 while this process leads", "name")

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

    def leader(self, name: str, held: bool) -> None:
        """Says whether this process holds the Lease `name`."""
        self._leader.labels(name).set(held)


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


class ControllerMetrics(Struct, frozen=True):
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
            seconds: How long it took, without its waits for others.

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
        """Changes the number of reconciliations that hold a slot; those that wait for others hold none."""
        self._active.inc(delta)


class QueueMetrics(Struct, frozen=True):
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
