"""AdmissionReview in, AdmissionReview out (admission.k8s.io/v1). Pure: bytes to bytes.

Caller: the web server. The same body always gets the same answer, but for the random part of names; nothing
is written anywhere, so a dry run is no other case.
"""

import base64
from collections.abc import Callable, Sequence

import orjson
from msgspec import Struct

from controller.admission.ephemeral import problems_of_added
from controller.admission.gpusharing import random_suffix
from controller.admission.mutation import prepared
from controller.admission.patch import patch_of
from controller.admission.problems import Problem, told
from controller.admission.rules import Rules
from controller.admission.shape import ShapeError, pod_of
from controller.admission.validation import (
    problems_of_another,
    problems_of_change,
    problems_of_new,
    warnings_of_new,
)
from controller.kai.outcome import Failed
from controller.kai.pods import annotations_of
from controller.kai.sharing import asks_for_share
from controller.runtime.client import Object

_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_LONGEST_WARNING = 256
"""Characters; the API server may cut what is longer."""
_MOST_WARNINGS = 16
_JUDGED = frozenset({"CREATE", "UPDATE"})
_OTHERS = frozenset({"DELETE", "CONNECT"})
_EPHEMERAL = "ephemeralcontainers"


class BadReview(Exception):  # noqa: N818 -- the name that the server knows
    """What came is no AdmissionReview that can be answered; the message says why, in one sentence."""


_Judge = Callable[[Object | None, Object, Rules, str], list[Problem]]
"""From a pod as it is and as it would be, the settings and the user to what is wrong."""


class _Review(Struct, frozen=True):
    """A request for admission.

    Attributes:
        uid: Of the request.
        operation: `CREATE` or `UPDATE`; another one if there is nothing to judge.
        user: Name of who asks.
        pod: As it would be; None if there is nothing to judge.
        old: As it is, of an `UPDATE`.
        judge: What alone is judged of the pod, which is not prepared; None if it is judged as a whole.
    """

    uid: str
    operation: str
    user: str = ""
    pod: Object | None = None
    old: Object | None = None
    judge: _Judge | None = None


def mutate(
    body: bytes, rules: Rules, warnings: Sequence[str] = (), suffix: Callable[[], str] = random_suffix
) -> bytes:
    """The answer of the mutating webhook: a patch that prepares a new pod.

    Args:
        body: Of the HTTP request.
        rules: The settings.
        warnings: Told to the author of a new pod that asks for a share, too.
        suffix: Makes the random part of the names of a pod's maps.

    Raises:
        BadReview: The body is no AdmissionReview.
    """
    review = _parse(body, rules)
    pod = review.pod
    if pod is None or review.judge is not None or review.operation != "CREATE":
        return _allowed(review)
    draft = prepared(pod, rules, suffix)
    if isinstance(draft, Failed):
        problems = problems_of_new(pod, rules, review.user, prepared=False)
        if not any(problem.text in draft.message or draft.message in problem.text for problem in problems):
            problems.append(Problem("metadata.annotations", draft.message))
        return _refused(review, problems)
    told_too = warnings if _asks(pod) else ()
    return _allowed(review, (*draft.warnings, *told_too), patch_of(pod, draft.pod))


def validate(body: bytes, rules: Rules, warnings: Sequence[str] = ()) -> bytes:
    """The answer of the validating webhook.

    Args:
        body: Of the HTTP request.
        rules: The settings.
        warnings: Told to the author of a new pod that asks for a share, too.

    Raises:
        BadReview: The body is no AdmissionReview.
    """
    review = _parse(body, rules)
    pod = review.pod
    if pod is None:
        return _allowed(review)
    if review.judge is not None:
        problems = review.judge(review.old, pod, rules, review.user)
        return _refused(review, problems) if problems else _allowed(review)
    if review.old is not None:
        problems = problems_of_change(review.old, pod, rules, review.user)
        return _refused(review, problems) if problems else _allowed(review)
    problems = problems_of_new(pod, rules, review.user)
    if problems:
        return _refused(review, problems)
    return _allowed(review, (*warnings_of_new(pod, rules), *(warnings if _asks(pod) else ())))


def _parse(body: bytes, rules: Rules) -> _Review:
    if not body:
        raise BadReview("the body is empty; an AdmissionReview is expected")
    try:
        item = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReview(f"the body is no JSON: {error}") from error
    if not isinstance(item, dict):
        raise BadReview("the body is no JSON object; an AdmissionReview is expected")
    version, kind = item.get("apiVersion"), item.get("kind")
    if (version, kind) != (_API_VERSION, _KIND):
        text = f"apiVersion is {_quoted(version)} and kind is {_quoted(kind)}"
        raise BadReview(f"{text}; {_API_VERSION} and {_KIND} are expected")
    request = _object(item, "request", "")
    uid, operation = _text(request, "uid"), _text(request, "operation")
    if operation in _OTHERS:
        return _Review(uid, operation)
    if operation not in _JUDGED:
        known = ", ".join(sorted(_JUDGED | _OTHERS))
        raise BadReview(f"request.operation is {_quoted(operation)}; it must be one of {known}")
    found = _object(request, "kind", "request.")
    is_pod = (found.get("group") or "", found.get("version"), found.get("kind")) == ("", "v1", "Pod")
    part = request.get("subResource") or ""
    if not is_pod or part not in ("", _EPHEMERAL) or (part and operation != "UPDATE"):
        return _Review(uid, operation)
    return _of_pod(request, uid, operation, rules)


def _of_pod(request: Object, uid: str, operation: str, rules: Rules) -> _Review:
    """A request for a pod, and by what it is judged."""
    user = _object(request, "userInfo", "request.").get("username") or ""
    if not isinstance(user, str):
        raise BadReview("request.userInfo.username is no text")
    try:
        pod = pod_of(request.get("object"), "request.object")
        old = pod_of(request.get("oldObject"), "request.oldObject") if operation == "UPDATE" else None
        if request.get("subResource"):
            _check_ephemeral(pod, "request.object")
            _check_ephemeral(old or {"spec": {}}, "request.oldObject")
    except ShapeError as error:
        raise BadReview(str(error)) from error
    is_ours = pod["spec"].get("schedulerName") == rules.scheduler_name
    if request.get("subResource"):
        return (
            _Review(uid, operation, user, pod, old, problems_of_added) if is_ours else _Review(uid, operation)
        )
    return _Review(uid, operation, user, pod, old, None if is_ours else problems_of_another)


def _check_ephemeral(pod: Object, path: str) -> None:
    """Raises ShapeError unless the ephemeral containers have the shape of others."""
    spec = {"containers": pod["spec"].get("ephemeralContainers")}
    pod_of({"metadata": {}, "spec": spec}, f"{path}, with its ephemeral containers for others:")


def _object(item: Object, name: str, path: str) -> Object:
    value = item.get(name)
    if not isinstance(value, dict):
        raise BadReview(f"{path}{name} is {'missing' if value is None else 'no object'}")
    return value


def _text(request: Object, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise BadReview(f"request.{name} is {'no text' if value else 'missing'}")
    return value


def _quoted(value: object) -> str:
    """A value as messages show it, cut where nobody would read on."""
    if value is None:
        return "missing"
    return repr(value[:64]) if isinstance(value, str) else "no text"


def _asks(pod: Object) -> bool:
    return asks_for_share(annotations_of(pod))


def _allowed(review: _Review, warnings: Sequence[str] = (), patch: Sequence[Object] = ()) -> bytes:
    response: Object = {"uid": review.uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    kept = list(dict.fromkeys(_cut(text) for text in warnings))[:_MOST_WARNINGS]
    if kept:
        response["warnings"] = kept
    return _answer(response)


def _refused(review: _Review, problems: Sequence[Problem]) -> bytes:
    if all(problem.forbidden for problem in problems):
        status: Object = {"code": 403, "reason": "Forbidden"}
    else:
        status = {"code": 422, "reason": "Invalid"}
    status = {"status": "Failure", **status, "message": told(problems)}
    return _answer({"uid": review.uid, "allowed": False, "status": status})


def _answer(response: Object) -> bytes:
    return orjson.dumps({"apiVersion": _API_VERSION, "kind": _KIND, "response": response})


def _cut(text: str) -> str:
    """A warning that nobody else will cut, at the end of a word where there is one."""
    if len(text) <= _LONGEST_WARNING:
        return text
    whole = text[: _LONGEST_WARNING - 1]
    return f"{whole.rpartition(' ')[0] or whole}…"
