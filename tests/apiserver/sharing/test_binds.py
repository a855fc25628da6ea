"""Shared GPUs that are bound: reservation, both ConfigMaps to the byte, labels, annotations, conditions."""

import hashlib
import json
import time

import pytest
from kubelet import Answer, device_of

from controller.runtime.client import Object
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.sharing import GPU_INDEX, ORDER, Sharing, owner_of, shared_pod

pytestmark = pytest.mark.usefixtures("binder")


def name_of_reservation(node: str, group: str) -> str:
    return f"gpu-reservation-{hashlib.sha256(f'{node}/{group}'.encode()).hexdigest()[:16]}"


def test_the_first_pod_of_a_group(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    made = cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")

    reservation = cluster.reservation(group)
    device = reservation["metadata"]["annotations"][GPU_INDEX]
    assert reservation["metadata"]["name"] == name_of_reservation(node, group)
    assert reservation["metadata"]["labels"] == {"app": "kai-resource-reservation", "runai-gpu-group": group}
    assert reservation["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert reservation["spec"]["nodeName"] == node

    pod = cluster.get_pod("a")
    assert pod["spec"]["nodeName"] == node
    assert pod["metadata"]["labels"] == {"runai-gpu-group": group}
    assert pod["metadata"]["annotations"] == {
        **made["metadata"]["annotations"],
        "received-resource-type": "Fraction",
    }
    assert cluster.all_config_maps() == ["a-shared-gpu-0", "a-shared-gpu-0-evar"]
    assert cluster.data("a-shared-gpu-0") == {
        "NVIDIA_VISIBLE_DEVICES": device,
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }
    assert cluster.data("a-shared-gpu-0-evar") == {}
    for name in cluster.all_config_maps():
        metadata = cluster.config_map(name)["metadata"]
        assert metadata["ownerReferences"] == owner_of(made)
        assert not metadata.get("labels")
        assert not metadata.get("annotations")

    conditions = cluster.conditions("a")
    assert tuple(conditions) == ORDER
    assert {item["status"] for item in conditions.values()} == {"True"}
    assert conditions["GPUReserved"]["reason"] == "Reconciled"
    assert conditions["GPUReserved"]["message"] == f"group {group} is GPU {device} of node {node}"
    assert conditions["GPUSharing"]["reason"] == "Reconciled"
    assert conditions["GPUSharing"]["message"] == (
        f"container main gets 0.50 of {device}, by ConfigMap a-shared-gpu-0"
    )
    assert cluster.wait_for_event("a", "Bound")["message"] == f"Pod bound successfully to node {node}"


def test_the_next_pods_of_a_group_get_the_same_device(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    before = cluster.reservation(group)
    for name in ("b", "c"):
        cluster.share(name, node, group, portion="0.25")
    cluster.wait_for_all(3)
    after = cluster.reservation(group)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    for name, portion in (("a", "0.50"), ("b", "0.25"), ("c", "0.25")):
        data = cluster.data(f"{name}-shared-gpu-0")
        assert (data["NVIDIA_VISIBLE_DEVICES"], data["GPU_PORTION"]) == (cluster.device(group), portion)
        assert cluster.group_labels(name) == {"runai-gpu-group": group}


def test_several_devices(cluster: Sharing) -> None:
    node, groups = cluster.node(), [cluster.group(word) for word in ("z", "a", "m")]
    cluster.share("a", node, *groups, portion="0.30")
    cluster.wait_for("a", "Succeeded")
    devices = [cluster.device(group) for group in groups]
    assert len(set(devices)) == 3
    assert cluster.data("a-shared-gpu-0") == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(devices),  # in the order of the request
        "RUNAI_NUM_OF_GPUS": "0.30",
        "GPU_PORTION": "0.30",
    }
    assert cluster.group_labels("a") == {f"runai-gpu-group/{group}": group for group in groups}
    message = cluster.conditions("a")["GPUReserved"]["message"]
    pairs = ", ".join(f"group {group} is GPU {device}" for group, device in zip(groups, devices, strict=True))
    assert message == f"{pairs} of node {node}"


def test_a_single_device_of_a_pod_that_may_have_several(cluster: Sharing) -> None:
    """The annotation decides the form of the label (B-84), as the scheduler reads it back."""
    node, group, other = cluster.node(), cluster.group(), cluster.group()
    cluster.share("two", node, group, pod={"devices": "2"})
    cluster.share("one", node, other, pod={"devices": "1"})
    cluster.wait_for_all(2)
    assert cluster.group_labels("two") == {f"runai-gpu-group/{group}": group}
    assert cluster.group_labels("one") == {"runai-gpu-group": other}


@pytest.mark.parametrize(
    ("target", "suffix"), [("warm", "i0"), ("up", "i1"), ("one", "0"), ("two", "1"), ("three", "2")]
)
def test_a_named_container(cluster: Sharing, target: str, suffix: str) -> None:
    node, group = cluster.node(), cluster.group()
    containers, init = ("one", "two", "three"), ("warm", "up")
    cluster.share("a", node, group, pod={"containers": containers, "init": init, "target": target})
    cluster.wait_for("a", "Succeeded")
    name = f"a-shared-gpu-{suffix}"
    assert cluster.all_config_maps() == [name, f"{name}-evar"]
    assert cluster.data(name)["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)
    assert cluster.conditions("a")["GPUSharing"]["message"].startswith(f"container {target} gets ")


def test_a_container_that_takes_no_variable_from_the_map(cluster: Sharing) -> None:
    """The devices go where the container reads everything (B-72)."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group, pod={"in_map": ()})
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0") == {"RUNAI_NUM_OF_GPUS": "0.50", "GPU_PORTION": "0.50"}
    assert cluster.data("a-shared-gpu-0-evar") == {"NVIDIA_VISIBLE_DEVICES": cluster.device(group)}


@pytest.mark.parametrize(
    ("entry", "warned"),
    [
        (
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            "sets NVIDIA_VISIBLE_DEVICES itself to 'all', so that it may see other GPUs as well",
        ),
        (
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            "sets NVIDIA_VISIBLE_DEVICES itself to 'void', so that it sees no GPU",
        ),
        (
            {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
            "sets CUDA_DISABLE_CONTROL itself to 'true', which switches the limiter off",
        ),
    ],
    ids=["all", "none", "switch"],
)
def test_a_container_that_is_told_something_else_by_its_pod(
    cluster: Sharing, entry: Object, warned: str
) -> None:
    """F-32: the condition must not say that it gets one GPU, and no more."""
    node, group = cluster.node(), cluster.group()
    body = shared_pod("a")
    body["spec"]["containers"][0]["env"].append(entry)
    cluster.ask_share("a", node, group, owner=cluster.plane.request("POST", cluster.pods, body))
    cluster.wait_for("a", "Succeeded")
    given = f"container main gets 0.50 of {cluster.device(group)}, by ConfigMap a-shared-gpu-0"
    condition = cluster.conditions("a")["GPUSharing"]
    assert condition["status"] == "True"
    assert condition["message"] == f"{given}. Warning: container main {warned}"


def test_containers_beside_the_share(cluster: Sharing) -> None:
    """F-32: one that takes the share's devices is as the user wants it; one with others is not."""
    node, group = cluster.node(), cluster.group()
    body = shared_pod("a", containers=("main", "same", "void", "plain", "more"))
    main, same, void, _, more = body["spec"]["containers"]
    same["env"] = main["env"]
    void["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    more["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0,1"}]
    cluster.ask_share("a", node, group, owner=cluster.plane.request("POST", cluster.pods, body))
    cluster.wait_for("a", "Succeeded")
    _, *warnings = cluster.conditions("a")["GPUSharing"]["message"].split(". Warning: ")
    text = "container more sets NVIDIA_VISIBLE_DEVICES itself to '0,1', so that it may see other GPUs as well"
    assert warnings == [text]


def test_the_annotations_of_the_request(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    zones = [{"zone": "0", "amount": {"cpu": "1"}}]
    cluster.share("a", node, group, predictedNUMAZones=zones)
    cluster.wait_for("a", "Succeeded")
    annotations = cluster.annotations("a")
    assert annotations["received-resource-type"] == "Fraction"
    assert json.loads(annotations["kai.scheduler/numa-placement-predicted"]) == zones


def test_labels_of_another_group_do_not_outlive_a_bind(cluster: Sharing) -> None:
    """Left by a binder that was killed, they would hold the other GPU for as long as the pod lives."""
    node, group, former = cluster.node(), cluster.group(), cluster.group("former")
    several = {f"runai-gpu-group/{former}": former}
    for name, labels in (("a", several), ("b", {"runai-gpu-group": former}), ("c", several)):
        cluster.shared_pod(name, labels={**labels, "app": "mine"})
    cluster.make_reservation(f"former-{cluster.namespace}", node, former, device="7")
    for name in ("a", "b"):
        cluster.ask_share(name, node, group, owner=cluster.get_pod(name))
    cluster.ask("c", node, owner=cluster.get_pod("c"))
    cluster.wait_for_all(3)
    for name in ("a", "b"):
        assert cluster.get_pod(name)["metadata"]["labels"] == {"runai-gpu-group": group, "app": "mine"}
    assert cluster.get_pod("c")["metadata"]["labels"] == {"app": "mine"}
    cluster.wait_until_freed(former)


# Reservations that are there already.


def test_a_reservation_of_another_name_is_used(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    made = cluster.shared_pod("a")
    cluster.shared_pod("user", labels={"runai-gpu-group": group})  # or it would be removed at once
    reserved = cluster.make_reservation(f"old-{cluster.namespace}", node, group, device="3")
    cluster.ask_share("a", node, group, owner=made)
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == "3"
    assert cluster.reservation(group)["metadata"]["uid"] == reserved["metadata"]["uid"]


def test_a_reservation_without_a_device_yet_is_waited_for(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    made = cluster.shared_pod("a")
    cluster.ask_share("a", node, group, owner=made)
    reserved = cluster.wait_for_reservation(group)
    path = f"/api/v1/namespaces/kai-resource-reservation/pods/{reserved['metadata']['name']}"
    cluster.plane.request("PATCH", path, {"metadata": {"annotations": {GPU_INDEX: ""}}}, MERGE)
    cluster.share("b", node, group)
    cluster.plane.request("PATCH", path, {"metadata": {"annotations": {GPU_INDEX: "5"}}}, MERGE)
    cluster.wait_for_all(2)
    for name in ("a", "b"):
        assert cluster.data(f"{name}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == "5"


def test_a_reservation_on_another_node(cluster: Sharing) -> None:
    node, other, group = cluster.node(), cluster.node(), cluster.group()
    cluster.share("a", other, group)
    cluster.wait_for("a", "Succeeded")
    reserved = cluster.reservation(group)
    cluster.share("b", node, group)
    status = cluster.wait_for("b", "Failed")
    name = f"kai-resource-reservation/{reserved['metadata']['name']}"
    text = f"GPU group {group} is reserved on node {other} by pod {name}, not on {node}"
    assert status["reason"] == f"GPUReserved ReservationConflict: {text}"
    assert cluster.reservation(group)["metadata"]["uid"] == reserved["metadata"]["uid"]
    cluster.assert_unbound("b")


def test_of_two_reservations_the_one_that_users_go_by_stays(cluster: Sharing) -> None:
    """D-38."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    kept = cluster.reservation(group)
    cluster.agents.set(group, None)
    cluster.make_reservation(f"aaa-{cluster.namespace}", node, group, device="other")
    cluster.share("b", node, group)
    cluster.wait_for("b", "Succeeded")
    devices = {name: cluster.data(f"{name}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] for name in ("a", "b")}
    assert devices == dict.fromkeys("ab", kept["metadata"]["annotations"][GPU_INDEX])

    def alone() -> bool:
        return bool(cluster.reservation(group)["metadata"]["uid"] == kept["metadata"]["uid"])

    wait_until(alone)


def test_of_several_reservations_none_is_removed_whose_device_is_in_use(cluster: Sharing) -> None:
    """D-38: its user would run on a GPU that nobody holds."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    for name in ("a", "b"):
        devices = {"NVIDIA_VISIBLE_DEVICES": f"device-{name}"}
        config_map = {"metadata": {"name": f"{name}-shared-gpu-0"}, "data": devices}
        cluster.plane.request("POST", cluster.config_maps, config_map)
        cluster.shared_pod(name, labels={"runai-gpu-group": group}, spec={"nodeName": node})
    time.sleep(0.5)  # both are seen
    for name in ("a", "b", "c"):
        cluster.make_reservation(f"{name}-{cluster.namespace}", node, group, device=f"device-{name}")
    cluster.set_phase("a", "Running")

    def left() -> bool:
        names = sorted(pod["metadata"]["name"] for pod in cluster.reservations(group))
        return names == [f"{name}-{cluster.namespace}" for name in ("a", "b")]

    wait_until(left)
    cluster.set_phase("b", "Running")
    time.sleep(1)
    assert left()


def test_a_reservation_that_has_failed_is_replaced(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    first = iter((Answer(failure="UnexpectedAdmissionError"),))
    cluster.agents.set(group, lambda pod: next(first, None) or device_of(pod))
    cluster.share("a", node, group, backoffLimit=3)
    status = cluster.wait_for_attempts("a", 1)
    name = f"kai-resource-reservation/{name_of_reservation(node, group)}"
    why = "UnexpectedAdmissionError: the kubelet stub was told so"
    assert status["reason"] == (
        f"GPUReserved ReservationFailed: reservation pod {name} ended with phase Failed: {why}"
    )
    cluster.wait_for("a", "Succeeded")
    assert cluster.device(group) == cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"]
