"""Containers that are put into a pod with a share while it runs."""

import pytest

from controller.admission.review import BadReview, mutate, validate
from controller.admission.rules import Rules
from controller.runtime.client import Object
from tests.unit.admission.reviews import LIMITING, NVFRACTIONS, RULES, mutated, pod, response, review

DEVICES = "NVIDIA_VISIBLE_DEVICES"
SHARE = mutated(pod({"gpu-fraction": "0.5"}), LIMITING)
MINE = {"configMapRef": {"name": "mine"}}
ELSEWHERE = {"name": DEVICES, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
HAS_NONE = "container debugger has no share of a GPU"


def env(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def added(*ephemeral: Object, item: Object = SHARE, there: tuple[Object, ...] = ()) -> bytes:
    """A review of ephemeral containers that come to those that are there."""
    old, new = (
        {**item, "spec": {**item["spec"], "ephemeralContainers": list(found)}}
        for found in (there, (*there, *ephemeral))
    )
    return review(new, operation="UPDATE", oldObject=old, subResource="ephemeralcontainers")


def debugger(**fields: object) -> Object:
    return {"name": "debugger", "image": "busybox", "targetContainerName": "main", **fields}


WRONG: list[tuple[Object, str]] = [
    (
        debugger(env=[env(DEVICES, "all")]),
        f"env[{DEVICES}]: Invalid value: 'all': {HAS_NONE}; must be void or none",
    ),
    (
        debugger(env=[env(DEVICES, "void"), env(DEVICES, "0")]),
        f"env[{DEVICES}]: Invalid value: '0': {HAS_NONE}; must be void or none",
    ),
    (
        debugger(env=[ELSEWHERE]),
        f"env[{DEVICES}]: Invalid value: it is taken from elsewhere: {HAS_NONE}; must be void or none",
    ),
    (
        debugger(envFrom=[MINE]),
        f"envFrom: Forbidden: {HAS_NONE}, and reads ConfigMap mine, which could set {DEVICES}; "
        f"set {DEVICES} to void beside it",
    ),
    (
        debugger(envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "s"}}]),
        f"envFrom: Forbidden: {HAS_NONE}, and reads Secret s, which could set {DEVICES}; "
        f"set {DEVICES} to void beside it",
    ),
]
OFF: list[tuple[Object, str]] = [
    (
        debugger(env=[env("CUDA_DISABLE_CONTROL", "true")]),
        "env: Forbidden: container debugger sets CUDA_DISABLE_CONTROL itself to 'true', "
        "which switches the limiter off",
    ),
    (
        debugger(envFrom=[{"prefix": "CUDA_", **MINE}]),
        f"envFrom: Forbidden: {HAS_NONE}, and reads ConfigMap mine, which could set CUDA_DISABLE_CONTROL; "
        f"set {DEVICES} to void beside it",
    ),
]
FINE: list[Object] = [
    debugger(),
    debugger(env=[env(DEVICES, "void")], envFrom=[MINE, {"prefix": "CUDA_", **MINE}]),
    debugger(env=[env(DEVICES, "none"), env("A", "b")]),
    debugger(envFrom=[{"prefix": "MY_", **MINE}]),
    debugger(env=[env("CUDA_DISABLE_CONTROL", "false")]),
]


@pytest.mark.parametrize("rules", [RULES, LIMITING, NVFRACTIONS], ids=["sharing", "limit", "nvfractions"])
@pytest.mark.parametrize(("container", "told"), WRONG)
def test_one_that_would_see_gpus_is_refused(rules: Rules, container: Object, told: str) -> None:
    found = response(validate(added(container, there=(debugger(name="first"),)), rules))
    assert not found["allowed"]
    assert found["status"]["message"] == f"spec.ephemeralContainers[1].{told}"


@pytest.mark.parametrize(("container", "told"), OFF)
def test_one_that_switches_the_limiter_off_is_refused_where_there_is_a_limit(
    container: Object, told: str
) -> None:
    found = response(validate(added(container), LIMITING))
    assert found["status"]["message"] == f"spec.ephemeralContainers[0].{told}"
    assert response(validate(added(container), RULES))["allowed"]


@pytest.mark.parametrize("container", FINE)
def test_others_are_allowed(container: Object) -> None:
    assert response(validate(added(container), LIMITING)) == {"uid": "705ab4f5", "allowed": True}


@pytest.mark.parametrize("container", [wrong for wrong, _ in (*WRONG, *OFF)])
def test_what_does_not_concern_us(container: Object) -> None:
    """Those that are there already, pods without a share, and pods of other schedulers."""
    another = {**SHARE, "spec": {**SHARE["spec"], "schedulerName": "default-scheduler"}}
    for given in (
        added(debugger(name="second"), there=(container,)),
        added(container, item=pod()),
        added(container, item=another),
    ):
        assert response(validate(given, LIMITING)) == {"uid": "705ab4f5", "allowed": True}
    assert response(mutate(added(container), LIMITING)) == {"uid": "705ab4f5", "allowed": True}


def test_what_is_no_list_of_containers_is_told() -> None:
    shapes: tuple[object, ...] = ("x", [None], [{}], [{"name": "a", "env": [{}]}])
    for odd in shapes:
        new = {**SHARE, "spec": {**SHARE["spec"], "ephemeralContainers": odd}}
        for item, old in ((new, SHARE), (SHARE, new)):
            given = review(item, operation="UPDATE", oldObject=old, subResource="ephemeralcontainers")
            with pytest.raises(BadReview, match="with its ephemeral containers"):
                validate(given, LIMITING)
