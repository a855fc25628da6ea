"""What to do, for all that is known of one pod. Pure; called by `judge.py`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from controller.explain.answer import Attempts, Decision, Event, Group, Leader, Pod, Step
from controller.explain.facts import mapping, waiting_reasons
from controller.explain.findings import Findings
from controller.explain.options import Options
from controller.explain.remedies import REMEDIES, SITUATIONS, UNNAMED_DELETION, Advice, advice_for
from controller.kai.reasons import ConditionType, Phase, Reason
from controller.kai.request import BindStatus

_HEAD = re.compile(r"(?P<step>\w+) (?P<reason>\w+): ")
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_HINDRANCES: Mapping[str, frozenset[str]] = {
    "ImageOfReservation": _IMAGE,
    "StartOfReservation": _CONFIG | {"CrashLoopBackOff"},
}
"""What keeps a reservation pod from reporting its GPU, by what its status says of that."""
_WAITS = {
    ConditionType.GPU_RESERVED: "WaitingForReservation",
    "VolumeBinding": "WaitingForVolume",
    "DynamicResources": "WaitingForDevices",
}
TAKEN_UP_S = 10.0
"""A binder that works has written something to a request by then."""
_STARTED_S = 60.0


class Case(Struct, frozen=True, kw_only=True):
    """All that is known of a pod.

    Attributes:
        findings: As read.
        pod: The pod.
        decision: Of the scheduler, if there is a request.
        steps: Conditions of the request.
        attempts: How often it was tried.
        leader: Whether a binder leads.
        events: Of all of these.
        is_bound: Whether it is bound.
        options: Where binder and reservations are.
        now: The time.
    """

    findings: Findings
    pod: Pod
    decision: Decision | None
    steps: tuple[Step, ...]
    attempts: Attempts | None
    leader: Leader
    events: tuple[Event, ...]
    is_bound: bool
    options: Options
    now: datetime

    @property
    def age_s(self) -> float:
        """Seconds since the request was made."""
        request = self.findings.found.request
        made = mapping(request["metadata"]).get("creationTimestamp") if request is not None else None
        return (self.now - datetime.fromisoformat(made)).total_seconds() if made else 0.0


def advice_of(case: Case) -> tuple[Advice, ...]:
    """What to do, the most telling first; each once."""
    found = _of_bound(case) if case.is_bound else _of_unbound(case)
    advice: dict[str, Advice] = {}
    for about, reason in found:
        advice.setdefault(reason, _one(case, about, reason))
    return tuple(advice.values())


def _one(case: Case, about: str, reason: str) -> Advice:
    """The advice; to delete a reservation pod only if it is known which, and that nobody is on its GPU."""
    made = advice_for(about, reason, words_of(case, about, reason))
    return replace(made, steps=tuple(step for step in made.steps if UNNAMED_DELETION not in step))


def then_of(case: Case, advice: tuple[Advice, ...]) -> str:
    """What follows once the advice was taken, or empty."""
    remedies = [REMEDIES.get(item.reason) or SITUATIONS.get(item.reason) for item in advice]
    again = any(remedy is None or remedy.again for remedy in remedies)
    if case.is_bound or case.attempts is None or not again:
        return ""
    failed = BindStatus.of(case.findings.found.request or {}).phase == Phase.FAILED
    if not case.attempts.is_over:
        goes_on = "the binder tries again" if failed else "the bind goes on"
        return f"Then wait: {goes_on} by itself."
    if not failed:
        return ""
    metadata = mapping((case.findings.found.request or {}).get("metadata"))
    command = f"kubectl delete bindrequest {metadata.get('name')} -n {metadata.get('namespace')}"
    return (
        "Then have it decided anew: KAI's scheduler deletes a request that has failed for good and makes "
        f"another one. To hurry it: {command}"
    )


def _of_bound(case: Case) -> Iterator[tuple[str, str]]:
    """Of a pod that is bound: why it does not run."""
    pod = case.findings.found.pod.one
    if pod is None or case.pod.phase not in ("Pending", "Running"):
        return
    name, reasons = f"pod {case.pod.name}", list(waiting_reasons(pod))
    for reason in reasons:
        if reason in _IMAGE:
            yield name, "Image"
        elif reason in _CONFIG:
            yield name, "ContainerConfig"
        elif reason == "CrashLoopBackOff":
            yield name, "Crashing"
    if not reasons and case.pod.phase == "Pending" and case.age_s > _STARTED_S:
        yield name, "NotRunning"


def _of_unbound(case: Case) -> Iterator[tuple[str, str]]:
    found, request = case.findings.found, case.findings.found.request
    if case.pod.exists and not case.pod.is_of_request:
        yield "Bound", Reason.POD_REPLACED
        return
    if case.pod.is_known and not case.pod.exists and request is not None:
        yield "Bound", Reason.POD_NOT_FOUND
        return
    if case.pod.phase in ("Succeeded", "Failed"):
        yield "Bound", Reason.POD_FINISHED
        return
    if case.pod.is_deleting:
        yield "Bound", Reason.POD_TERMINATING
        return
    if request is None:
        yield from _of_undecided(case)
        return
    if request["metadata"].get("deletionTimestamp"):
        yield f"request {request['metadata']['name']}", "RequestDeleting"
        return
    if BindStatus.of(request).phase == Phase.SUCCEEDED:
        yield f"request {request['metadata']['name']}", "SucceededUnbound"
        return
    failures = list(_of_conditions(case)) or list(_of_reason_line(case))
    yield from _refined(case, failures)
    if case.leader.leads is False and not (case.attempts and case.attempts.is_over):
        yield "binder", "NoLeader"
    elif not failures and case.age_s > TAKEN_UP_S:
        yield "binder", "NotTakenUp"
    if len(found.requests) > 1:
        yield f"pod {case.pod.name}", "RequestAside"


def _of_undecided(case: Case) -> Iterator[tuple[str, str]]:
    """Of a pod without a request: the last one may have failed; the scheduler deletes it then."""
    if case.findings.found.requests_problem:
        return
    for item in case.findings.found.stale:  # the scheduler gives requests the name of the pod
        if item["metadata"]["name"] == case.pod.name:
            yield f"the BindRequest of an earlier pod, {case.pod.name}", Reason.POD_REPLACED
    told = [event for event in case.events if event.about.startswith("BindRequest/")]
    for event in reversed(told):
        remedy = REMEDIES.get(event.reason)
        if event.kind == "Warning" and remedy is not None and remedy.again:
            yield f"the last BindRequest, {event.about.partition('/')[2]}", event.reason
            break
    name = f"pod {case.pod.name}"
    is_kai = case.pod.scheduler in ("", case.options.scheduler_name)
    yield name, "NoRequest" if is_kai else "OtherScheduler"


def _of_conditions(case: Case) -> Iterator[tuple[str, str]]:
    """The failures, the whole's only if no step has the same reason; then what is waited for."""
    current = [step for step in case.steps if step.is_ours and not step.is_stale]
    failed = [step for step in current if step.status == "False"]
    inner = [step for step in failed if step.type != ConditionType.BOUND]
    reasons = {step.reason for step in inner}
    for step in (*inner, *failed):
        if step in inner or step.reason not in reasons:
            yield step.type, step.reason
    for step in current:
        if step.status == "Unknown" and step.reason == Reason.WAITING and step.type != ConditionType.BOUND:
            yield step.type, _WAITS.get(step.type, Reason.WAITING)


def _of_reason_line(case: Case) -> Iterator[tuple[str, str]]:
    """What status.reason says, where there are no conditions."""
    status = BindStatus.of(case.findings.found.request or {})
    if status.phase != Phase.FAILED:
        return
    head = _HEAD.match(status.reason)
    if head is None:
        yield "status.reason", "Other"
    else:
        yield head["step"], head["reason"]


def _refined(case: Case, failures: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The same, with what the reservation pods say of themselves first."""
    reserving = {"WaitingForReservation", Reason.RESERVATION_TIMEOUT, Reason.RESERVATION_FAILED}
    if any(reason in reserving for _, reason in failures):
        groups = case.decision.groups if case.decision is not None else ()
        texts = [group.hindrances for group in groups if not group.device]
        if any(not group.reservation for group in groups):  # what is gone, the condition may still tell of
            texts += (step.message for step in case.steps if step.type == ConditionType.GPU_RESERVED)
        for reason, words in _HINDRANCES.items():
            if any(word in text for word in words for text in texts):
                yield ConditionType.GPU_RESERVED, reason
                failures = [(about, other) for about, other in failures if other not in reserving]
                break
    yield from failures


def words_of(case: Case, about: str, reason: str = "") -> Mapping[str, str]:
    """What is known of the names that remedies speak of; of reservation pods none that may be in use."""
    request = case.findings.found.request
    groups = case.decision.groups if case.decision is not None else ()
    held = _held(groups, reason)
    return {
        "namespace": case.pod.namespace,
        "pod": case.pod.name,
        "request": str(request["metadata"]["name"]) if request is not None else about.rpartition(", ")[2],
        "node": case.decision.node if case.decision is not None else case.pod.node,
        "group": groups[0].name if groups else "",
        "claim": _claim(case, about),
        "reservation": held.reservation.rpartition("/")[2] if held is not None else _named(case, reason),
        "image": held.image if held is not None else "",
        "reservation-namespace": case.options.reservation_namespace,
        "binder-namespace": case.options.binder_namespace,
    }


def _held(groups: Iterable[Group], reason: str) -> Group | None:
    """The group whose reservation pod a remedy speaks of: one without a device, with this hindrance now."""
    waiting = (group for group in groups if group.reservation and not group.device)
    if reason not in _HINDRANCES:
        return next(waiting, None)
    words = _HINDRANCES[reason]
    found = (group for group in waiting if any(word in group.hindrances for word in words))
    if reason == "ImageOfReservation":  # which is to be deleted: one that runs may be in use
        found = (group for group in found if group.phase == "Pending")
    return next(found, None)


def _named(case: Case, reason: str) -> str:
    """The reservation pod that a message names, where it is gone."""
    if reason == "ImageOfReservation":
        return ""
    pattern = re.compile(rf"reservation pod {re.escape(case.options.reservation_namespace)}/([\w.-]+)")
    found = (pattern.search(step.message) for step in case.steps)
    name = next((match[1] for match in found if match is not None), "")
    there = {pod["metadata"]["name"] for pod in case.findings.reservations.items}
    return name if name not in there else ""


def _claim(case: Case, about: str) -> str:
    """The claim that a step's message names, if it is one of the pod's."""
    message = next((step.message for step in case.steps if step.type == about), "")
    names = [*case.findings.claims, *case.findings.device_claims]
    named = [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message)]
    return named[0] if named else names[0] if len(names) == 1 else ""
