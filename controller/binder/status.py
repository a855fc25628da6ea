"""What an attempt means for the world: status, conditions, events, and when to try again. All pure.

The scheduler reads phase and failedAttempts (B-13): a request has failed for good once its phase is Failed
and failedAttempts has reached backoffLimit, or there is no limit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from controller.binder.pipeline import Attempt
from controller.kai.names import POD_BOUND
from controller.kai.outcome import DependencyNotMet, Failed, Outcome, Ready, Skipped
from controller.kai.reasons import ConditionType, Phase, Reason
from controller.kai.request import BindRequest, BindStatus
from controller.runtime.client import Object
from controller.runtime.reconcile import Result
from controller.runtime.reporting import cut, merge_condition
from controller.runtime.workqueue import Backoff

TEXT_LIMIT = 4096
"""Bytes of a message. The schema allows more, but nobody reads more."""

NEVER_ON_POD = frozenset({Reason.POD_REPLACED, Reason.ALREADY_BOUND_ELSEWHERE})
"""Failures that say nothing of the pod there is now: one is another pod, the other is bound."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event to be sent."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
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


def succeeded(
    request: BindRequest, generation: int, old: BindStatus, attempt: Attempt, now: datetime
) -> Report:
    """The report of an attempt that ended with the pod on its node."""
    status = {
        "phase": Phase.SUCCEEDED,
        "reason": None,
        "observedGeneration": generation,
        "conditions": _conditions(generation, old, attempt, now),
    }
    text = f"Pod bound successfully to node {request.node_name}"
    return Report(
        status=status,
        pod_condition={"type": POD_BOUND, "status": "True", "reason": "Bound", "message": text},
        pod_event=Event("Normal", "Bound", text),
        request_event=None,
        result=Result(),
    )


def failed(
    request: BindRequest | None,
    generation: int,
    old: BindStatus,
    attempt: Attempt,
    now: datetime,
    backoff: Backoff,
    *,
    limit: int | None = None,
) -> Report:
    """The report of an attempt that failed.

    Args:
        request: None if it cannot be understood.
        generation: Of its spec.
        old: The status as it stands.
        attempt: The attempt, whose ending is Failed.
        now: The time.
        backoff: Delays between attempts.
        limit: The backoffLimit of a request that cannot be understood, if that much can be read.
    """
    ending = attempt.ending
    assert isinstance(ending, Failed)  # noqa: S101 -- the caller's promise
    limit = request.backoff_limit if request is not None else limit
    attempts = _attempts_so_far(generation, old) + 1
    if not ending.retry and limit is not None:
        attempts = max(attempts, limit)  # the scheduler must not wait for attempts that will not come
    head = f"{attempt.culprit} {ending.reason}"
    status: Object = {
        "phase": Phase.FAILED,
        "reason": cut(f"{head}: {ending.message}", TEXT_LIMIT),
        "failedAttempts": attempts,
        "observedGeneration": generation,
        "conditions": _conditions(generation, old, attempt, now),
    }
    retry = limit is not None and attempts < limit
    is_news = not old.reason.startswith(f"{head}:")
    condition, event = _pod_failure(request, ending)
    return Report(
        status=status,
        pod_condition=condition,
        pod_event=event,
        request_event=Event("Warning", ending.reason, _whole_message(attempt.culprit, ending))
        if is_news
        else None,
        result=Result(backoff.delay_s(attempts) if retry else None),
    )


def waiting(
    generation: int,
    old: BindStatus,
    order: tuple[str, ...],
    waits: Mapping[str, str],
    outcomes: Mapping[str, Outcome],
    now: datetime,
) -> Object:
    """What is to stand in the status while a step waits for somebody else.

    Args:
        generation: Of the request's spec.
        old: The status as it stands.
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
    status: Object = {"observedGeneration": generation, "conditions": _dated(generation, old, ordered, now)}
    if _is_of_another_spec(generation, old):
        # Or this spec would be taken for one that has failed, for good perhaps.
        status |= {"phase": Phase.PENDING, "reason": None, "failedAttempts": 0}
    return status


def refreshed(status: Object, order: Collection[str], item: Object) -> Object:
    """A status that could not be written, with the conditions of others as the request has them now.

    Args:
        status: What is to be written.
        order: Condition types of all steps.
        item: The request as it is now.
    """
    types = {*order, ConditionType.BOUND}
    ours = [condition for condition in status["conditions"] if condition["type"] in types]
    return {**status, "conditions": ours + _of_others(BindStatus.of(item), types)}


def json_patch(item: Object, status: Object) -> list[Object]:
    """A JSON patch that writes `status` into this very request.

    The scheduler deletes a failed request and makes another of the same name within a second. A merge patch
    of a custom resource's status applies to that one too, whatever uid it carries (seen on v1.36); a `test`
    does not (422). Fields of others are left alone; if the object has changed such that the patch does not
    fit, it is refused as well.

    Args:
        item: The request as last seen.
        status: Fields of the status; None for one that is to go.
    """
    patch: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": item["metadata"]["uid"]}]
    present = item.get("status")
    if not isinstance(present, dict):
        patch.append({"op": "test", "path": "/status", "value": present})
        fields = {name: value for name, value in status.items() if value is not None}
        return [*patch, {"op": "add", "path": "/status", "value": fields}]
    if "conditions" in present and "conditions" in status:
        # The list is written whole: what others have put there since must not be lost.
        patch.append({"op": "test", "path": "/status/conditions", "value": present["conditions"]})
    for name, value in status.items():
        if value is not None:
            patch.append({"op": "add", "path": f"/status/{name}", "value": value})
        elif name in present:
            patch.append({"op": "remove", "path": f"/status/{name}"})
    return patch


@dataclass(frozen=True, slots=True)
class _Line:
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def _is_of_another_spec(generation: int, old: BindStatus) -> bool:
    return old.observed_generation is not None and old.observed_generation != generation


def _attempts_so_far(generation: int, old: BindStatus) -> int:
    """Failed attempts of this spec; a changed spec starts anew."""
    return 0 if _is_of_another_spec(generation, old) else old.failed_attempts


def _pod_failure(request: BindRequest | None, ending: Failed) -> tuple[Object | None, Event | None]:
    """Condition and event for the pod, as far as it is the pod's business."""
    if request is None or ending.reason == Reason.POD_REPLACED:
        return None, None
    pod = f"{request.namespace}/{request.pod_name}"
    text = f"Failed to bind pod {pod} to node {request.node_name}: {ending.message}"
    event = Event("Warning", "BindingError", text)
    if ending.reason in NEVER_ON_POD:
        return None, event
    message = cut(text, TEXT_LIMIT)
    return {"type": POD_BOUND, "status": "False", "reason": "BindingError", "message": message}, event


def _conditions(generation: int, old: BindStatus, attempt: Attempt, now: datetime) -> list[Object]:
    lines: dict[str, _Line] = {}
    for type_ in attempt.order:
        outcome = attempt.outcomes.get(type_)
        lines[type_] = _line(outcome) if outcome is not None else _not_run(attempt)
    lines[ConditionType.BOUND] = _bound(attempt)
    return _dated(generation, old, lines, now)


def _dated(generation: int, old: BindStatus, lines: Mapping[str, _Line], now: datetime) -> list[Object]:
    """The whole list: ours in order, then those of others, which Kubernetes wants to have a domain."""
    ours = [
        merge_condition(
            old.conditions,
            {
                "type": str(type_),
                "status": line.status,
                "reason": str(line.reason),
                "message": cut(line.message, TEXT_LIMIT),
                "observedGeneration": generation,
            },
            now,
        )
        for type_, line in lines.items()
    ]
    return ours + _of_others(old, set(lines))


def _of_others(status: BindStatus, ours: Collection[str]) -> list[Object]:
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


def _not_run(attempt: Attempt) -> _Line:
    match attempt.ending:
        case Ready():
            return _Line("Unknown", Reason.ALREADY_BOUND, "did not run: the pod was on its node already")
        case Failed(reason):
            source = "the request" if attempt.culprit == ConditionType.BOUND else attempt.culprit
            return _Line("Unknown", Reason.BLOCKED, f"did not run: {source} failed with {reason}")


def _bound(attempt: Attempt) -> _Line:
    match attempt.ending:
        case Ready(message):
            return _Line("True", Reason.RECONCILED, message)
        case Failed(reason):
            return _Line("False", reason, _whole_message(attempt.culprit, attempt.ending))


def _whole_message(culprit: str, ending: Failed) -> str:
    """The message with the step that failed, where it was one."""
    return ending.message if culprit == ConditionType.BOUND else f"{culprit}: {ending.message}"
