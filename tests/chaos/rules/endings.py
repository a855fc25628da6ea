"""Rules of how requests end, and of what is told of that."""

from collections.abc import Iterator

from tests.chaos.history import Entry, History, Life, Object, State, key_of
from tests.chaos.rules.words import (
    BOUND,
    DELETED,
    EXPECTED,
    RESERVATIONS,
    Finding,
    annotations_of,
    attempts_of,
    conditions_of,
    groups_of,
    is_live,
    is_over,
    labels_of,
    most_attempts,
    node_of,
    owner_uid,
    reason_of,
    spec_of,
    status_of,
)

NOT_OF_THE_POD = {
    "InvalidRequest",
    "PodReplaced",
    "AlreadyBoundElsewhere",
    "RequestDeleted",
    "RequestChanged",
}
"""Failures that are not told to the pod: it is unknown, another one, or on its node."""

LOST_TO_OTHERS = {"ReservationFailed", "ReservationLost", "ReservationConflict"}
REFUSALS = {"Forbidden", "Rejected", "ReservationRejected", "ServerError", "Conflict"}
OF_THE_POD = {"PodNotFound", "PodTerminating", "PodReplaced", "PodFinished"}


def requests_end_as_they_should(history: History, state: State) -> Iterator[Finding]:
    """Each is over, as was expected or as something that befell it explains."""
    for request in state.of("bindrequests"):
        name, expected = request["metadata"]["name"], annotations_of(request).get(EXPECTED, BOUND)
        keys = (key_of("bindrequests", request), _pod_key(request))
        status, reason = status_of(request), reason_of(request)
        if expected == DELETED:
            yield f"request {name} should have been deleted", keys
        elif not is_over(request):
            phase, attempts = status.get("phase", ""), attempts_of(request)
            yield f"request {name} has not ended: phase {phase!r}, {attempts} attempts, {reason}", keys
        elif status["phase"] == "Succeeded" and expected != BOUND:
            yield f"request {name} was bound, but should have failed with {expected}", keys
        elif status["phase"] == "Failed" and reason not in {*expected.split("|"), *excuses(history, request)}:
            yield f"request {name} failed, which nothing explains: {status['reason']}", keys


def no_request_is_lost(history: History, state: State) -> Iterator[Finding]:
    """One that is gone was deleted by somebody who may, and the binder may only where that was expected."""
    there = {item["metadata"]["uid"] for item in state.of("bindrequests")}
    for life in history.of("bindrequests"):
        ends = [entry for entry in life.entries if entry.verb == "delete" and entry.may_have_happened]
        if life.uid not in there and not ends:
            yield f"request {life.key[2]} is gone, and nobody deleted it", (life.key,)


def bound_pods_are_on_their_nodes(history: History, state: State) -> Iterator[Finding]:
    """A request that succeeded has its pod on the chosen node, or had it there."""
    bound = {(entry.key, entry.sent["target"]["name"]) for entry in history.bindings()}
    for request in state.of("bindrequests"):
        if status_of(request).get("phase") != "Succeeded":
            continue
        key, node = _pod_key(request), spec_of(request)["selectedNode"]
        pod = state.get(*key)
        same = pod is not None and owner_uid(request) in ("", pod["metadata"]["uid"])
        # Who answered the Binding may have been killed before that was written down.
        if not (same and pod is not None and node_of(pod) == node) and (key, node) not in bound:
            text = f"request {request['metadata']['name']} succeeded, but its pod is not on node {node}"
            yield text, (key_of("bindrequests", request), key)


def attempts_count_up(history: History, state: State) -> Iterator[Finding]:
    """Each failed attempt counts once, success is the end, and nobody tries more often than he may."""
    for life in history.of("bindrequests"):
        before: Object | None = None
        unknown = sum(entry.code == 0 for entry in life.entries)
        for now in sorted(life.versions(), key=lambda item: int(item["metadata"]["resourceVersion"])):
            if before is not None and (problem := _miscount(before, now, unknown)):
                yield f"request {life.key[2]}: {problem}", (life.key,)
            before = now


def _miscount(before: Object, now: Object, unknown: int) -> str:
    old, new = attempts_of(before), attempts_of(now)
    if before["metadata"].get("generation") != now["metadata"].get("generation"):
        return ""
    was, phase = status_of(before).get("phase"), status_of(now).get("phase")
    if was == "Succeeded" and phase != was:
        return f"its phase went from Succeeded to {phase}"
    if new < old:
        return f"failedAttempts went from {old} to {new}"
    if new > most_attempts(now):
        return f"failedAttempts is {new} of {most_attempts(now)}"
    # What cannot be tried again counts as all attempts that there are.
    if new > old + 1 + unknown and new != spec_of(now).get("backoffLimit"):
        return f"failedAttempts went from {old} to {new}"
    return ""


def status_is_consistent(history: History, state: State) -> Iterator[Finding]:
    """Phase, reason, attempts and conditions of a request that is over say the same."""
    for request in filter(is_over, state.of("bindrequests")):
        for problem in _contradictions(request):
            text = f"request {request['metadata']['name']}: {problem}"
            yield text, (key_of("bindrequests", request),)


def _contradictions(request: Object) -> Iterator[str]:
    status, conditions = status_of(request), conditions_of(request)
    bound = conditions.get("Bound", {})
    if status.get("observedGeneration") != request["metadata"].get("generation"):
        yield f"observedGeneration is {status.get('observedGeneration')}"
    if "InternalError" in {condition.get("reason") for condition in conditions.values()}:
        yield "a fault of the binder's own (InternalError)"
    if status["phase"] == "Succeeded":
        others = [name for name, condition in conditions.items() if condition["status"] != "True"]
        if others or not bound:
            yield f"it succeeded, but these conditions are not True: {', '.join(others) or 'Bound'}"
        if status.get("reason"):
            yield f"it succeeded, but says why it failed: {status['reason']}"
    else:
        if bound.get("status") != "False" or bound.get("reason") != reason_of(request):
            yield f"it failed with {reason_of(request)}, but Bound says {bound.get('reason')}"
        if attempts_of(request) < 1:
            yield "it failed without an attempt"


def pods_are_told(history: History, state: State) -> Iterator[Finding]:
    """PodBound and the events of a pod say what became of it."""
    bound = {str(entry.sent["metadata"].get("uid", "")) for entry in history.bindings()}
    pods = {pod["metadata"]["uid"]: pod for pod in state.of("pods")}
    bound |= {uid for uid, pod in pods.items() if node_of(pod)}
    for request in filter(is_over, state.of("bindrequests")):
        pod = pods.get(owner_uid(request))
        if pod is None or not is_live(pod) or reason_of(request) in NOT_OF_THE_POD:
            continue
        told = conditions_of(pod).get("PodBound", {})
        right = ("True", "Bound") if status_of(request)["phase"] == "Succeeded" else ("False", "BindingError")
        if (told.get("status"), told.get("reason")) != right:
            text = f"PodBound of pod {pod['metadata']['name']} is {told or 'missing'}, and should be {right}"
            yield text, (key_of("pods", pod), key_of("bindrequests", request))
    for entry in history.entries:
        about = entry.sent.get("involvedObject") or {}
        tells = entry.key[0] == "events" and entry.by_binder and entry.sent.get("reason") == "Bound"
        if tells and about.get("kind") == "Pod" and about.get("uid") not in bound:
            yield (
                f"event Bound of pod {about['name']}, which never was",
                (("pods", *entry.key[1:2], about["name"]),),
            )


def excuses(history: History, request: Object) -> set[str]:
    """The reasons for which it may have failed, seen what befell it before it ended."""
    life = history.life("bindrequests", request["metadata"]["uid"])
    if life is None:
        return set()
    ended_s = life.entries[-1].done_s
    found: set[str] = set()
    for entry in history.entries:
        if entry.at_s <= ended_s:
            found |= _excuse(entry, request, life)
    return found


def _excuse(entry: Entry, request: Object, life: Life) -> set[str]:
    """What one write explains."""
    resource, namespace, name = entry.key
    spec = spec_of(request)
    if entry.verb == "delete" and entry.may_have_happened and not entry.by_binder:
        if resource == "nodes" and name == spec.get("selectedNode"):
            return {"NodeGone"}
        if entry.key == _pod_key(request):
            return OF_THE_POD
        if namespace == RESERVATIONS and resource == "pods" and _is_of_group(entry.got, request):
            return LOST_TO_OTHERS
    if _is_refusal(entry) and entry.by_binder and entry.done_s >= life.born_s and _concerns(entry, request):
        return REFUSALS
    return set()


def _is_refusal(entry: Entry) -> bool:
    """Whether the server refused, for another reason than that the binder lacks a right."""
    message = str(entry.got.get("message", ""))
    return entry.code == 500 or (entry.code in (403, 422) and "cannot " not in message)


def _concerns(entry: Entry, request: Object) -> bool:
    """Whether a write was for this request's pod, or for a reservation that it needs."""
    _, namespace, name = entry.key
    if namespace == RESERVATIONS:
        return bool(set(groups_of(request)) & set(labels_of({"metadata": {}, **entry.sent}).values()))
    return namespace == request["metadata"]["namespace"] and name.startswith(spec_of(request)["podName"])


def _is_of_group(reservation: Object, request: Object) -> bool:
    labels = labels_of(reservation).values() if "metadata" in reservation else ()
    return not labels or bool(set(groups_of(request)) & set(labels))


def _pod_key(request: Object) -> tuple[str, str, str]:
    return "pods", request["metadata"]["namespace"], str(spec_of(request).get("podName", ""))
