"""Volumes on the real API server and volume controller, under the rights that we ship."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.provisioner import PROVISIONER, SELECTED_NODE, Provisioner
from tests.volumes import HOSTNAME, Volumes, host_affinity

pytestmark = pytest.mark.usefixtures("binder")

DATA = Path(__file__).parents[2] / "data"
BOUND_BY = "pv.kubernetes.io/bound-by-controller"


@pytest.fixture
def volumes(cluster: Cluster) -> Iterator[Volumes]:
    made = Volumes(cluster)
    yield made
    made.delete_requests()


@pytest.fixture
def provisioner(cluster: Cluster) -> Iterator[Provisioner]:
    with Provisioner(cluster.plane, cluster.namespace) as running:
        yield running


# Claims that are bound already.


def test_a_pod_with_a_bound_claim_is_bound(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node)
    before = volumes.bound_claim("data", local, volume)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node
    text = f"bound: data to {volume} (for {HOSTNAME} In {node})"
    assert cluster.conditions("a")["VolumeBinding"]["message"] == text
    assert volumes.get_claim("data") == before, "nothing had to be written"


def test_several_pods_share_a_bound_claim(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volumes.bound_claim("data", local, volumes.volume("v", local, None))
    for name in "abc":
        volumes.pod_and_request(name, node, "data")
    cluster.wait_for_all(3)


def test_a_bound_volume_that_the_node_cannot_reach(cluster: Cluster, volumes: Volumes) -> None:
    here, there, local = volumes.node("here"), volumes.node("there"), volumes.storage_class()
    volume = volumes.volume("v", local, there)
    volumes.bound_claim("data", local, volume)
    volumes.pod_and_request("a", here, "data")
    reason = volumes.reason("a")
    assert reason.startswith(
        f"VolumeBinding VolumeUnreachable: volume {volume} of claim {cluster.namespace}/data (class {local}) "
        f"cannot be used on node {here}: its node affinity asks for {HOSTNAME} In {there}"
    )
    assert (
        f"claim {cluster.namespace}/data is tied to volume {volume} and so to {HOSTNAME} In {there}" in reason
    )
    cluster.assert_unbound("a")


def test_a_bound_volume_that_is_gone(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node)
    volumes.bound_claim("data", local, volume)
    volumes.delete_volume(volume)
    wait_until(lambda: volumes.get_claim("data")["status"]["phase"] == "Lost")
    volumes.pod_and_request("a", node, "data")
    text = f"claim {cluster.namespace}/data has lost volume {volume}, which it was bound to"
    assert volumes.reason("a") == f"VolumeBinding ClaimUnbound: {text}"


# Claims that are not for us to bind.


def test_no_claim(cluster: Cluster, volumes: Volumes) -> None:
    volumes.pod_and_request("a", volumes.node(), "data")
    text = f"claim {cluster.namespace}/data does not exist"
    assert volumes.reason("a") == f"VolumeBinding ClaimNotFound: {text}"


def test_an_unbound_claim_that_waits_for_nobody(cluster: Cluster, volumes: Volumes) -> None:
    at_once = volumes.storage_class("at-once", PROVISIONER, volumeBindingMode="Immediate")
    volumes.claim("data", at_once)
    volumes.pod_and_request("a", volumes.node(), "data")
    reason = volumes.reason("a")
    text = f"claim {cluster.namespace}/data is not bound, and only the volume controller can bind it"
    assert reason.startswith(f"VolumeBinding ClaimUnbound: {text}: its class {at_once}")
    assert volumes.selected_node("data") is None


@pytest.mark.parametrize(
    ("class_name", "problem"),
    [("no-such-class", "its class no-such-class does not exist"), ("", "it has no storage class")],
)
def test_an_unbound_claim_of_no_class(volumes: Volumes, class_name: str, problem: str) -> None:
    volumes.claim("data", class_name)
    volumes.pod_and_request("a", volumes.node(), "data")
    assert problem in volumes.reason("a")


def test_f_06_a_claim_that_names_its_volume_itself_is_waited_for(cluster: Cluster, volumes: Volumes) -> None:
    """F-6: the volume comes three seconds later."""
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.unique("late")
    volumes.claim("data", local, volumeName=volume)
    volumes.pod_and_request("a", node, "data")
    text = f"waits for the volume controller to bind claim {cluster.namespace}/data (class {local}) to volume"
    assert volumes.wait_until_shown("a") == f"{text} {volume}, which it names"
    volumes.volume("late", local, node, claimRef={"namespace": cluster.namespace, "name": "data"})
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == volume
    assert "failedAttempts" not in cluster.status("a")


@pytest.mark.parametrize("class_name", ["", "at-once"])
def test_f_06_of_whatever_class_it_is(cluster: Cluster, volumes: Volumes, class_name: str) -> None:
    """F-6: nothing is to be provisioned, so the class does not matter."""
    node = volumes.node()
    if class_name:
        class_name = volumes.storage_class(class_name, volumeBindingMode="Immediate")
    volume = volumes.unique("late")
    volumes.claim("data", class_name, volumeName=volume)
    volumes.pod_and_request("a", node, "data")
    volumes.wait_until_shown("a")
    volumes.volume("late", class_name, node, claimRef={"namespace": cluster.namespace, "name": "data"})
    # Such a claim is looked at every 15 s by the volume controller.
    cluster.wait_for("a", "Succeeded", within_s=40)
    assert volumes.volume_of("data") == volume


def test_f_06_the_named_volume_is_judged_as_soon_as_it_is_there(cluster: Cluster, volumes: Volumes) -> None:
    """F-6: what it waits for may turn out to be on another node, or somebody else's."""
    here, there, local = volumes.node("here"), volumes.node("there"), volumes.storage_class()
    volume = volumes.unique("late")
    volumes.claim("data", local, volumeName=volume)
    volumes.pod_and_request("a", here, "data")
    volumes.wait_until_shown("a")
    volumes.volume("late", local, there)
    assert volumes.reason("a").startswith(f"VolumeBinding VolumeUnreachable: volume {volume} of claim ")
    taken = volumes.volume("taken", local, here, claimRef={"namespace": "elsewhere", "name": "other"})
    volumes.claim("more", local, volumeName=taken)
    volumes.pod_and_request("b", here, "more")
    text = (
        f"claim {cluster.namespace}/more is not bound, and cannot be: volume {taken}, which it names, is kept"
    )
    assert volumes.reason("b") == f"VolumeBinding ClaimUnbound: {text} for claim elsewhere/other"


# Static volumes.


def test_the_smallest_volume_that_fits_is_tied_to_the_claim(cluster: Cluster, volumes: Volumes) -> None:
    node, other, local = volumes.node(), volumes.node("n2"), volumes.storage_class()
    volumes.volume("small", local, node, size="900Mi")
    volumes.volume("elsewhere", local, other, size="1Gi")
    volumes.volume("block", local, node, volumeMode="Block")
    volumes.volume("large", local, node, size="5Gi")
    right = volumes.volume("right", local, node, size="2Gi", labels={"kind": "fast"})
    volumes.volume("slow", local, node, size="1Gi", labels={"kind": "slow"})
    claim = volumes.claim("data", local, selector={"matchLabels": {"kind": "fast"}})
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == right
    found = volumes.get_volume(right)
    kept = {key: claim["metadata"][key] for key in ("namespace", "name", "uid", "resourceVersion")}
    assert found["spec"]["claimRef"] == {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **kept}
    assert found["metadata"]["annotations"][BOUND_BY] == "yes"
    assert found["status"]["phase"] == "Bound"


def test_no_volume_fits(cluster: Cluster, volumes: Volumes) -> None:
    node, other, local = volumes.node(), volumes.node("n2"), volumes.storage_class()
    volumes.volume("a", local, node, size="1Mi")
    volumes.volume("b", local, other)
    volumes.volume("c", local, node, volumeMode="Block")
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    reason = volumes.reason("a")
    text = f"there is no volume for claim {cluster.namespace}/data (class {local}) on node {node}"
    assert reason.startswith(f"VolumeBinding NoFittingVolume: {text}: of the volumes of its class, ")
    for problem in (
        "1 is too small",
        "1 is not usable on the node",
        "1 is of another volume mode",
        "its class has no provisioner",
    ):
        assert problem in reason


def test_the_smaller_claim_chooses_first(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    two, six = (volumes.volume(size, local, node, size=f"{size}Gi") for size in "26")
    volumes.claim("five", local, size="5Gi")
    volumes.claim("one", local, size="1Gi")
    volumes.pod_and_request("a", node, "five", "one")
    cluster.wait_for("a", "Succeeded")
    assert (volumes.volume_of("one"), volumes.volume_of("five")) == (two, six)


def test_a_volume_that_the_admin_keeps_for_the_claim(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volumes.volume("small", local, node)
    reference = {"namespace": cluster.namespace, "name": "data"}
    kept = volumes.volume("kept", local, node, size="9Gi", claimRef=reference)
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == kept
    # Who tied it before us decides over it: the volume controller frees what it finds marked as its own.
    assert BOUND_BY not in volumes.get_volume(kept)["metadata"].get("annotations", {})


def test_a_free_volume_is_better_than_a_new_one(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, made = volumes.node(), volumes.made_class()
    free = volumes.volume("free", made, node)
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == free
    assert provisioner.selections == []


def test_two_requests_want_the_same_volume(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volumes.volume("only", local, node)
    names = ["a", "b"]
    for name in names:
        volumes.claim(f"data-{name}", local)
        cluster.pod(name, claims=(f"data-{name}",))
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda name: cluster.ask(name, node), names))
    wait_until(lambda: all(cluster.status(name).get("phase") for name in names))
    phases = {name: cluster.status(name)["phase"] for name in names}
    assert sorted(phases.values()) == ["Failed", "Succeeded"]
    loser = next(name for name in names if phases[name] == "Failed")
    assert "NoFittingVolume" in volumes.reason(loser)
    assert "1 is taken" in volumes.reason(loser)
    cluster.assert_unbound(loser)


def test_many_requests_share_out_the_volumes(cluster: Cluster, volumes: Volumes) -> None:
    node, local, count = volumes.node(), volumes.storage_class(), 8
    for number in range(count):
        volumes.volume(f"v{number}", local, node)
        volumes.claim(f"data-{number}", local)
        cluster.pod(f"p{number}", claims=(f"data-{number}",))
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda number: cluster.ask(f"p{number}", node), range(count)))
    cluster.wait_for_all(count)
    assert len({volumes.volume_of(f"data-{number}") for number in range(count)}) == count


def test_two_pods_share_a_claim_that_is_not_bound_yet(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    made = [volumes.volume(name, local, node) for name in ("v1", "v2")]
    volumes.claim("data", local)
    for name in "ab":
        cluster.pod(name, claims=("data",))
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda name: cluster.ask(name, node), "ab"))
    cluster.wait_for_all(2)
    assert sorted(map(str, map(volumes.owner, made))) == ["None", "data"], "one claim took two volumes"


# Provisioned volumes.


def test_a_volume_is_made_for_the_node(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    node, made = volumes.node(), volumes.made_class()
    claim = volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == f"pvc-{claim['metadata']['uid']}"
    assert volumes.selected_node("data") == node
    assert provisioner.selections == [("data", node)]


def test_a_volume_attributes_class_is_no_obstacle(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made, volumeAttributesClassName="gold")
    volumes.pod_and_request("a", node, "data")
    wait_until(lambda: provisioner.selections == [("data", node)])


def test_a_class_that_may_not_provision_there(cluster: Cluster, volumes: Volumes) -> None:
    allowed = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    node, made = volumes.node("n1", zone="b"), volumes.made_class(allowedTopologies=allowed)
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    reason = volumes.reason("a")
    assert reason.startswith("VolumeBinding NoFittingVolume: ")
    assert f"(class {made}) on node {node}" in reason
    assert "allowedTopologies" in reason
    assert volumes.selected_node("data") is None


def test_a_driver_that_tells_of_its_capacity(cluster: Cluster, volumes: Volumes) -> None:
    driver = f"{volumes.unique('driver')}.example.com"
    storage = "/apis/storage.k8s.io/v1"
    body = {"metadata": {"name": driver}, "spec": {"storageCapacity": True}}
    cluster.plane.request("POST", f"{storage}/csidrivers", body)
    node, made = volumes.node("n1", zone="a"), volumes.storage_class("csi", driver)
    volumes.claim("data", made, size="2Gi")
    volumes.pod_and_request("a", node, "data", backoffLimit=6)
    cluster.wait_for_attempts("a", 1)
    assert f"driver {driver} has no room for 2Gi there" in volumes.reason("a")
    capacities = f"{storage}/namespaces/{cluster.namespace}/csistoragecapacities"
    for name, zone, size in (("far", "b", "9Gi"), ("full", "a", "1Gi")):
        topology = {"matchLabels": {"zone": zone}}
        capacity = {"metadata": {"name": name}, "storageClassName": made, "capacity": size}
        cluster.plane.request("POST", capacities, {**capacity, "nodeTopology": topology})
    attempts = cluster.status("a")["failedAttempts"]
    cluster.wait_for_attempts("a", attempts + 1)
    assert volumes.selected_node("data") is None
    capacity = {"metadata": {"name": "good"}, "storageClassName": made, "capacity": "2Gi"}
    cluster.plane.request("POST", capacities, {**capacity, "nodeTopology": {}})
    wait_until(lambda: volumes.selected_node("data") == node, within_s=20)


def test_a_static_and_a_provisioned_volume(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, local, made = volumes.node(), volumes.storage_class(), volumes.made_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("scratch", made)
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "scratch", "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == volume
    assert volumes.volume_of("scratch").startswith("pvc-")


def test_nothing_is_written_if_one_of_the_claims_cannot_be_had(cluster: Cluster, volumes: Volumes) -> None:
    node, local, made = volumes.node(), volumes.storage_class(), volumes.made_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("scratch", made)
    volumes.claim("data", local)
    volumes.claim("more", local)
    volumes.pod_and_request("a", node, "scratch", "data", "more")
    assert "1 is taken" in volumes.reason("a")
    assert volumes.owner(volume) is None
    assert volumes.selected_node("scratch") is None


def test_a_volume_that_was_made_elsewhere(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, made = volumes.node(), volumes.made_class()
    other = volumes.node("n2")
    provisioner.place = lambda _: other
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    reason = volumes.reason("a")
    assert reason.startswith("VolumeBinding VolumeUnreachable: volume pvc-")
    assert f"cannot be used on node {node}: its node affinity asks for {HOSTNAME} In {other}" in reason


# Generic ephemeral volumes.


def ephemeral(class_name: str) -> list[Object]:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name, "resources": resources}
    return [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]


def test_an_ephemeral_volume(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    node, made = volumes.node(), volumes.made_class()
    pod = cluster.pod("a", volumes=ephemeral(made))
    # The controller may not have made the claim yet: an attempt that is too early is followed by another.
    cluster.ask("a", node, owner=pod, backoffLimit=4)
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert volumes.volume_of("a-scratch").startswith("pvc-")


def test_an_ephemeral_volume_whose_claim_is_somebody_elses(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("a-scratch", made)
    pod = cluster.pod("a", volumes=ephemeral(made))
    cluster.ask("a", node, owner=pod)
    reason = volumes.reason("a")
    assert reason.startswith(f"VolumeBinding ClaimNotOwned: claim {cluster.namespace}/a-scratch ")
    assert provisioner.selections == []


# The wait, and what ends it.


def waiting(volumes: Volumes, provisioner: Provisioner) -> tuple[str, str]:
    """A request that waits for a silent provisioner: node and class."""
    provisioner.silent = True
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    volumes.wait_until_shown("a")
    return node, made


def seconds_until_failed(volumes: Volumes, started_s: float) -> float:
    volumes.reason("a", within_s=30)
    return time.monotonic() - started_s


SOON_S = 8.0
"""The wait ends within two seconds; the rest is for a busy machine."""


def test_a_long_wait_is_shown(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    provisioner.silent = True
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    text = f"waits for provisioner {PROVISIONER} to make a volume for claim {cluster.namespace}/data"
    assert volumes.wait_until_shown("a") == f"{text} (class {made}) on node {node}"
    assert cluster.conditions("a")["VolumeBinding"]["status"] == "Unknown"
    provisioner.silent = False
    cluster.wait_for("a", "Succeeded")


def test_a_provisioner_that_takes_its_time(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    provisioner.delay_s = 3.0
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded", within_s=15)
    assert provisioner.selections == [("data", node)]


def test_the_node_of_a_claim_is_changed(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    node, made = waiting(volumes, provisioner)
    started_s = time.monotonic()
    volumes.patch_claim("data", {"metadata": {"annotations": {SELECTED_NODE: "other"}}})
    assert seconds_until_failed(volumes, started_s) < SOON_S
    reason = volumes.reason("a")
    assert reason.startswith(
        f"VolumeBinding ProvisioningRefused: provisioning refused node {node} for claim "
        f"{cluster.namespace}/data (class {made}, provisioner {PROVISIONER}): the node was changed to other"
    )
    assert "is marked to be provisioned on node other" in reason


def test_the_pod_is_deleted_meanwhile(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    waiting(volumes, provisioner)
    # Without its owner: the garbage collector would take the request with it.
    cluster.patch_request("a", {"metadata": {"ownerReferences": None}})
    started_s = time.monotonic()
    cluster.delete_pod("a")
    assert seconds_until_failed(volumes, started_s) < SOON_S
    # Whichever is seen first.
    heads = ("VolumeBinding PodTerminating: ", "VolumeBinding PodNotFound: ")
    assert volumes.reason("a").startswith(tuple(f"{head}pod {cluster.namespace}/a " for head in heads))


def test_the_request_is_deleted_meanwhile(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    node, _ = waiting(volumes, provisioner)
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    provisioner.silent = False
    cluster.ask("a", node)
    cluster.wait_for("a", "Succeeded", within_s=SOON_S)


def test_the_node_is_deleted_meanwhile(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    node, _ = waiting(volumes, provisioner)
    started_s = time.monotonic()
    cluster.plane.request("DELETE", f"/api/v1/nodes/{node}")
    assert seconds_until_failed(volumes, started_s) < SOON_S
    assert volumes.reason("a").startswith(f"VolumeBinding NodeGone: node {node} was deleted")
    assert f"claim {cluster.namespace}/data is marked to be provisioned on node {node}" in volumes.reason("a")


def test_f_05_two_pods_want_a_claim_on_two_nodes(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-5: the claim is not pulled to and fro between them; the volume is then judged for each pod's node."""
    node, made = waiting(volumes, provisioner)
    other = volumes.node("n2")
    pod = cluster.pod("b", claims=("data",))
    cluster.ask("b", other, owner=pod)
    text = f"waits for claim {cluster.namespace}/data (class {made}) to be bound for node {node}, as another"
    assert volumes.wait_until_shown("b") == f"{text} request has it"
    provisioner.silent = False
    cluster.wait_for("a", "Succeeded")
    assert volumes.reason("b").startswith("VolumeBinding VolumeUnreachable: volume pvc-")
    assert provisioner.selections == [("data", node)]


def test_f_05_a_gang_shares_a_new_claim_that_all_its_nodes_can_reach(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-5: one pod of the gang has the volume made, and all are bound."""
    provisioner.anywhere = True
    provisioner.delay_s = 1.5
    made, count = volumes.made_class(), 8
    volumes.claim("data", made)
    nodes = [volumes.node(f"n{number}") for number in range(count)]
    for number in range(count):
        cluster.pod(f"p{number}", claims=("data",))
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda number: cluster.ask(f"p{number}", nodes[number]), range(count)))
    cluster.wait_for_all(count)
    assert [cluster.node_of(f"p{number}") for number in range(count)] == nodes
    assert len(provisioner.selections) == 1
    assert not [item for item in cluster.all_requests() if "failedAttempts" in item["status"]]


def test_f_05_who_waits_for_another_takes_over_when_that_one_is_gone(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-5: the other request goes, and so does the node that it wanted the claim for."""
    node, made = waiting(volumes, provisioner)
    other = volumes.node("n2")
    cluster.ask("b", other, owner=cluster.pod("b", claims=("data",)))
    volumes.wait_until_shown("b")
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    text = f"waits for claim {cluster.namespace}/data (class {made}) to be bound for node {node}, as its"
    time.sleep(2.0)
    assert volumes.selected_node("data") == node, "a volume may be in the making for a node that is there"
    assert cluster.status("b").get("phase") is None, text
    cluster.plane.request("DELETE", f"/api/v1/nodes/{node}")
    wait_until(lambda: volumes.selected_node("data") == other)
    provisioner.silent = False
    cluster.wait_for("b", "Succeeded")


def test_f_04_the_selected_node_is_not_overwritten_while_it_is_there(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-4: nobody in this process asked for it; its provisioner may be at work all the same."""
    provisioner.delay_s = 4.0
    provisioner.anywhere = True
    here, there, made = volumes.node("here"), volumes.node("there"), volumes.made_class()
    volumes.claim("data", made)
    volumes.patch_claim("data", {"metadata": {"annotations": {SELECTED_NODE: there}}})
    volumes.pod_and_request("a", here, "data")
    text = f"waits for claim {cluster.namespace}/data (class {made}) to be bound for node {there}, as its"
    assert volumes.wait_until_shown("a") == f"{text} selected-node annotation has it"
    cluster.wait_for("a", "Succeeded", within_s=15)
    assert provisioner.selections == [("data", there)]


@pytest.mark.parametrize("gone", ["no-such-node", "no/such/node", "..", "n" * 300, "Nœud"])
def test_f_04_it_is_overwritten_when_there_is_no_such_node(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, gone: str
) -> None:
    """F-4: nor is one asked for whose name no node can have."""
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    provisioner.silent = True
    volumes.patch_claim("data", {"metadata": {"annotations": {SELECTED_NODE: gone}}})
    volumes.pod_and_request("a", node, "data")
    wait_until(lambda: volumes.selected_node("data") == node)
    provisioner.silent = False
    cluster.wait_for("a", "Succeeded")


def test_f_04_a_provisioner_that_gives_the_other_node_up(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-4: then the claim is free to be made for this one."""
    provisioner.refuse_after_s = 3.0
    here, there, made = volumes.node("here"), volumes.node("there"), volumes.made_class()
    volumes.claim("data", made)
    volumes.patch_claim("data", {"metadata": {"annotations": {SELECTED_NODE: there}}})
    volumes.pod_and_request("a", here, "data")
    volumes.wait_until_shown("a")
    wait_until(lambda: volumes.selected_node("data") == here)
    provisioner.refuse_after_s = None
    cluster.wait_for("a", "Succeeded")


# A wait for the volume controller.


@pytest.fixture
def tied(cluster: Cluster, volumes: Volumes) -> Iterator[tuple[str, str]]:
    """Node and volume of request a, which waits for a volume controller that does nothing."""
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("data", local)
    with volumes.controllers_paused():
        volumes.pod_and_request("a", node, "data")
        text = f"waits for the volume controller to bind claim {cluster.namespace}/data (class {local})"
        assert volumes.wait_until_shown("a") == f"{text} to volume {volume}"
        yield node, volume


def test_the_volume_controller_comes_back(cluster: Cluster, volumes: Volumes) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("data", local)
    with volumes.controllers_paused():
        volumes.pod_and_request("a", node, "data")
        volumes.wait_until_shown("a")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == volume


def test_the_volume_is_deleted_meanwhile(cluster: Cluster, volumes: Volumes, tied: tuple[str, str]) -> None:
    started_s = time.monotonic()
    volumes.delete_volume(tied[1])
    assert seconds_until_failed(volumes, started_s) < SOON_S
    assert volumes.reason("a").startswith(
        f"VolumeBinding VolumeNotFound: volume {tied[1]}, chosen for claim "
    )


def test_the_volume_is_taken_from_the_claim_meanwhile(
    cluster: Cluster, volumes: Volumes, tied: tuple[str, str]
) -> None:
    started_s = time.monotonic()
    volumes.patch_volume(tied[1], {"spec": {"claimRef": None}})
    assert seconds_until_failed(volumes, started_s) < SOON_S
    assert volumes.reason("a").startswith(f"VolumeBinding VolumeTaken: volume {tied[1]}, chosen for claim ")
    assert "is tied to" not in volumes.reason("a")


def test_the_node_leaves_the_reach_of_the_volume_meanwhile(
    cluster: Cluster, volumes: Volumes, tied: tuple[str, str]
) -> None:
    node, volume = tied
    started_s = time.monotonic()
    label = {"metadata": {"labels": {HOSTNAME: "renamed"}}}
    cluster.plane.request("PATCH", f"/api/v1/nodes/{node}", label, "application/merge-patch+json")
    assert seconds_until_failed(volumes, started_s) < SOON_S
    assert volumes.reason("a").startswith(f"VolumeBinding VolumeUnreachable: volume {volume} of claim ")
    assert f"is tied to volume {volume} and so to {HOSTNAME} In {node}" in volumes.reason("a")


def test_a_claim_that_a_former_request_tied_to_another_node(
    cluster: Cluster, volumes: Volumes, tied: tuple[str, str]
) -> None:
    """What is written stays; the claim is not tied to a second volume."""
    node, volume = tied
    other, pod = volumes.node("n2"), cluster.get_pod("a")
    free = volumes.unique("free")
    spec = {**volumes.get_volume(volume)["spec"], "claimRef": None, "nodeAffinity": host_affinity(other)}
    cluster.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": free}, "spec": spec})
    cluster.plane.request(
        "PATCH",
        f"/api/v1/persistentvolumes/{free}/status",
        {"status": {"phase": "Available"}},
        "application/merge-patch+json",
    )
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    cluster.ask("a", other, owner=pod)
    reason = volumes.reason("a", within_s=SOON_S)
    assert reason.startswith(
        f"VolumeBinding VolumeUnreachable: volume {volume} is tied to claim {cluster.namespace}/data "
    )
    assert f"cannot serve it on node {other}: it is not usable on the node" in reason
    assert f"its node affinity asks for {HOSTNAME} In {node}" in reason
    assert volumes.owner(free) is None


# What KAI's scheduler wrote.


def saved(kind: str) -> list[Object]:
    items = json.loads((DATA / "kai-after-bind.json").read_text())["items"]
    return [item for item in items if item["kind"] == kind]


def test_disk_local(cluster: Cluster, volumes: Volumes) -> None:
    """The pod with a local disk, its claim, volume and request, as they were met."""
    claim = next(item for item in saved("PersistentVolumeClaim") if item["metadata"]["name"] == "late-local")
    volume = next(item for item in saved("PersistentVolume") if item["metadata"]["name"] == "local-disk-1")
    requests = json.loads((DATA / "kai-bindrequests.json").read_text())["items"]
    request = next(item for item in requests if item["metadata"]["name"] == "disk-local")
    node, local = cluster.node("cpu-1", {HOSTNAME: "cpu-1"}), claim["spec"]["storageClassName"]
    body = {
        "metadata": {"name": local},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    cluster.plane.request("POST", "/apis/storage.k8s.io/v1/storageclasses", body)
    fresh = {key: value for key, value in volume["spec"].items() if key != "claimRef"}
    body = {"metadata": {"name": "local-disk-1"}, "spec": fresh}
    cluster.plane.request("POST", "/api/v1/persistentvolumes", body)
    wait_until(lambda: volumes.get_volume("local-disk-1").get("status", {}).get("phase") == "Available")
    volumes.claim("late-local", local)
    pod = cluster.pod("disk-local", claims=("late-local",))
    cluster.request("disk-local", request["spec"], pod)
    cluster.wait_for("disk-local", "Succeeded")
    assert cluster.node_of("disk-local") == node
    found, bound = volumes.get_volume("local-disk-1"), volumes.get_claim("late-local")
    assert found["metadata"]["annotations"] == {BOUND_BY: "yes"}
    assert found["spec"]["claimRef"].keys() == volume["spec"]["claimRef"].keys()
    assert bound["spec"] == claim["spec"]
    assert bound["status"] == claim["status"]


def test_disk_made(cluster: Cluster, volumes: Volumes, provisioner: Provisioner) -> None:
    """The volume half of the pod that has a provisioned disk and a GPU share."""
    claim = next(item for item in saved("PersistentVolumeClaim") if item["metadata"]["name"] == "late-made")
    node, made = volumes.node(), volumes.made_class()
    spec = {**claim["spec"], "storageClassName": made, "volumeName": None}
    body = {"metadata": {"name": "late-made"}, "spec": spec}
    stored = cluster.plane.request("POST", volumes.claims, body)
    volumes.pod_and_request("disk-made", node, "late-made")
    cluster.wait_for("disk-made", "Succeeded")
    bound = volumes.get_claim("late-made")
    keys = claim["metadata"]["annotations"].keys() - {"kubectl.kubernetes.io/last-applied-configuration"}
    assert bound["metadata"]["annotations"].keys() == keys
    name = f"pvc-{stored['metadata']['uid']}"
    assert bound["spec"] == {**claim["spec"], "storageClassName": made, "volumeName": name}
    assert bound["status"] == claim["status"]


def test_the_sample(cluster: Cluster) -> None:
    samples = DATA.parents[1] / "config/samples"
    cluster.plane.kubectl("apply", "-f", str(samples / "node.yaml"), "-f", str(samples / "pvc.yaml"))
    Cluster(cluster.plane, "default").wait_for("disk", "Succeeded", within_s=20)
    shown = cluster.plane.kubectl("describe", "bindrequest", "disk")
    assert f"bound: sample-data to sample-disk (for {HOSTNAME} In gpu-node-1)" in shown
