"""Changes of pods: what was settled when they were made, and what only the binder writes."""

import copy

import pytest
from msgspec.structs import replace

from controller.admission.rules import Rules
from controller.runtime.client import Object
from tests.unit.admission.reviews import (
    LIMITING,
    NRI,
    NVFRACTIONS,
    OFF,
    RULES,
    annotated,
    changed,
    mutated,
    pod,
)

KEY = "nvidia.com/container.main."
SETTLED = {
    "gpu-fraction": "0.9",
    "gpu-memory": "15360",
    "gpu-fraction.limit": "0.99",
    "gpu-memory.limit": "99Gi",
    "gpu-fraction-num-devices": "8",
    "gpu-fraction-container-name": "side",
    "runai/shared-gpu-configmap": "other-shared-gpu",
    f"{KEY}gpu-memory.request": "99Gi",
    f"{KEY}gpu-memory.limit": "99Gi",
    f"{KEY}gpu-compute.mode": "sm-sharing",
    f"{KEY}gpu-compute.request": "99",
    "kai.scheduler/container.main.gpu-memory.portion.limit": "0.99",
}
GRANTS = {f"{KEY}gpus.devices": "GPU-7", f"{KEY}gpu-compute.portion": "1"}
INVALID = pod({"gpu-fraction": "NaN", "gpu-memory": "x", f"{KEY}gpus.devices": "0"}, containers=[])
ALL = pytest.mark.parametrize("rules", [RULES, LIMITING, NVFRACTIONS, NRI, OFF])
BINDER = RULES.binder_account


@ALL
@pytest.mark.parametrize("item", [mutated(pod({"gpu-memory": "4096"})), pod(), INVALID])
def test_nothing_that_we_judge_changed(rules: Rules, item: Object) -> None:
    """Finalizers come off even a pod that would be refused today."""
    new = copy.deepcopy(item)
    new["metadata"] |= {"finalizers": [], "labels": {"a": "b"}, "deletionTimestamp": "2026-12-01T00:00:00Z"}
    new["metadata"]["annotations"] |= {"team": "a", "nvidia.com/container.main.status": "ok"}
    assert changed(item, new, rules) == {"uid": "705ab4f5", "allowed": True}
    assert changed(item, copy.deepcopy(item), rules)["allowed"]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", SETTLED)
def test_what_a_pod_asks_for_is_settled(name: str, gated: bool) -> None:
    gates: Object = {"schedulingGates": [{"name": "wait"}]} if gated else {}
    bare = pod({"gpu-fraction": "0.5"}, **gates)
    if name == "gpu-fraction":
        bare = pod(**gates)
    there = annotated(bare, {name: "x"})
    for old, new in ((bare, there), (there, annotated(there, {name: SETTLED[name]})), (there, bare)):
        found = changed(old, new)
        assert not found["allowed"]
        assert found["status"]["message"] == (
            f"metadata.annotations[{name}]: Forbidden: it is settled when the pod is made, "
            "since the scheduler decides by it; make the pod anew"
        )
        assert (found["status"]["code"], found["status"]["reason"]) == (422, "Invalid")
        assert changed(old, new, user=BINDER)["allowed"]
        assert not changed(old, new, replace(RULES, binder_account=""), user="")["allowed"]


@ALL
@pytest.mark.parametrize("name", GRANTS)
def test_what_a_container_was_given(rules: Rules, name: str) -> None:
    """N-77: removing is free."""
    bare = pod({"gpu-fraction": "0.5"})
    there = annotated(bare, {name: "GPU-1"})
    for old, new in ((bare, there), (there, annotated(there, {name: "all"}))):
        found = changed(old, new, rules)
        assert (found["status"]["code"], found["status"]["reason"]) == (403, "Forbidden")
        assert f"metadata.annotations[{name}]: Forbidden: it says which GPUs" in found["status"]["message"]
        assert changed(old, new, rules, user=BINDER)["allowed"]
    assert changed(there, bare, rules)["allowed"]
    assert changed(there, copy.deepcopy(there), rules)["allowed"]


def test_devices_by_cdi() -> None:
    bare = pod({"gpu-fraction": "0.5"})
    there = annotated(bare, {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"})
    assert changed(bare, there, RULES)["allowed"]
    assert not changed(bare, there, NRI)["allowed"]
    assert changed(bare, there, NRI, user=BINDER)["allowed"]
    assert changed(there, bare, NRI)["allowed"]


def test_the_binder_names_a_container_that_is_there() -> None:
    bare = pod({"gpu-fraction": "0.5"})
    for name in ("nvidia.com/container.nobody.gpus.devices", "nvidia.com/container.gpus.devices"):
        found = changed(bare, annotated(bare, {name: "0"}), user=BINDER)
        assert "has no container" in found["status"]["message"]


def test_all_that_changed_is_told_at_once() -> None:
    old = pod({"gpu-fraction": "0.5"})
    message = changed(old, annotated(old, {**SETTLED, **GRANTS}))["status"]["message"]
    assert [name for name in SETTLED | GRANTS if f"metadata.annotations[{name}]: " not in message] == []


def test_annotations_that_go_or_come_whole() -> None:
    there, none = pod({"gpu-fraction": "0.5"}), pod(metadata={"annotations": None})
    assert not changed(there, none)["allowed"]
    assert not changed(none, there)["allowed"]
