"""Another webhook changes a pod between two calls of ours: the share stays where its author put it."""

from typing import Any

import pytest

from controller.admission.review import mutate, validate
from controller.admission.rules import Rules
from controller.kai.limiter import Way, way_to
from controller.kai.sharing import Target, target_of
from controller.runtime.client import Object
from tests.unit.admission.reviews import (
    LIMITING,
    NRI,
    NVFRACTIONS,
    RULES,
    annotated,
    mutated,
    operations,
    pod,
    response,
    review,
)

MODES = pytest.mark.parametrize(
    "rules", [RULES, LIMITING, NRI, NVFRACTIONS], ids=["sharing", "limit", "nri", "nvfractions"]
)
ASKS: list[dict[str, str]] = [
    {"gpu-fraction": "0.5"},
    {"gpu-memory": "4096"},
    {"nvidia.com/container.main.gpu-memory.request": "4Gi"},
]
PREFIX = "web-x7k2q9b-shared-gpu"
NAMED = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"}


def with_first(item: Object, group: str, container: Object) -> Object:
    """A copy with another container before the others."""
    return {**item, "spec": {**item["spec"], group: [container, *item["spec"].get(group, [])]}}


def maps_of(item: Object) -> set[str]:
    """All ConfigMaps that a pod refers to."""
    found: set[str] = set()

    def look(value: Any) -> None:  # noqa: ANN401
        if isinstance(value, dict):
            for kind in ("configMapKeyRef", "configMapRef", "configMap"):
                if kind in value:
                    found.add(value[kind]["name"])
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(item["spec"])
    return found


def allowed(item: Object, rules: Rules) -> bool:
    return bool(response(validate(review(item), rules))["allowed"])


@MODES
@pytest.mark.parametrize("asks", ASKS, ids=lambda asks: next(iter(asks)))
def test_a_container_before_it(rules: Rules, asks: dict[str, str]) -> None:
    """As an injector of sidecars does; it ends as if the sidecar had been there and the container named."""
    between = with_first(mutated(pod(asks), rules), "containers", {"name": "side"})
    again = mutated(between, rules)
    named = {} if "container" in next(iter(asks)) else {"gpu-fraction-container-name": "main"}
    at_once = mutated(pod(asks | named, containers=[{"name": "side"}, *pod()["spec"]["containers"]]), rules)
    assert again == at_once
    assert "env" not in again["spec"]["containers"][0] or rules is LIMITING
    if rules.shares_by_maps:
        assert maps_of(again) == {f"{PREFIX}-1", f"{PREFIX}-1-evar"}
        found = target_of(again, strict=True)
        assert isinstance(found, Target)
        assert found.container["name"] == "main"
    if rules.limits_memory:
        assert isinstance(found, Target)
        assert way_to(again, found, rules.limit_variable, "1m", 1) == Way({}, ())
    assert allowed(again, rules)
    assert operations(response(mutate(review(again), rules))) == []


@MODES
def test_an_init_container_before_it(rules: Rules) -> None:
    asks = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "warm"}
    first = mutated(pod(asks, initContainers=[{"name": "warm"}]), rules)
    again = mutated(with_first(first, "initContainers", {"name": "up"}), rules)
    assert again == mutated(pod(asks, initContainers=[{"name": "up"}, {"name": "warm"}]), rules)
    if rules.shares_by_maps:
        assert maps_of(again) == {f"{PREFIX}-i1", f"{PREFIX}-i1-evar"}
    assert allowed(again, rules)


@MODES
def test_an_init_container_before_the_share_of_another(rules: Rules) -> None:
    first = mutated(pod({"gpu-fraction": "0.5"}), rules)
    again = mutated(with_first(first, "initContainers", {"name": "up"}), rules)
    assert again["spec"]["containers"] == first["spec"]["containers"]
    assert again["metadata"] == first["metadata"]
    assert allowed(again, rules)


def test_nobody_is_warned_of_what_we_set_ourselves() -> None:
    between = with_first(mutated(pod(NAMED), LIMITING), "containers", {"name": "side"})
    assert "warnings" not in response(mutate(review(between), LIMITING))


def test_what_moves_stays_in_its_order() -> None:
    """Entries that refer to it still do."""
    first = mutated(pod(NAMED))
    first["spec"]["containers"][0]["env"].append({"name": "A", "value": "$(GPU_PORTION)"})
    first["spec"]["containers"][0]["envFrom"].append({"secretRef": {"name": "mine"}})
    (main,) = mutated(with_first(first, "containers", {"name": "side"}))["spec"]["containers"][1:]
    assert [item["name"] for item in main["env"]] == [
        *("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION", "A")
    ]
    assert main["envFrom"] == [
        {"configMapRef": {"name": f"{PREFIX}-1-evar", "optional": False}},
        {"secretRef": {"name": "mine"}},
    ]


def test_another_container_is_named_meanwhile() -> None:
    """The one that had the share has nothing of it any more."""
    first = mutated(pod(NAMED, containers=[{"name": "main"}, {"name": "other"}]))
    again = mutated(annotated(first, {"gpu-fraction-container-name": "other"}))
    main, other = again["spec"]["containers"]
    assert (main.get("env"), main.get("envFrom")) == ([], [])
    assert len(other["env"]) == 3
    assert maps_of(again) == {f"{PREFIX}-1", f"{PREFIX}-1-evar"}
    assert allowed(again, RULES)


THEIRS = (
    *("web-0", f"{PREFIX}", f"{PREFIX}-x", f"{PREFIX}-00", f"{PREFIX}-0-evar-0", f"x{PREFIX}-0"),
    *("web-x7k2q9b-sharedXgpu-0", f"{PREFIX}-0-evars"),
)


@pytest.mark.parametrize("name", THEIRS)
def test_objects_of_its_author_stay(name: str) -> None:
    own = pod(
        NAMED | {"runai/shared-gpu-configmap": PREFIX},
        containers=[
            {"name": "side", "envFrom": [{"configMapRef": {"name": name}}]},
            {
                "name": "main",
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": name, "key": "a"}}}],
                "envFrom": [{"configMapRef": {"name": name}}],
            },
        ],
        volumes=[{"name": f"{name.lower()}-vol", "configMap": {"name": name}}],
    )
    new = mutated(own)
    assert maps_of(new) == {name, f"{PREFIX}-1", f"{PREFIX}-1-evar"}
    for group in ("env", "envFrom"):
        assert new["spec"]["containers"][1][group][0] == own["spec"]["containers"][1][group][0]
    assert new["spec"]["containers"][0] == own["spec"]["containers"][0]
    assert new["spec"]["volumes"][0] == own["spec"]["volumes"][0]
    assert allowed(new, RULES)


@pytest.mark.parametrize(
    ("where", "part"),
    [
        (
            "spec.containers[0].env[0]",
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": f"{PREFIX}-0", "key": "A"}}}]},
        ),
        ("spec.containers[0].envFrom[0]", {"envFrom": [{"configMapRef": {"name": f"{PREFIX}-0-evar"}}]}),
        ("spec.volumes[1]", None),
    ],
)
def test_a_pod_that_waits_for_a_map_that_nobody_writes_is_refused(where: str, part: Object | None) -> None:
    """A webhook after ours, or a volume that is mounted under another name."""
    new = mutated(pod(NAMED, containers=[{"name": "side"}, {"name": "main"}]))
    if part is None:
        new["spec"]["volumes"].append({"name": "data", "configMap": {"name": f"{PREFIX}-0"}})
    else:
        new["spec"]["containers"][0] |= part
    found = response(validate(review(new), RULES))
    assert not found["allowed"]
    wanted = f"{PREFIX}-1-evar" if "envFrom" in where else f"{PREFIX}-1"
    assert found["status"]["message"] == (
        f"{where}: Invalid value: {wanted.replace('-1', '-0')!r}: nobody writes that ConfigMap, "
        f"since container main stands elsewhere; must be {wanted}"
    )


def test_a_map_that_may_be_missing_keeps_no_pod_from_starting() -> None:
    new = mutated(pod(NAMED, containers=[{"name": "side"}, {"name": "main"}]))
    new["spec"]["containers"][0]["envFrom"] = [
        {"configMapRef": {"name": f"{PREFIX}-0-evar", "optional": True}}
    ]
    assert allowed(new, RULES)
