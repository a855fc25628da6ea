"""Who is a user of a shared GPU, and what is its reservation: labels and annotations may lie."""

import time
from collections.abc import Callable

import pytest

from controller.runtime.client import Object
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.sharing import FRACTION, GPU_INDEX, GROUP_LABEL, RESERVATIONS, Sharing

pytestmark = pytest.mark.usefixtures("binder")

LOOK_S = 1.0


def is_being_deleted(cluster: Sharing, name: str) -> bool:
    return "deletionTimestamp" in cluster.get_pod(name)["metadata"]


def unassigned(cluster: Sharing, node: str, group: str) -> None:
    cluster.shared_pod("liar", labels={GROUP_LABEL: group})


def on_another_node(cluster: Sharing, node: str, group: str) -> None:
    cluster.shared_pod("liar", labels={GROUP_LABEL: group}, spec={"nodeName": cluster.node()})


def without_a_share(cluster: Sharing, node: str, group: str) -> None:
    labels = {GROUP_LABEL: group}
    cluster.shared_pod("liar", fraction=None, config_map=None, labels=labels, spec={"nodeName": node})


def of_another_scheduler(cluster: Sharing, node: str, group: str) -> None:
    body: Object = {
        "metadata": {
            "name": "liar",
            "labels": {f"{GROUP_LABEL}/{group}": group},
            "annotations": {"gpu-fraction": "0.5", "received-resource-type": "Fraction"},
        },
        "spec": {
            "nodeName": node,
            "schedulerName": "other",
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }
    cluster.plane.request("POST", cluster.pods, body)


def with_a_share_of_another_gpu(cluster: Sharing, node: str, group: str) -> None:
    cluster.share("liar", node, cluster.group())
    cluster.wait_for("liar", "Succeeded")
    delta = {"metadata": {"labels": {f"{GROUP_LABEL}/{group}": group}}}
    cluster.plane.request("PATCH", f"{cluster.pods}/liar", delta, MERGE)


LIARS = pytest.mark.parametrize(
    "liar",
    [unassigned, on_another_node, without_a_share, of_another_scheduler, with_a_share_of_another_gpu],
)


@LIARS
def test_a_label_alone_reserves_nothing(cluster: Sharing, liar: Callable[[Sharing, str, str], None]) -> None:
    """F-58: else anybody could keep a GPU reserved for ever, outside of every quota."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    liar(cluster, node, group)
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)
    assert not is_being_deleted(cluster, "liar")


@LIARS
def test_a_label_alone_stops_no_bind(cluster: Sharing, liar: Callable[[Sharing, str, str], None]) -> None:
    """F-58: nor is such a pod one that lost its reservation, beside which nobody may get the group's GPU."""
    node, group = cluster.node(), cluster.group()
    liar(cluster, node, group)
    time.sleep(LOOK_S)
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")


def test_a_label_alone_is_no_reason_to_delete_a_pod(cluster: Sharing) -> None:
    """F-58: a pod that has no share cannot lose it."""
    node, group = cluster.node(), cluster.group()
    without_a_share(cluster, node, group)
    cluster.set_phase("liar", "Running")
    time.sleep(LOOK_S)
    assert not is_being_deleted(cluster, "liar")


def test_a_pod_that_asks_for_no_share_but_was_given_one(cluster: Sharing) -> None:
    """F-58: its request says so, whatever its author takes off."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    annotations = dict.fromkeys(cluster.annotations("a"))
    delta = {"metadata": {"labels": {GROUP_LABEL: "other"}, "annotations": annotations}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a", delta, MERGE)
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    # Nor does he keep his pod on a GPU that nobody holds for it.
    cluster.set_phase("a", "Running")
    cluster.delete_reservations(group)
    wait_until(lambda: is_being_deleted(cluster, "a"))


def test_the_end_of_a_pod_without_labels_and_annotations_frees_its_gpu(cluster: Sharing) -> None:
    """F-58: the GPU must not stay reserved until somebody deletes what is left of the pod."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    annotations = dict.fromkeys(cluster.annotations("a"))
    delta = {"metadata": {"labels": {GROUP_LABEL: "other"}, "annotations": annotations}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a", delta, MERGE)
    time.sleep(LOOK_S)
    cluster.set_phase("a", "Succeeded")
    cluster.wait_until_freed(group)


def test_a_request_of_another_owner_protects_its_group(cluster: Sharing) -> None:
    """F-28: it binds the pod of its name, so it protects that pod's GPU."""
    node, group = cluster.node(), cluster.group()
    leader = cluster.pod("leader")
    cluster.shared_pod("a")
    cluster.ask_share("a", node, group, owner=leader)
    cluster.wait_for("a", "Succeeded")
    delta = {
        "metadata": {"labels": {GROUP_LABEL: None}, "annotations": dict.fromkeys(cluster.annotations("a"))}
    }
    cluster.plane.request("PATCH", f"{cluster.pods}/a", delta, MERGE)
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    wait_until(lambda: cluster.group_labels("a") == {GROUP_LABEL: group})
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)


# Pods that claim to be reservations.


def decoy(cluster: Sharing, name: str, node: str, group: str, *, gpus: str = "", **annotations: str) -> None:
    """A pod in the user's namespace that wants to be taken for a reservation."""
    container: Object = {"name": "main", "image": "busybox"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    labels = {"app": RESERVATIONS, GROUP_LABEL: group}
    body = {
        "metadata": {"name": name, "labels": labels, "annotations": {GPU_INDEX: "0", **annotations}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    cluster.plane.request("POST", cluster.pods, body)


@pytest.mark.parametrize("kind", ["annotation", "name", "share", "elsewhere"])
def test_a_pod_that_passes_itself_off_as_a_reservation(cluster: Sharing, kind: str) -> None:
    """F-59: its author would escape eviction from a GPU that others may be given."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    match kind:
        case "annotation":
            decoy(cluster, "mine", node, group, gpus="1")
        case "name":
            decoy(cluster, "gpu-reservation-0123456789abcdef", node, group)
        case "share":
            annotations = {"gpu-fraction": "0.5"}
            decoy(cluster, "gpu-reservation-0123456789abcdef", node, group, gpus="1", **annotations)
        case "elsewhere":
            decoy(cluster, "gpu-reservation-0123456789abcdef", cluster.node(), group, gpus="1")
    cluster.set_phase("a", "Running")
    cluster.delete_reservations(group)
    wait_until(lambda: is_being_deleted(cluster, "a"))


def test_the_user_himself_is_no_reservation(cluster: Sharing) -> None:
    """F-59."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group, pod={"annotations": {GPU_INDEX: "0"}, "labels": {"app": RESERVATIONS}})
    cluster.wait_for("a", "Succeeded")
    cluster.set_phase("a", "Running")
    cluster.delete_reservations(group)
    wait_until(lambda: is_being_deleted(cluster, "a"))


def test_a_reservation_that_a_binder_with_other_settings_made(cluster: Sharing) -> None:
    """F-59: in another namespace, and alive: it holds the GPU."""
    node, group = cluster.node(), cluster.group()
    decoy(cluster, "gpu-reservation-0123456789abcdef", node, group, gpus="1")
    cluster.shared_pod("a", labels={GROUP_LABEL: group}, spec={"nodeName": node})
    cluster.set_phase("a", "Running")
    time.sleep(LOOK_S)
    assert not is_being_deleted(cluster, "a")
    # Once it has ended, it holds nothing.
    cluster.set_phase("gpu-reservation-0123456789abcdef", "Failed")
    cluster.patch_status_of(f"{cluster.pods}/a", {"message": "look again"})
    cluster.plane.request("PATCH", f"{cluster.pods}/a", {"metadata": {"labels": {"look": "again"}}}, MERGE)
    wait_until(lambda: is_being_deleted(cluster, "a"))


# Names that lie.


@pytest.mark.parametrize("prefix", ["../../pods", "a/b", ".", "-x", "x" * 300])
def test_annotations_that_name_no_map_stop_nobody_else(cluster: Sharing, prefix: str) -> None:
    """The map of a user is read where two reservations compete: a name that is none is nobody's."""
    node, group = cluster.node(), cluster.group()
    labels, lie = {GROUP_LABEL: group}, {"runai/shared-gpu-configmap": prefix}
    cluster.shared_pod("liar", config_map=None, annotations=lie, labels=labels, spec={"nodeName": node})
    cluster.agents.set(group, None)
    for number, name in enumerate(("old-a", "old-b")):
        cluster.make_reservation(f"{name}-{cluster.namespace}", node, group, device=str(number))
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.delete_pod("liar")
    cluster.delete_pod("a")
    cluster.wait_until_freed(group, within_s=15)


def test_a_reservation_of_our_name_that_is_of_another_group(cluster: Sharing) -> None:
    """Somebody has changed its label: it is believed to hold neither."""
    node, group, other = cluster.node(), cluster.group(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    name = cluster.reservation(group)["metadata"]["name"]
    cluster.shared_pod("keeps", labels={GROUP_LABEL: other}, spec={"nodeName": node})
    delta = {"metadata": {"labels": {GROUP_LABEL: other}}}
    cluster.plane.request("PATCH", f"/api/v1/namespaces/{RESERVATIONS}/pods/{name}", delta, MERGE)
    cluster.delete_pod("a")
    cluster.share("b", node, group)
    reason = cluster.wait_for("b", "Failed")["reason"]
    text = f"reservation pod {RESERVATIONS}/{name} is not labelled as that of GPU group {group}"
    assert reason == f"GPUReserved ReservationConflict: {text}"
    cluster.delete_pod("keeps")
    cluster.wait_until_freed(other)


def test_one_group_on_two_nodes(cluster: Sharing) -> None:
    """A name that collides: each node's users go by their own reservation, and lose it alone."""
    here, there, group = cluster.node(), cluster.node(), cluster.group()
    for node in (here, there):
        name = f"user-{node}"
        cluster.shared_pod(name, labels={GROUP_LABEL: group}, spec={"nodeName": node})
        cluster.make_reservation(f"old-{node}", node, group, device=node)
        cluster.set_phase(name, "Running")
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 2
    cluster.plane.request(
        "DELETE", f"/api/v1/namespaces/{RESERVATIONS}/pods/old-{there}?gracePeriodSeconds=0"
    )
    wait_until(lambda: is_being_deleted(cluster, f"user-{there}"))
    assert not is_being_deleted(cluster, f"user-{here}")
    cluster.delete_pod(f"user-{here}")
    cluster.wait_until_freed(group, within_s=15)


def test_a_share_by_a_name_alone(cluster: Sharing) -> None:
    """A request without an owner is for whichever pod has the name (B-10); its group is protected as well."""
    node, group = cluster.node(), cluster.group()
    cluster.shared_pod("a")
    gpu = {"count": 1, "portion": "0.50"}
    kind = FRACTION["receivedResourceType"]
    cluster.ask("a", node, receivedResourceType=kind, receivedGPU=gpu, selectedGPUGroups=[group])
    cluster.wait_for("a", "Succeeded")
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)


def test_the_end_of_a_pod_that_no_cache_shows_frees_its_gpu(cluster: Sharing) -> None:
    """F-58: nobody tells of its end, so it is looked for now and then, not only when the pod is deleted."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group, pod={"spec": {"schedulerName": "another"}})
    cluster.wait_for("a", "Succeeded")
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    cluster.set_phase("a", "Succeeded")
    cluster.wait_until_freed(group, within_s=40)


# D-5, D-10: a request that finds its pod on the node gave it nothing.


def assert_untouched(cluster: Sharing, name: str, labels: dict[str, str]) -> None:
    """A while later the pod runs on, with the groups that it had."""
    time.sleep(2 * LOOK_S)
    assert not is_being_deleted(cluster, name)
    assert cluster.group_labels(name) == labels
    assert cluster.events(name, reason="ReservationLost") == []


def test_a_second_request_for_a_bound_pod_takes_its_gpu_from_nobody(cluster: Sharing) -> None:
    """The scheduler's snapshot was old: it asks for a pod that runs already, with another group."""
    node, first, second = cluster.node(), cluster.group(), cluster.group()
    pod = cluster.share("a", node, first)
    cluster.wait_for("a", "Succeeded")
    cluster.set_phase("a", "Running")
    cluster.delete_request("a")
    cluster.ask_share("a", node, second, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert_untouched(cluster, "a", {GROUP_LABEL: first})
    assert [len(cluster.reservations(group)) for group in (first, second)] == [1, 0]
    cluster.share("b", node, second)
    cluster.wait_for("b", "Succeeded")
    cluster.delete_pod("a")
    cluster.wait_until_freed(first)


def test_a_pod_that_was_bound_by_hand_is_neither_labelled_nor_deleted(cluster: Sharing) -> None:
    """T-1"""
    node = cluster.node()
    pod = cluster.shared_pod("a", spec={"nodeName": node})
    cluster.set_phase("a", "Running")
    cluster.ask_share("a", node, cluster.group(), owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert_untouched(cluster, "a", {})


def test_a_request_of_nobody_does_nothing_to_a_later_pod_of_the_name(cluster: Sharing) -> None:
    """B-10: without an owner it stays when its pod goes."""
    node, group = cluster.node(), cluster.group()
    cluster.shared_pod("a")
    cluster.ask_share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)
    time.sleep(1.1)  # creationTimestamps have whole seconds
    body = {"nodeName": node}
    cluster.shared_pod("a", fraction=None, config_map=None, spec=body)
    cluster.set_phase("a", "Running")
    assert_untouched(cluster, "a", {})
