"""Calls that fail or are lost, and caches that lag: nothing is left, and nobody's pod is deleted."""

import time
from collections.abc import Iterator

import kubelet
import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.proxy import Answer, Call, DropAnswer, Hang, Proxy, Refuse, Rule
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, RESERVATIONS, Sharing

RESERVATION = rf"^{RESERVATION_PODS}/gpu-reservation-"
SERVER_ERROR = Answer(500, {"kind": "Status", "code": 500, "message": "etcd is tired"})


@pytest.fixture(scope="module")
def binder(
    control_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """One that goes through the proxy."""
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start("--resource-reservation-allocation-timeout=8")
        made.close()
    finally:
        made.kill()


pytestmark = pytest.mark.usefixtures("binder")


def watch_of_reservations(call: Call) -> bool:
    return "metadata.namespace=kai-resource" in call.query.get("fieldSelector", "")


def watch_of_pods(call: Call) -> bool:
    return "spec.schedulerName=" in call.query.get("fieldSelector", "")


# T-12: what may fail while a GPU is reserved.


def test_the_scaling_pods_cannot_be_listed(cluster: Sharing, proxy: Proxy) -> None:
    """Then nobody can say that the cluster scales up."""
    asked = "metadata.namespace=kai-scale-adjust"
    rule = Rule(Answer(403), method="GET", where=lambda call: asked in call.query.get("fieldSelector", ""))
    with proxy.rule(rule):
        cluster.share("a", cluster.node(), cluster.group())
        cluster.wait_for("a", "Succeeded")
    assert rule.count == 1


def test_the_reservation_cannot_be_created(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(SERVER_ERROR, method="POST", path=f"^{RESERVATION_PODS}$")):
        cluster.share("a", node, group)
        status = cluster.wait_for("a", "Failed")
    text = "POST pods kai-resource-reservation: etcd is tired"
    assert status["reason"] == f"GPUReserved ServerError: {text}"
    cluster.assert_nothing_left("a", group)


def test_a_conflict_that_is_no_other_pod_of_that_name(cluster: Sharing, proxy: Proxy) -> None:
    """F-23: 409 says many things; the next attempt begins anew."""
    node, group = cluster.node(), cluster.group()
    refused = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "the namespace has changed"}
    with proxy.rule(Rule(Answer(409, refused), method="POST", path=f"^{RESERVATION_PODS}$")):
        cluster.share("a", node, group, backoffLimit=5)
        reason = cluster.wait_for_attempts("a", 1)["reason"]
    assert reason.startswith(f"GPUReserved ReservationRejected: reservation pod {RESERVATIONS}/"), reason
    assert reason.endswith(f"for node {node} was rejected: the namespace has changed")
    cluster.wait_for("a", "Succeeded", within_s=20)


@pytest.mark.parametrize("action", [DropAnswer(), Answer(409, {"code": 409, "reason": "AlreadyExists"})])
def test_the_reservation_is_created_but_nobody_says_so(
    cluster: Sharing, proxy: Proxy, action: DropAnswer | Answer
) -> None:
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(action, method="POST", path=f"^{RESERVATION_PODS}$", times=1)):
        cluster.share("a", node, group)
        cluster.wait_for("a", "Succeeded")
    assert cluster.status("a").get("failedAttempts", 0) == 0
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)


def test_the_watch_of_reservations_breaks_during_the_wait(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    cluster.share("a", node, group)
    cluster.wait_for_reservation(group)
    with proxy.rule(Rule(Refuse(), method="WATCH", where=watch_of_reservations)):
        name = cluster.reservation(group)["metadata"]["name"]
        delta = {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": "9"}}}
        cluster.plane.request("PATCH", f"{RESERVATION_PODS}/{name}", delta, MERGE)
        time.sleep(0.5)
        assert cluster.node_of("a") is None
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == "9"


def test_a_mute_watch_of_reservations(cluster: Sharing, proxy: Proxy) -> None:
    """A live read at the end of the time finds what the cache has missed."""
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_reservations)):
        cluster.share("a", node, group)
        cluster.wait_for("a", "Succeeded", within_s=20)
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)


def test_a_reservation_that_comes_and_goes_unseen(cluster: Sharing, proxy: Proxy) -> None:
    """Both in one piece of the watch: the wait must not last until its end."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_reservations)):
        cluster.share("a", node, group)
        name = cluster.wait_for_reservation(group)["metadata"]["name"]
        cluster.delete_reservations(group)
        time.sleep(0.5)  # both are on their way
    status = cluster.wait_for("a", "Failed", within_s=5)
    text = f"GPUReserved ReservationFailed: reservation pod kai-resource-reservation/{name}"
    assert status["reason"] in (f"{text} was deleted", f"{text} is being deleted")
    cluster.assert_nothing_left("a", group)


def test_two_reserve_at_once_without_a_cache(cluster: Sharing, proxy: Proxy) -> None:
    """T-17, upstream's duplicate race: nobody sees the other's reservation, and there is one all the same."""
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_reservations)):
        for name in ("a", "b", "c"):
            cluster.share(name, node, group)
        cluster.wait_for_reservation(group)
        time.sleep(1)
        assert len(cluster.reservations(group)) == 1
    cluster.wait_for_all(3, within_s=20)
    devices = {cluster.data(f"{name}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] for name in ("a", "b", "c")}
    assert devices == {cluster.device(group)}


# What comes after the reservation.


def test_the_second_map_fails(cluster: Sharing, proxy: Proxy) -> None:
    group = cluster.group()
    rule = Rule(SERVER_ERROR, method="POST", path=f"^{cluster.config_maps}$", skip=1)
    with proxy.rule(rule):
        cluster.share("a", cluster.node(), group)
        status = cluster.wait_for("a", "Failed")
    assert status["reason"] == f"GPUSharing ServerError: POST configmaps {cluster.namespace}: etcd is tired"
    cluster.assert_nothing_left("a", group)


def test_the_answer_to_a_map_is_lost(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(DropAnswer(), method="POST", path=f"^{cluster.config_maps}$", times=1)):
        cluster.share("a", node, group)
        cluster.wait_for("a", "Succeeded")
    assert cluster.all_config_maps() == ["a-shared-gpu-0", "a-shared-gpu-0-evar"]


def test_a_map_cannot_be_taken_back(cluster: Sharing, proxy: Proxy) -> None:
    """The message says so, the other one is taken back all the same, and the next attempt goes on."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    first = rf"^{cluster.config_maps}/a-shared-gpu-0$"
    with cluster.bindings_denied():
        with proxy.rule(Rule(SERVER_ERROR, method="DELETE", path=first)):
            cluster.share("a", node, *groups, backoffLimit=9)
            status = cluster.wait_for_attempts("a", 1)
        assert status["reason"].startswith("Bound Forbidden: POST pods/binding"), status
        assert status["reason"].endswith("etcd is tired")
        assert "gpusharing could not take back its work" in status["reason"]
        assert "a-shared-gpu-0-evar" not in cluster.all_config_maps()
        assert cluster.group_labels("a") == {}
        cluster.wait_for_attempts("a", 2)
        assert cluster.all_config_maps() == []
    cluster.wait_for("a", "Succeeded", within_s=20)


def test_the_answer_to_the_binding_is_lost(cluster: Sharing, proxy: Proxy) -> None:
    """D-8: the pod has its GPU; nothing of it is taken back."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    with proxy.rule(Rule(DropAnswer(), method="POST", path=f"^{cluster.pods}/a/binding$", times=1)):
        cluster.share("a", node, *groups)
        cluster.wait_for("a", "Succeeded")
    assert cluster.all_config_maps() == ["a-shared-gpu-0", "a-shared-gpu-0-evar"]
    wait_until(lambda: cluster.group_labels("a") == {f"{GROUP_LABEL}/{group}": group for group in groups})
    assert cluster.status("a").get("failedAttempts", 0) == 0
    assert all(len(cluster.reservations(group)) == 1 for group in groups)


# T-13, D-10, D-37: releases.


def test_a_release_that_fails_is_tried_again(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    delete = Rule(SERVER_ERROR, method="DELETE", path=RESERVATION, times=2)
    with proxy.rule(delete):
        cluster.delete_pod("a")
        cluster.wait_until_freed(group, within_s=20)
    assert delete.count >= 3


def test_users_that_cannot_be_listed_are_not_taken_for_gone(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    asked = Rule(
        SERVER_ERROR,
        method="GET",
        path="^/api/v1/pods$",
        where=lambda call: group in call.query.get("labelSelector", ""),
    )
    with proxy.rule(asked):
        cluster.delete_pod("a")
        wait_until(lambda: asked.count >= 2)
        assert len(cluster.reservations(group)) == 1
    cluster.wait_until_freed(group, within_s=20)


def test_a_user_that_the_cache_does_not_show_keeps_the_reservation(cluster: Sharing, proxy: Proxy) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_pods)):
        user = cluster.shared_pod("b", labels={GROUP_LABEL: group}, spec={"nodeName": node})
        cluster.ask_share("c", "no-such-node", group, owner=user)  # a change of the group
        cluster.wait_for("c", "Failed")
        cluster.delete_request("c")
        time.sleep(1)
        assert len(cluster.reservations(group)) == 1
    cluster.delete_pod("a")
    time.sleep(1)
    assert len(cluster.reservations(group)) == 1
    cluster.delete_pod("b")
    cluster.wait_until_freed(group)


def test_a_reservation_that_the_cache_does_not_show_keeps_the_users(cluster: Sharing, proxy: Proxy) -> None:
    """D-10: the Go binder would delete them."""
    node, group = cluster.node(), cluster.group()
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_reservations)):
        time.sleep(0.2)
        cluster.make_reservation(f"unseen-{cluster.namespace}", node, group, device="0")
        made = cluster.shared_pod("a", labels={GROUP_LABEL: group}, spec={"nodeName": node})
        looked = proxy.count("GET", "^/api/v1/pods$")
        cluster.set_phase("a", "Running")
        wait_until(lambda: proxy.count("GET", "^/api/v1/pods$") > looked)
        time.sleep(1)
        assert "deletionTimestamp" not in cluster.get_pod("a")["metadata"]
    assert cluster.get_pod("a")["metadata"]["uid"] == made["metadata"]["uid"]
    assert len(cluster.reservations(group)) == 1
    cluster.delete_pod("a")
    cluster.wait_until_freed(group, within_s=20)


def test_a_reservation_that_was_just_removed_is_not_used_again(cluster: Sharing, proxy: Proxy) -> None:
    """The cache shows it alive for a moment more, or longer: the GPU may be somebody else's by then."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    before = cluster.reservation(group)["metadata"]["uid"]
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_reservations)):
        time.sleep(0.2)
        cluster.delete_pod("a")
        cluster.wait_until_freed(group)
        cluster.agents.set(group, kubelet.Answer(device="other"))
        cluster.share("b", node, group)
        after = cluster.wait_for_reservation(group)["metadata"]["uid"]
        assert after != before
    cluster.wait_for("b", "Succeeded", within_s=20)
    assert cluster.data("b-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == "other"


def test_a_request_that_succeeded_protects_before_the_label_is_seen(cluster: Sharing, proxy: Proxy) -> None:
    """D-37."""
    node, group = cluster.node(), cluster.group()
    for name in ("a", "b"):
        cluster.shared_pod(name)
    with proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_pods)):
        time.sleep(0.2)
        for name in ("a", "b"):
            cluster.ask_share(name, node, group, owner=cluster.get_pod(name))
            cluster.wait_for(name, "Succeeded")
        cluster.delete_request("b")
        time.sleep(1)
        assert len(cluster.reservations(group)) == 1
    cluster.set_phase("b", "Succeeded")
    cluster.set_phase("a", "Succeeded")
    cluster.wait_until_freed(group, within_s=20)


def test_a_request_made_anew_while_the_cache_of_pods_lags(cluster: Sharing, proxy: Proxy) -> None:
    """Its Binding is refused, as the pod is on that node already: so its group is not the pod's."""
    node, first, second = cluster.node(), cluster.group(), cluster.group()
    pod = cluster.shared_pod("a")
    time.sleep(0.5)
    with proxy.rule(Rule(Hang(), method="WATCH", path="^/api/v1/pods$")):
        time.sleep(0.2)
        cluster.ask_share("a", node, first, owner=pod)
        cluster.wait_for("a", "Succeeded")
        cluster.delete_request("a")
        cluster.ask_share("a", node, second, owner=pod)
        cluster.wait_for("a", "Succeeded")
        told = {condition["reason"] for condition in cluster.conditions("a").values()}
        assert "AlreadyBound" in told, cluster.conditions("a")
        time.sleep(2)
        assert len(cluster.reservations(first)) == 1
    time.sleep(2)
    assert len(cluster.reservations(first)) == 1, "another pod may get its GPU"
    assert cluster.group_labels("a") == {GROUP_LABEL: first}
    assert "deletionTimestamp" not in cluster.get_pod("a")["metadata"]
    cluster.delete_pod("a")
    cluster.wait_until_freed(first, second, within_s=20)
