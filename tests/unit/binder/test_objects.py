"""What is kept in memory: all that is read, and little else."""

import copy
from types import SimpleNamespace
from typing import Any, cast

from controller.binder.objects import trim_node, trim_pod, trim_request
from controller.kai.names import NUMA_PLACEMENT
from controller.kai.pods import judge_pod
from controller.kai.request import BindRequest, BindStatus
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
            "conditions": [{"type": "PodBound", "status": "True"}],
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
    assert kept["spec"]["volumes"] == full["spec"]["volumes"][:2]
    for name in ("phase", "conditions"):
        assert kept["status"][name] == full["status"][name]


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
    trimmed = trim_request(whole)
    assert trimmed == request
    assert BindRequest.parse(trimmed).owner_uid == "p1"
    assert BindStatus.of(trimmed).failed_attempts == 1
    assert trim_request(copy.deepcopy(request)) == request
