"""Requests that cannot be followed: each ends with a reason that a person can use, and harms no other."""

import time
from pathlib import Path

import pytest

from tests.binder import Binder, Binders
from tests.cluster import Cluster, Phases
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")


def assert_next_one_binds(cluster: Cluster) -> None:
    """The binder works on."""
    cluster.pod_and_request("next", cluster.node())
    cluster.wait_for("next", "Succeeded")


def test_an_empty_spec(cluster: Cluster) -> None:
    cluster.request("a", {})
    status = cluster.wait_for("a", "Failed")
    text = "spec.podName is empty; spec.selectedNode is empty"
    assert status["reason"] == f"Bound InvalidRequest: {text}"
    assert status["failedAttempts"] == 1
    assert cluster.conditions("a")["Bound"]["message"] == text
    cluster.wait_for_event("a", "InvalidRequest", "BindRequest")
    assert_next_one_binds(cluster)


def test_no_spec(cluster: Cluster) -> None:
    body = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "metadata": {"name": "a"}}
    cluster.plane.request("POST", cluster.requests, body)
    assert "spec.podName is empty" in cluster.wait_for("a", "Failed")["reason"]


def test_what_is_not_understood_is_failed_for_good_whatever_its_backoff_limit(cluster: Cluster) -> None:
    """Or the scheduler would wait for attempts that do not come (B-13)."""
    cluster.request("a", {"selectedNode": "n", "backoffLimit": 4})
    status = cluster.wait_for("a", "Failed")
    assert status["failedAttempts"] == 4


def test_an_unknown_pod(cluster: Cluster) -> None:
    cluster.ask("a", cluster.node())
    cluster.wait_for("a", "Failed")
    event = cluster.wait_for_event("a", "BindingError")
    assert event["message"].endswith(f": pod {cluster.namespace}/a does not exist")
    cluster.wait_for_event("a", "PodNotFound", "BindRequest")


def test_a_pod_that_comes_later_is_bound_by_the_next_attempt(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.ask("a", node, backoffLimit=4)
    cluster.wait_for_attempts("a", 1)
    cluster.pod("a")
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node


def test_a_pod_being_deleted(cluster: Cluster) -> None:
    made = cluster.pod("a")
    finalizer = {"metadata": {"finalizers": ["example.com/hold"]}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a", finalizer, "application/merge-patch+json")
    cluster.plane.request("DELETE", f"{cluster.pods}/a")
    cluster.ask("a", cluster.node(), owner=made, backoffLimit=3)
    status = cluster.wait_for("a", "Failed")
    assert status["reason"] == f"Bound PodTerminating: pod {cluster.namespace}/a is being deleted"
    assert status["failedAttempts"] == 3, "no attempt can end better"
    cluster.assert_unbound("a")
    gone = {"metadata": {"finalizers": None}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a", gone, "application/merge-patch+json")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended(cluster: Cluster, phase: str) -> None:
    made = cluster.pod("a")
    cluster.patch_pod_status("a", {"phase": phase})
    cluster.ask("a", cluster.node(), owner=made)
    status = cluster.wait_for("a", "Failed")
    text = f"pod {cluster.namespace}/a has ended: its phase is {phase}"
    assert status["reason"] == f"Bound PodFinished: {text}"
    cluster.assert_unbound("a")


def test_a_gated_pod_is_bound_once_its_gates_are_gone(cluster: Cluster) -> None:
    made = cluster.pod("a", schedulingGates=[{"name": "example.com/quota"}, {"name": "example.com/other"}])
    cluster.ask("a", cluster.node(), owner=made, backoffLimit=5)
    status = cluster.wait_for("a", "Failed")
    names = "example.com/quota, example.com/other"
    held = f"pod {cluster.namespace}/a is held back by its scheduling gates: {names}"
    assert status["reason"] == f"Bound PodGated: {held}"
    cluster.assert_unbound("a")
    delta = {"spec": {"schedulingGates": None}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a", delta, "application/merge-patch+json")
    cluster.wait_for("a", "Succeeded")


def test_a_pod_of_another_scheduler_is_read_live_and_bound(cluster: Cluster) -> None:
    made = cluster.pod("a", schedulerName="somebody-else")
    cluster.ask("a", cluster.node(), owner=made)
    cluster.wait_for("a", "Succeeded")


def test_the_owner_is_another_pod(own_cluster: Cluster, own_binders: Binders) -> None:
    cluster = own_cluster  # without a garbage collector, which would delete the request of a pod that is gone
    own_binders.start()
    cluster.pod("a")
    old = {"metadata": {"name": "a", "uid": "00000000-aaaa-bbbb-cccc-000000000000"}}
    cluster.plane.kubectl("label", "pod", "a", "-n", cluster.namespace, "of=test")
    before = cluster.get_pod("a")
    cluster.ask("a", cluster.node(), owner=old, backoffLimit=2)
    event = cluster.wait_for_event("a", "PodReplaced", "BindRequest")
    assert before["metadata"]["uid"] in event["message"]
    assert "00000000-aaaa-bbbb-cccc-000000000000" in event["message"]
    after = cluster.get_pod("a")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert cluster.events("a") == []
    status = cluster.status("a")
    assert (status["phase"], status["failedAttempts"]) == ("Failed", 2)


# backoffLimit.


def test_backoff_limits(cluster: Cluster, binder: Binder) -> None:
    limits = {"none": None, "minus": -1, "zero": 0, "one": 1, "two": 2, "four": 4}
    for name, limit in limits.items():
        spec = {"podName": name, "selectedNode": "no-such-node"}
        cluster.request(name, spec if limit is None else {**spec, "backoffLimit": limit}, cluster.pod(name))
    phases = Phases(cluster)
    phases.follow(9.5)
    ends = {name: cluster.status(name) for name in limits}
    attempts = {name: status["failedAttempts"] for name, status in ends.items()}
    assert attempts == {"none": 1, "minus": 1, "zero": 1, "one": 1, "two": 2, "four": 4}
    assert {status["phase"] for status in ends.values()} == {"Failed"}
    for name, limit in limits.items():  # as the scheduler reads it (B-13)
        assert limit is None or attempts[name] >= limit
        assert phases.seen[name] <= {"", "Failed"}, "a retry never reads as anything but failed"
    for name, delays in (("two", [1.0]), ("four", [1.0, 2.0, 4.0])):
        binder.assert_spaced(f"{cluster.namespace}/{name}", delays)


def test_a_changed_spec_starts_anew(cluster: Cluster) -> None:
    cluster.pod_and_request("a", "no-such-node")
    cluster.wait_for("a", "Failed")
    node = cluster.node()
    cluster.patch_request("a", {"spec": {"selectedNode": node}})
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node
    assert cluster.status("a")["observedGeneration"] == 2


def test_a_request_made_anew_under_the_same_name(cluster: Cluster) -> None:
    """KAI's scheduler does this within a second of a failure."""
    made = cluster.pod("a")
    for number in range(3):
        cluster.ask("a", f"no-such-node-{number}", owner=made)
        status = cluster.wait_for("a", "Failed")
        assert status["reason"] == f"Bound NodeGone: node no-such-node-{number} does not exist"
        assert status["failedAttempts"] == 1
        cluster.plane.request("DELETE", f"{cluster.requests}/a")
    cluster.ask("a", cluster.node(), owner=made)
    cluster.wait_for("a", "Succeeded")


# Two requests for one pod.


def test_two_requests_for_one_pod_and_the_same_node(cluster: Cluster) -> None:
    node, made = cluster.node(), cluster.pod("a")
    for name in ("first", "second"):
        cluster.request(name, {"podName": "a", "selectedNode": node}, made)
    cluster.wait_for_all(2)
    cluster.wait_for_event("a", "Bound")
    assert cluster.node_of("a") == node
    assert (cluster.pod_bound("a") or {})["status"] == "True"


def test_two_requests_for_one_pod_and_two_nodes(cluster: Cluster) -> None:
    nodes, made = [cluster.node(), cluster.node()], cluster.pod("a")
    for number, node in enumerate(nodes):
        cluster.request(f"r{number}", {"podName": "a", "selectedNode": node, "backoffLimit": 3}, made)

    def settled() -> bool:
        phases = [(item.get("status") or {}).get("phase") for item in cluster.all_requests()]
        return sorted(filter(None, phases)) == ["Failed", "Succeeded"]

    wait_until(settled)
    winner = nodes.index(cluster.node_of("a") or "")
    assert cluster.status(f"r{winner}")["phase"] == "Succeeded"
    loser = cluster.status(f"r{1 - winner}")
    text = f"pod {cluster.namespace}/a is on node {nodes[winner]} already, not on {nodes[1 - winner]}"
    assert loser["reason"] == f"Bound AlreadyBoundElsewhere: {text}"
    condition = cluster.pod_bound("a") or {}
    assert (condition["status"], condition["message"]) == (
        "True",
        f"Pod bound successfully to node {nodes[winner]}",
    )


# Shared GPUs.


def test_a_share_of_no_group_is_deleted_without_a_word(cluster: Cluster) -> None:
    made = cluster.pod("a")
    gpu = {"count": 1, "portion": "0.50"}
    cluster.ask("a", cluster.node(), owner=made, receivedResourceType="Fraction", receivedGPU=gpu)
    wait_until(lambda: cluster.all_requests() == [])
    time.sleep(0.5)
    after = cluster.get_pod("a")
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert cluster.events("a") == []
    assert cluster.events("a", "BindRequest") == []


# At the end: none of this was a surprise.


def test_the_binder_was_never_surprised(binder: Binder, tmp_path: Path) -> None:
    assert "Traceback" not in binder.log
    assert binder.answers("healthz") == 200
