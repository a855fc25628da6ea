"""Requests for shared GPUs of KAI's real scheduler end as the Go binder left them; limits are exact here."""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
from controlplane import ControlPlane, RequestError
from kubelet import Answer

from controller.runtime.client import Object
from tests.apiserver.binder.test_kai_data import DATA, as_met, read, told
from tests.binder import Binder, Binders
from tests.cluster import MERGE
from tests.sharing import GPU_INDEX, RESERVATION_PODS, Sharing

SHARED = (
    "half-a",
    "half-b",
    "third",
    "mem-4096",
    "mem-of-two",
    "half-of-two",
    "named-container",
    "named-init",
)
EXACT = {"mem-4096": "4096m", "mem-of-two": "2000m", "third": "5114m"}
"""Where the Go binder multiplies the rounded portion (D-17)."""

OURS = ("received-resource-type", "runai-gpu-group")


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One with the memory limit on, by the name that KAI's operator has for it."""
    kubeconfig = control_plane.service_account_kubeconfig("kai-scheduler", "binder")
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start("--plugins", json.dumps({"hamicore": {"enabled": True}}))
        made.close()
    finally:
        made.kill()


def items(kind: str, namespace: str) -> dict[str, Object]:
    found = json.loads((DATA / "kai-after-bind.json").read_text())["items"]
    return {
        item["metadata"]["name"]: item
        for item in found
        if item["kind"] == kind and item["metadata"].get("namespace") == namespace
    }


def unlabelled(pod: Object) -> Object:
    """The pod as the binder met it: without its groups, too."""
    met = as_met(pod)
    labels = {key: value for key, value in met["metadata"]["labels"].items() if not key.startswith(OURS)}
    return {**met, "metadata": {**met["metadata"], "labels": labels}}


def prepare(cluster: Sharing) -> None:
    """Nodes, runtime class and agents as they were in KAI's cluster."""
    for node in ("gpu-1", "gpu-2"):
        with suppress(RequestError):
            cluster.node(node)
        delta = {"metadata": {"labels": {"nvidia.com/gpu.memory": "15360"}}}
        cluster.plane.request("PATCH", f"/api/v1/nodes/{node}", delta, MERGE)
    with suppress(RequestError):
        runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        cluster.plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    for pod in items("Pod", "kai-resource-reservation").values():
        metadata = pod["metadata"]
        device = metadata["annotations"][GPU_INDEX]
        cluster.agents.set(metadata["labels"]["runai-gpu-group"], Answer(device=device))


@pytest.mark.usefixtures("binder")
def test_the_shared_gpus_of_kai(cluster: Sharing) -> None:
    prepare(cluster)
    pods = items("Pod", "team")
    requests = read("kai-bindrequests.json", "BindRequest")
    made = {name: cluster.plane.request("POST", cluster.pods, unlabelled(pods[name])) for name in SHARED}
    for name in SHARED:
        cluster.request(name, requests[name]["spec"], made[name])
    cluster.wait_for_all(len(SHARED))
    for name in SHARED:
        assert_pod(cluster, made[name], pods[name])
    assert_maps(cluster)
    assert_reservations(cluster)
    cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
    groups = {group for name in SHARED for group in requests[name]["spec"]["selectedGPUGroups"]}
    cluster.wait_until_freed(*groups, within_s=30)


def without_token(spec: Object) -> Object:
    """Without the volume that the server adds for the ServiceAccount; KAI's server was told not to."""
    containers = [
        {key: value for key, value in item.items() if key != "volumeMounts"} for item in spec["containers"]
    ]
    rest = {key: value for key, value in spec.items() if key != "volumes"}
    return {**rest, "containers": containers}


def assert_pod(cluster: Sharing, made: Object, expected: Object) -> None:
    name = made["metadata"]["name"]
    event, found = cluster.wait_for_event(name, "Bound"), cluster.get_pod(name)
    assert event["message"] == f"Pod bound successfully to node {expected['spec']['nodeName']}"
    assert found["spec"] == {**made["spec"], "nodeName": expected["spec"]["nodeName"]}
    assert found["metadata"]["annotations"] == expected["metadata"]["annotations"]
    assert found["metadata"]["labels"] == expected["metadata"]["labels"]
    assert told(found) == told(expected)
    assert cluster.status(name)["phase"] == "Succeeded"


def assert_maps(cluster: Sharing) -> None:
    expected = {
        name: item
        for name, item in items("ConfigMap", "team").items()
        if item["metadata"]["ownerReferences"][0]["name"] in SHARED
    }
    assert cluster.all_config_maps() == sorted(expected)
    for name, item in expected.items():
        (owner,) = item["metadata"]["ownerReferences"]
        data = dict(item.get("data") or {})
        if data and owner["name"] in EXACT:
            data["CUDA_DEVICE_MEMORY_LIMIT"] = EXACT[owner["name"]]
        assert cluster.data(name) == data
        uid = cluster.get_pod(owner["name"])["metadata"]["uid"]
        metadata = cluster.config_map(name)["metadata"]
        assert metadata["ownerReferences"] == [{**owner, "uid": uid}]
        assert not metadata.keys() & {"labels", "annotations", "finalizers"}


def assert_reservations(cluster: Sharing) -> None:
    for name, expected in items("Pod", "kai-resource-reservation").items():
        found = cluster.plane.request("GET", f"{RESERVATION_PODS}/{name}")
        assert without_token(found["spec"]) == expected["spec"]
        assert found["metadata"]["labels"] == expected["metadata"]["labels"]
        assert found["metadata"]["annotations"] == expected["metadata"]["annotations"]
        assert not found["metadata"].keys() & {"ownerReferences", "finalizers"}
