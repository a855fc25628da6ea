"""Public reports about the bind itself: answers that are lost, pods that are swapped or bound by others."""

import time

import pytest

from tests.cases.conftest import Shared
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.proxy import Answer, Delay, DropAnswer

BINDING = "pods/.*/binding$"
STATUS = "bindrequests/.*/status$"


def test_k8s_96579_the_bind_worked_and_its_answer_was_lost(shared: Shared, cluster: Cluster) -> None:
    node = cluster.node()
    with shared.proxy.rule(shared.rule(cluster, DropAnswer(), "POST", BINDING)) as lost:
        cluster.pod_and_request("a", node)
        status = cluster.wait_for("a", "Succeeded")
    assert lost.count == 1, "a bind that happened was repeated"
    assert "failedAttempts" not in status
    assert "reason" not in status
    assert cluster.node_of("a") == node
    assert cluster.annotations("a")["received-resource-type"] == "Regular"
    cluster.wait_for_event("a", "Bound")
    assert cluster.events("a", reason="BindingError") == []
    assert (cluster.pod_bound("a") or {})["status"] == "True"


def test_k8s_96579_a_bind_that_failed_with_500_is_an_attempt(shared: Shared, cluster: Cluster) -> None:
    with shared.proxy.rule(shared.rule(cluster, Answer(500), "POST", BINDING, times=1)) as refused:
        cluster.pod_and_request("a", cluster.node(), backoffLimit=3)
        status = cluster.wait_for("a", "Succeeded")
    assert status["failedAttempts"] == 1
    assert refused.count == 2


def test_k8s_96579_a_server_that_is_not_there_costs_no_attempt(shared: Shared, cluster: Cluster) -> None:
    with shared.proxy.rule(shared.rule(cluster, Answer(503), "POST", BINDING, times=1)) as refused:
        cluster.pod_and_request("a", cluster.node())
        status = cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in status
    assert refused.count == 2


def test_volcano_vgpu_159_the_status_of_a_good_bind_is_not_stored(shared: Shared, cluster: Cluster) -> None:
    with shared.proxy.rule(shared.rule(cluster, Answer(500), "PATCH", STATUS, times=2)) as refused:
        cluster.pod_and_request("a", cluster.node())
        cluster.wait_for("a", "Succeeded")
    assert refused.count == 3
    assert shared.count(cluster, "POST", BINDING) == 1
    cluster.wait_for_event("a", "Bound")


def test_k8s_105261_a_pod_made_anew_while_its_bind_is_under_way(shared: Shared, cluster: Cluster) -> None:
    with shared.proxy.rule(shared.rule(cluster, Delay(2), "POST", BINDING)) as delayed:
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: delayed.count == 1)
        cluster.delete_pod("a")
        new = cluster.pod("a", limits={"cpu": "2"})
        wait_until(lambda: any(call.status == 409 for call in shared.proxy.calls if "binding" in call.path))
        time.sleep(1)
    found = cluster.get_pod("a")
    assert found["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]
    assert delayed.count == 1


def assert_told_of_the_real_node(cluster: Cluster, wanted: str, real: str) -> None:
    status = cluster.wait_for("a", "Failed")
    text = f"pod {cluster.namespace}/a is on node {real} already, not on {wanted}"
    assert status["reason"] == f"Bound AlreadyBoundElsewhere: {text}"
    assert status["failedAttempts"] == 3
    event = cluster.wait_for_event("a", "BindingError")
    assert event["message"].endswith(text)
    assert cluster.events("a", reason="Bound") == []
    assert cluster.pod_bound("a") is None
    assert cluster.node_of("a") == real
    assert cluster.annotations("a") == {}


def test_karpenter_aws_984_a_pod_bound_elsewhere_before(shared: Shared, cluster: Cluster) -> None:
    wanted, real = cluster.node(), cluster.node()
    pod = cluster.pod("a")
    cluster.bind_by_hand("a", real)
    cluster.ask("a", wanted, owner=pod, backoffLimit=3)
    assert_told_of_the_real_node(cluster, wanted, real)


def test_karpenter_aws_984_a_pod_bound_elsewhere_during_the_bind(shared: Shared, cluster: Cluster) -> None:
    wanted, real = cluster.node(), cluster.node()
    with shared.proxy.rule(shared.rule(cluster, Delay(1), "POST", BINDING)) as delayed:
        cluster.pod_and_request("a", wanted, backoffLimit=3)
        wait_until(lambda: delayed.count == 1)
        cluster.bind_by_hand("a", real)
        assert_told_of_the_real_node(cluster, wanted, real)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_k8s_141274_a_pod_that_has_ended_is_left_alone(shared: Shared, cluster: Cluster, phase: str) -> None:
    pod = cluster.pod("a")
    ended = cluster.patch_pod_status("a", {"phase": phase})
    cluster.ask("a", cluster.node(), owner=pod, backoffLimit=2)
    status = cluster.wait_for("a", "Failed")
    assert status["reason"].startswith("Bound PodFinished: ")
    assert status["failedAttempts"] == 2
    assert shared.count(cluster, "POST", BINDING) == 0
    found = cluster.get_pod("a")
    assert found["metadata"].get("annotations") == ended["metadata"].get("annotations")
    assert "nodeName" not in found["spec"]
