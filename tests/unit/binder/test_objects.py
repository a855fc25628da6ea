"""What is kept in memory: all that is read, and little else."""

import ast
import copy
import itertools
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from controller.binder.objects import is_cut, is_read, trim_node, trim_pod, trim_request
from controller.binder.patches import json_patch
from controller.kai import fractions, names
from controller.kai.names import NUMA_PLACEMENT
from controller.kai.outcome import Failed
from controller.kai.pods import judge_pod
from controller.kai.request import (
    BindRequest,
    BindStatus,
    InvalidRequestError,
    backoff_limit_of,
    is_over,
    owner_uid_of,
)
from controller.kai.sharing import exact_fraction, groups_of_request
from controller.plugins.base import BindContext, Plugin
from controller.plugins.registry import BUILT_IN
from controller.runtime.client import Object

MANAGED = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]


def full_pod() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "p1",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:01:00Z",
            "labels": {"runai-gpu-group": "g"},
            "annotations": {
                NUMA_PLACEMENT: "[]",
                "gpu-fraction": "0.5",
                "kubectl.kubernetes.io/last-applied-configuration": "{…}" * 500,
            },
            "managedFields": MANAGED,
        },
        "spec": {
            "nodeName": "n",
            "schedulerName": "kai-scheduler",
            "schedulingGates": [{"name": "wait"}],
            "resourceClaims": [{"name": "card", "resourceClaimName": "c"}],
            "tolerations": [{"operator": "Exists"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {}}] * 20}},
                {"name": "config", "configMap": {"name": "c"}},
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodBound", "status": "True"}],
            "containerStatuses": [{"image": "x" * 500}],
            "podIPs": [{"ip": "10.0.0.1"}],
        },
    }


def size(value: object) -> int:
    return len(repr(value))


def test_a_pod_keeps_what_identifies_it() -> None:
    kept = trim_pod(full_pod())["metadata"]
    full = full_pod()["metadata"]
    for name in ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp"):
        assert kept[name] == full[name]
    assert kept["annotations"] == {NUMA_PLACEMENT: "[]", "gpu-fraction": "0.5"}


def test_a_pod_keeps_what_guards_and_plugins_read() -> None:
    kept, full = trim_pod(full_pod()), full_pod()
    for name in ("nodeName", "schedulingGates", "resourceClaims"):
        assert kept["spec"][name] == full["spec"][name]
    assert kept["spec"]["volumes"] == [
        full["spec"]["volumes"][0],
        {"name": "scratch", "ephemeral": {}},  # only that there is one: its name follows from the pod's
    ]
    assert kept["status"]["phase"] == full["status"]["phase"]
    assert kept["status"]["conditions"] == [{"type": "PodBound", "status": "True"}]


def test_a_pod_loses_what_nobody_reads() -> None:
    kept = trim_pod(full_pod())
    assert "managedFields" not in kept["metadata"]
    assert "containerStatuses" not in kept["status"]
    assert size(kept) < size(full_pod()) / 3


def test_guards_judge_a_trimmed_pod_as_the_whole_one() -> None:
    request = BindRequest(
        namespace="team", name="a", uid="u", owner_uid="p1", pod_name="a", node_name="chosen"
    )
    changes: tuple[dict[str, Any], ...] = (
        {"nodeName": "chosen"},
        {"nodeName": "other"},
        {"nodeName": None},
        {"nodeName": None, "schedulingGates": None},
    )
    for change in changes:
        for deleted in (True, False):
            for phase in ("Pending", "Succeeded", "Failed"):
                pod = full_pod()
                pod["spec"].update(change)
                pod["status"]["phase"] = phase
                if not deleted:
                    del pod["metadata"]["deletionTimestamp"]
                for uid in ("p1", "p2", None):
                    assert judge_pod(request, trim_pod(pod), uid) == judge_pod(request, pod, uid)


def test_plugins_are_concerned_by_a_trimmed_pod_as_by_the_whole_one() -> None:
    whole = full_pod()
    without_claims = full_pod()
    without_claims["spec"].update(volumes=whole["spec"]["volumes"][2:], resourceClaims=[])
    bare = full_pod()
    del bare["spec"]["volumes"], bare["spec"]["resourceClaims"]
    for pod in (whole, without_claims, bare):
        for resource_type in ("Regular", "Fraction"):
            for plugin in (cls.__new__(cls) for cls in BUILT_IN):
                assert concerned(plugin, resource_type, trim_pod(pod)) == concerned(
                    plugin, resource_type, pod
                )


def concerned(plugin: Plugin, resource_type: str, pod: Object) -> bool:
    request = BindRequest(
        namespace="team",
        name="a",
        uid="u",
        owner_uid="p1",
        pod_name="a",
        node_name="n",
        resource_type=resource_type,
        gpu_groups=("g",),
    )
    node: Object = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": "15360"}}}

    seen = SimpleNamespace(request=request, pod=pod, node=node)
    return plugin.concerns(cast(BindContext, seen))  # it may look at nothing else


def test_a_new_pod_has_little_and_keeps_it() -> None:
    pod: Object = {"metadata": {"name": "a", "namespace": "team", "uid": "p1"}, "spec": {}}
    kept = trim_pod(copy.deepcopy(pod))
    assert kept["metadata"] == pod["metadata"]
    assert kept["spec"] == {}
    assert kept["status"] == {}


def test_a_trimmed_pod_is_not_changed_by_trimming_again() -> None:
    once = trim_pod(full_pod())
    assert trim_pod(copy.deepcopy(once)) == once


def test_annotations_that_nobody_reads_are_not_kept() -> None:
    """F-60: each pod may have 256 KiB of them."""
    pod = full_pod()
    pod["metadata"]["annotations"]["example.com/notes"] = "x" * 100
    assert "example.com/notes" not in trim_pod(copy.deepcopy(pod))["metadata"]["annotations"]
    kept = trim_pod(copy.deepcopy(pod), all_annotations=True)
    assert kept["metadata"]["annotations"] == {
        NUMA_PLACEMENT: "[]",
        "gpu-fraction": "0.5",
        "example.com/notes": "x" * 100,
    }
    assert not is_cut(kept)


def huge_pods() -> dict[str, Object]:
    """Pods as large as the API server takes them, each in another way."""
    pods = {name: full_pod() for name in ("annotations", "read", "labels", "volumes", "claims", "variables")}
    pods["annotations"]["metadata"]["annotations"] = {"example.com/notes": "x" * 250 * 1024}
    pods["read"]["metadata"]["annotations"] = {"gpu-fraction": "0.5" + "0" * 250 * 1024}
    pods["labels"]["metadata"]["labels"] = {f"runai-gpu-group/{n}": str(n) for n in range(9000)}
    claims = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(9000)]
    pods["volumes"]["spec"]["volumes"] = claims
    pods["claims"]["spec"]["resourceClaims"] = [
        {"name": f"c{n}", "resourceClaimName": "c"} for n in range(9000)
    ]
    source = {"configMapKeyRef": {"name": "m", "key": "k"}}
    variables = [{"name": f"V{n}", "valueFrom": source} for n in range(9000)]
    pods["variables"]["spec"]["containers"] = [{"name": "main", "env": variables}]
    return pods


@pytest.mark.parametrize("way", huge_pods())
@pytest.mark.parametrize("all_annotations", [False, True])
def test_whatever_a_tenant_writes_into_a_pod_little_of_it_is_kept(way: str, all_annotations: bool) -> None:
    """F-60: such a pod is marked, so that it is read live before it is bound."""
    pod = huge_pods()[way]
    kept = trim_pod(copy.deepcopy(pod), all_annotations=all_annotations)
    assert is_cut(kept)
    assert len(orjson.dumps(kept)) < 8 * 1024
    assert trim_pod(copy.deepcopy(kept)) == kept
    for name in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp"):
        assert kept["metadata"][name] == pod["metadata"][name]
    request = BindRequest(
        namespace="team", name="a", uid="u", owner_uid="p1", pod_name="a", node_name="chosen"
    )
    for node_name, deleted in itertools.product(("chosen", "other", None), (True, False)):
        changed = copy.deepcopy(pod)
        changed["spec"]["nodeName"] = node_name
        if not deleted:
            del changed["metadata"]["deletionTimestamp"]
        verdict = judge_pod(request, changed, "p1")
        assert judge_pod(request, trim_pod(copy.deepcopy(changed)), "p1") == verdict


def test_a_cut_never_makes_a_value_legal() -> None:
    pod = full_pod()
    pod["metadata"]["annotations"] = {
        "gpu-memory": "4" * 1024 + " " * 20_000,
        "gpu-fraction": "0.5" + "0" * 9000,
    }
    kept = trim_pod(pod)
    assert is_cut(kept)
    assert isinstance(exact_fraction(kept, Decimal("0.5")), Failed)
    assert len(kept["metadata"]["annotations"]["gpu-memory"]) > 18


def test_an_ordinary_pod_that_shares_a_gpu_is_not_cut() -> None:
    pod = full_pod()
    source = {"configMapKeyRef": {"name": "job-7-abcde-1234567-shared-gpu-0", "key": "SOME_VARIABLE"}}
    variables = [{"name": f"SOME_VARIABLE_{n}", "valueFrom": source} for n in range(30)]
    pod["spec"]["containers"] = [{"name": "main", "env": variables}]
    assert not is_cut(trim_pod(pod, all_annotations=True))


def annotations_asked_for() -> set[str]:
    """The names with which `annotation(…)` is called anywhere in the controller, by their constants."""
    found = set()
    for path in Path(names.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "annotation"
            ):
                name = node.args[1]
                assert isinstance(name, ast.Name), f"{path}:{node.lineno} asks by no constant"
                found.add(name.id)
    return found


def test_every_annotation_that_is_read_is_kept() -> None:
    """F-60: a plugin would take a pod from the cache for one without it."""
    asked = annotations_asked_for()
    assert asked >= {"GPU_MEMORY", "CONFIG_MAP_PREFIX", "RECEIVED_RESOURCE_TYPE"}
    constants = {**vars(fractions), **vars(names)}
    assert [constant for constant in asked if not is_read(constants[constant])] == []


@pytest.mark.parametrize(
    "name", ["nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.a"]
)
def test_whatever_gives_devices_by_annotation_is_kept(name: str) -> None:
    assert is_read(name)
    assert not is_read(name.replace("io", "io.example.com", 1))


def test_a_node_keeps_name_and_labels() -> None:
    metadata = {"name": "n", "uid": "n1", "resourceVersion": "9", "labels": {"nvidia.com/gpu.memory": "1"}}
    node: Object = {
        "metadata": {
            **metadata,
            "annotations": {"csi.volume.kubernetes.io/nodeid": "{…}" * 100},
            "managedFields": MANAGED,
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"images": [{"names": ["x"] * 10}] * 50, "capacity": {"cpu": "64"}},
    }
    assert trim_node(node) == {"metadata": metadata}


def test_a_node_keeps_the_number_of_its_gpus() -> None:
    """F-27: nobody shares more of them than it has."""
    capacity = {"cpu": "64", "nvidia.com/gpu": "8"}
    node: Object = {"metadata": {"name": "n"}, "status": {"capacity": capacity, "images": [{}] * 50}}
    kept = {"metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    assert trim_node(node) == kept


def test_a_request_keeps_everything_but_its_bookkeeping() -> None:
    request: Object = {
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "kind": "BindRequest",
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "5",
            "generation": 1,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "p1"}],
        },
        "spec": {"podName": "a", "selectedNode": "n", "selectedGPUGroups": ["g"], "later": "field"},
        "status": {"phase": "Failed", "failedAttempts": 1, "conditions": [{"type": "Bound"}]},
    }
    whole = copy.deepcopy(request)
    whole["metadata"]["managedFields"] = MANAGED
    whole["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{…}"}
    trimmed = trim_request(whole)
    assert trimmed == request
    assert BindRequest.parse(trimmed).owner_uid == "p1"
    assert BindStatus.of(trimmed).failed_attempts == 1
    assert trim_request(copy.deepcopy(request)) == request


def test_of_a_request_that_has_succeeded_the_conditions_go() -> None:
    """They are most of its bytes. What is written to it is tested against them, so that it is read before."""
    conditions = [{"type": "Bound", "status": "True", "reason": "Reconciled", "message": "x" * 1000}]
    metadata = {"name": "a", "namespace": "team", "uid": "r1", "generation": 1}
    shortly = [{"type": "Bound", "status": "True", "reason": "Reconciled"}]
    for phase, kept in (("Succeeded", shortly), ("Failed", conditions), ("", conditions)):
        status = {"phase": phase, "conditions": copy.deepcopy(conditions), "failedAttempts": 1}
        trimmed = trim_request({"metadata": dict(metadata), "spec": {}, "status": status})
        assert trimmed["status"] == {"phase": phase, "conditions": kept, "failedAttempts": 1}
        tests = [step for step in json_patch(trimmed, {"conditions": []}) if step["op"] == "test"]
        assert {"op": "test", "path": "/status/conditions", "value": kept} in tests


LIMITED = {"type": "GPUMemoryLimit", "status": "True", "reason": "Reconciled"}


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ([{"type": "Bound"}, {**LIMITED, "message": "m", "lastTransitionTime": "t"}], [LIMITED]),
        ([LIMITED, {**LIMITED, "reason": "Other"}], [LIMITED]),
        ([{**LIMITED, "reason": "x" * 2000}], [{**LIMITED, "reason": "x" * 1024}]),
        ([{"type": "GPUMemoryLimit", "status": True, "reason": None}], [{"type": "GPUMemoryLimit"}]),
        ([{"type": ["GPUMemoryLimit"]}, None, 7, "GPUMemoryLimit", {}], []),
        ("GPUMemoryLimit", []),
        ({"type": "GPUMemoryLimit"}, []),
        (None, []),
    ],
    ids=range(8),
)
def test_of_a_request_that_has_succeeded_it_is_kept_whether_memory_is_limited(
    conditions: object, kept: list[Object]
) -> None:
    """The metrics count it; conditions may be anything where a CRD says nothing of them."""
    request: Object = {"metadata": {"name": "a", "namespace": "team"}, "spec": {}}
    request["status"] = {"phase": "Succeeded", "conditions": conditions}
    trimmed = trim_request(request)
    assert trimmed["status"] == {"phase": "Succeeded", "conditions": kept}
    assert trim_request(copy.deepcopy(trimmed)) == trimmed


def test_of_the_environment_only_what_decides_which_gpus_are_seen_has_its_value() -> None:
    """F-32: and no more of it than tells it from the few words that matter."""
    pod = full_pod()
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DISABLE_CONTROL", "value": "true" * 10_000},
        {"name": "PASSWORD", "value": "secret"},
        {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    pod["spec"]["containers"] = [{"name": "main", "image": "x", "env": env}]
    pod["spec"]["initContainers"] = [{"name": "sidecar", "image": "x", "restartPolicy": "Always"}]
    spec = trim_pod(pod)["spec"]
    (main,), (sidecar,) = spec["containers"], spec["initContainers"]
    assert main["env"][0] == env[0]
    assert main["env"][1]["value"] == ("true" * 10_000)[:100]
    assert main["env"][2:] == [{"name": "PASSWORD"}, env[3]]
    assert sidecar == {"name": "sidecar", "env": [], "envFrom": [], "restartPolicy": "Always"}
    assert "restartPolicy" not in main


# Requests are anybody's who may make them: each may have 1.5 MB.


def large_request(**spec: object) -> Object:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": f"p-{n}", "uid": f"u-{n}"} for n in range(2000)]
    return {
        "metadata": {
            "name": "r",
            "namespace": "team",
            "uid": "1",
            "resourceVersion": "7",
            "generation": 3,
            "labels": {f"l-{n}": "x" * 60 for n in range(1000)},
            "ownerReferences": owners,
        },
        "spec": {"podName": "p-1234", "selectedNode": "n", "receivedResourceType": "Fraction", **spec},
        "status": {"phase": "Failed", "failedAttempts": 1, "conditions": [{"type": "Bound"}]},
    }


def test_a_large_request_is_cut_to_what_others_judge_it_by() -> None:
    request = large_request(selectedGPUGroups=["g", "x" * 100_000], backoffLimit=3, predictedNUMAZones=[{}])
    cut_one = trim_request(copy.deepcopy(request))
    assert is_cut(cut_one)
    assert len(orjson.dumps(cut_one)) < 1024
    assert owner_uid_of(cut_one) == owner_uid_of(request) == "u-1234"
    assert groups_of_request(cut_one) == {"g"}
    assert BindStatus.of(cut_one) == BindStatus.of(request)
    assert is_over(cut_one) == is_over(request)
    assert backoff_limit_of(cut_one) == 3
    assert cut_one["metadata"]["generation"] == 3
    assert trim_request(cut_one) is cut_one


def test_a_cut_keeps_the_owner_that_counts() -> None:
    """Of another kind of this name, an API group may well have one."""
    request = large_request()
    stray = {"apiVersion": "example.com/v1", "kind": "Pod", "name": "p-1234", "uid": "stray"}
    request["metadata"]["ownerReferences"].insert(0, stray)
    kept = trim_request(copy.deepcopy(request))
    assert is_cut(kept)
    assert owner_uid_of(kept) == owner_uid_of(request) == "u-1234"


@pytest.mark.parametrize(
    "spec",
    [
        {"podName": "x" * 1_400_000},
        {"podName": None},
        {"podName": ["p"] * 100_000},
        {"selectedGPUGroups": ["g"] * 100_000},
        {"selectedGPUGroups": [str(n) for n in range(150_000)]},
        {"selectedGPUGroups": [[1]] * 10},
        {"selectedFractionalGpuGroups": [{"id": str(n)} for n in range(90_000)]},
        {"selectedFractionalGpuGroups": [{"id": "g", "more": "x" * 1_000_000}, {}, 7]},
        {"receivedResourceType": "x" * 1_400_000},
        {"resourceClaimAllocations": [{"name": "x" * 1_400_000}]},
    ],
    ids=range(10),
)
def test_no_request_takes_more_than_its_budget(spec: Object) -> None:
    kept = trim_request(large_request(**spec))
    assert is_cut(kept)
    assert len(orjson.dumps(kept)) < 4096
    assert len(groups_of_request(kept)) <= 64


def test_a_request_that_is_nested_too_deeply_is_cut() -> None:
    deep: object = []
    for _ in range(400):
        deep = [deep]
    request = large_request(resourceClaimAllocations=[{"name": "c", "allocation": deep}])
    request["metadata"]["ownerReferences"], request["metadata"]["labels"] = [], {}
    assert is_cut(trim_request(copy.deepcopy(request)))
    with pytest.raises(
        InvalidRequestError, match=r"^spec\.resourceClaimAllocations is nested deeper than 100"
    ):
        BindRequest.parse(request)


def test_a_usual_request_is_kept_whole() -> None:
    groups = [f"00000000-0000-0000-0000-{n:012}" for n in range(16)]
    request = large_request(selectedGPUGroups=groups)
    request["metadata"]["ownerReferences"] = request["metadata"]["ownerReferences"][:1]
    request["metadata"]["labels"] = {}
    assert trim_request(copy.deepcopy(request)) == request
