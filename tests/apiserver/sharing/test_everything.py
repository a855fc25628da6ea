"""All steps in one: KAI's 17 requests together, and one pod that needs every plugin, well and failing."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from controlplane import RequestError
from kubelet import device_of

from controller.runtime.client import Object
from tests.apiserver.binder.test_kai_data import read as read_all
from tests.apiserver.plugins.test_dynamicresources_kai_data import make_claim
from tests.apiserver.plugins.test_dynamicresources_kai_data import read as read_one
from tests.apiserver.sharing.test_kai_data import prepare, unlabelled
from tests.claims import Claims, allocation, brings, uses
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.sharing import Sharing, shared_pod
from tests.volumes import HOSTNAME, Volumes

pytestmark = [
    pytest.mark.usefixtures("binder"),
    pytest.mark.skipif(
        os.environ.get("KUBERNETES") == "1.35", reason="DRAExtendedResource is off by default"
    ),
]


@pytest.fixture
def provisioner(cluster: Sharing) -> Iterator[Provisioner]:
    with Provisioner(cluster.plane, cluster.namespace) as running:
        yield running


def make_node(cluster: Sharing, name: str) -> None:
    with suppress(RequestError):
        cluster.node(name)
    labels = {HOSTNAME: name, "nvidia.com/gpu.memory": "15360"}
    cluster.plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, MERGE)


@pytest.mark.usefixtures("provisioner")
def test_all_requests_of_kai_together(cluster: Sharing) -> None:
    requests, pods = read_all("kai-bindrequests.json", "BindRequest"), read_all("kai-after-bind.json", "Pod")
    volumes = Volumes(cluster)
    prepare(cluster)
    for node in {item["spec"]["selectedNode"] for item in requests.values()}:
        make_node(cluster, node)
    local = volumes.storage_class()
    disk = volumes.volume("disk", local, "cpu-1", size="10Gi")
    volumes.claim("late-local", local)
    volumes.claim("late-made", volumes.made_class())
    for name, claim in (("dra-claim", "one-card"), ("dra-template", "own-card")):
        make_claim(cluster, name, read_one("kai-after-bind.json", "ResourceClaim", claim))
    made = {name: cluster.plane.request("POST", cluster.pods, unlabelled(pods[name])) for name in requests}
    wait_until(lambda: cluster.get_pod("dra-template")["status"].get("resourceClaimStatuses"))
    for name, item in requests.items():
        cluster.request(name, item["spec"], made[name])

    cluster.wait_for_all(17, within_s=60)
    for name, item in requests.items():
        assert cluster.node_of(name) == item["spec"]["selectedNode"] == pods[name]["spec"]["nodeName"]
        kind = item["spec"]["receivedResourceType"]
        assert cluster.annotations(name)["received-resource-type"] == kind
        for condition in cluster.conditions(name).values():
            assert condition["status"] == "True", (name, condition)
    assert volumes.owner(disk) == "late-local"
    assert {volumes.get_claim(name)["status"]["phase"] for name in ("late-local", "late-made")} == {"Bound"}
    assert all(claim["status"]["reservedFor"] for claim in Claims(cluster).all())
    assert len(Claims(cluster).all()) == 3
    cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
    groups = {group for item in requests.values() for group in item["spec"].get("selectedGPUGroups", ())}
    cluster.wait_until_freed(*groups, within_s=30)


def pod_with_everything(cluster: Sharing, volumes: Volumes, node: str) -> Object:
    """A pod with two volumes, one to be made, a claim, and half a GPU."""
    local = volumes.storage_class()
    volumes.volume("disk", local, node)
    volumes.claim("static", local)
    volumes.claim("made", volumes.made_class())
    Claims(cluster).make("card")
    body = shared_pod("all")
    names = ("static", "made")
    body["spec"].setdefault("volumes", []).extend(
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names
    )
    body["spec"]["resourceClaims"] = uses(card="card")
    return cluster.plane.request("POST", cluster.pods, body)


def ask_for_everything(cluster: Sharing, node: str, group: str, pod: Object) -> None:
    devices = brings("card", allocation(node))
    cluster.ask_share("all", node, group, owner=pod, resourceClaimAllocations=devices)


@pytest.mark.usefixtures("provisioner")
def test_one_pod_with_two_volumes_a_claim_and_a_shared_gpu(cluster: Sharing) -> None:
    volumes, group = Volumes(cluster), cluster.group()
    node = volumes.node(**{"nvidia.com/gpu.memory": "15360"})
    cluster.agents.set(group, device_of)
    pod = pod_with_everything(cluster, volumes, node)
    ask_for_everything(cluster, node, group, pod)
    cluster.wait_for("all", "Succeeded", within_s=30)
    assert cluster.node_of("all") == node
    order = ["GPUReserved", "VolumeBinding", "DynamicResources", "GPUSharing", "Bound"]
    assert [item["type"] for item in cluster.status("all")["conditions"]] == order
    assert {item["reason"] for item in cluster.status("all")["conditions"]} == {"Reconciled"}
    assert cluster.group_labels("all") == {"runai-gpu-group": group}
    assert Claims(cluster).users("card") == ["all"]
    assert len(cluster.all_config_maps()) == 2


@pytest.mark.usefixtures("provisioner")
def test_a_refused_bind_leaves_nothing_of_everything(cluster: Sharing) -> None:
    volumes, group = Volumes(cluster), cluster.group()
    node = volumes.node(**{"nvidia.com/gpu.memory": "15360"})
    cluster.agents.set(group, device_of)
    pod = pod_with_everything(cluster, volumes, node)
    with cluster.bindings_denied():
        ask_for_everything(cluster, node, group, pod)
        cluster.wait_for("all", "Failed", within_s=30)
    assert cluster.status("all")["reason"].startswith("Bound Forbidden: ")
    cluster.assert_nothing_left("all", group)
    Claims(cluster).assert_free("card")


def test_a_claim_that_is_missing_is_named_before_others_are_touched(cluster: Sharing) -> None:
    """The claim's plugin runs after the volumes', so a volume may be tied; devices and GPU are not."""
    volumes, group = Volumes(cluster), cluster.group()
    node = volumes.node(**{"nvidia.com/gpu.memory": "15360"})
    cluster.agents.set(group, device_of)
    body = shared_pod("all")
    body["spec"]["resourceClaims"] = uses(card="nowhere")
    pod = cluster.plane.request("POST", cluster.pods, body)
    ask_for_everything(cluster, node, group, pod)
    cluster.wait_for("all", "Failed")
    assert "nowhere" in cluster.status("all")["reason"]
    assert cluster.status("all")["reason"].startswith("DynamicResources ClaimNotFound: ")
    assert cluster.reservations(group) == []
    cluster.assert_nothing_left("all", group)
