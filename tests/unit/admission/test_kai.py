"""The pods that KAI's own webhook of v0.17 has prepared: ours makes the same of what their authors wrote."""

import copy
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.runtime.client import Object
from tests.unit.admission.reviews import LIMITING, mutated, refusal

RECORDED = Path(__file__).parents[2] / "data" / "kai-after-bind.json"
RULES = replace(LIMITING, runtime_class_name="nvidia")
"""As that cluster was: with hamicore, and KAI's default of that time for the runtime class."""
PREFIX = "runai/shared-gpu-configmap"
MEMORY = "nvidia.com/container.main.gpu-memory.request"
NAMED = "gpu-fraction-container-name"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def shared_pods() -> list[Object]:
    items = json.loads(RECORDED.read_text())["items"]
    return [
        item
        for item in items
        if item["kind"] == "Pod" and PREFIX in (item["metadata"].get("annotations") or {})
    ]


PODS = shared_pods()


def as_written(recorded: Object) -> Object:
    """What its author wrote, which kubectl has put down in the pod itself."""
    written: Object = json.loads(recorded["metadata"]["annotations"][APPLIED])
    return written


def essence(item: Object) -> Object:
    """What a webhook changes of a pod, without what API server and binder add."""
    annotations = item["metadata"]["annotations"]
    ours = {PREFIX, "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"}
    volumes = [
        {**volume, "configMap": {"name": volume["configMap"]["name"]}} if "configMap" in volume else volume
        for volume in item["spec"].get("volumes", [])
    ]
    groups = {
        group: [
            {"name": one["name"], "env": one.get("env", []), "envFrom": one.get("envFrom", [])}
            for one in item["spec"].get(group, [])
        ]
        for group in ("initContainers", "containers")
    }
    return {
        "annotations": {name: value for name, value in annotations.items() if name in ours},
        "volumes": volumes,
        "runtimeClassName": item["spec"].get("runtimeClassName"),
        **groups,
    }


def opened(item: Object) -> Object:
    """A pod without the entries by which containers without the share see no GPU."""
    new = copy.deepcopy(item)
    for group in ("initContainers", "containers"):
        for container in new["spec"].get(group, []):
            if container.get("env") == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]:
                del container["env"]
    return new


def test_there_are_such_pods() -> None:
    names = ["disk-made", "half-a", "half-b", "half-of-two", "mem-4096", "mem-of-two"]
    assert [item["metadata"]["name"] for item in PODS] == [*names, "named-container", "named-init", "third"]


@pytest.mark.parametrize("recorded", PODS, ids=lambda item: str(item["metadata"]["name"]))
def test_ours_makes_the_same_of_it(recorded: Object) -> None:
    """The differences are decided: `gpu-memory` is said for the container, too, as in KAI v0.18 (N-73), the
    container is always named, and the others see no GPU by an entry of their own.
    """
    written = as_written(recorded)
    suffix = recorded["metadata"]["annotations"][PREFIX].removesuffix("-shared-gpu")[-7:]
    ours = opened(mutated(written, RULES, suffix))
    assert essence(ours) == essence(recorded)
    added = ours["metadata"]["annotations"].keys() - recorded["metadata"]["annotations"].keys()
    has_memory = "gpu-memory" in written["metadata"]["annotations"]
    is_named = NAMED in written["metadata"]["annotations"]
    assert added == ({MEMORY} if has_memory else set()) | (set() if is_named else {NAMED})


@pytest.mark.parametrize("recorded", PODS, ids=lambda item: str(item["metadata"]["name"]))
def test_ours_leaves_it_as_it_is_and_allows_it(recorded: Object) -> None:
    """Both webhooks may be on for a while. What KAI v0.17 does not say is added (N-73)."""
    again, before = opened(mutated(recorded, RULES)), recorded["metadata"]["annotations"]
    annotations = again["metadata"]["annotations"]
    assert annotations.keys() - before.keys() <= {MEMORY, NAMED}
    assert {**again, "metadata": {**again["metadata"], "annotations": before}} == recorded
    assert before.items() <= annotations.items()
    assert refusal(recorded, RULES) == ""
