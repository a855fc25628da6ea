"""Requests that cannot be followed: each ends with a reason that a person can use, and harms no other."""

import time
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.cluster import MERGE, Cluster, Phases
from tests.objects import bind_request
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


def test_the_pod_is_told_of_a_request_that_is_not_understood(cluster: Cluster) -> None:
    """B-38"""
    made = cluster.pod("a")
    cluster.ask("a", "", owner=made)
    cluster.wait_for("a", "Failed")
    text = f"Failed to bind pod {cluster.namespace}/a: spec.selectedNode is empty"
    assert cluster.wait_for_event("a", "BindingError")["message"] == text
    bound = cluster.pod_bound("a") or {}
    assert (bound["status"], bound["reason"], bound["message"]) == ("False", "BindingError", text)


def test_a_pod_that_is_on_its_node_is_not_told_of_a_request_that_is_not_understood(cluster: Cluster) -> None:
    made = cluster.pod("a")
    cluster.bind_by_hand("a", cluster.node())
    cluster.ask("a", "", owner=made)
    cluster.wait_for("a", "Failed")
    assert cluster.pod_bound("a") is None


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


def test_a_share_of_no_group_for_a_pod_that_does_not_wait(cluster: Cluster) -> None:
    """B-26 comes before B-36."""
    share: Object = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    node, made = cluster.node(), cluster.pod("a")
    cluster.bind_by_hand("a", node)
    cluster.ask("a", node, owner=made, **share)
    cluster.wait_for("a", "Succeeded")
    cluster.ask("nobody", node, **share)
    assert "PodNotFound" in cluster.wait_for("nobody", "Failed")["reason"]


# Names and texts of all kinds, in every field.

ODD_NAMES = [
    *("a/b", "a/binding", "..", ".", "../../nodes/n", "a..b", ".a", "a.", "-a", "a-", "A", "a_b", "a b"),
    *("a%2fb", "a?x=y", "a#b", "ä", "名前", "\u0000", "a\n", " ", "x" * 254, "x" * 100_000),
]


@pytest.mark.parametrize("field", ["podName", "selectedNode"])
def test_what_is_no_name_of_an_object_is_never_asked_for(cluster: Cluster, field: str) -> None:
    made, node = cluster.pod("a"), cluster.node()
    for number, name in enumerate(ODD_NAMES):
        spec = {"podName": "a", "selectedNode": node, "receivedResourceType": "Regular", field: name}
        body = bind_request(f"r-{number}", spec, made)
        body["metadata"]["labels"] = {}
        cluster.plane.request("POST", cluster.requests, body)
    for number, name in enumerate(ODD_NAMES):
        reason = cluster.wait_for(f"r-{number}", "Failed")["reason"]
        shown = repr(name if len(name) <= 253 else f"{name[:253]}…")
        assert reason == f"Bound InvalidRequest: spec.{field} is {shown}, which is no name of an object"
    cluster.assert_unbound("a")


def test_the_longest_names_are_names(cluster: Cluster) -> None:
    longest = ".".join(["x" * 63] * 3 + ["y" * 61])
    assert len(longest) == 253
    node = cluster.node(f"{cluster.namespace}.{longest[len(cluster.namespace) + 1 :].lstrip('.')}")
    pod = cluster.pod(longest)
    cluster.request(longest, {"podName": longest, "selectedNode": node}, pod)
    cluster.wait_for(longest, "Succeeded")
    assert cluster.node_of(longest) == node
    cluster.wait_for_event(longest, "Bound")


ODD_TEXTS = ["a/b", "..", "x" * 253, "名前", "%s {0}", "\u0000\x1b[31m", "x" * 100_000]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_odd_texts_in_every_field_are_told_and_harm_nobody(cluster: Cluster, text: str) -> None:
    node = cluster.node()
    gpu = {"count": 1, "portion": "0.50"}
    fraction = {"receivedResourceType": "Fraction", "receivedGPU": gpu, "selectedGPUGroups": ["g"]}
    allocation = {"devices": {"results": [{"driver": "d", "pool": "p", "device": "d", "request": "r"}]}}
    specs: dict[str, Object] = {
        "portion": {**fraction, "receivedGPU": {"count": 1, "portion": text}},
        "group": {**fraction, "selectedGPUGroups": [text]},
        "claim": {"resourceClaimAllocations": [{"name": text, "allocation": allocation}]},
    }
    for name, spec in specs.items():
        cluster.ask(name, node, owner=cluster.pod(name), **spec)
    for name in specs:
        status = cluster.wait_for(name, "Failed")
        assert status["reason"].split()[1] in {
            "InvalidPortion:",
            "InvalidGPUGroup:",
            "InvalidGPUConfig:",
            "InvalidRequest:",
        }
        assert len(status["reason"]) <= 4096
        cluster.assert_unbound(name)
    # These mean nothing to the binder, and are passed on.
    zones = [{"zone": text[:1000], "amount": {"cpu": "1"}}]
    cluster.ask("zones", node, owner=cluster.pod("zones"), predictedNUMAZones=zones)
    cluster.wait_for("zones", "Succeeded")
    assert_can_be_updated(cluster, "zones")


# Annotations. The API server does not look at those of a Binding, but refuses any later change of such a pod.

LIMIT = 256 * 1024


def assert_can_be_updated(cluster: Cluster, name: str) -> None:
    """The kubelet will have to write the pod's status."""
    cluster.patch_pod_status(name, {"message": "the kubelet was here"})


@pytest.mark.parametrize("size", [250 * 1024, LIMIT - 100])
def test_a_pod_with_many_annotations_is_bound(cluster: Cluster, size: int) -> None:
    """F-60: it is not kept whole in memory, but bound all the same."""
    notes = "example.com/notes"
    cluster.ask("a", cluster.node(), owner=cluster.pod("a", annotations={notes: "x" * (size - len(notes))}))
    cluster.wait_for("a", "Succeeded")
    assert cluster.annotations("a")["received-resource-type"] == "Regular"
    assert_can_be_updated(cluster, "a")


def test_a_pod_whose_annotations_leave_no_room_is_not_bound(cluster: Cluster) -> None:
    """Nobody could ever update it: its containers would never be said to run."""
    notes = "example.com/notes"
    made = cluster.pod("a", annotations={notes: "x" * (LIMIT - len(notes))})
    cluster.ask("a", cluster.node(), owner=made)
    reason = cluster.wait_for("a", "Failed")["reason"]
    text = f"pod {cluster.namespace}/a has {LIMIT} bytes of annotations of its own and would get 29"
    assert reason == f"Bound AnnotationsTooLong: {text}; {LIMIT} are allowed in all"
    cluster.assert_unbound("a")
    assert_can_be_updated(cluster, "a")


def test_a_request_that_brings_too_much_for_annotations_is_refused(cluster: Cluster) -> None:
    zones = [{"zone": "x" * 100, "amount": {"cpu": "1"}} for _ in range(1200)]
    cluster.pod_and_request("a", cluster.node(), predictedNUMAZones=zones)
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"Bound InvalidRequest: pod {cluster.namespace}/a would get ")
    cluster.assert_unbound("a")


def test_a_pod_that_is_large_in_any_other_way_is_bound(cluster: Cluster) -> None:
    """F-60"""
    labels = {f"example.com/label-{number}": "x" * 60 for number in range(2000)}
    made = cluster.pod("a", tolerations=[{"key": f"k-{n}", "operator": "Exists"} for n in range(2000)])
    cluster.plane.request("PATCH", f"{cluster.pods}/a", {"metadata": {"labels": labels}}, MERGE)
    cluster.ask("a", cluster.node(), owner=made)
    cluster.wait_for("a", "Succeeded")
    assert len(cluster.get_pod("a")["metadata"]["labels"]) == 2000


# Owners.


@pytest.mark.parametrize("kind", ["Pod", "Workload"])
def test_a_request_that_somebody_else_owns_is_for_the_pod_that_it_names(
    own_cluster: Cluster, own_binders: Binders, kind: str
) -> None:
    """F-28: only an owner that is a pod of that name says which one it is for."""
    cluster = own_cluster  # without a garbage collector
    own_binders.start()
    node = cluster.node()
    cluster.pod("a")
    body = bind_request("a", {"podName": "a", "selectedNode": node})
    uid = "00000000-aaaa-bbbb-cccc-000000000000"
    owner = {"apiVersion": "v1", "kind": kind, "name": "leader", "uid": uid}
    body["metadata"]["ownerReferences"] = [owner]
    cluster.plane.request("POST", cluster.requests, body)
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node


# At the end: none of this was a surprise.


def test_the_binder_was_never_surprised(binder: Binder, tmp_path: Path) -> None:
    assert "Traceback" not in binder.log
    assert binder.answers("healthz") == 200
