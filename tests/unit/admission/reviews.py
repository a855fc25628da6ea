"""AdmissionReviews as the API server sends them, and what becomes of a pod by the answers."""

import base64
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from controller.admission.review import mutate, validate
from controller.admission.rules import Rules
from controller.runtime.client import Object
from tests.jsonpatch import applied, patched

RULES = Rules(
    scheduler_name="kai-scheduler",
    plugins=("volumebinding", "dynamicresources", "gpusharing"),
    unmet={},
    nri=False,
    limit_variable="CUDA_DEVICE_MEMORY_LIMIT",
    binder_account="system:serviceaccount:kai-scheduler:binder",
    block_visible_devices=False,
    runtime_class_name="",
)
LIMITING = replace(RULES, plugins=(*RULES.plugins, "gpumemorylimit"))
NVFRACTIONS = replace(RULES, plugins=("volumebinding", "dynamicresources", "nvfractions"))
OFF = replace(RULES, plugins=("volumebinding", "dynamicresources"))
NRI = replace(RULES, nri=True)

TENANT = "jane"
SUFFIX = "x7k2q9b"


def pod(
    annotations: Mapping[str, str] | None = None,
    *,
    metadata: Mapping[str, object] | None = None,
    containers: list[Object] | None = None,
    **spec: object,
) -> Object:
    """A pod as its author writes it, with one container unless said otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "team", "annotations": dict(annotations or {})}
        | dict(metadata or {}),
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "busybox"}] if containers is None else containers,
            **spec,
        },
    }


def review(item: object, *, operation: str = "CREATE", user: str = TENANT, **request: object) -> bytes:
    """The body of a request for a pod."""
    return orjson.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": operation,
                "userInfo": {"username": user},
                "object": item,
                "oldObject": None,
                "dryRun": False,
                **request,
            },
        }
    )


def response(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(answer)
    assert found.keys() == {"apiVersion", "kind", "response"}
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    inner: dict[str, Any] = found["response"]
    assert inner["uid"] == "705ab4f5"
    return inner


def patched_as_told(item: Object, ops: list[Object]) -> Object:
    """The pod with a patch, whose operations say what they do: what is there is replaced, not added."""
    for op in ops:
        if op["op"] == "add" and not op["path"].endswith("/-"):
            assert applied(item, [{**op, "op": "replace"}]) is None, op
        item = patched(item, [op])
    return item


def mutated(item: Object, rules: Rules = RULES, suffix: str = SUFFIX) -> Object:
    """The pod as the mutating webhook leaves it, which must allow it."""
    found = response(mutate(review(item), rules, suffix=lambda: suffix))
    assert found["allowed"], found
    return patched_as_told(item, operations(found))


def operations(found: Mapping[str, Any]) -> list[Object]:
    """The patch in a response."""
    if "patch" not in found:
        assert "patchType" not in found
        return []
    assert found["patchType"] == "JSONPatch"
    ops: list[Object] = orjson.loads(base64.b64decode(found["patch"]))
    assert ops
    return ops


def refusal(item: Object, rules: Rules = RULES, user: str = TENANT) -> str:
    """Why a new pod is refused, after mutation; empty if it is not."""
    first = response(mutate(review(item, user=user), rules, suffix=lambda: SUFFIX))
    if not first["allowed"]:
        return str(first["status"]["message"])
    found = response(validate(review(patched_as_told(item, operations(first)), user=user), rules))
    return "" if found["allowed"] else str(found["status"]["message"])


def warnings(item: Object, rules: Rules = RULES) -> list[str]:
    """What both webhooks warn of for a new pod, which must be allowed."""
    first = response(mutate(review(item), rules, suffix=lambda: SUFFIX))
    second = response(validate(review(patched_as_told(item, operations(first))), rules))
    assert first["allowed"], first
    assert second["allowed"], second
    return [*first.get("warnings", []), *second.get("warnings", [])]


def changed(old: Object, new: Object, rules: Rules = RULES, user: str = TENANT) -> dict[str, Any]:
    """The response to an update."""
    return response(validate(review(new, operation="UPDATE", user=user, oldObject=old), rules))


def annotated(item: Object, annotations: Mapping[str, str | None]) -> Object:
    """A copy with these annotations, and without those that are None."""
    whole = {**item["metadata"]["annotations"], **annotations}
    kept = {name: value for name, value in whole.items() if value is not None}
    return {**item, "metadata": {**item["metadata"], "annotations": kept}}
