"""Shared GPUs that cannot be had: a reason that a person can use, and nothing left behind."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from controlplane import ControlPlane, RequestError
from kubelet import Answer

from controller.runtime.client import Object
from tests.binder import Binder
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.sharing import RESERVATIONS, SCALING, PodOptions, Sharing, groups_of

pytestmark = pytest.mark.usefixtures("binder")

SCALING_PODS = f"/api/v1/namespaces/{SCALING}/pods"
WAITS_FOR_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def refusal(cluster: Sharing, name: str = "a") -> str:
    reason: str = cluster.wait_for(name, "Failed")["reason"]
    return reason


# Input.


def test_groups_that_are_no_label_values(cluster: Sharing) -> None:
    node, good = cluster.node(), cluster.group()
    wrong = ("", "a/b", "-a", "a-", "ä", "a b", "x" * 64, "a=b")
    for number, group in enumerate(wrong):
        cluster.share(f"a-{number}", node, good, group, backoffLimit=3)
    for number, group in enumerate(wrong):
        text = f"GPU group {group!r} is no legal label value (1 to 63 letters, digits, '-', '_' or '.')"
        assert refusal(cluster, f"a-{number}") == f"GPUReserved InvalidGPUGroup: {text}"
        assert cluster.status(f"a-{number}")["failedAttempts"] == 3
        cluster.assert_nothing_left(f"a-{number}", good)


def test_the_longest_group_and_odd_but_legal_ones(cluster: Sharing) -> None:
    node, groups = cluster.node(), (cluster.group() + "x" * 48, cluster.group("A_b.c"))
    assert len(groups[0]) <= 63
    for number, group in enumerate(groups):
        cluster.share(f"a-{number}", node, group[:63])
    cluster.share("both", node, *groups)
    cluster.wait_for_all(3)


def test_a_group_that_is_named_twice(cluster: Sharing) -> None:
    group, other = cluster.group(), cluster.group()
    cluster.share("a", cluster.node(), group, other, group)
    text = f"GPU group {group} is named more than once; each share must be of another GPU"
    assert refusal(cluster) == f"GPUReserved InvalidGPUGroup: {text}"
    cluster.assert_nothing_left("a", group, other)


@pytest.mark.parametrize("count", ["two", "", "1.5", "-1"])
def test_a_number_of_devices_that_is_none(cluster: Sharing, count: str) -> None:
    """Seen before anything is reserved."""
    group = cluster.group()
    cluster.agents.set(group, None)
    cluster.share("a", cluster.node(), group, pod={"devices": count}, backoffLimit=2)
    text = f"annotation gpu-fraction-num-devices is {count!r}, which is no whole number"
    assert refusal(cluster) == f"GPUReserved InvalidGPUConfig: {text}"
    cluster.assert_nothing_left("a", group)


def test_no_name_for_the_maps(cluster: Sharing) -> None:
    group = cluster.group()
    cluster.share("a", cluster.node(), group, pod={"config_map": None})
    text = "has no annotation runai/shared-gpu-configmap; the admission webhook sets it"
    assert refusal(cluster) == f"GPUSharing InvalidGPUConfig: pod {cluster.namespace}/a {text}"
    assert cluster.conditions("a")["GPUReserved"]["reason"] == "Blocked"
    cluster.assert_nothing_left("a", group)


def test_a_name_for_the_maps_that_is_no_name(cluster: Sharing) -> None:
    """D-35: admission makes such a name of a bare pod with generateName."""
    group = cluster.group()
    named: PodOptions = {"config_map": None, "annotations": {"runai/shared-gpu-configmap": "-abc-shared-gpu"}}
    cluster.share("a", cluster.node(), group, pod=named)
    text = (
        f"annotation runai/shared-gpu-configmap of pod {cluster.namespace}/a is '-abc-shared-gpu', "
        "and '-abc-shared-gpu-0-evar' cannot be a ConfigMap's name"
    )
    assert refusal(cluster) == f"GPUSharing InvalidGPUConfig: {text}"
    assert cluster.conditions("a")["GPUReserved"]["reason"] == "Blocked"
    cluster.assert_nothing_left("a", group)


def test_a_named_container_that_is_not_there(cluster: Sharing) -> None:
    group = cluster.group()
    annotations = {"gpu-fraction-container-name": "nope"}
    cluster.share("a", cluster.node(), group, pod={"annotations": annotations})
    text = "has no container 'nope', which its annotation gpu-fraction-container-name names"
    assert refusal(cluster) == f"GPUSharing InvalidGPUConfig: pod {cluster.namespace}/a {text}"
    cluster.assert_nothing_left("a", group)


def test_portions_that_are_none(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    words = ("NaN", "inf", "50%", "\u0660.\u0665", "", "5e-1", "0x1p-1", " 0.5 ", "0_5", "0,5")
    wrong = (*words, "-0.5", "0", "0.00", "1.5")
    for number, portion in enumerate(wrong):
        cluster.share(f"a-{number}", node, group, pod={"fraction": None}, portion=portion, backoffLimit=4)
    for number, portion in enumerate(wrong):
        reason = refusal(cluster, f"a-{number}")
        told = f"GPUSharing InvalidPortion: spec.receivedGPU.portion is {portion!r}"
        assert reason.startswith(told), reason
        assert cluster.status(f"a-{number}")["failedAttempts"] == 4
        cluster.assert_nothing_left(f"a-{number}", group)


def test_no_received_gpu(cluster: Sharing) -> None:
    """D-19: the Go binder panics."""
    group, made = cluster.group(), cluster.shared_pod("a")
    cluster.ask("a", cluster.node(), owner=made, receivedResourceType="Fraction", selectedGPUGroups=[group])
    assert refusal(cluster).startswith("GPUSharing InvalidPortion: spec.receivedGPU.portion is missing")
    cluster.assert_nothing_left("a", group)


# Groups, counted.


def test_more_groups_than_gpus_were_received(cluster: Sharing) -> None:
    """F-27: seen before anything is reserved; 2,000 groups would be 2,000 pods."""
    node, groups = cluster.node(), [cluster.group() for _ in range(3)]
    seen: set[str] = set()
    for group in groups:
        cluster.agents.set(group, lambda pod: seen.add(pod["metadata"]["name"]))
    made = cluster.shared_pod("a", devices="3")
    cluster.ask_share("a", node, *groups, owner=made, receivedGPU={"count": 2, "portion": "0.50"})
    text = "spec.selectedGPUGroups names 3 GPU groups, but spec.receivedGPU.count is 2"
    assert refusal(cluster) == f"GPUReserved InvalidGPUGroup: {text}"
    assert not seen
    cluster.assert_nothing_left("a", *groups)


def test_more_groups_than_gpus_in_the_newer_field(cluster: Sharing) -> None:
    """F-27: the message names the field that was read."""
    groups = [cluster.group(), cluster.group()]
    made = cluster.shared_pod("a", devices="2")
    given = {"receivedGPU": {"count": 1, "portion": "0.50"}, **groups_of("time-slicing", *groups)}
    cluster.ask_share("a", cluster.node(), *groups, owner=made, **given)
    text = "spec.selectedFractionalGpuGroups names 2 GPU groups, but spec.receivedGPU.count is 1"
    assert refusal(cluster) == f"GPUReserved InvalidGPUGroup: {text}"


@pytest.mark.parametrize("gpu", [{"portion": "0.50"}, {"count": 0, "portion": "0.50"}])
def test_a_count_that_was_left_out(cluster: Sharing, gpu: Object) -> None:
    """F-27: as writers do that leave out zeros."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    made = cluster.shared_pod("a", devices="2")
    cluster.ask_share("a", node, *groups, owner=made, receivedGPU=gpu)
    cluster.wait_for("a", "Succeeded")


def test_more_groups_than_the_node_has_gpus(cluster: Sharing) -> None:
    """F-27."""
    node, groups = cluster.node(), [cluster.group() for _ in range(3)]
    status = {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}
    cluster.patch_status_of(f"/api/v1/nodes/{node}", status)
    cluster.share("two", node, *groups[:2])
    cluster.wait_for("two", "Succeeded")
    cluster.share("a", node, *groups)
    text = f"spec.selectedGPUGroups names 3 GPU groups, but node {node} has 2 GPUs"
    assert refusal(cluster) == f"GPUReserved InvalidGPUGroup: {text}"
    assert cluster.reservations(groups[2]) == []
    cluster.assert_unbound("a")


def test_a_reservation_that_gets_no_gpu_stops_the_rest(cluster: Sharing, binder: Binder) -> None:
    """F-27: no more are made."""
    node, groups = cluster.node(), sorted(cluster.group() for _ in range(60))
    before = binder.log.count("Made a reservation pod")
    for group in groups:
        cluster.agents.set(group, Answer(failure="UnexpectedAdmissionError"))
    cluster.share("a", node, *groups)
    reason = refusal(cluster)
    assert reason.startswith("GPUReserved ReservationFailed: "), reason
    assert "UnexpectedAdmissionError" in reason
    cluster.assert_nothing_left("a", *groups[:3])
    assert binder.log.count("Made a reservation pod") < before + len(groups)


def test_of_several_reservations_one_fails(cluster: Sharing) -> None:
    """F-27: the others say nothing yet, and are not waited for."""
    node, groups = cluster.node(), [cluster.group() for _ in range(3)]
    for group in groups:
        cluster.agents.set(group, None)
    cluster.agents.set(groups[1], Answer(failure="UnexpectedAdmissionError", delay_s=1))
    cluster.share("a", node, *groups)
    assert "UnexpectedAdmissionError" in refusal(cluster)
    cluster.assert_nothing_left("a", *groups)


# What the agent says.


@pytest.mark.parametrize(
    "device", ["5,6", " 3 ", "3\n", "all", "None", "void", "a b", "x" * 200, "-1", "\u0663"]
)
def test_an_answer_that_is_not_one_device(cluster: Sharing, device: str) -> None:
    """F-25: it would go to the container as it is, and `all` is every GPU of the node."""
    group = cluster.group()
    cluster.agents.set(group, Answer(device=device))
    cluster.share("a", cluster.node(), group)
    name = cluster.wait_for_reservation(group)["metadata"]["name"]
    shown = repr(device) if len(device) < 100 else f"{'x' * 64!r}…"
    text = f"reservation pod {RESERVATIONS}/{name} reports {shown}, which is not one device"
    assert refusal(cluster) == f"GPUReserved ReservationFailed: {text}"
    cluster.assert_nothing_left("a", group)


def test_an_answer_that_is_not_one_device_found_later(cluster: Sharing) -> None:
    """F-25: whoever wrote it, to a reservation that serves others already."""
    node, group = cluster.node(), cluster.group()
    cluster.shared_pod("user", labels={"runai-gpu-group": group}, spec={"nodeName": node})
    cluster.agents.set(group, None)
    cluster.make_reservation(f"two-{cluster.namespace}", node, group, device="5,6")
    cluster.share("a", node, group)
    assert "reports '5,6', which is not one device" in refusal(cluster)
    assert len(cluster.reservations(group)) == 1


@pytest.mark.parametrize(
    "device", ["0", "GPU-5b1d9e6a-0b0c-4d0e-8f00-000000000001", "MIG-GPU-5b1d9e6a/1/0", "0:1"]
)
def test_answers_that_are_devices(cluster: Sharing, device: str) -> None:
    group = cluster.group()
    cluster.agents.set(group, Answer(device=device))
    cluster.share("a", cluster.node(), group)
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == device


# The cluster.


def test_the_reservation_goes_over_the_quota(cluster: Sharing) -> None:
    group = cluster.group()
    with quota(cluster.plane):
        cluster.share("a", cluster.node(), group)
        reason = refusal(cluster)
    assert reason.startswith("GPUReserved ReservationRejected: reservation pod kai-resource-reservation/"), (
        reason
    )
    assert "exceeded quota: none" in reason
    condition = cluster.conditions("a")["GPUReserved"]
    assert (condition["status"], condition["reason"]) == ("False", "ReservationRejected")
    assert "exceeded quota: none" in condition["message"]
    cluster.assert_nothing_left("a", group)


def test_the_reservation_is_against_pod_security(cluster: Sharing) -> None:
    group = cluster.group()
    with pod_security(cluster.plane, "restricted"):
        cluster.share("a", cluster.node(), group)
        reason = refusal(cluster)
    assert reason.startswith("GPUReserved ReservationRejected: reservation pod kai-resource-reservation/"), (
        reason
    )
    assert 'violates PodSecurity "restricted:latest"' in reason
    assert "runAsNonRoot != true" in reason
    cluster.assert_nothing_left("a", group)


def test_a_rejected_reservation_is_tried_again(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    with quota(cluster.plane):
        cluster.share("a", node, group, backoffLimit=5)
        cluster.wait_for_attempts("a", 1)
    cluster.wait_for("a", "Succeeded", within_s=20)


def test_while_the_cluster_is_scaling_up(cluster: Sharing) -> None:
    node, group, known = cluster.node(), cluster.group(), cluster.group()
    cluster.share("before", node, known)
    cluster.wait_for("before", "Succeeded")
    with scaling_pod(cluster, "scaler") as name:
        cluster.patch_status_of(f"{SCALING_PODS}/{name}", {"conditions": [WAITS_FOR_NODE]})
        cluster.share("a", node, group, backoffLimit=6)
        status = cluster.wait_for_attempts("a", 1)
        text = f"the cluster is scaling up: pod {SCALING}/{name} waits for a node"
        assert status["reason"] == f"GPUReserved ClusterScalingUp: {text}"
        assert cluster.reservations(group) == []
        cluster.share("b", node, known)  # no new GPU is needed
        cluster.wait_for("b", "Succeeded")
        cluster.bind_scaling_pod(name, node)
        cluster.wait_for("a", "Succeeded", within_s=20)


@pytest.mark.parametrize("state", ["not looked at yet", "scheduled", "on a node", "finished"])
def test_scaling_pods_that_do_not_count(cluster: Sharing, state: str) -> None:
    node, group = cluster.node(), cluster.group()
    with scaling_pod(cluster, "scaler") as name:
        path = f"{SCALING_PODS}/{name}"
        if state == "on a node":
            cluster.patch_status_of(path, {"conditions": [WAITS_FOR_NODE]})
            cluster.bind_scaling_pod(name, node)
        elif state == "scheduled":
            cluster.patch_status_of(path, {"conditions": [{"type": "PodScheduled", "status": "True"}]})
        elif state == "finished":
            cluster.patch_status_of(path, {"phase": "Failed", "conditions": [WAITS_FOR_NODE]})
        cluster.share("a", node, group)
        cluster.wait_for("a", "Succeeded")


def test_a_pod_that_waits_for_a_node_elsewhere_is_no_scaling_pod(cluster: Sharing) -> None:
    cluster.pod("waits")
    cluster.patch_pod_status("waits", {"conditions": [WAITS_FOR_NODE]})
    cluster.share("a", cluster.node(), cluster.group())
    cluster.wait_for("a", "Succeeded")


@contextmanager
def quota(plane: ControlPlane) -> Iterator[None]:
    """No room for another pod among the reservations."""
    path, hard = f"/api/v1/namespaces/{RESERVATIONS}/resourcequotas", {"pods": "0"}
    plane.request("POST", path, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    try:
        wait_until(lambda: not _may_create(plane))
        yield
    finally:
        plane.request("DELETE", f"{path}/none")
        wait_until(lambda: _may_create(plane))


@contextmanager
def pod_security(plane: ControlPlane, level: str) -> Iterator[None]:
    """The namespace of the reservations takes only pods of this level."""
    path, name = f"/api/v1/namespaces/{RESERVATIONS}", "pod-security.kubernetes.io/enforce"
    plane.request("PATCH", path, {"metadata": {"labels": {name: level}}}, MERGE)
    try:
        wait_until(lambda: not _may_create(plane))
        yield
    finally:
        plane.request("PATCH", path, {"metadata": {"labels": {name: None}}}, MERGE)
        wait_until(lambda: _may_create(plane))


def _may_create(plane: ControlPlane) -> bool:
    """Whether a pod like a reservation would be let in."""
    body: Object = {
        "metadata": {"name": "probe"},
        "spec": {
            "serviceAccountName": RESERVATIONS,
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }
    try:
        plane.request("POST", f"/api/v1/namespaces/{RESERVATIONS}/pods?dryRun=All", body)
    except RequestError as error:
        if error.status != 403:
            raise
        return False
    return True


@contextmanager
def scaling_pod(cluster: Sharing, name: str) -> Iterator[str]:
    """A pod by which an autoscaler is made to add a node."""
    whole = f"{name}-{cluster.namespace}"
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": SCALING}}),
        (f"/api/v1/namespaces/{SCALING}/serviceaccounts", {"metadata": {"name": "default"}}),
    ):
        try:
            cluster.plane.request("POST", path, body)
        except RequestError as error:
            if error.status != 409:
                raise
    container = {"name": "main", "image": "busybox"}
    cluster.plane.request(
        "POST", SCALING_PODS, {"metadata": {"name": whole}, "spec": {"containers": [container]}}
    )
    try:
        yield whole
    finally:
        cluster.plane.request("DELETE", f"{SCALING_PODS}/{whole}?gracePeriodSeconds=0")
