"""Pods that do not start: `explain` alone says what to do, and doing it has them bound."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane
from kubelet import Answer

from tests.apiserver.explain.conftest import Team
from tests.binder import Binder, Binders
from tests.claims import Claims, allocation, brings
from tests.limits import CARD, ENABLED, IN_MAP
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.sharing import PodOptions, groups_of, owner_of
from tests.volumes import Volumes

DELETE = "kubectl delete bindrequest"


@pytest.fixture(scope="module", autouse=True)
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One binder with the limit turned on, for all tests of the module."""
    kubeconfig = control_plane.service_account_kubeconfig("kai-scheduler", "binder")
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start(env=ENABLED)
        made.close()
    finally:
        made.kill()


LIMITED: PodOptions = {"in_map": IN_MAP}
CARD_OF_16 = {CARD: "15360"}


def test_a_portion_that_is_none(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    node, group = team.node(labels=CARD_OF_16), team.group()
    team.cluster.share("train", node, group, pod=LIMITED, portion="half")
    team.cluster.wait_for("train", "Failed")
    team.cluster.wait_for_event("train", "BindingError")
    team.cluster.wait_for_event("train", "InvalidPortion", "BindRequest")
    told = team.check("portion")
    told_of = {(event["about"], event["kind"], event["reason"]) for event in told.json["events"]}
    assert told_of == {
        ("Pod/train", "Warning", "BindingError"),
        ("BindRequest/train", "Warning", "InvalidPortion"),
    }
    monkeypatch.setenv("KUBE_EDITOR", "sed -i \"s/portion: half/portion: '0.50'/\"")
    team.do(told, "kubectl edit bindrequest")
    team.wait_until_bound()


def test_a_node_that_does_not_say_how_much_memory_its_gpus_have(team: Team) -> None:
    node = team.node()
    team.cluster.share("train", node, team.group(), pod=LIMITED)
    team.cluster.wait_for("train", "Failed")
    told = team.check("memory")
    team.do(told, f"kubectl label node {node}", MIB="15360")
    team.do(told, DELETE)
    team.cluster.ask_share("train", node, team.group(), owner=team.cluster.get_pod("train"))
    team.wait_until_bound()


def test_a_node_that_does_not_exist(team: Team) -> None:
    team.cluster.pod_and_request("train", "gpu-9", backoffLimit=8)
    team.cluster.wait_for("train", "Failed")
    told = team.explain("train", "-o", "json")
    assert "tries again by itself" in told.json["then"]
    team.cluster.delete_request("train")
    team.cluster.ask("train", "gpu-9", owner=team.cluster.get_pod("train"))
    team.cluster.wait_for("train", "Failed")
    told = team.check("node")
    team.do(told, DELETE)
    team.cluster.ask("train", team.node(), owner=team.cluster.get_pod("train"))
    team.wait_until_bound()


def test_a_claim_that_is_missing(team: Team) -> None:
    volumes = Volumes(team.cluster)
    node, class_name = volumes.node("gpu-1"), volumes.storage_class()
    team.names[node] = "gpu-1"
    volumes.pod_and_request("train", node, "data", backoffLimit=9)
    team.cluster.wait_for("train", "Failed")
    answer = team.check("claim").json
    assert [item["reason"] for item in answer["advice"]] == ["ClaimNotFound"]
    assert answer["claims"] == [
        {"kind": "PersistentVolumeClaim", "name": "data", "state": "does not exist", "isReady": False}
    ]
    assert answer["then"] == "Then wait: the binder tries again by itself."
    volumes.volume("v", class_name, node)
    volumes.claim("data", class_name)
    team.wait_until_bound(within_s=30)


def test_a_volume_that_nobody_makes(team: Team) -> None:
    volumes = Volumes(team.cluster)
    node, class_name = volumes.node("gpu-1"), volumes.made_class()
    team.names |= {node: "gpu-1", class_name: "fast"}
    with Provisioner(team.cluster.plane, team.cluster.namespace) as provisioner:
        provisioner.silent = True
        volumes.claim("data", class_name)
        volumes.pod_and_request("train", node, "data")
        volumes.wait_until_shown("train")
        told = team.check("volume")
        assert told.json["attempts"]["text"].startswith("0 failed of 1 allowed; one is under way")
        team.do(told, "kubectl describe pvc data")
        provisioner.silent = False
        team.wait_until_bound()


def test_a_reservation_pod_whose_image_cannot_be_pulled(team: Team) -> None:
    node, group = team.node(labels=CARD_OF_16), team.group()
    container = {
        "name": "resource-reservation",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
    }
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    status = {"phase": "Pending", "containerStatuses": [{**container, "state": waits}]}
    team.cluster.agents.set(group, Answer(status=status))
    team.cluster.share("train", node, group, pod=LIMITED, backoffLimit=9)
    wait_until(lambda: team.cluster.conditions("train").get("GPUReserved", {}).get("reason") == "Waiting")
    wait_until(lambda: "ImagePullBackOff" in team.explain("train").out)
    told = wait_until(lambda: team.check("image"))
    team.cluster.agents.forget(group)
    team.do(told, "kubectl delete pod", "--force")  # there is no kubelet that would end it
    team.wait_until_bound()


def test_a_device_claim_that_has_other_devices(team: Team) -> None:
    claims, node = Claims(team.cluster), team.node()
    entry = {"name": "gpu", "resourceClaimName": "one"}
    claims.make("one")
    claims.give("one", allocation(node, "gpu-7"))
    pod = team.cluster.pod("train", resourceClaims=[entry])
    wanted = {"resourceClaimAllocations": brings("gpu", allocation(node, "gpu-0"))}
    team.cluster.ask("train", node, owner=pod, **wanted)
    team.cluster.wait_for("train", "Failed")
    told = team.check("devices")
    team.do(told, DELETE)
    wanted = {"resourceClaimAllocations": brings("gpu", allocation(node, "gpu-7"))}
    team.cluster.ask("train", node, owner=pod, **wanted)
    team.wait_until_bound()


def test_a_pod_that_was_made_anew(team: Team) -> None:
    node, former = team.node(), team.cluster.pod("train")
    team.cluster.delete_pod("train")
    wait_until(lambda: not team.cluster.all_pods())
    team.cluster.pod("train")
    stranger = {"metadata": {"name": "train", "uid": former["metadata"]["uid"]}}
    with Volumes(team.cluster).controllers_paused():  # else the request goes with its owner, sooner or later
        team.cluster.ask("train", node, owner=stranger)
        team.cluster.wait_for("train", "Failed")
        told = team.check("replaced")
        team.do(told, DELETE)
    team.cluster.ask("train", node, owner=team.cluster.get_pod("train"))
    team.wait_until_bound()


def test_a_config_map_of_another_pod(team: Team) -> None:
    node, group = team.node(labels=CARD_OF_16), team.group()
    other = team.cluster.pod("other")
    team.cluster.make_config_map("train-shared-gpu-0-evar", {"mine": "1"}, owner_of(other))
    team.cluster.share("train", node, group, pod=LIMITED)
    team.cluster.wait_for("train", "Failed")
    team.cluster.wait_until_freed(group)
    told = team.check("configmap")
    team.do(told, "kubectl delete configmap", NAME="train-shared-gpu-0-evar")
    team.do(told, DELETE)
    team.cluster.ask_share("train", node, group, owner=team.cluster.get_pod("train"))
    team.wait_until_bound()


def test_a_gpu_that_is_shared_in_another_way(team: Team) -> None:
    node, group = team.node(labels=CARD_OF_16), team.group()
    shared = groups_of("sm-sharing", group)["selectedFractionalGpuGroups"]
    team.cluster.share("serve", node, group, pod=LIMITED, selectedFractionalGpuGroups=shared)
    team.cluster.wait_for("serve", "Succeeded")
    pod = team.cluster.shared_pod("train", in_map=IN_MAP)
    gives = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    team.cluster.ask("train", node, owner=pod, **gives, **groups_of("time-slicing", group))
    team.cluster.wait_for("train", "Failed")
    told = team.check("mode")
    assert [other["pod"] for other in told.json["others"]] == ["serve"]
    team.do(told, DELETE)
    team.cluster.ask_share("train", node, team.group("another-gpu"), owner=pod)
    team.wait_until_bound()


def test_a_pod_that_is_held_back_by_a_gate(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    node = team.node()
    pod = team.cluster.pod("train", schedulingGates=[{"name": "example.com/quota"}])
    team.cluster.ask("train", node, owner=pod, backoffLimit=9)
    team.cluster.wait_for("train", "Failed")
    told = team.check("gate")
    assert [item["reason"] for item in told.json["advice"]] == ["PodGated"]
    assert "scheduling gates: example.com/quota" in told.json["pod"]["lines"]
    monkeypatch.setenv("KUBE_EDITOR", "sed -i /schedulingGates:/,+1d")
    team.do(told, "kubectl edit pod train")
    team.wait_until_bound(within_s=30)
