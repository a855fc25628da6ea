"""What settings do to reservation pods and maps."""

import json
from collections.abc import Iterator

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.sharing import GROUP_LABEL, Sharing

CONTEXT = {"runAsNonRoot": True, "runAsUser": 10000}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["all"]}}
RESOURCES = {
    "requests": {"cpu": "1m", "memory": "10Mi", "nvidia.com/gpu": "999"},
    "limits": {"memory": "100Mi"},
}
IMAGE = "registry.example.com/agent:7"


def make(plane: ControlPlane, path: str, body: Object) -> None:
    try:
        plane.request("POST", path, body)
    except RequestError as error:
        if error.status != 409:
            raise


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One with every setting that concerns reservations."""
    runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    make(control_plane, "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    priority = {"metadata": {"name": "reserves"}, "value": 1000}
    make(control_plane, "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    kubeconfig = control_plane.service_account_kubeconfig("kai-scheduler", "binder")
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    flags = (
        "--fake-gpu-nodes",
        "--resource-reservation-pod-image",
        IMAGE,
        f"--resource-reservation-pod-resources={json.dumps(RESOURCES)}",
        f"--resource-reservation-pod-security-context={json.dumps(CONTEXT)}",
        f"--resource-reservation-container-security-context={json.dumps(CONTAINER)}",
        "--resource-reservation-priority-class-name=reserves",
        "--resource-reservation-app-label=holder",
        "--runtime-class-name=nvidia",
        "--plugins",
        json.dumps({"gpusharing": {"arguments": {"cdiEnabled": "true"}}}),
    )
    try:
        yield made.start(*flags)
        made.close()
    finally:
        made.kill()


@pytest.mark.usefixtures("binder")
def test_the_reservation_pod(cluster: Sharing) -> None:
    group = cluster.group()
    cluster.share("a", cluster.node(), group)
    cluster.wait_for("a", "Succeeded")
    found = cluster.reservation(group)
    (container,) = found["spec"]["containers"]
    assert found["metadata"]["labels"] == {"app": "holder", GROUP_LABEL: group}
    assert found["spec"]["securityContext"] == CONTEXT
    assert (found["spec"]["runtimeClassName"], found["spec"]["priorityClassName"]) == ("nvidia", "reserves")
    assert found["spec"]["priority"] == 1000
    assert container["securityContext"] == CONTAINER
    assert container["resources"] == {
        "requests": {"cpu": "1m", "memory": "10Mi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "100Mi", "nvidia.com/gpu": "1"},
    }
    assert (container["image"], container.get("args")) == (IMAGE, None)


@pytest.mark.usefixtures("binder")
def test_devices_are_named_for_cdi(cluster: Sharing) -> None:
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    cluster.share("a", node, *groups)
    cluster.share("b", node, groups[0], pod={"in_map": ()})
    cluster.wait_for_all(2)
    named = [f"k8s.device-plugin.nvidia.com/gpu={cluster.device(group)}" for group in groups]
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == ",".join(named)
    assert cluster.data("b-shared-gpu-0-evar") == {"NVIDIA_VISIBLE_DEVICES": named[0]}


@pytest.mark.usefixtures("binder")
def test_fake_gpus_are_a_matter_of_each_node(cluster: Sharing) -> None:
    """D-30."""
    fake, real = cluster.node(labels={"run.ai/fake.gpu": "true"}), cluster.node()
    groups = {cluster.group(): fake, cluster.group(): real}
    for number, (group, node) in enumerate(groups.items()):
        cluster.share(f"a-{number}", node, group)
    cluster.wait_for_all(2)
    for group, node in groups.items():
        (container,) = cluster.reservation(group)["spec"]["containers"]
        expected = ("ubuntu", ["sleep", "infinity"]) if node == fake else (IMAGE, None)
        assert (container["image"], container.get("args")) == expected
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
