"""When a reservation is kept, when it is freed, and what becomes of pods that have lost theirs."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.runtime.client import Object
from tests.polling import wait_until
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, Sharing

pytestmark = pytest.mark.usefixtures("binder")

YOUNG_S = 10.0
LOOK_S = 1.0
"""What is to stay is looked at again after so long."""


def block(cluster: Sharing, name: str) -> None:
    """Has each attempt of this pod fail after its GPU was reserved: its map is another living pod's."""
    other = cluster.pod(f"blocks-{name}")["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": other["name"], "uid": other["uid"]}
    metadata = {"name": f"{name}-shared-gpu-0", "ownerReferences": [owner]}
    cluster.plane.request("POST", cluster.config_maps, {"metadata": metadata, "data": {}})


def unblock(cluster: Sharing, name: str) -> None:
    cluster.plane.request("DELETE", f"{cluster.config_maps}/{name}-shared-gpu-0")


def user(cluster: Sharing, name: str, *groups: str, node: str = "", phase: str = "Running") -> Object:
    """A pod that uses these groups already, without a request."""
    several = len(groups) > 1
    labels = {(f"{GROUP_LABEL}/{group}" if several else GROUP_LABEL): group for group in groups}
    spec = {"nodeName": node} if node else {}
    made = cluster.shared_pod(name, labels=labels, spec=spec)
    if phase != "Pending":
        cluster.set_phase(name, phase)
    return made


def assert_kept(cluster: Sharing, *groups: str) -> None:
    time.sleep(LOOK_S)
    for group in groups:
        assert "deletionTimestamp" not in cluster.reservation(group)["metadata"]


def is_being_deleted(cluster: Sharing, name: str) -> bool:
    return "deletionTimestamp" in cluster.get_pod(name)["metadata"]


# The last user ends.


@pytest.mark.parametrize("end", ["Succeeded", "Failed", "deleted"])
def test_freed_when_the_last_user_ends(cluster: Sharing, end: str) -> None:
    node, group = cluster.node(), cluster.group()
    for name in ("a", "b"):
        cluster.share(name, node, group)
    cluster.wait_for_all(2)
    cluster.set_phase("b", "Running")

    def finish(name: str) -> None:
        if end == "deleted":
            cluster.delete_pod(name)
        else:
            cluster.set_phase(name, end)

    finish("a")
    assert_kept(cluster, group)
    finish("b")
    cluster.wait_until_freed(group)


@pytest.mark.parametrize("end", ["Succeeded", "deleted"])
def test_freed_when_the_last_user_of_several_devices_ends(cluster: Sharing, end: str) -> None:
    """D-9: such a pod has no plain label."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    cluster.share("two", node, *groups)
    cluster.share("one", node, groups[0])
    cluster.wait_for_all(2)
    if end == "deleted":
        cluster.delete_pod("two")
    else:
        cluster.set_phase("two", end)
    cluster.wait_until_freed(groups[1])
    assert_kept(cluster, groups[0])
    cluster.delete_pod("one")
    cluster.wait_until_freed(groups[0])


def test_a_pod_that_is_being_deleted_still_has_its_gpu(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.plane.request("DELETE", f"{cluster.pods}/a")
    assert is_being_deleted(cluster, "a")
    assert_kept(cluster, group)
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)


def test_a_group_that_was_freed_is_reserved_anew(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    for number in range(5):
        name = f"a-{number}"
        cluster.share(name, node, group)
        cluster.wait_for(name, "Succeeded")
        assert cluster.data(f"{name}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)
        cluster.delete_pod(name)
    cluster.wait_until_freed(group)


# Failed attempts.


def test_freed_after_the_last_failed_attempt_and_protected_until_then(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    block(cluster, "a")
    cluster.share("a", node, group, backoffLimit=2)
    cluster.wait_for_attempts("a", 1)
    assert "deletionTimestamp" not in cluster.reservation(group)["metadata"]
    cluster.wait_for_attempts("a", 2)
    cluster.wait_until_freed(group)
    assert cluster.all_config_maps() == ["a-shared-gpu-0"]
    cluster.assert_unbound("a")


def test_the_reservation_is_the_same_through_all_attempts(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    block(cluster, "a")
    cluster.share("a", node, group, backoffLimit=3)
    cluster.wait_for_attempts("a", 1)
    before = cluster.reservation(group)["metadata"]["uid"]
    cluster.wait_for_attempts("a", 2)
    unblock(cluster, "a")
    status = cluster.wait_for("a", "Succeeded")
    assert status["failedAttempts"] == 2
    assert cluster.reservation(group)["metadata"]["uid"] == before


def test_freed_when_the_request_is_deleted_between_attempts(cluster: Sharing) -> None:
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    block(cluster, "a")
    cluster.share("a", node, *groups, backoffLimit=9)
    cluster.wait_for_attempts("a", 2)
    assert_kept(cluster, *groups)
    cluster.delete_request("a")
    cluster.wait_until_freed(*groups, within_s=3)


def test_freed_when_the_pod_is_deleted_between_attempts(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    block(cluster, "a")
    cluster.share("a", node, group, backoffLimit=9)
    cluster.wait_for_attempts("a", 1)
    cluster.delete_pod("a")
    cluster.wait_until_freed(group, within_s=30)  # the garbage collector takes the request


def test_kept_while_another_pod_of_the_group_lives(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    block(cluster, "b")
    cluster.share("b", node, group)
    cluster.wait_for("b", "Failed")
    assert_kept(cluster, group)
    assert cluster.group_labels("a") == {GROUP_LABEL: group}


# T-13, T-14: what is there without a bind of ours.


def test_a_solitary_reservation_is_freed(cluster: Sharing) -> None:
    group = cluster.group()
    cluster.make_reservation(f"alone-{cluster.namespace}", cluster.node(), group, device="0")
    cluster.wait_until_freed(group, within_s=YOUNG_S + 5)


def test_a_young_reservation_of_another_name_is_let_be(cluster: Sharing) -> None:
    """F-66: another binder may have made it just before its request shows."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    made = cluster.make_reservation(f"young-{cluster.namespace}", node, group, device="7")
    time.sleep(0.6 * YOUNG_S)
    assert "deletionTimestamp" not in cluster.reservation(group)["metadata"]
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    assert cluster.reservation(group)["metadata"]["uid"] == made["metadata"]["uid"]
    time.sleep(0.6 * YOUNG_S)
    assert "deletionTimestamp" not in cluster.reservation(group)["metadata"]
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)


def test_a_reservation_of_our_name_is_freed_at_once(cluster: Sharing) -> None:
    """F-66: nobody but binders like this one makes those, and this one knows what it makes."""
    node, group = cluster.node(), cluster.group()
    digest = hashlib.sha256(f"{node}/{group}".encode()).hexdigest()
    cluster.make_reservation(f"gpu-reservation-{digest[:16]}", node, group, device="0")
    cluster.wait_until_freed(group, within_s=0.6 * YOUNG_S)


def test_a_pod_without_a_group_is_nobodys_business(cluster: Sharing) -> None:
    made = cluster.make_reservation(f"nameless-{cluster.namespace}", cluster.node(), "")
    path = f"{RESERVATION_PODS}/{made['metadata']['name']}"
    time.sleep(LOOK_S)
    assert "deletionTimestamp" not in cluster.plane.request("GET", path)["metadata"]
    cluster.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")


def test_an_empty_group_label_on_some_pod_harms_nobody(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.shared_pod("odd", labels={GROUP_LABEL: "", f"{GROUP_LABEL}/x": ""}, spec={"nodeName": node})
    cluster.set_phase("odd", "Running")
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    assert not is_being_deleted(cluster, "odd")
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_kept_with_a_pod(cluster: Sharing, phase: str) -> None:
    node, group = cluster.node(), cluster.group()
    user(cluster, "a", group, node=node, phase=phase)
    cluster.make_reservation(f"for-{cluster.namespace}", node, group, device="0")
    assert_kept(cluster, group)
    cluster.delete_pod("a")
    cluster.wait_until_freed(group, within_s=YOUNG_S + 5)


def test_freed_with_pods_that_have_ended_only(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    for name, phase in (("a", "Succeeded"), ("b", "Failed")):
        user(cluster, name, group, node=node, phase=phase)
    cluster.make_reservation(f"for-{cluster.namespace}", node, group, device="0")
    cluster.wait_until_freed(group, within_s=YOUNG_S + 5)
    assert {pod["metadata"]["name"] for pod in cluster.all_pods()} == {"a", "b"}


def test_a_running_pod_without_a_reservation_is_deleted_a_pending_one_is_not(cluster: Sharing) -> None:
    node, group, groups = cluster.node(), cluster.group(), [cluster.group(), cluster.group()]
    user(cluster, "runs", group, node=node)
    user(cluster, "waits", group, node=node, phase="Pending")
    user(cluster, "runs-on-two", *groups, node=node)
    for name in ("runs", "runs-on-two"):
        wait_until(lambda name=name: is_being_deleted(cluster, name))  # type: ignore[misc]
    assert not is_being_deleted(cluster, "waits")
    text = "has lost its reservation: its GPU may be given to others, so the pod goes"
    assert cluster.wait_for_event("runs", "ReservationLost")["message"] == f"GPU group {group} {text}"


def test_a_user_of_two_groups_keeps_both(cluster: Sharing) -> None:
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    user(cluster, "a", *groups, node=node, phase="Pending")
    for number, group in enumerate(groups):
        cluster.make_reservation(f"for-{number}-{cluster.namespace}", node, group, device=str(number))
    cluster.set_phase("a", "Running")
    assert_kept(cluster, *groups)
    assert not is_being_deleted(cluster, "a")


def test_a_reservation_that_was_deleted_takes_its_running_users_with_it(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.set_phase("a", "Running")
    cluster.delete_reservations(group)
    wait_until(lambda: is_being_deleted(cluster, "a"))


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_reservation_that_has_ended_takes_its_running_users_with_it(cluster: Sharing, phase: str) -> None:
    """F-20: the kubelet has freed the GPU and may hand it out; the group can be reserved anew."""
    node, group = cluster.node(), cluster.group()
    for name in ("runs", "waits"):
        cluster.share(name, node, group)
        cluster.wait_for(name, "Succeeded")
    cluster.set_phase("runs", "Running")
    before = cluster.reservation(group)["metadata"]
    cluster.patch_status_of(f"{RESERVATION_PODS}/{before['name']}", {"phase": phase})
    wait_until(lambda: is_being_deleted(cluster, "runs"))
    cluster.wait_for_event("runs", "ReservationLost")
    cluster.wait_until_freed(group)
    assert not is_being_deleted(cluster, "waits")
    for name in ("runs", "waits"):
        cluster.delete_pod(name)
    cluster.share("next", node, group)
    cluster.wait_for("next", "Succeeded")
    assert cluster.reservation(group)["metadata"]["uid"] != before["uid"]


def test_requests_that_are_tried_again_do_not_keep_users_of_a_lost_gpu(cluster: Sharing) -> None:
    """F-20: each attempt is ReservationLost until the last user ends."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    name = cluster.reservation(group)["metadata"]["name"]
    cluster.patch_status_of(f"{RESERVATION_PODS}/{name}", {"phase": "Failed"})
    cluster.share("b", node, group, backoffLimit=9)
    cluster.wait_for_attempts("b", 1)
    cluster.set_phase("a", "Running")
    wait_until(lambda: is_being_deleted(cluster, "a"))
    cluster.delete_pod("a")
    cluster.wait_for("b", "Succeeded", within_s=20)


def test_an_ended_reservation_beside_a_living_one(cluster: Sharing) -> None:
    """F-20: it goes, and nobody with it."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    config_map = {"metadata": {"name": "a-shared-gpu-0"}, "data": {"NVIDIA_VISIBLE_DEVICES": "0"}}
    cluster.plane.request("POST", cluster.config_maps, config_map)
    user(cluster, "a", group, node=node, phase="Pending")
    for name in ("old", "new"):
        cluster.make_reservation(f"{name}-{cluster.namespace}", node, group, device="0")
    cluster.set_phase("a", "Running")
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 2, "the device of both is in use"
    cluster.patch_status_of(f"{RESERVATION_PODS}/old-{cluster.namespace}", {"phase": "Succeeded"})
    wait_until(lambda: cluster.reservation(group))
    assert_kept(cluster, group)
    assert not is_being_deleted(cluster, "a")


# T-6, T-8, T-17: requests protect.


def test_kept_with_an_active_request_only(cluster: Sharing) -> None:
    node, group, other = cluster.node(), cluster.group(), cluster.group()
    for name in ("a", "b"):  # nobody binds them: their node is not there, and they are tried again
        made = cluster.shared_pod(name)
        groups = [other, group] if name == "b" else [group]
        cluster.ask_share(name, "no-such-node", *groups, owner=made, backoffLimit=9)
    cluster.wait_for_attempts("a", 1)
    cluster.make_reservation(f"for-{cluster.namespace}", node, group, device="0")
    assert_kept(cluster, group)
    cluster.delete_request("a")
    assert_kept(cluster, group)
    cluster.delete_request("b")
    cluster.wait_until_freed(group, within_s=YOUNG_S + 5)


def test_freed_with_requests_that_failed_for_good_only(cluster: Sharing) -> None:
    group = cluster.group()
    for name in ("a", "b"):
        cluster.ask_share(name, "no-such-node", group, owner=cluster.shared_pod(name))
        cluster.wait_for(name, "Failed")
    cluster.make_reservation(f"for-{cluster.namespace}", cluster.node(), group, device="0")
    cluster.wait_until_freed(group, within_s=YOUNG_S + 5)


def test_kept_with_a_request_that_succeeded_while_its_pod_lives(cluster: Sharing) -> None:
    """D-37: the pod's label may be seen later than the request's success."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.set_phase("a", "Succeeded")
    cluster.wait_until_freed(group)
    assert cluster.status("a")["phase"] == "Succeeded"


def test_many_reservations_of_other_names_are_kept_and_used(cluster: Sharing) -> None:
    """T-8: 4 nodes, 8 groups each."""
    nodes = [cluster.node() for _ in range(4)]
    groups = {cluster.group(): node for node in nodes for _ in range(8)}

    def prepare(number: int, group: str, node: str) -> str:
        cluster.agents.set(group, None)
        cluster.shared_pod(f"user-{number}", labels={GROUP_LABEL: group})
        made = cluster.make_reservation(f"old-{number}-{cluster.namespace}", node, group, device=str(number))
        config_map = {"metadata": {"name": f"a-{number}-shared-gpu-0"}, "data": {}}  # without an owner
        cluster.plane.request("POST", cluster.config_maps, config_map)
        cluster.share(f"a-{number}", node, group)
        return str(made["metadata"]["uid"])

    with ThreadPoolExecutor(4) as pool:
        kept = dict(
            zip(groups, pool.map(prepare, range(32), *zip(*groups.items(), strict=True)), strict=True)
        )
    cluster.wait_for_all(32, within_s=60)
    time.sleep(LOOK_S)
    for number, (group, uid) in enumerate(kept.items()):
        assert cluster.reservation(group)["metadata"]["uid"] == uid
        assert cluster.data(f"a-{number}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == str(number)
    cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
    cluster.wait_until_freed(*groups, within_s=30)
