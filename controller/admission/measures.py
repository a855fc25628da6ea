"""What the webhook measures of itself; the process's own figures are in ``runtime.metrics``.

Called by the server, its certificate and the comparison with the binder. Invariant: labels have few values,
whoever calls.
"""

from datetime import datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER = "other"
"""The label of all paths that the webhook has not."""
_PREFIX = "kai_binder_admission_"
_BUCKETS_S = (
    *(
        0.0005,
        0.001,
        0.002,
        0.003,
        0.005,
        0.0075,
        0.01,
        0.015,
        0.02,
        0.03,
        0.05,
        0.075,
        0.1,
        0.25,
        0.5,
        1,
        2.5,
    ),
    *(5, 10),
)

Result = Literal["allowed", "refused", "bad", "failed"]
"""What became of a request: `bad` is none that can be answered, `failed` is our own fault."""
Comparison = Literal["same", "different", "untold", "unanswered"]
"""What is known of the binder's plugins, compared with the webhook's."""


class Measures:
    """The webhook's metrics, in the registry of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            f"{_PREFIX}requests_total",
            "Requests by what became of them",
            ["path", "result"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}request_duration_seconds",
            "From the request's head to the answer",
            ["path"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._not_after = Gauge(
            f"{_PREFIX}certificate_not_after_seconds", "When the certificate in use ends", registry=registry
        )
        self._binder = Gauge(
            f"{_PREFIX}binder_plugins",
            "1 for what the last comparison of the binder's plugins with the webhook's own has found",
            ["found"],
            registry=registry,
        )

    def answered(self, path: str, result: Result, seconds: float) -> None:
        """Counts a request; `path` is one of ours or `OTHER`."""
        self._requests.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def certificate(self, not_after: datetime) -> None:
        """Says when the certificate that is in use ends."""
        self._not_after.set(not_after.timestamp())

    def compared(self, found: Comparison) -> None:
        """Says what a comparison with the binder has found."""
        self._binder.clear()
        self._binder.labels(found).set(1)
