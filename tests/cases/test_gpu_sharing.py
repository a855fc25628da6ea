"""Public reports about shared GPUs and their reservation."""

import time
from collections.abc import Iterator

import pytest
from controlplane import ControlPlane, RequestError
from kubelet import Answer as Agent
from kubelet import Kubelet, device_of

from controller.runtime.client import Object
from tests.cases.conftest import Shared
from tests.claims import Claims
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.proxy import Answer, Call, Delay, Hang, Rule
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, RESERVATIONS, SCALING, Sharing, shared_pod

LOOK_S = 1.0
SERVER_ERROR = Answer(500, {"kind": "Status", "code": 500, "message": "etcd is tired"})
BINDING = "pods/.*/binding$"
DEVICES = pytest.mark.parametrize("devices", [1, 2], ids=["single", "multi"])


@pytest.fixture(scope="module")
def kubelet(control_plane: ControlPlane) -> Iterator[Kubelet]:
    with Kubelet(control_plane) as running:
        yield running


@pytest.fixture
def cluster(control_plane: ControlPlane, kubelet: Kubelet) -> Sharing:
    made = Sharing.fresh(control_plane)
    kubelet.answer = made.agents
    return made


pytestmark = pytest.mark.usefixtures("shared")


def groups_of(cluster: Sharing, count: int) -> list[str]:
    return [cluster.group() for _ in range(count)]


def watch_of_pods(call: Call) -> bool:
    return "spec.schedulerName=" in call.query.get("fieldSelector", "")


# Reservations.


def test_kai_1103_1104_a_reservation_is_kept_while_a_bind_waits_for_it(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    cluster.share("a", node, group)
    before = cluster.wait_for_reservation(group)["metadata"]["uid"]
    for number in range(3):  # each one has the group looked at
        name = f"done-{number}"
        cluster.shared_pod(name, labels={GROUP_LABEL: group})
        cluster.set_phase(name, "Succeeded")
        cluster.ask_share(name, "no-such-node", group)
        cluster.wait_for(name, "Failed")
        cluster.delete_request(name)
        cluster.delete_pod(name)
    time.sleep(LOOK_S)
    assert cluster.reservation(group)["metadata"]["uid"] == before
    cluster.agents.forget(group)
    cluster.wait_for("a", "Succeeded")


def test_kai_611_a_terminating_scaling_pod_blocks_nobody(cluster: Sharing) -> None:
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": SCALING}}),
        (f"/api/v1/namespaces/{SCALING}/serviceaccounts", {"metadata": {"name": "default"}}),
    ):
        try:
            cluster.plane.request("POST", path, body)
        except RequestError as error:
            if error.status != 409:
                raise
    pods, name = f"/api/v1/namespaces/{SCALING}/pods", f"scaler-{cluster.namespace}"
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    cluster.plane.request("POST", pods, {"metadata": {"name": name}, "spec": spec})
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.patch_status_of(f"{pods}/{name}", {"conditions": [unscheduled]})
    cluster.hold(f"{pods}/{name}")
    try:
        cluster.plane.request("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")
        cluster.share("a", cluster.node(), cluster.group())
        cluster.wait_for("a", "Succeeded")
    finally:
        cluster.let_go(f"{pods}/{name}")


def test_kai_1673_1693_two_binds_of_a_new_group_at_once(cluster: Sharing) -> None:
    node, groups = cluster.node(), groups_of(cluster, 5)
    for group in groups:
        for letter in "abc":
            cluster.share(f"{letter}-{group}", node, group, pod={"config_map": f"{letter}-{group}"})
    cluster.wait_for_all(15)
    for group in groups:
        maps = [f"{letter}-{group}-0" for letter in "abc"]
        assert {cluster.data(name)["NVIDIA_VISIBLE_DEVICES"] for name in maps} == {cluster.device(group)}


def test_kai_1673_1693_a_reservation_without_a_device_is_waited_for(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    cluster.shared_pod("holds", labels={GROUP_LABEL: group})
    made = cluster.make_reservation(f"early-{cluster.namespace}", node, group)
    cluster.share("a", node, group)
    time.sleep(LOOK_S)
    assert cluster.status("a").get("phase", "") == ""
    cluster.agents.forget(group)
    cluster.wait_for("a", "Succeeded")
    assert cluster.reservation(group)["metadata"]["uid"] == made["metadata"]["uid"]


def test_kai_2153_many_pods_with_agents_that_fail_or_are_late(cluster: Sharing) -> None:
    """200 pods on 40 groups are in tests/apiserver/sharing; here some agents fail first."""
    nodes, groups = [cluster.node(), cluster.node()], groups_of(cluster, 8)
    failed: set[str] = set()

    def fail_once(pod: Object) -> Agent:
        group = pod["metadata"]["labels"][GROUP_LABEL]
        if group in failed:
            return Agent(device=device_of(pod).device, delay_s=0.3)
        failed.add(group)
        return Agent(failure="UnexpectedAdmissionError", delay_s=0.2)

    for group in groups[::2]:
        cluster.agents.set(group, fail_once)
    for number in range(32):
        group = groups[number % 8]
        cluster.share(f"p-{number}", nodes[groups.index(group) % 2], group, portion="0.25", backoffLimit=6)
    cluster.wait_for_all(32, within_s=45)
    for number in range(32):
        devices = cluster.data(f"p-{number}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"]
        assert devices == cluster.device(groups[number % 8])
    cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
    cluster.wait_until_freed(*groups, within_s=30)


def test_kai_pr_2049_a_request_that_succeeded_protects_its_group(shared: Shared, cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    pods = {name: cluster.shared_pod(name) for name in ("a", "b")}
    time.sleep(0.3)  # seen before the watch is held back
    with shared.proxy.rule(Rule(Hang(), method="WATCH", where=watch_of_pods)):
        for name, pod in pods.items():
            cluster.ask_share(name, node, group, owner=pod)
            cluster.wait_for(name, "Succeeded")
        before = cluster.reservation(group)["metadata"]["uid"]
        cluster.delete_request("b")
        time.sleep(LOOK_S)
        assert cluster.reservation(group)["metadata"]["uid"] == before
    cluster.set_phase("b", "Succeeded")
    time.sleep(LOOK_S)
    assert cluster.reservation(group)["metadata"]["uid"] == before
    cluster.set_phase("a", "Succeeded")
    cluster.wait_until_freed(group)


def test_hami_pr_3047_pods_that_have_ended_hold_nothing(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    for name in ("a", "b"):
        cluster.share(name, node, group)
    cluster.wait_for_all(2)
    cluster.set_phase("a", "Succeeded")
    cluster.set_phase("b", "Running")
    time.sleep(LOOK_S)
    assert len(cluster.reservations(group)) == 1
    cluster.set_phase("b", "Failed")
    cluster.wait_until_freed(group)


def test_hami_pr_3047_a_reservation_that_failed_is_replaced(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, Agent(failure="UnexpectedAdmissionError"))
    cluster.share("a", node, group, backoffLimit=4)
    status = cluster.wait_for_attempts("a", 1)
    assert "UnexpectedAdmissionError" in status["reason"]
    cluster.agents.forget(group)
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert cluster.reservation(group)["status"]["phase"] == "Running"


@pytest.mark.parametrize("what", ["pod", "request"])
def test_hami_1130_pr_1271_what_is_deleted_keeps_nobody_waiting(cluster: Sharing, what: str) -> None:
    """A wait of up to 40 s, of which the next one of the group must not see anything."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    cluster.share("a", node, group)
    cluster.wait_for_reservation(group)
    time.sleep(1)
    if what == "pod":
        cluster.delete_pod("a")
    else:
        cluster.delete_request("a")
    cluster.agents.forget(group)
    deleted_s = time.monotonic()
    cluster.share("b", node, group)
    cluster.wait_for("b", "Succeeded")
    assert time.monotonic() - deleted_s < 5
    assert cluster.data("b-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)


# Tolerations.

HPC = [
    {"key": "hpc", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    {"key": "hpc", "operator": "Equal", "value": "true", "effect": "NoExecute"},
]


def tolerations(pod: Object) -> list[Object]:
    return sorted(pod["spec"].get("tolerations") or (), key=str)


def tainted(cluster: Sharing) -> str:
    node = cluster.node()
    taints = [{"key": "hpc", "value": "true", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    cluster.plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": taints}}, MERGE)
    return node


@pytest.mark.parametrize("seconds", [None, 60])
def test_kai_1986_the_reservation_tolerates_what_its_first_user_does(
    cluster: Sharing, seconds: int | None
) -> None:
    node, group = tainted(cluster), cluster.group()
    asked: list[Object] = [dict(item) for item in HPC]
    if seconds is not None:
        asked[1]["tolerationSeconds"] = seconds
    made = cluster.share("a", node, group, pod={"spec": {"tolerations": asked}})
    cluster.wait_for("a", "Succeeded")
    reservation = cluster.reservation(group)
    assert all(item in tolerations(reservation) for item in asked)
    built_in = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert built_in < {item["key"] for item in tolerations(reservation)}
    assert tolerations(reservation) == tolerations(made)


def test_kai_1986_the_first_user_decides(cluster: Sharing) -> None:
    """Our call: a later user does not change a pod that others rely on."""
    node, group = tainted(cluster), cluster.group()
    cluster.share("a", node, group, pod={"spec": {"tolerations": HPC}})
    cluster.wait_for("a", "Succeeded")
    before = cluster.reservation(group)
    cluster.share("b", node, group, pod={"spec": {"tolerations": [{"operator": "Exists"}]}})
    cluster.wait_for("b", "Succeeded")
    assert cluster.reservation(group)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


# A failure after the reservation leaves nothing.


@DEVICES
@pytest.mark.parametrize("nth", [0, 1], ids=["first", "second"])
def test_kai_pr_847_a_map_fails(shared: Shared, cluster: Sharing, devices: int, nth: int) -> None:
    groups = groups_of(cluster, devices)
    with shared.proxy.rule(shared.rule(cluster, SERVER_ERROR, "POST", "configmaps$", skip=nth)):
        cluster.share("a", cluster.node(), *groups)
        assert cluster.wait_for("a", "Failed")["reason"].startswith("GPUSharing ServerError: POST configmaps")
    cluster.assert_nothing_left("a", *groups)


@DEVICES
def test_kai_pr_847_the_second_reservation_fails(shared: Shared, cluster: Sharing, devices: int) -> None:
    groups = groups_of(cluster, devices)
    rule = Rule(SERVER_ERROR, method="POST", path=f"^{RESERVATION_PODS}$", skip=devices - 1)
    with shared.proxy.rule(rule):
        cluster.share("a", cluster.node(), *groups)
        assert cluster.wait_for("a", "Failed")["reason"].startswith("GPUReserved ServerError: POST pods")
    cluster.assert_nothing_left("a", *groups)


@DEVICES
def test_kai_pr_847_a_disk_is_missing(cluster: Sharing, devices: int) -> None:
    groups = groups_of(cluster, devices)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "no-such-claim"}}
    cluster.share("a", cluster.node(), *groups, pod={"spec": {"volumes": [volume]}})
    assert cluster.wait_for("a", "Failed")["reason"].startswith("VolumeBinding ClaimNotFound: ")
    cluster.assert_nothing_left("a", *groups)


@DEVICES
def test_kai_pr_847_a_claim_cannot_be_allocated(shared: Shared, cluster: Sharing, devices: int) -> None:
    groups, claims, node = groups_of(cluster, devices), Claims(cluster), cluster.node()
    claims.make("card")
    reference = {"name": "card", "resourceClaimName": "card"}
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": node, "device": "gpu-0"}
    allocation = {"name": "card", "allocation": {"devices": {"results": [result]}}}
    with shared.proxy.rule(shared.rule(cluster, SERVER_ERROR, "", "resourceclaims/card/status")):
        cluster.share(
            "a",
            node,
            *groups,
            pod={"spec": {"resourceClaims": [reference]}},
            resourceClaimAllocations=[allocation],
        )
        assert cluster.wait_for("a", "Failed")["reason"].startswith("DynamicResources ServerError: ")
    cluster.assert_nothing_left("a", *groups)
    assert claims.users("card") == []


@DEVICES
def test_kai_pr_847_the_binding_is_refused(cluster: Sharing, devices: int) -> None:
    """The annotations are part of the binding, so they come and go with it."""
    groups = groups_of(cluster, devices)
    with cluster.bindings_denied():
        cluster.share("a", cluster.node(), *groups)
        assert cluster.wait_for("a", "Failed")["reason"].startswith("Bound Forbidden: POST pods/binding")
    cluster.assert_nothing_left("a", *groups)


@DEVICES
def test_kai_pr_847_labels_of_an_earlier_attempt_go_although_a_map_stays(
    shared: Shared, cluster: Sharing, devices: int
) -> None:
    """A clean-up step that fails does not skip the next."""
    groups = groups_of(cluster, devices)
    labels = {f"{GROUP_LABEL}/{group}": group for group in groups}
    rule = shared.rule(cluster, SERVER_ERROR, "DELETE", "configmaps/a-shared-gpu-0$")
    with cluster.bindings_denied(), shared.proxy.rule(rule):
        cluster.share("a", cluster.node(), *groups, pod={"labels": labels})
        reason = cluster.wait_for("a", "Failed")["reason"]
    refused = f"DELETE configmaps {cluster.namespace}/a-shared-gpu-0: etcd is tired"
    assert f"gpusharing could not take back its work: {refused}" in reason
    assert cluster.group_labels("a") == {}
    assert cluster.all_config_maps() == ["a-shared-gpu-0"]
    cluster.wait_until_freed(*groups)


@DEVICES
def test_kai_pr_847_the_release_itself_fails(shared: Shared, cluster: Sharing, devices: int) -> None:
    groups = groups_of(cluster, devices)
    rule = Rule(SERVER_ERROR, method="DELETE", path=f"^{RESERVATION_PODS}/", times=2)
    with cluster.bindings_denied(), shared.proxy.rule(rule):
        cluster.share("a", cluster.node(), *groups)
        cluster.wait_for("a", "Failed")
        cluster.wait_until_freed(*groups, within_s=20)
    assert rule.count >= 2
    cluster.assert_nothing_left("a", *groups)


# Containers.


@pytest.mark.parametrize(
    ("target", "suffix"),
    [("i-1", "i0"), ("i-2", "i1"), ("c-1", "0"), ("c-2", "1"), ("c-3", "2"), ("nope", "")],
)
def test_kai_pr_684_volcano_pr_4633_the_named_container_gets_the_devices(
    cluster: Sharing, target: str, suffix: str
) -> None:
    node, group = cluster.node(), cluster.group()
    named = {"gpu-fraction-container-name": target}
    cluster.share(
        "a",
        node,
        group,
        pod={
            "containers": ("c-1", "c-2", "c-3"),
            "init": ("i-1", "i-2"),
            "target": target if suffix else None,
            "annotations": named,
        },
    )
    if not suffix:
        status = cluster.wait_for("a", "Failed")
        assert f"has no container {target!r}" in status["reason"]
        cluster.assert_nothing_left("a", group)
        return
    cluster.wait_for("a", "Succeeded")
    name = f"a-shared-gpu-{suffix}"
    assert cluster.all_config_maps() == [name, f"{name}-evar"]
    assert cluster.data(name)["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)


def test_kai_pr_684_a_map_that_is_referred_to_twice(cluster: Sharing) -> None:
    """The kubelet takes the last entry of a name, and so do we."""
    node, group = cluster.node(), cluster.group()
    body = shared_pod("a", containers=("one", "two"))
    first, second = body["spec"]["containers"]
    first["env"] += [dict(first["env"][0]), dict(first["env"][0])]
    first["env"][-1] = {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"configMapKeyRef": {"name": "a-shared-gpu-0", "key": "DEVICES"}},
    }
    first["envFrom"] *= 2
    second["env"], second["envFrom"] = first["env"], first["envFrom"]
    made = cluster.plane.request("POST", cluster.pods, body)
    cluster.ask_share("a", node, group, owner=made)
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0") == {
        "DEVICES": cluster.device(group),
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }


# The pod is not where, or what, we believe.


def assert_bound_elsewhere(cluster: Sharing, wanted: str, real: str, *groups: str) -> None:
    status = cluster.wait_for("a", "Failed")
    text = f"pod {cluster.namespace}/a is on node {real} already, not on {wanted}"
    assert status["reason"] == f"Bound AlreadyBoundElsewhere: {text}"
    assert status["failedAttempts"] == 3
    assert cluster.group_labels("a") == {}
    cluster.wait_until_freed(*groups)
    assert cluster.node_of("a") == real
    assert cluster.pod_bound("a") is None
    assert cluster.wait_for_event("a", "BindingError")["message"].endswith(text)
    assert cluster.events("a", reason="Bound") == []


@DEVICES
def test_karpenter_aws_984_a_share_of_a_pod_that_was_bound_elsewhere_before(
    cluster: Sharing, devices: int
) -> None:
    """An attempt that was broken off left its labels: they would hold GPUs where the pod is not."""
    wanted, real, groups = cluster.node(), cluster.node(), groups_of(cluster, devices)
    labels = {f"{GROUP_LABEL}/{group}": group for group in groups}
    made = cluster.shared_pod("a", labels=labels, devices="2")
    for number, group in enumerate(groups):
        cluster.make_reservation(f"left-{number}-{cluster.namespace}", wanted, group, device=str(number))
    cluster.bind_by_hand("a", real)
    cluster.ask_share("a", wanted, *groups, owner=made, backoffLimit=3)
    assert_bound_elsewhere(cluster, wanted, real, *groups)


@DEVICES
def test_karpenter_aws_984_a_share_of_a_pod_that_is_bound_elsewhere_meanwhile(
    shared: Shared, cluster: Sharing, devices: int
) -> None:
    wanted, real, groups = cluster.node(), cluster.node(), groups_of(cluster, devices)
    with shared.proxy.rule(shared.rule(cluster, Hang(), "POST", BINDING)) as held:
        cluster.share("a", wanted, *groups, backoffLimit=3)
        wait_until(lambda: held.count == 1)
        cluster.bind_by_hand("a", real)
    assert_bound_elsewhere(cluster, wanted, real, *groups)


def test_k8s_105261_a_pod_made_anew_gets_neither_label_nor_map(shared: Shared, cluster: Sharing) -> None:
    group = cluster.group()
    with shared.proxy.rule(shared.rule(cluster, Delay(2), "POST", BINDING)) as delayed:
        cluster.share("a", cluster.node(), group)
        wait_until(lambda: delayed.count == 1)
        cluster.delete_pod("a")
        new = cluster.shared_pod("a", memory="1000")
        wait_until(
            lambda: any(call.status == 409 for call in shared.proxy.calls if call.path.endswith("a/binding"))
        )
    cluster.wait_until_freed(group)
    wait_until(lambda: cluster.all_config_maps() == [])
    assert cluster.get_pod("a")["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]


def test_volcano_vgpu_159_the_status_of_a_share_is_not_stored(shared: Shared, cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    with shared.proxy.rule(
        shared.rule(cluster, SERVER_ERROR, "PATCH", "bindrequests/a/status$", times=2)
    ) as refused:
        cluster.share("a", node, group)
        wait_until(lambda: refused.count == 1)
        reservation = cluster.reservation(group)["metadata"]
        before = [cluster.config_map(name)["metadata"] for name in cluster.all_config_maps()]
        assert cluster.node_of("a") == node
        cluster.wait_for("a", "Succeeded")
    assert cluster.reservation(group)["metadata"] == reservation
    assert [cluster.config_map(name)["metadata"] for name in cluster.all_config_maps()] == before
    assert shared.count(cluster, "POST", BINDING) == 1


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_k8s_141274_a_pod_that_ends_while_its_gpu_is_reserved(cluster: Sharing, phase: str) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, None)
    cluster.share("a", node, group, backoffLimit=3)
    cluster.wait_for_reservation(group)
    cluster.set_phase("a", phase)
    status = cluster.wait_for("a", "Failed")
    text = f"pod {cluster.namespace}/a has ended: its phase is {phase}"
    assert status["reason"] == f"GPUReserved PodFinished: {text}"
    cluster.assert_nothing_left("a", group)


def test_kai_pr_1229_a_release_wakes_nobody_again_and_again(shared: Shared, cluster: Sharing) -> None:
    """Our own writes start nothing: the reservation pods come and go once."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.delete_pod("a")
    cluster.wait_until_freed(group)
    time.sleep(LOOK_S)
    name = f"/namespaces/{RESERVATIONS}/pods"
    before = shared.proxy.count("POST", name), shared.proxy.count("DELETE", name)
    time.sleep(2 * LOOK_S)
    assert (shared.proxy.count("POST", name), shared.proxy.count("DELETE", name)) == before
