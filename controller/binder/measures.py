"""What the binder measures of its binds; what it knows of requests and GPUs is counted in `census`.

Called by the pipeline (steps and waits), the teller (attempts, binds) and the client (requests to the API
server). Invariant: each label has few values, whatever a request, a plugin from outside or a server says;
what can fail is there from the start as 0, or the first failure of a kind would be no increase.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram

from controller.kai.outcome import Outcome, Skipped
from controller.kai.reasons import ConditionType, Reason
from controller.runtime import errors
from controller.runtime.calls import Call

PREFIX = "kai_binder_"
OTHER = "Other"
"""The reason of all failures whose reason is a plugin's own."""
UNDO = "Undo"
"""The step in which a failed attempt is taken back."""

_BOUND, _FAILED, _WITHDRAWN, _INTERRUPTED = "bound", "failed", "withdrawn", "interrupted"
_WITHDRAWALS = frozenset({Reason.REQUEST_DELETED, Reason.REQUEST_CHANGED})
_NO_FAILURES = frozenset(
    {Reason.RECONCILED, Reason.NOT_APPLICABLE, Reason.ALREADY_BOUND, Reason.WAITING, Reason.BLOCKED}
)
_INTERRUPTIONS: tuple[tuple[type[errors.ApiError], str], ...] = (
    (errors.NotSentError, "NotSent"),
    (errors.NoAnswerError, "NoAnswer"),
    (errors.TooManyRequestsError, "TooManyRequests"),
    (errors.UnauthorizedError, "Unauthorized"),
    (errors.ServerError, "ServerError"),
)
_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BIND_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_MOST_RESOURCES = 100
"""Kinds that are told apart; a plugin from outside may ask for any."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Measures:
    """The binder's own metrics of its work, in the registry of the process."""

    def __init__(self, registry: CollectorRegistry, steps: Iterable[str]) -> None:
        """Registers them.

        Args:
            registry: Where they are read.
            steps: Condition types of all steps that an attempt can have.
        """
        self.waits: dict[object, tuple[str, float]] = {}
        """The waits for others now: step, and since when (monotonic)."""
        self.steps = (*dict.fromkeys((*steps, ConditionType.BOUND, UNDO)),)
        attempts = Counter(
            f"{PREFIX}bind_attempts_total",
            "Attempts at binds by how they ended",
            ["result", "reason"],
            registry=registry,
        )
        binds = Counter(
            f"{PREFIX}binds_total",
            "Requests that came to their end: pod bound, or failed for good",
            ["result", "reason"],
            registry=registry,
        )
        failures = [(_FAILED, reason) for reason in (*sorted(set(Reason) - _NO_FAILURES), OTHER)]
        ended = [(_BOUND, str(Reason.RECONCILED)), *((result, str(reason)) for result, reason in failures)]
        self._binds = {pair: binds.labels(*pair) for pair in ended}
        ended += [(_WITHDRAWN, str(reason)) for reason in _WITHDRAWALS]
        ended += [(_INTERRUPTED, reason) for reason in (*(word for _, word in _INTERRUPTIONS), OTHER)]
        self._attempts = {pair: attempts.labels(*pair) for pair in ended}
        failed = Counter(
            f"{PREFIX}step_failures_total",
            "Failed attempts by the step at fault",
            ["step"],
            registry=registry,
        )
        self._step_failures = {step: failed.labels(step) for step in self.steps}
        self._bind_s = Histogram(
            f"{PREFIX}bind_duration_seconds",
            "From the creation of a request to its pod being bound",
            buckets=_BIND_BUCKETS_S,
            registry=registry,
        )
        seconds = Histogram(
            f"{PREFIX}step_duration_seconds",
            "Time in a step of an attempt, waits for others included",
            ["step"],
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self._step_s = {step: seconds.labels(step) for step in self.steps}
        self._requests = Counter(
            f"{PREFIX}api_requests_total",
            "Requests to the API server",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self._known_requests: dict[tuple[str, str, str], Counter] = {}
        self._resources: set[str] = set()

    def succeeded(self, seconds: float) -> None:
        """Counts an attempt that bound its pod.

        Args:
            seconds: Since the request was created.
        """
        pair = _BOUND, str(Reason.RECONCILED)
        self._attempts[pair].inc()
        self._binds[pair].inc()
        self._bind_s.observe(seconds)

    def failed(self, step: str, reason: str, *, final: bool) -> None:
        """Counts an attempt that failed.

        Args:
            step: Condition type of the step at fault.
            reason: Of the failure.
            final: Whether no further attempt follows.
        """
        if reason in _WITHDRAWALS:
            self._attempts[_WITHDRAWN, str(reason)].inc()
            return
        pair = _FAILED, str(reason)
        if pair not in self._attempts:
            pair = _FAILED, OTHER
        self._attempts[pair].inc()
        self._step_failures.get(step, self._step_failures[ConditionType.BOUND]).inc()
        if final:
            self._binds[pair].inc()

    def interrupted(self, error: errors.ApiError) -> None:
        """Counts an attempt that the API server was not there for."""
        reason = next((word for kind, word in _INTERRUPTIONS if isinstance(error, kind)), OTHER)
        self._attempts[_INTERRUPTED, reason].inc()

    def took(self, step: str, seconds: float) -> None:
        """Records how long an attempt was in a step."""
        histogram = self._step_s.get(step)
        if histogram is not None:
            histogram.observe(seconds)

    def request(self, call: Call, code: str) -> None:
        """Counts a request to the API server.

        Args:
            call: The request.
            code: HTTP status, or ``<error>`` if there was no answer.
        """
        key = verb_of(call), self._resource_of(call), code
        counter = self._known_requests.get(key)
        if counter is None:
            counter = self._known_requests[key] = self._requests.labels(*key)
        counter.inc()

    def _resource_of(self, call: Call) -> str:
        plural = call.resource.plural
        if not plural:
            return "other"
        name = f"{plural}/{call.subresource}" if call.subresource else plural
        if name not in self._resources:
            if len(self._resources) >= _MOST_RESOURCES:
                return "other"
            self._resources.add(name)
        return name


def verb_of(call: Call) -> str:
    """What a request does, as Kubernetes' own metrics name it."""
    if call.method != "GET":
        return _VERBS.get(call.method, "other")
    if "watch" in call.params:
        return "watch"
    return "list" if call.lists else "get"


class AttemptClock:
    """Where the time of one attempt goes: it is in one step at a time."""

    def __init__(self, measures: Measures, now: Callable[[], float] = monotonic) -> None:
        self._measures = measures
        self._now = now
        self._seconds: dict[str, float] = {}
        self._step: str | None = None
        self._since_s = 0.0

    def enter(self, step: str) -> None:
        """The attempt is in this step from now on."""
        if step == self._step:
            return
        self._leave()
        self._step = step

    def _leave(self) -> None:
        now = self._now()
        if self._step is not None:
            self._seconds[self._step] = self._seconds.get(self._step, 0.0) + now - self._since_s
        self._since_s = now

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The attempt waits for somebody else for as long as the block lasts."""
        wait = object()
        self._measures.waits[wait] = self._step or ConditionType.BOUND, self._now()
        try:
            yield
        finally:
            del self._measures.waits[wait]

    def stop(self, outcomes: Mapping[str, Outcome]) -> None:
        """Records the time of each step; one that had nothing to do took none.

        Args:
            outcomes: By condition type.
        """
        self._leave()
        for step, seconds in self._seconds.items():
            if not isinstance(outcomes.get(step), Skipped):
                self._measures.took(step, seconds)
