"""What an attempt means for the world: status, conditions, events, and when to try again. All pure.

The scheduler reads phase and failedAttempts (B-13): a request has failed for good once its phase is Failed
and failedAttempts has reached backoffLimit, or there is no limit.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from controller.kai.names import POD_BOUND
from controller.kai.outcome import DependencyNotMet, Ending, Failed, Outcome, Ready, Skipped
from controller.kai.reasons import ConditionType, Phase, Reason
from controller.kai.request import BindRequest, BindStatus, backoff_limit_of
from controller.runtime.client import Object
from controller.runtime.reconcile import Result
from controller.runtime.reporting import cut, merge_condition
from controller.runtime.workqueue import Backoff

TEXT_LIMIT = 4096
"""Bytes of a message. The schema allows more, but nobody reads more."""

NEVER_ON_POD = frozenset(
    {
        Reason.POD_REPLACED,
        Reason.ALREADY_BOUND_ELSEWHERE,
        Reason.REQUEST_DELETED,
        Reason.REQUEST_CHANGED,
    }
)
"""Failures that say nothing of the pod there is now: it is another one, or bound, or wanted elsewhere."""

_MOST_ATTEMPTS = 2**31 - 1
"""What failedAttempts can hold."""


class Event(Struct, frozen=True):
    """An event to be sent."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


class Report(Struct, frozen=True):
    """Everything that an attempt is to be told as.

    Attributes:
        status: What is to stand in the request's status; None for a field that is to go.
        pod_condition: For the pod, without times; None if nothing is to be said there.
        pod_event: For the pod, likewise.
        request_event: For the request; None unless it fails for a new reason.
        result: When to try again, if at all.
    """

    status: Object
    pod_condition: Object | None
    pod_event: Event | None
    request_event: Event | None
    result: Result


class Standing(Struct, frozen=True):
    """A request as it stands, so far as its status goes.

    Attributes:
        generation: Of the spec that was worked on.
        status: The status, as last seen.
        limit: The backoffLimit, as the scheduler reads it even of a request that makes no sense.
    """

    generation: int
    status: BindStatus
    limit: int | None

    @classmethod
    def of(cls, item: Object, latest: Object) -> "Standing":
        """Reads it.

        Args:
            item: The request that was worked on.
            latest: The same, perhaps with a newer status.
        """
        return cls(item["metadata"].get("generation", 0), BindStatus.of(latest), backoff_limit_of(item))

    @property
    def is_of_another_spec(self) -> bool:
        """Whether the status speaks of another spec than the one that was worked on."""
        return self.status.observed_generation not in (None, self.generation)

    def attempts_after(self, failure: Failed) -> int:
        """What failedAttempts is after one more attempt has failed so; a changed spec starts anew."""
        attempts = 1 if self.is_of_another_spec else min(self.status.failed_attempts + 1, _MOST_ATTEMPTS)
        if failure.retry or self.limit is None:
            return attempts
        return max(attempts, self.limit)  # the scheduler must not wait for attempts that will not come

    def is_final(self, failure: Failed) -> bool:
        """Whether no further attempt follows one that failed so."""
        return self.limit is None or self.attempts_after(failure) >= self.limit


def report(
    request: BindRequest, standing: Standing, ending: Ending, now: datetime, backoff: Backoff
) -> Report:
    """What an attempt is to be told as.

    Args:
        request: The request.
        standing: How it stood.
        ending: The attempt.
        now: The time.
        backoff: Delays between attempts.
    """
    match ending.verdict:
        case Ready():
            return _succeeded(request, standing, ending, now)
        case Failed() as failure:
            if failure.reason == Reason.REQUEST_CHANGED:
                return _changed(standing, ending, failure, now)
            condition, event = _pod_failure(request, failure)
            told = _failed(standing, ending, failure, now, backoff)
            return replace(told, pod_condition=condition, pod_event=event)


def refused(
    pod_name: str,
    standing: Standing,
    failure: Failed,
    order: tuple[str, ...],
    now: datetime,
    backoff: Backoff,
) -> Report:
    """The report of a request that cannot be understood.

    Args:
        pod_name: Namespace and name of the pod that it is for and that waits; empty if that is not known.
        standing: How it stood.
        failure: What is wrong with it.
        order: Condition types of all steps.
        now: The time.
        backoff: Delays between attempts.
    """
    told = _failed(standing, Ending(order, {}, failure), failure, now, backoff)
    if not pod_name:
        return told
    condition, event = _not_bound(f"Failed to bind pod {pod_name}: {failure.message}")
    return replace(told, pod_condition=condition, pod_event=event)


def _succeeded(request: BindRequest, standing: Standing, ending: Ending, now: datetime) -> Report:
    status = {
        "phase": Phase.SUCCEEDED,
        "reason": None,
        "observedGeneration": standing.generation,
        "conditions": _conditions(standing, ending, now),
    }
    text = f"Pod bound successfully to node {request.node_name}"
    return Report(
        status=status,
        pod_condition={"type": POD_BOUND, "status": "True", "reason": "Bound", "message": text},
        pod_event=Event("Normal", "Bound", text),
        request_event=None,
        result=Result(),
    )


def _failed(standing: Standing, ending: Ending, failure: Failed, now: datetime, backoff: Backoff) -> Report:
    head, attempts = f"{ending.culprit} {failure.reason}", standing.attempts_after(failure)
    status: Object = {
        "phase": Phase.FAILED,
        "reason": cut(f"{head}: {failure.message}", TEXT_LIMIT),
        "failedAttempts": attempts,
        "observedGeneration": standing.generation,
        "conditions": _conditions(standing, ending, now),
    }
    is_news = not standing.status.reason.startswith(f"{head}:")
    event = Event("Warning", failure.reason, _whole_message(ending.culprit, failure))
    return Report(
        status=status,
        pod_condition=None,
        pod_event=None,
        request_event=event if is_news else None,
        result=Result(None if standing.is_final(failure) else backoff.delay_s(attempts), failed=True),
    )


def _changed(standing: Standing, ending: Ending, failure: Failed, now: datetime) -> Report:
    """Of an attempt that ended as the spec is another one by now: nothing has failed, and the next begins.

    A phase Failed would have the scheduler take the request for one that is over.
    """
    status: Object = {"conditions": _conditions(standing, ending, now)}
    return Report(
        status=_begun(standing, status),
        pod_condition=None,
        pod_event=None,
        request_event=Event("Warning", failure.reason, _whole_message(ending.culprit, failure)),
        result=Result(),
    )


def waiting(
    standing: Standing,
    order: tuple[str, ...],
    waits: Mapping[str, str],
    outcomes: Mapping[str, Outcome],
    now: datetime,
) -> Object:
    """What is to stand in the status while a step waits for somebody else.

    Args:
        standing: How the request stands.
        order: Condition types of all steps.
        waits: What is waited for, by the condition type of the step that waits.
        outcomes: Of the steps that ran.
        now: The time.
    """
    lines: dict[str, _Line] = {}
    for type_ in order:
        outcome = outcomes.get(type_)
        if outcome is not None:
            lines[type_] = _line(outcome)
        elif type_ not in waits:
            lines[type_] = _Line("Unknown", Reason.BLOCKED, f"has not run yet: {', '.join(waits)} waits")
    for type_, what in waits.items():
        lines[type_] = _Line("Unknown", Reason.WAITING, f"waits for {what}")
    what = "; ".join(f"{type_} waits for {text}" for type_, text in waits.items())
    lines[ConditionType.BOUND] = _Line("Unknown", Reason.WAITING, what)
    ordered = {type_: lines[type_] for type_ in (*order, ConditionType.BOUND)}
    return _begun(standing, {"conditions": _dated(standing, ordered, now)})


def _begun(standing: Standing, status: Object) -> Object:
    """The status of a request whose attempt has not ended yet."""
    status["observedGeneration"] = standing.generation
    if standing.is_of_another_spec:
        # Or this spec would be taken for one that has failed, for good perhaps.
        status |= anew()
    return status


def anew() -> Object:
    """What a status of another spec has to say instead of how that failed."""
    return {"phase": Phase.PENDING, "reason": None, "failedAttempts": 0}


class _Line(Struct, frozen=True):
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def _pod_failure(request: BindRequest, failure: Failed) -> tuple[Object | None, Event | None]:
    """Condition and event for the pod, as far as it is the pod's business."""
    if failure.reason == Reason.POD_REPLACED:
        return None, None
    text = f"Failed to bind pod {request.full_pod_name} to node {request.node_name}: {failure.message}"
    condition, event = _not_bound(text)
    return (None if failure.reason in NEVER_ON_POD else condition), event


def _not_bound(text: str) -> tuple[Object, Event]:
    message = cut(text, TEXT_LIMIT)
    condition: Object = {"type": POD_BOUND, "status": "False", "reason": "BindingError", "message": message}
    return condition, Event("Warning", "BindingError", text)


def _conditions(standing: Standing, ending: Ending, now: datetime) -> list[Object]:
    lines: dict[str, _Line] = {}
    for type_ in ending.order:
        outcome = ending.outcomes.get(type_)
        overtaken = isinstance(ending.verdict, Ready) and type_ == ending.culprit
        lines[type_] = _line(outcome) if outcome is not None and not overtaken else _not_run(ending, outcome)
    # Whoever asks later what the pod was given has to see that it was perhaps not by this request.
    is_told = any(line.reason == Reason.ALREADY_BOUND for line in lines.values())
    bound = _bound(ending)
    is_found = ending.was_found and not is_told
    lines[ConditionType.BOUND] = replace(bound, reason=Reason.ALREADY_BOUND) if is_found else bound
    return _dated(standing, lines, now)


def _dated(standing: Standing, lines: Mapping[str, _Line], now: datetime) -> list[Object]:
    """The whole list: ours in order, then those of others, which Kubernetes wants to have a domain."""
    ours = [
        merge_condition(
            standing.status.conditions,
            {
                "type": str(type_),
                "status": line.status,
                "reason": str(line.reason),
                "message": cut(line.message, TEXT_LIMIT),
                "observedGeneration": standing.generation,
            },
            now,
        )
        for type_, line in lines.items()
    ]
    return ours + of_others(standing.status, set(lines))


def of_others(status: BindStatus, ours: Collection[str]) -> list[Object]:
    """Conditions that are not of these types and have a domain, as Kubernetes wants it of a stranger's."""
    others = [item for item in status.conditions if str(item.get("type")) not in ours]
    return [item for item in others if "/" in str(item.get("type"))]


def _line(outcome: Outcome) -> _Line:
    match outcome:
        case Ready(message):
            return _Line("True", Reason.RECONCILED, message)
        case Skipped(message):
            return _Line("True", Reason.NOT_APPLICABLE, message)
        case DependencyNotMet(message):
            return _Line("False", Reason.DEPENDENCY_NOT_MET, message)
        case Failed(reason, message):
            return _Line("False", reason, message)


def _not_run(ending: Ending, outcome: Outcome | None) -> _Line:
    """Of a step that did not run, or did not matter in the end."""
    match ending.verdict:
        case Ready():
            text = "did not run: the pod was on its node already"
            if outcome is not None:
                text = f"had failed when the pod got to its node all the same: {outcome.message}"
            return _Line("True", Reason.ALREADY_BOUND, text)
        case Failed(reason):
            source = "the request" if ending.culprit == ConditionType.BOUND else ending.culprit
            return _Line("Unknown", Reason.BLOCKED, f"did not run: {source} failed with {reason}")


def _bound(ending: Ending) -> _Line:
    match ending.verdict:
        case Ready(message):
            return _Line("True", Reason.RECONCILED, message)
        case Failed(reason) as failure:
            return _Line("False", reason, _whole_message(ending.culprit, failure))


def _whole_message(culprit: str, failure: Failed) -> str:
    """The message with the step that failed, where it was one."""
    return failure.message if culprit == ConditionType.BOUND else f"{culprit}: {failure.message}"
