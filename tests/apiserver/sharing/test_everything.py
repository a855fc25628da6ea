"""All steps in one: KAI's requests together, and one pod that needs every plugin, well and failing."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from controlplane import RequestError
from kubelet import device_of

from controller.runtime.client import Object
from tests import kai018
from tests.apiserver.binder.test_kai_data import read as read_all
from tests.apiserver.plugins.test_dynamicresources_kai_data import make_claim
from tests.apiserver.plugins.test_dynamicresources_kai_data import read as read_one
from tests.apiserver.sharing.test_kai_data import prepare, unlabelled
from tests.claims import Claims, allocation, brings, uses
from tests.cluster import MERGE
from tests.features import EXTENDED_RESOURCES, needs
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.sharing import Sharing, shared_pod
from tests.volumes import HOSTNAME, Volumes

pytestmark = [
    pytest.mark.usefixtures("binder"),
    needs(EXTENDED_RESOURCES),
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


MEMORY = {
    "disk-made": ("main", "7680Mi"),
    "half-a": ("main", "7680Mi"),
    "half-b": ("main", "7680Mi"),
    "half-of-two": ("main", "7680Mi"),
    "mem-4096": ("main", "4Gi"),
    "mem-of-two": ("main", "2000Mi"),
    "named-container": ("worker", "3840Mi"),
    "named-init": ("warmup", "3840Mi"),
    "third": ("main", "5114Mi"),
}
"""By recorded pod: the container that v0.18 gives a share, and the memory of each GPU that it is granted."""


def given(pod: Object) -> dict[str, str]:
    """What the binder has told the node of a pod's memory."""
    known = ("gpu-memory.request", "memory-groups-predicted")
    annotations = pod["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if key.endswith(known)}


def groups_of(requests: dict[str, Object]) -> set[str]:
    return {group for item in requests.values() for group in item["spec"].get("selectedGPUGroups", ())}


@pytest.mark.usefixtures("provisioner")
def test_all_requests_of_kai_together(cluster: Sharing) -> None:
    """Those of v0.17 and those of v0.18, as during an upgrade (N-1 to N-13, N-43, N-46)."""
    old, newer = (read_all(file, "BindRequest") for file in ("kai-bindrequests.json", kai018.FILE.name))
    requests, recorded = old | newer, read_all("kai-after-bind.json", "Pod")
    pods = {name: recorded[name] for name in old}
    pods |= {kai018.renamed(name): kai018.pod(recorded[name]) for name in old}
    volumes = Volumes(cluster)
    prepare(cluster)
    for node in {item["spec"]["selectedNode"] for item in requests.values()}:
        make_node(cluster, node)
    local, made_class = volumes.storage_class(), volumes.made_class()
    for disk in ("disk", "other"):
        volumes.volume(disk, local, "cpu-1", size="10Gi")
    late = {"late-local": local, "late-made": made_class}
    late |= {kai018.renamed(claim): class_name for claim, class_name in late.items()}
    for claim, class_name in late.items():
        volumes.claim(claim, class_name)
    card = read_one("kai-after-bind.json", "ResourceClaim", "one-card")
    make_claim(cluster, "dra-claim", card)
    card["metadata"]["name"] = kai018.renamed("one-card")
    make_claim(cluster, "dra-claim", card)
    make_claim(cluster, "dra-template", read_one("kai-after-bind.json", "ResourceClaim", "own-card"))
    made = {name: cluster.plane.request("POST", cluster.pods, unlabelled(pods[name])) for name in requests}
    for name in ("dra-template", kai018.renamed("dra-template")):
        wait_until(lambda name=name: cluster.get_pod(name)["status"].get("resourceClaimStatuses"))  # type: ignore[misc]
    for name, item in requests.items():
        cluster.request(name, item["spec"], made[name])

    cluster.wait_for_all(34, within_s=60)
    found = {item["metadata"]["name"]: item for item in cluster.all_pods()}
    for request in cluster.all_requests():
        name = request["metadata"]["name"]
        spec = requests[name]["spec"]
        assert request["spec"] == spec, "the schema keeps all that the scheduler writes"
        assert found[name]["spec"]["nodeName"] == spec["selectedNode"] == pods[name]["spec"]["nodeName"]
        kind = spec["receivedResourceType"]
        assert found[name]["metadata"]["annotations"]["received-resource-type"] == kind
        for condition in request["status"]["conditions"]:
            assert condition["status"] == "True", (name, condition)
    assert_told(found, old)
    assert_modes(cluster, old, newer)
    assert {volumes.get_claim(name)["status"]["phase"] for name in late} == {"Bound"}
    assert all(claim["status"]["reservedFor"] for claim in Claims(cluster).all())
    assert len(Claims(cluster).all()) == 6
    cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
    cluster.wait_until_freed(*groups_of(requests), within_s=30)


def assert_told(found: dict[str, Object], old: Iterable[str]) -> None:
    """Only v0.18's requests bring annotations for the node."""
    for name in old:
        expected = {}
        if name in MEMORY:
            container, memory = MEMORY[name]
            expected[f"nvidia.com/container.{container}.gpu-memory.request"] = memory
        if name in kai018.MEMORY_GROUPS:
            groups = json.dumps(kai018.MEMORY_GROUPS[name], separators=(",", ":"), sort_keys=True)
            expected["kai.scheduler/numa-memory-groups-predicted"] = groups
        assert given(found[name]) == {}
        assert given(found[kai018.renamed(name)]) == expected, name


def assert_modes(cluster: Sharing, old: dict[str, Object], newer: dict[str, Object]) -> None:
    """Reservations say how their users share the compute units if the scheduler said it, and only then."""
    key = "nvidia.com/container.resource-reservation.gpu-compute.mode"
    modes = {
        group["id"]: group["computeSharingMode"]
        for item in newer.values()
        for group in item["spec"].get("selectedFractionalGpuGroups", ())
    }
    assert sorted(modes.values()) == ["sm-sharing", *["time-slicing"] * 3]
    expected = {**dict.fromkeys(groups_of(old)), **modes}
    for group, mode in expected.items():
        assert cluster.reservation(group)["metadata"]["annotations"].get(key) == mode


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
