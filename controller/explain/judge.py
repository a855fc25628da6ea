"""The answer of `explain`, from what was found. Pure.

Called by the verb. Invariant: what is not known is said to be not known; nothing is concluded from what
could not be read.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from controller.explain import facts, news
from controller.explain.advising import TAKEN_UP_S, Case, advice_of, then_of
from controller.explain.answer import Answer, Attempts, Decision, Pod, Step, Verdict
from controller.explain.findings import Findings
from controller.explain.options import Options
from controller.explain.remedies import is_final
from controller.kai.reasons import ConditionType, Phase
from controller.kai.request import BindStatus, backoff_limit_of, is_over
from controller.runtime.client import Object
from controller.runtime.workqueue import Backoff

_BACKOFF = Backoff()
"""The binder's default delays; it may run with others."""


def judged(findings: Findings, missing: list[str], options: Options, now: datetime) -> Answer:
    """The answer.

    Args:
        findings: What was found.
        missing: What could not be read.
        options: Where binder and reservations are.
        now: The time.
    """
    found, request = findings.found, findings.found.request
    pod = facts.pod_of(found)
    steps = facts.steps_of(request) if request is not None else ()
    attempts = attempts_of(request, steps, now) if request is not None else None
    verdict = _verdict(request, pod)
    case = Case(
        findings=findings,
        pod=pod,
        decision=facts.decision_of(request, findings) if request is not None else None,
        steps=steps,
        attempts=attempts,
        leader=news.leader_of(findings.lease, now, is_idle=_is_idle(request, now)),
        events=news.events_of(findings.events),
        is_bound=verdict is Verdict.BOUND,
        options=options,
        now=now,
    )
    advice = advice_of(case)
    return Answer(
        verdict=verdict,
        summary=_summary(case),
        request=facts.request_of(request) if request is not None else None,
        decision=case.decision,
        steps=steps,
        attempts=attempts,
        pod=pod,
        claims=facts.claims_of(findings),
        others=facts.others_of(request, findings.group_requests.items) if request is not None else (),
        requests=_beside(request, found.requests),
        leader=case.leader,
        events=case.events,
        advice=advice,
        then=then_of(case, advice),
        notes=tuple(_notes(case)),
        missing=tuple(missing),
    )


def _verdict(request: Object | None, pod: Pod) -> Verdict:
    if pod.exists:
        return Verdict.BOUND if pod.node and pod.is_of_request else Verdict.NOT_BOUND
    succeeded = request is not None and BindStatus.of(request).phase == Phase.SUCCEEDED
    return Verdict.BOUND if succeeded and not pod.is_known else Verdict.NOT_BOUND


def attempts_of(request: Object, steps: tuple[Step, ...], now: datetime) -> Attempts:
    """How often a request was tried, and when it is tried again: by the rule of the binder's delays."""
    status, limit = BindStatus.of(request), backoff_limit_of(request)
    is_stale = status.observed_generation not in (None, request["metadata"].get("generation"))
    failed, over = status.failed_attempts, is_over(request)
    last = _written(request) if failed else None
    allowed = limit if limit is not None else 1
    next_in_s = None
    if status.phase == Phase.SUCCEEDED:
        text = "the last attempt has succeeded"
    elif request["metadata"].get("deletionTimestamp"):
        text = "no further attempt comes: the request is being deleted"
    elif is_stale:
        text = "the spec was changed since the last attempt: it is tried anew at once"
    elif over and (final := _final_reason(steps)):
        # The count then is what the scheduler wants to see, not how often it was tried.
        text = f"no further attempt comes for this request: {final} is final, however many are allowed"
    elif over:
        text = f"{failed} failed of {allowed} allowed; no further attempt comes for this request"
    elif status.phase == Phase.FAILED:
        delay_s = _BACKOFF.delay_s(failed)
        text = f"{failed} failed of {allowed} allowed; the next comes {delay_s:g} s after the last one"
        if last is not None:
            next_in_s = max(0.0, delay_s - (now - last).total_seconds())
            text += f", in about {next_in_s:.0f} s" if next_in_s else ", so it should be under way"
        text += " (by the binder's default delays)"
    else:
        text = f"{failed} failed of {allowed} allowed; one is under way, or about to begin"
    return Attempts(failed=failed, limit=limit, is_over=over, last=last, next_in_s=next_in_s, text=text)


def _final_reason(steps: tuple[Step, ...]) -> str:
    """The reason for which it is not tried again though attempts may be left; empty if there is none."""
    culprit = culprit_of(steps)
    return culprit.reason if culprit is not None and is_final(culprit.reason) else ""


def _is_idle(request: Object | None, now: datetime) -> bool:
    """Whether there is a request that no binder has written anything to for so long that none works."""
    if request is None:
        return False
    status, made = BindStatus.of(request), facts.moment_of(request["metadata"].get("creationTimestamp"))
    untouched = not status.phase and not status.conditions and status.observed_generation is None
    return untouched and made is not None and (now - made).total_seconds() > TAKEN_UP_S


def _written(request: Object) -> datetime | None:
    """When the status was written last; the API server notes that, to the second."""
    times = [
        facts.moment_of(entry.get("time"))
        for entry in facts.listed(request["metadata"].get("managedFields"))
        if entry.get("subresource") == "status"
    ]
    return max((moment for moment in times if moment is not None), default=None)


def _summary(case: Case) -> str:
    """The answer in one sentence."""
    pod, request = case.pod, case.findings.found.request
    name = f"pod {pod.namespace}/{pod.name}" if pod.name else "the request's pod, which has no name,"
    if case.is_bound:
        return _summary_of_bound(case, name)
    if pod.is_known and not pod.exists:
        was = request is not None and BindStatus.of(request).phase == Phase.SUCCEEDED
        bound = f" It was bound to {case.decision.node}." if was and case.decision is not None else ""
        return f"{name} does not exist.{bound}"
    if not pod.is_of_request:
        return f"{name} is another one than the request was made for."
    if pod.is_deleting:
        return f"{name} is not bound, and is being deleted."
    if request is None:
        why = "" if not case.findings.found.requests_problem else ", and its BindRequest may not be read"
        undecided = f"{name} is not bound: the scheduler has not decided where it is to go."
        return f"{name} is not bound{why}." if why else undecided
    status = BindStatus.of(request)
    if status.phase == Phase.SUCCEEDED:
        return f"{name} has no node, though its BindRequest says that it was bound."
    culprit = culprit_of(case.steps)
    if culprit is not None:
        if culprit.type == ConditionType.BOUND:
            return f"{name} is not bound: {culprit.reason}."
        word = "waits" if culprit.status == "Unknown" else f"failed with {culprit.reason}"
        return f"{name} is not bound: {culprit.type} {word}."
    if status.phase == Phase.FAILED:
        return f"{name} is not bound: the last attempt has failed."
    return f"{name} is not bound: the binder has not said anything of the request yet."


def _summary_of_bound(case: Case, name: str) -> str:
    pod, decision = case.pod, case.decision
    if not pod.exists:
        node = decision.node if decision is not None else "its node"
        return f"{name} was bound to {node}, as its BindRequest says."
    if decision is not None and decision.node and decision.node != pod.node:
        return f"{name} is on {pod.node}, not on {decision.node} as its BindRequest wants."
    running = "" if pod.phase in ("Running", "Succeeded", "Failed") else ", and is not running yet"
    return f"{name} is bound to {pod.node}{running}."


def culprit_of(steps: tuple[Step, ...]) -> Step | None:
    """The step at which it stands: the first that failed, else the first that waits."""
    ours = [step for step in steps if step.is_ours and not step.is_stale]
    by_status: Mapping[str, list[Step]] = {
        "False": [step for step in ours if step.status == "False"],
        "Unknown": [step for step in ours if step.status == "Unknown" and step.reason == "Waiting"],
    }
    for steps_so in by_status.values():
        inner = [step for step in steps_so if step.type != ConditionType.BOUND]
        if inner or steps_so:
            return (inner or steps_so)[0]
    return None


def _beside(request: Object | None, requests: tuple[Object, ...]) -> tuple[str, ...]:
    uid = request["metadata"].get("uid") if request is not None else None
    return tuple(sorted(item["metadata"]["name"] for item in requests if item["metadata"].get("uid") != uid))


def _notes(case: Case) -> Iterator[str]:
    found, request = case.findings.found, case.findings.found.request
    if found.namesake:
        yield f"Pod {found.namesake} is another one, not that of this request: explain pod/{found.namesake}."
    for item in found.stale:
        yield f"BindRequest {item['metadata']['name']} was made for an earlier pod of this name."
    if request is None:
        return
    if request["metadata"].get("deletionTimestamp"):
        yield "The request is being deleted."
    status = BindStatus.of(request)
    if status.phase and not case.steps:
        yield (
            "The request has no conditions: its CRD is KAI's own, which drops them, or KAI's binder wrote "
            "the status. Only status.reason says what is wrong."
        )
    if isinstance(case.decision, Decision) and case.decision.problem:
        yield f"The request cannot be understood: {case.decision.problem}."
