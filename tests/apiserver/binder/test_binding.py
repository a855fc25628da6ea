"""What a bind is and how it is told, on the real API server: T-1…T-5 and T-7 of the contract, and more."""

import json
import time
from datetime import datetime

import pytest

from tests.binder import Binder
from tests.cluster import ORDER, Cluster

pytestmark = pytest.mark.usefixtures("binder")

RECEIVED = "received-resource-type"
NUMA = "kai.scheduler/numa-placement-predicted"


# T-1: reconcile single pod.


def test_t1_sanity(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod_and_request("a", node)
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node


def test_t1_no_node(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node")
    status = cluster.wait_for("a", "Failed")
    assert status["reason"] == "Bound NodeGone: node no-such-node does not exist"
    assert status["failedAttempts"] == 1
    cluster.assert_unbound("a")


def test_t1_no_pod(cluster: Cluster) -> None:
    cluster.ask("a", cluster.node())
    status = cluster.wait_for("a", "Failed")
    assert status["reason"] == f"Bound PodNotFound: pod {cluster.namespace}/a does not exist"


def test_t1_pod_already_bound_to_node(cluster: Cluster) -> None:
    node = cluster.node()
    pod = cluster.pod("a")
    cluster.bind_by_hand("a", node)
    cluster.ask("a", node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert RECEIVED not in cluster.annotations("a"), "a Binding was sent all the same"
    conditions = cluster.conditions("a")
    assert tuple(conditions) == ORDER
    assert {conditions[type_]["reason"] for type_ in ORDER[:-1]} == {"AlreadyBound"}
    assert (conditions["Bound"]["status"], conditions["Bound"]["reason"]) == ("True", "Reconciled")


def test_t1_pod_already_bound_to_another_node(cluster: Cluster) -> None:
    """Upstream calls this a success."""
    wanted, real = cluster.node(), cluster.node()
    pod = cluster.pod("a")
    cluster.bind_by_hand("a", real)
    cluster.ask("a", wanted, owner=pod, backoffLimit=3)
    status = cluster.wait_for("a", "Failed")
    text = f"pod {cluster.namespace}/a is on node {real} already, not on {wanted}"
    assert status["reason"] == f"Bound AlreadyBoundElsewhere: {text}"
    assert status["failedAttempts"] == 3, "the scheduler would wait for attempts that do not come"
    assert cluster.pod_bound("a") is None
    assert text in cluster.wait_for_event("a", "BindingError")["message"]


def test_t1_missing_node_but_backoff_limit_not_reached(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node", backoffLimit=2)
    assert cluster.wait_for_attempts("a", 1)["failedAttempts"] == 1
    assert cluster.wait_for_attempts("a", 2)["phase"] == "Failed"


def test_t1_missing_node_but_backoff_limit_already_reached(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node", backoffLimit=5)
    cluster.wait_for_attempts("a", 1)
    before = cluster.patch_status("a", {"failedAttempts": 5})
    time.sleep(1.7)
    assert cluster.get_request("a")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


# T-2, T-5, T-7.


@pytest.mark.parametrize("count", [1, 10])
def test_t2_t5_cpu_pods_are_bound_within_3_s(cluster: Cluster, count: int) -> None:
    node = cluster.node()
    pods = [cluster.pod(f"cpu-{number}", limits={"cpu": "100m"}) for number in range(count)]
    started_s = time.monotonic()
    for pod in pods:
        cluster.ask(pod["metadata"]["name"], node, owner=pod)
    cluster.wait_for_all(count, within_s=10)
    assert time.monotonic() - started_s < 3
    for pod in cluster.all_pods():
        assert pod["spec"]["nodeName"] == node
        condition = cluster.pod_bound(pod["metadata"]["name"])
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "Bound")


def test_t7_a_whole_gpu_pod_is_bound_within_2_s(cluster: Cluster) -> None:
    node = cluster.node()
    pod = cluster.pod("a", limits={"nvidia.com/gpu": "1"})
    started_s = time.monotonic()
    cluster.ask("a", node, owner=pod, receivedGPU={"count": 1, "portion": "1.00"})
    cluster.wait_for("a", "Succeeded")
    assert time.monotonic() - started_s < 2
    assert cluster.node_of("a") == node


# T-3: the status.


def test_t3_success_after_a_failure_leaves_the_attempts_and_takes_the_reason(cluster: Cluster) -> None:
    name = f"late-{cluster.namespace}"
    cluster.pod_and_request("a", name, backoffLimit=5)
    assert cluster.wait_for_attempts("a", 1)["reason"] != ""
    cluster.node(name)
    status = cluster.wait_for("a", "Succeeded")
    assert status["failedAttempts"] == 1
    assert "reason" not in status, "a failure that is over is not told for ever"
    assert cluster.conditions("a")["Bound"]["status"] == "True"
    assert (cluster.pod_bound("a") or {})["status"] == "True"


def test_t3_attempts_3_of_5_become_4_and_the_next_is_8_s_away(cluster: Cluster, binder: Binder) -> None:
    cluster.pod_and_request("a", "no-such-node", backoffLimit=5)
    cluster.wait_for_attempts("a", 1)
    cluster.patch_status("a", {"failedAttempts": 3})
    cluster.wait_for_attempts("a", 4)
    lines = [line for line in binder.log.splitlines() if cluster.namespace in line]
    assert any("attempts=4" in line and "retry_in_s=8" in line for line in lines), lines


# T-4: the pod's condition and event.


def test_t4_the_pod_is_told_of_success(cluster: Cluster) -> None:
    node = cluster.node()
    pod = cluster.pod_and_request("a", node)
    event = cluster.wait_for_event("a", "Bound")
    text = f"Pod bound successfully to node {node}"
    assert (event["type"], event["message"], event["count"]) == ("Normal", text, 1)
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    condition = cluster.pod_bound("a") or {}
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "Bound", text)
    datetime.fromisoformat(condition["lastTransitionTime"])
    assert len(cluster.events("a")) == 1
    assert cluster.events("a", "BindRequest") == []


def test_t4_the_pod_is_told_of_failure(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node")
    event = cluster.wait_for_event("a", "BindingError")
    cause = "node no-such-node does not exist"
    text = f"Failed to bind pod {cluster.namespace}/a to node no-such-node: {cause}"
    assert (event["type"], event["message"], event["count"]) == ("Warning", text, 1)
    condition = cluster.pod_bound("a") or {}
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "BindingError", text)
    assert len(cluster.events("a")) == 1


# The conditions and events of the request.


def test_conditions_of_a_request_that_succeeded(cluster: Cluster) -> None:
    node = cluster.node()
    made = cluster.pod_and_request("a", node)
    cluster.wait_for("a", "Succeeded")
    item = cluster.get_request("a")
    status = item["status"]
    assert status["observedGeneration"] == item["metadata"]["generation"]
    conditions = cluster.conditions("a")
    assert tuple(conditions) == ORDER
    for condition in conditions.values():
        assert condition["status"] == "True"
        assert condition["observedGeneration"] == item["metadata"]["generation"]
        assert condition["message"]
        datetime.fromisoformat(condition["lastTransitionTime"])
    assert {conditions[type_]["reason"] for type_ in ORDER[:-1]} == {"NotApplicable"}
    assert conditions["Bound"]["reason"] == "Reconciled"
    assert conditions["Bound"]["message"] == f"pod {cluster.namespace}/a is on node {node}"
    assert made["metadata"]["uid"] == item["metadata"]["ownerReferences"][0]["uid"]


def test_conditions_of_a_request_whose_step_failed(cluster: Cluster) -> None:
    pod = cluster.pod("a", claims=("no-such-claim",))
    cluster.ask("a", cluster.node(), owner=pod)
    status = cluster.wait_for("a", "Failed")
    conditions = cluster.conditions("a")
    assert tuple(conditions) == ORDER
    failed = conditions["VolumeBinding"]
    text = f"claim {cluster.namespace}/no-such-claim does not exist"
    assert (failed["status"], failed["reason"], failed["message"]) == ("False", "ClaimNotFound", text)
    for type_ in ORDER[1:-1]:
        blocked = conditions[type_]
        assert (blocked["status"], blocked["reason"]) == ("Unknown", "Blocked")
        assert blocked["message"] == "did not run: VolumeBinding failed with ClaimNotFound"
    bound = conditions["Bound"]
    assert (bound["status"], bound["reason"]) == ("False", "ClaimNotFound")
    assert bound["message"] == f"VolumeBinding: {text}"
    assert status["reason"] == f"VolumeBinding ClaimNotFound: {text}"
    event = cluster.wait_for_event("a", "ClaimNotFound", "BindRequest")
    assert (event["type"], event["message"]) == ("Warning", f"VolumeBinding: {text}")
    assert event["involvedObject"]["uid"] == cluster.get_request("a")["metadata"]["uid"]


def test_transition_times_move_only_when_the_status_does(cluster: Cluster) -> None:
    name = f"late-{cluster.namespace}"
    cluster.pod_and_request("a", name, backoffLimit=9)
    cluster.wait_for_attempts("a", 1)
    first = cluster.conditions("a")["Bound"]
    cluster.wait_for_attempts("a", 2)
    assert cluster.conditions("a")["Bound"]["lastTransitionTime"] == first["lastTransitionTime"]
    cluster.node(name)
    cluster.wait_for("a", "Succeeded")
    assert cluster.conditions("a")["Bound"]["lastTransitionTime"] > first["lastTransitionTime"]


def test_the_request_has_one_event_per_reason_not_per_retry(cluster: Cluster) -> None:
    node = f"late-{cluster.namespace}"
    pod = cluster.pod("a", claims=("no-such-claim",))
    cluster.ask("a", node, owner=pod, backoffLimit=4)
    cluster.wait_for_attempts("a", 2)
    cluster.wait_for_event("a", "NodeGone", "BindRequest")
    cluster.node(node)
    cluster.wait_for_attempts("a", 3)
    cluster.wait_for_event("a", "ClaimNotFound", "BindRequest")
    events = cluster.events("a", "BindRequest")
    assert sorted((event["reason"], event["count"]) for event in events) == [
        ("ClaimNotFound", 1),
        ("NodeGone", 1),
    ]


def test_kubectl_get_shows_what_a_person_wants_to_know(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod_and_request("good", node)
    cluster.pod_and_request("bad", "no-such-node")
    cluster.wait_for("good", "Succeeded")
    cluster.wait_for("bad", "Failed")
    lines = cluster.plane.kubectl("get", "br", "-n", cluster.namespace).splitlines()
    assert lines[0].split() == ["NAME", "POD", "NODE", "TYPE", "PHASE", "ATTEMPTS", "REASON", "AGE"]
    bad, good = lines[1].split(), lines[2].split()
    assert bad[:-1] == ["bad", "bad", "no-such-node", "Regular", "Failed", "1", "NodeGone"]
    assert good[:-1] == ["good", "good", node, "Regular", "Succeeded", "Reconciled"]


def test_kubectl_describe_explains_a_failure(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node", backoffLimit=1)
    cluster.wait_for_event("a", "NodeGone", "BindRequest")
    text = cluster.plane.kubectl("describe", "br", "a", "-n", cluster.namespace)
    conditions, events = text.split("Conditions:")[1].split("Events:")
    for type_ in ORDER:
        assert f"Type:                  {type_}" in conditions, text
    assert "node no-such-node does not exist" in conditions
    assert "Failed Attempts:" in conditions
    assert "Warning  NodeGone" in events
    assert "binder" in events


# What is written on the pod.


@pytest.mark.parametrize("type_", ["Regular", "MigInstance", "", None])
def test_the_pod_is_told_what_it_received(cluster: Cluster, type_: str | None) -> None:
    pod = cluster.pod("a")
    spec = {"podName": "a", "selectedNode": cluster.node()}
    cluster.request("a", spec if type_ is None else {**spec, "receivedResourceType": type_}, pod)
    cluster.wait_for("a", "Succeeded")
    assert cluster.annotations("a")[RECEIVED] == (type_ or "")
    assert NUMA not in cluster.annotations("a")


def test_predicted_numa_zones_are_written_on_the_pod(cluster: Cluster) -> None:
    zones = [
        {"zone": "node-0", "amount": {"cpu": "4", "nvidia.com/gpu": 1}},
        {"zone": "node-1", "amount": {"memory": "1Gi"}},
    ]
    cluster.pod_and_request("a", cluster.node(), predictedNUMAZones=zones)
    cluster.wait_for("a", "Succeeded")
    assert json.loads(cluster.annotations("a")[NUMA]) == zones


def test_a_placement_of_an_earlier_decision_is_taken_off_the_pod(cluster: Cluster) -> None:
    pod = cluster.pod("a", annotations={NUMA: "[]", "example.com/own": "stays"})
    cluster.ask("a", cluster.node(), owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert cluster.annotations("a") == {"example.com/own": "stays", RECEIVED: "Regular"}


def test_nothing_of_a_failed_bind_is_left_on_the_pod(cluster: Cluster) -> None:
    zones = [{"zone": "node-0", "amount": {"cpu": "4"}}]
    node = cluster.node()
    with cluster.bindings_denied("bindings cost 100%s here"):
        cluster.pod_and_request("a", node, predictedNUMAZones=zones)
        status = cluster.wait_for("a", "Failed")
    assert status["reason"].startswith("Bound Forbidden: ")
    assert "bindings cost 100%s here" in status["reason"]
    assert "bindings cost 100%s here" in cluster.wait_for_event("a", "BindingError")["message"]
    cluster.assert_unbound("a")
