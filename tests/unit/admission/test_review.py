"""AdmissionReviews that are odd, and requests with which the webhook has nothing to do."""

from collections.abc import Callable

import orjson
import pytest
from msgspec.structs import replace

from controller.admission.review import BadReview, mutate, validate
from controller.admission.rules import Rules
from tests.unit.admission.reviews import (
    LIMITING,
    OFF,
    RULES,
    mutated,
    operations,
    pod,
    response,
    review,
    warnings,
)

Hook = Callable[[bytes, Rules], bytes]
BOTH = pytest.mark.parametrize("hook", [mutate, validate], ids=["mutate", "validate"])
HALF = pod({"gpu-fraction": "0.5"})
REFUSED = pod({"gpu-fraction": "2", "gpu-fraction-container-name": "nobody"})


def body(**fields: object) -> bytes:
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1"}}
    return orjson.dumps({**whole, **fields})


def bodies() -> dict[str, tuple[bytes, str]]:
    whole = review(HALF)
    deep = b'{"apiVersion":"admission.k8s.io/v1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return {
        "empty": (b"", "the body is empty; an AdmissionReview is expected"),
        "truncated": (whole[: len(whole) // 2], "the body is no JSON: "),
        "blank": (b"   ", "the body is no JSON: "),
        "no JSON": (b"<html>", "the body is no JSON: "),
        "not UTF-8": (whole.replace(b"web", b"w\xffb"), "the body is no JSON: "),
        "lone surrogate": (whole.replace(b"web", rb"w\ud800b"), "the body is no JSON: "),
        "NaN": (whole.replace(b'"web"', b"NaN"), "the body is no JSON: "),
        "two of them": (whole + whole, "the body is no JSON: "),
        "deep": (deep, "the body is no JSON: "),
        "list": (b"[]", "the body is no JSON object; an AdmissionReview is expected"),
        "null": (b"null", "the body is no JSON object; an AdmissionReview is expected"),
        "no version": (body(apiVersion=None), "apiVersion is missing and kind is 'AdmissionReview'; "),
        "old version": (
            body(apiVersion="admission.k8s.io/v1beta1"),
            "apiVersion is 'admission.k8s.io/v1beta1'",
        ),
        "version a list": (body(apiVersion=[]), "apiVersion is no text"),
        "other kind": (body(kind="Pod"), "kind is 'Pod'"),
        "no request": (body(request=None), "request is missing"),
        "request a text": (body(request="x"), "request is no object"),
        "no uid": (body(request={}), "request.uid is missing"),
        "uid a number": (body(request={"uid": 1}), "request.uid is no text"),
        "no operation": (body(), "request.operation is missing"),
        "operation": (review(HALF, operation="WRITE"), "request.operation is 'WRITE'; it must be one of "),
        "no kind": (review(HALF, kind=None), "request.kind is missing"),
        "no user": (review(HALF, userInfo=None), "request.userInfo is missing"),
        "user a list": (review(HALF, userInfo={"username": [1]}), "request.userInfo.username is no text"),
        "no object": (review(None), "request.object is no object"),
        "object a list": (review([]), "request.object is no object"),
        "no old object": (review(HALF, operation="UPDATE"), "request.oldObject is no object"),
    }


@BOTH
@pytest.mark.parametrize("name", bodies().keys())
def test_what_is_no_review_is_told_in_one_sentence(hook: Hook, name: str) -> None:
    given, message = bodies()[name]
    with pytest.raises(BadReview) as raised:
        hook(given, RULES)
    assert str(raised.value).startswith(message) or message in str(raised.value)
    assert len(str(raised.value)) < 300


ODD_PODS: list[tuple[dict[str, object], str]] = [
    ({"metadata": None}, "request.object.metadata is no object"),
    ({"spec": []}, "request.object.spec is no object"),
    ({"metadata": {"annotations": {"gpu-fraction": 0.5}}}, "metadata.annotations[gpu-fraction] is no text"),
    ({"metadata": {"annotations": ["gpu-fraction"]}}, "metadata.annotations is no object"),
    ({"metadata": {"name": {}}}, "metadata.name is no text"),
    ({"metadata": {"ownerReferences": ["x"]}}, "metadata.ownerReferences[0] is no object"),
    ({"spec": {"containers": {}}}, "spec.containers is no list"),
    ({"spec": {"containers": [None]}}, "spec.containers[0] is no object"),
    ({"spec": {"containers": [{}]}}, "spec.containers[0].name is no text"),
    (
        {"spec": {"initContainers": [{"name": "a", "env": [{}]}]}},
        "spec.initContainers[0].env[0].name is no text",
    ),
    (
        {
            "spec": {
                "containers": [{"name": "a", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {}}}]}]
            }
        },
        "spec.containers[0].env[0].valueFrom.configMapKeyRef.key is no text",
    ),
    (
        {"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": []}}}]}},
        "spec.containers[0].resources.limits[nvidia.com/gpu] is no text",
    ),
]


@BOTH
@pytest.mark.parametrize(("parts", "message"), ODD_PODS, ids=[message for _, message in ODD_PODS])
def test_what_is_no_pod_is_told(hook: Hook, parts: dict[str, object], message: str) -> None:
    with pytest.raises(BadReview) as raised:
        hook(review({**HALF, **parts}), RULES)
    assert message in str(raised.value)


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        review(REFUSED, operation="DELETE"),
        review(None, operation="DELETE", oldObject=REFUSED),
        review(None, operation="CONNECT"),
        review(REFUSED, kind={"group": "apps", "version": "v1", "kind": "Deployment"}),
        review(
            {"kind": "Binding"}, kind={"group": "", "version": "v1", "kind": "Binding"}, subResource="binding"
        ),
        review(REFUSED, subResource="status"),
        review(REFUSED, subResource="ephemeralcontainers", operation="UPDATE", oldObject=HALF),
        review({**REFUSED, "spec": {**REFUSED["spec"], "schedulerName": "default-scheduler"}}),
        review({**REFUSED, "spec": {"containers": []}}),
        review({"metadata": {}, "spec": {"schedulerName": "kai-scheduler"}}),
        review(pod()),
        review(pod({"team": "a"}, metadata={"annotations": None})),
    ],
)
def test_what_does_not_concern_us_is_allowed_untouched(hook: Hook, given: bytes) -> None:
    assert response(hook(given, LIMITING)) == {"uid": "705ab4f5", "allowed": True}


def test_only_a_new_pod_is_changed() -> None:
    given = review(HALF, operation="UPDATE", oldObject=HALF)
    assert response(mutate(given, RULES)) == {"uid": "705ab4f5", "allowed": True}


@BOTH
def test_a_dry_run_is_answered_alike(hook: Hook) -> None:
    for item in (HALF, REFUSED, mutated(HALF)):
        real, dry = (response(hook(review(item, dryRun=dry), RULES)) for dry in (False, True))
        for answer in (real, dry):
            answer.pop("patch", None)
        assert real == dry


def test_a_refusal_says_all_that_is_wrong() -> None:
    found = response(mutate(review(REFUSED), RULES))
    assert found["allowed"] is False
    status = found["status"]
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    assert "metadata.annotations[gpu-fraction]: Invalid value: '2': must be" in status["message"]
    assert "has no container 'nobody'" in status["message"]
    assert "patch" not in found


def test_a_prepared_pod_needs_no_patch() -> None:
    found = response(mutate(review(mutated(HALF)), RULES))
    assert operations(found) == []


@pytest.mark.parametrize(("item", "told"), [(HALF, True), (pod(), False), (pod({"other": "x"}), False)])
def test_what_the_server_has_to_say_is_told_to_those_who_ask_for_a_share(item: object, told: bool) -> None:
    text = "binder and webhook disagree about gpumemorylimit"
    for answer in (mutate(review(item), RULES, [text]), validate(review(item), OFF, [text])):
        found = response(answer)
        assert found.get("warnings", []) == ([text] if told and found["allowed"] else [])


def test_warnings_are_cut_where_the_api_server_would_cut_them() -> None:
    long, unbroken = "word " * 100, "x" * 1000
    found = response(mutate(review(HALF), RULES, [long, unbroken, "short", "short"]))["warnings"]
    assert found[0] == "word " * 50 + "word…"
    assert found[1] == "x" * 255 + "…"
    assert found[2:] == ["short"]
    assert all(len(text) <= 256 for text in found)


def test_a_limit_without_sharing_is_told_and_the_pod_is_allowed() -> None:
    """The binder refuses it, with DependencyNotMet."""
    why = "gpumemorylimit needs gpusharing, which is disabled; set BINDER_PLUGINS__GPUSHARING__ENABLED=true"
    rules = replace(RULES, plugins=("nvfractions", "gpumemorylimit"), unmet={"gpumemorylimit": why})
    told = [f"{why}; until then the binder refuses this pod (DependencyNotMet)"]
    assert warnings(HALF, rules) == told
    lenient = replace(rules, failures_ignored=frozenset({"gpumemorylimit"}))
    assert warnings(HALF, lenient) == [f"{why}; until then the binder sets no limit of GPU memory"]
    assert warnings(pod(), rules) == []


def test_a_very_long_refusal_is_cut() -> None:
    keys = {f"nvidia.com/container.c{number}.gpu-memory.request": "x" * 100 for number in range(2000)}
    grants = {f"nvidia.com/container.c{number}.gpus.devices": "all" for number in range(2000)}
    found = response(validate(review(pod(keys | grants)), RULES))
    assert len(found["status"]["message"]) < 25_000
    assert found["status"]["message"].endswith("more")
