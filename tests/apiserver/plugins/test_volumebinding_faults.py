"""Faults of volumes that were found by trial, on the real API server and under the rights that we ship."""

from collections.abc import Iterator

import pytest

from controller.runtime.client import Object
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.provisioner import PROVISIONER, SELECTED_NODE, Provisioner
from tests.sharing import Agents, Sharing, shared_pod
from tests.volumes import HOSTNAME, Volumes, host_affinity

pytestmark = pytest.mark.usefixtures("binder")

STORAGE = "/apis/storage.k8s.io/v1"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
EBS_ZONE = "topology.ebs.csi.aws.com/zone"


@pytest.fixture
def volumes(cluster: Cluster) -> Iterator[Volumes]:
    made = Volumes(cluster)
    yield made
    made.delete_requests()


@pytest.fixture
def provisioner(cluster: Cluster) -> Iterator[Provisioner]:
    with Provisioner(cluster.plane, cluster.namespace) as running:
        yield running


# F-1: names that are none.


@pytest.mark.parametrize(
    "name",
    [
        "rancher.io/local-path",
        "microk8s.io/hostpath",
        "kubernetes.io/aws-ebs",
        "a/b",
        f"example.com/{'n' * 63}",
        "n" * 63,
        "Upper.Example.Com",
    ],
)
def test_f_01_a_provisioner_that_can_be_no_csi_driver(cluster: Cluster, volumes: Volumes, name: str) -> None:
    """F-1: what follows a slash would be taken for a subresource, on which nobody has rights."""
    node, made = volumes.node(), volumes.storage_class("slash", name)
    volumes.claim("data", made)
    with Provisioner(cluster.plane, cluster.namespace, name):
        volumes.pod_and_request("a", node, "data")
        cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in cluster.status("a")


@pytest.mark.parametrize("name", ["no/such", "..", ".", "%2e%2e", "a" * 254, "Größe", "data?watch=true", "-"])
def test_f_01_a_claim_whose_name_no_claim_can_have(cluster: Cluster, volumes: Volumes, name: str) -> None:
    """F-1: a pod may name such a claim; nobody has it."""
    source = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
    cluster.ask("a", volumes.node(), owner=cluster.pod("a", volumes=[source]))
    text = f"claim {cluster.namespace}/{name} does not exist"
    assert volumes.reason("a") == f"VolumeBinding ClaimNotFound: {text}"


@pytest.mark.parametrize("name", ["no/such", "..", "a" * 254, "Größe"])
def test_f_01_a_class_whose_name_no_class_can_have(cluster: Cluster, volumes: Volumes, name: str) -> None:
    """F-1: the annotation of old takes any text."""
    annotations = {"volume.beta.kubernetes.io/storage-class": name}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "data", "annotations": annotations}, "spec": spec}
    cluster.plane.request("POST", volumes.claims, body)
    volumes.pod_and_request("a", volumes.node(), "data")
    assert volumes.reason("a").endswith(f"its class {name} does not exist")


def test_f_01_a_volume_whose_name_no_volume_can_have(cluster: Cluster, volumes: Volumes) -> None:
    """F-1: such a claim waits in vain, and nothing is asked for by that name."""
    node, local = volumes.node(), volumes.storage_class()
    volumes.claim("data", local, volumeName="a/../b")
    volumes.pod_and_request("a", node, "data")
    assert volumes.wait_until_shown("a").endswith("to volume a/../b, which it names")


# F-7: capacity.


def test_f_07_a_claim_in_the_making_is_not_judged_by_capacity_again(
    cluster: Cluster, volumes: Volumes
) -> None:
    """F-7: the volume in the making has taken the room."""
    driver = f"{volumes.unique('driver')}.example.com"
    body = {"metadata": {"name": driver}, "spec": {"storageCapacity": True}}
    cluster.plane.request("POST", f"{STORAGE}/csidrivers", body)
    node, made = volumes.node(), volumes.storage_class("csi", driver)
    volumes.claim("data", made)
    volumes.patch_claim("data", {"metadata": {"annotations": {SELECTED_NODE: node}}})
    with Provisioner(cluster.plane, cluster.namespace, driver) as provisioner:
        provisioner.delay_s = 3.0
        volumes.pod_and_request("a", node, "data")
        volumes.wait_until_shown("a")
        cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in cluster.status("a")


# F-8: a tied volume that will not do.


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"size": "1Mi"}, "too small"),
        ({"volumeMode": "Block"}, "of another volume mode"),
        ({}, "being deleted"),
    ],
)
def test_f_08_another_volume_is_taken_if_the_tied_one_cannot_serve(
    cluster: Cluster, volumes: Volumes, changes: Object, problem: str
) -> None:
    """F-8: only a wrong node is final."""
    node, local = volumes.node(), volumes.storage_class()
    reference = {"namespace": cluster.namespace, "name": "data"}
    tied = volumes.volume("tied", local, node, claimRef=reference, **changes)
    if problem == "being deleted":
        volumes.patch_volume(tied, {"metadata": {"finalizers": ["example.com/hold"]}})
        volumes.plane.request("DELETE", f"/api/v1/persistentvolumes/{tied}")
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    reason = volumes.reason("a")
    assert reason.startswith("VolumeBinding NoFittingVolume: ")
    assert f"1 is tied to the claim but {problem}" in reason
    assert "taken" not in reason
    free = volumes.volume("free", local, node)
    volumes.pod_and_request("b", node, "data")
    cluster.wait_for("b", "Succeeded")
    assert volumes.volume_of("data") == free
    volumes.patch_volume(tied, {"metadata": {"finalizers": None}})


def test_f_08_a_wrong_node_is_final(cluster: Cluster, volumes: Volumes) -> None:
    """F-8: the claim will get the volume that is kept for it, so this node is the wrong one."""
    here, there, local = volumes.node("here"), volumes.node("there"), volumes.storage_class()
    reference = {"namespace": cluster.namespace, "name": "data"}
    tied = volumes.volume("tied", local, there, claimRef=reference)
    volumes.volume("free", local, here)
    volumes.claim("data", local)
    volumes.pod_and_request("a", here, "data")
    assert volumes.reason("a").startswith(f"VolumeBinding VolumeUnreachable: volume {tied} ")
    assert f"on node {here}: " in volumes.reason("a")


# F-9: in-tree volumes and CSI drivers.


def ebs(volumes: Volumes, class_name: str, zone: str, *, by_label: bool = False) -> str:
    """An in-tree volume in a zone, as a cloud provider made it years ago."""
    name = volumes.unique("ebs")
    spec: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        "awsElasticBlockStore": {"volumeID": "vol-0123456789abcdef0"},
    }
    labels = {OLD_ZONE: zone} if by_label else {}
    if not by_label:
        where = {"key": OLD_ZONE, "operator": "In", "values": [zone]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    volumes.plane.request("POST", "/api/v1/persistentvolumes", body)
    return name


def migrate(volumes: Volumes, node: str, plugins: str) -> None:
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": plugins}
    body = {"metadata": {"name": node, "annotations": annotations}, "spec": {"drivers": []}}
    volumes.plane.request("POST", f"{STORAGE}/csinodes", body)


@pytest.mark.parametrize("by_label", [False, True])
def test_f_09_an_in_tree_volume_on_a_node_that_a_csi_driver_serves(
    cluster: Cluster, volumes: Volumes, by_label: bool
) -> None:
    """F-9: the node has the driver's label only; another zone is refused."""
    volume = ebs(volumes, "", "us-east-1a", by_label=by_label)
    volumes.bound_claim("data", "", volume)
    here, there = (volumes.node(zone, **{EBS_ZONE: f"us-east-1{zone}"}) for zone in "ab")
    for node in (here, there):
        migrate(volumes, node, "kubernetes.io/gce-pd,kubernetes.io/aws-ebs")
    volumes.pod_and_request("a", here, "data")
    cluster.wait_for("a", "Succeeded")
    volumes.pod_and_request("b", there, "data")
    text = f"volume {volume} of claim {cluster.namespace}/data (class none) cannot be used on node {there}"
    hint = f"its node affinity asks for {EBS_ZONE} In us-east-1a"
    assert volumes.reason("b").startswith(f"VolumeBinding VolumeUnreachable: {text}: {hint}")


def test_f_09_a_node_that_has_not_migrated_is_judged_by_its_own_labels(
    cluster: Cluster, volumes: Volumes
) -> None:
    """F-9: with another plugin migrated, and with no CSINode at all."""
    local = volumes.storage_class()
    ebs(volumes, local, "us-east-1a")
    wait_until(lambda: volumes.get_volume(volumes.unique("ebs"))["status"]["phase"] == "Available")
    other = volumes.node("other", **{EBS_ZONE: "us-east-1a"})
    migrate(volumes, other, "kubernetes.io/cinder")
    volumes.claim("data", local)
    volumes.pod_and_request("a", other, "data")
    assert "1 is not usable on the node" in volumes.reason("a")
    old = volumes.node("old", **{OLD_ZONE: "us-east-1a"})
    volumes.pod_and_request("b", old, "data")
    cluster.wait_for("b", "Succeeded")


# F-10: nothing is reserved for a pod whose claims cannot be had.


@pytest.fixture
def sharing(cluster: Cluster, agents: Agents) -> Sharing:
    made = Sharing(cluster.plane, cluster.namespace)
    made.agents = agents
    return made


def share(sharing: Sharing, name: str, node: str, group: str, claim: str) -> None:
    """A pod with a share of a GPU and a claim, and its request."""
    body = shared_pod(name)
    source = {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
    body["spec"]["volumes"] = [*body["spec"].get("volumes", ()), source]
    owner = sharing.plane.request("POST", sharing.pods, body)
    sharing.ask_share(name, node, group, owner=owner)


def test_f_10_a_gpu_is_not_reserved_for_a_claim_that_cannot_be_had(
    sharing: Sharing, volumes: Volumes
) -> None:
    """F-10: missing, deleted, unreachable."""
    here, there, local = volumes.node("here"), volumes.node("there"), volumes.storage_class()
    volumes.bound_claim("far", local, volumes.volume("far", local, there))
    volumes.claim("dying", local)
    volumes.patch_claim("dying", {"metadata": {"finalizers": ["example.com/hold"]}})
    volumes.plane.request("DELETE", f"{volumes.claims}/dying")
    endings = {"missing": "ClaimNotFound", "dying": "ClaimTerminating", "far": "VolumeUnreachable"}
    for claim, reason in endings.items():
        group = sharing.group()
        share(sharing, f"with-{claim}", here, group, claim)
        assert volumes.reason(f"with-{claim}").startswith(f"VolumeBinding {reason}: ")
        assert sharing.reservations(group) == []
    volumes.patch_claim("dying", {"metadata": {"finalizers": None}})


def test_f_10_one_that_can_be_had_is_reserved_and_bound(
    sharing: Sharing, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-10: with a bound claim, and with one that is still to be made."""
    node, local, made = volumes.node(), volumes.storage_class(), volumes.made_class()
    volumes.bound_claim("old", local, volumes.volume("v", local, node))
    volumes.claim("new", made)
    for claim in ("old", "new"):
        share(sharing, f"with-{claim}", node, sharing.group(), claim)
    sharing.wait_for_all(2)
    assert provisioner.selections == [("new", node)]


# F-12, and what else an object may lack.


def test_f_12_an_empty_class_annotation_wins_over_the_field(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner
) -> None:
    """F-12: as for the volume controller, such a claim has no class."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": volumes.made_class(),
    }
    annotations = {"volume.beta.kubernetes.io/storage-class": ""}
    body = {"metadata": {"name": "data", "annotations": annotations}, "spec": spec}
    cluster.plane.request("POST", volumes.claims, body)
    volumes.pod_and_request("a", volumes.node(), "data")
    assert "it has no storage class" in volumes.reason("a")
    assert provisioner.selections == []


@pytest.mark.parametrize("size", ["1e3", "0.5Gi", "1500m", "1E", "3.5e9", "100k", "1073741824"])
def test_odd_quantities(cluster: Cluster, volumes: Volumes, size: str) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node, size=size)
    volumes.claim("data", local, size=size)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == volume


def test_volumes_that_say_little_of_themselves(cluster: Cluster, volumes: Volumes) -> None:
    """Kept for a claim without a namespace or a name, or for nobody's uid: none stops another claim."""
    node, local = volumes.node(), volumes.storage_class()
    for number, reference in enumerate(
        (
            {},
            {"name": "data"},
            {"namespace": cluster.namespace},
            {"namespace": "x", "name": "data", "uid": ""},
        )
    ):
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": local,
            "hostPath": {"path": "/mnt"},
            "claimRef": reference,
            "nodeAffinity": host_affinity(node),
        }
        name = volumes.unique(f"odd{number}")
        volumes.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    assert "4 are taken" in volumes.reason("a")
    free = volumes.volume("free", local, node)
    volumes.pod_and_request("b", node, "data")
    cluster.wait_for("b", "Succeeded")
    assert volumes.volume_of("data") == free
    assert f"(for {HOSTNAME} In {node})" in cluster.conditions("b")["VolumeBinding"]["message"]
    assert PROVISIONER not in cluster.conditions("b")["VolumeBinding"]["message"]
