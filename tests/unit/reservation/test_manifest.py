"""The reservation pod, to the field (B-86…B-89); upstream's T-15."""

import copy
import json
from pathlib import Path

import pytest

from controller.reservation.manifest import (
    Agent,
    ReservationOptions,
    reservation_name,
    reservation_pod,
    stand_in,
)
from controller.runtime.client import Object

DATA = Path(__file__).parents[2] / "data" / "kai-after-bind.json"
TOLERATIONS = [
    {"key": "hpc", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    {"key": "hpc", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
]
USER: Object = {"metadata": {"name": "a"}, "spec": {"tolerations": TOLERATIONS}}
GPU = {"nvidia.com/gpu": "1"}


def options(**changes: object) -> ReservationOptions:
    fixed: Object = {
        "scheduler_name": "kai-scheduler",
        "namespace": "kai-resource-reservation",
        "service_account": "agent",
        "app_label": "reserves",
        "image": "registry.example.com/agent:1",
        "timeout_s": 40.0,
    }
    return ReservationOptions(**{**fixed, **changes})


def node(name: str = "gpu-1", **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


def made(user: Object = USER, on: Object | None = None, **changes: object) -> Object:
    settings = options(**changes)
    where = on or node()
    agent = stand_in(settings, where) or Agent(settings.image)
    return reservation_pod(settings, agent, where, "g-1", user)


def container(pod: Object) -> Object:
    (found,) = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def kai_reservations() -> list[Object]:
    items = json.loads(DATA.read_text())["items"]
    return [item for item in items if item["metadata"]["name"].startswith("gpu-reservation-")]


@pytest.mark.parametrize("pod", kai_reservations(), ids=lambda pod: pod["metadata"]["name"])
def test_the_names_that_the_go_binder_gave(pod: Object) -> None:
    group = pod["metadata"]["labels"]["runai-gpu-group"]
    assert reservation_name(pod["spec"]["nodeName"], group) == pod["metadata"]["name"]


def test_there_are_names_of_the_go_binder() -> None:
    assert len(kai_reservations()) == 4


def test_a_name_belongs_to_one_group_on_one_node() -> None:
    names = {reservation_name(where, group) for where in ("n", "m") for group in ("a", "b", "c")}
    assert len(names) == 6
    assert reservation_name("n", "a") == "gpu-reservation-a683c5c5349f6f7f"
    assert len(reservation_name("n" * 253, "g" * 63)) == len("gpu-reservation-") + 16


def test_the_whole_pod_with_default_settings() -> None:
    assert made({"metadata": {"name": "a"}, "spec": {}}) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": reservation_name("gpu-1", "g-1"),
            "namespace": "kai-resource-reservation",
            "labels": {"app": "reserves", "runai-gpu-group": "g-1"},
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "nodeName": "gpu-1",
            "serviceAccountName": "agent",
            "tolerations": [],
            "containers": [
                {
                    "name": "resource-reservation",
                    "image": "registry.example.com/agent:1",
                    "imagePullPolicy": "IfNotPresent",
                    "env": [
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {
                            "name": "POD_NAMESPACE",
                            "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}},
                        },
                    ],
                    "resources": {"requests": GPU, "limits": GPU},
                }
            ],
        },
    }


def test_tolerations_are_a_copy() -> None:
    user = copy.deepcopy(USER)
    pod = made(user)
    assert pod["spec"]["tolerations"] == TOLERATIONS
    pod["spec"]["tolerations"][0]["key"] = "other"
    pod["spec"]["tolerations"].append({})
    assert user == USER


@pytest.mark.parametrize(
    ("resources", "requests", "limits"),
    [
        ({}, GPU, GPU),
        (
            {"requests": {"cpu": "1m", "memory": "10Mi"}, "limits": {"cpu": "50m", "memory": "100Mi"}},
            {"cpu": "1m", "memory": "10Mi", **GPU},
            {"cpu": "50m", "memory": "100Mi", **GPU},
        ),
        ({"requests": {"cpu": "1m"}}, {"cpu": "1m", **GPU}, GPU),
        ({"limits": {"cpu": "1m"}, "requests": None}, GPU, {"cpu": "1m", **GPU}),
        ({"requests": {"nvidia.com/gpu": "999"}, "limits": {"nvidia.com/gpu": 999}}, GPU, GPU),
    ],
    ids=["none", "cpu and memory", "cpu only", "limits only", "no other number of GPUs"],
)
def test_resources(resources: Object, requests: Object, limits: Object) -> None:
    before = copy.deepcopy(resources)
    assert container(made(resources=resources))["resources"] == {"requests": requests, "limits": limits}
    assert resources == before, "the settings were changed (D-29)"


def test_arguments_of_the_agent() -> None:
    pod = reservation_pod(options(), Agent("kai-binder:v1", ("agent",)), node(), "g-1", USER)
    assert (container(pod)["image"], container(pod)["args"]) == ("kai-binder:v1", ["agent"])


@pytest.mark.parametrize("value", [None, {}])
def test_no_security_contexts(value: Object | None) -> None:
    pod = made(pod_security_context=value, container_security_context=value)
    assert "securityContext" not in pod["spec"]
    assert "securityContext" not in container(pod)


def test_security_contexts() -> None:
    of_pod = {"fsGroup": 7}
    of_container = {"runAsNonRoot": True, "capabilities": {"drop": ["all"]}}
    pod = made(pod_security_context=of_pod, container_security_context=of_container)
    assert pod["spec"]["securityContext"] == of_pod
    assert container(pod)["securityContext"] == of_container


def test_classes() -> None:
    pod = made(runtime_class_name="nvidia", priority_class_name="system-node-critical")
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["priorityClassName"] == "system-node-critical"


@pytest.mark.parametrize(
    ("setting", "label", "is_fake"), [(True, "true", True), (True, "false", False), (False, "true", False)]
)
def test_fake_gpus_are_a_matter_of_the_node(setting: bool, label: str, is_fake: bool) -> None:
    """D-30: one such node does not change the others."""
    fake = container(made(on=node(**{"run.ai/fake.gpu": label}), fake_gpu_nodes=setting))
    real = container(made(on=node("gpu-2"), fake_gpu_nodes=setting))
    assert (fake["image"], fake.get("args")) == (
        ("ubuntu", ["sleep", "infinity"]) if is_fake else ("registry.example.com/agent:1", None)
    )
    assert (real["image"], real.get("args")) == ("registry.example.com/agent:1", None)
    assert fake["resources"] == real["resources"]


@pytest.mark.parametrize("metadata", [{"name": "n"}, {"name": "n", "labels": None}])
def test_a_node_without_labels(metadata: Object) -> None:
    assert container(made(on={"metadata": metadata}, fake_gpu_nodes=True))["image"].startswith("registry")
