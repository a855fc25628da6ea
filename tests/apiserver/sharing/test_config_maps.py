"""The two ConfigMaps of a share: whose they may be, what they may hold already, and what becomes of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.polling import wait_until
from tests.proxy import Answer, Hang, Proxy, Rule
from tests.sharing import Sharing, owner_of

ACCOUNT = ("kai-scheduler", "binder")
MAP, WHOLE = "a-shared-gpu-0", "a-shared-gpu-0-evar"
KEYS = {"NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"}


@pytest.fixture(scope="module")
def proxy(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """What the binder of this module goes through."""
    directory: Path = tmp_path_factory.mktemp("config-maps")
    with Proxy(control_plane.url, control_plane.ca_file, directory) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def binder(
    control_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """One binder for all tests of this module."""
    made = Binders(tmp_path_factory.mktemp("binder"), proxy.kubeconfig(control_plane.token(*ACCOUNT)))
    try:
        yield made.start()
        made.close()
    finally:
        made.kill()


def conflict(cluster: Sharing, name: str = "a") -> str:
    """What is said of a ConfigMap that is not ours."""
    head, _, message = str(cluster.wait_for(name, "Failed")["reason"]).partition(": ")
    assert head == "GPUSharing ConfigMapConflict"
    return message


# Those that are there already.


def test_the_legacy_key_is_kept_up(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    made = cluster.shared_pod("a")
    metadata = {"name": "a-shared-gpu-0", "ownerReferences": owner_of(made)}
    data = {"RUNAI-VISIBLE-DEVICES": "7", "NVIDIA_VISIBLE_DEVICES": "7", "more": "x"}
    cluster.plane.request("POST", cluster.config_maps, {"metadata": metadata, "data": data})
    cluster.ask_share("a", node, group, owner=made)
    cluster.wait_for("a", "Succeeded")
    device = cluster.device(group)
    assert cluster.data("a-shared-gpu-0") == {
        "RUNAI-VISIBLE-DEVICES": device,
        "NVIDIA_VISIBLE_DEVICES": device,
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }


@pytest.mark.parametrize("owner", ["nobody", "a pod that is gone"])
def test_a_map_that_nobody_needs_is_replaced(cluster: Sharing, owner: str) -> None:
    """F-57: one of nobody only if it holds what a binder writes."""
    node, group = cluster.node(), cluster.group()
    gone = {"name": "old", "uid": "00000000-1111-2222-3333-444444444444"}
    references = [] if owner == "nobody" else owner_of({"metadata": gone})
    if references:
        cluster.pod("old")  # of the same name, yet another
    metadata = {"name": "a-shared-gpu-0", "labels": {"x": "y"}, "ownerReferences": references}
    data = {"RUNAI-VISIBLE-DEVICES" if owner == "nobody" else "old": "1", "CUDA_DEVICE_MEMORY_LIMIT": "1m"}
    cluster.plane.request("POST", cluster.config_maps, {"metadata": metadata, "data": data})
    made = cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    found = cluster.config_map("a-shared-gpu-0")
    assert found["metadata"]["ownerReferences"] == owner_of(made)
    assert "labels" not in found["metadata"]
    legacy = {"RUNAI-VISIBLE-DEVICES"} if owner == "nobody" else set()
    assert set(found["data"]) == {"NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION", *legacy}


def test_a_map_of_another_living_pod_is_a_failure_and_stays(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    other = cluster.pod("other")
    metadata = {"name": "a-shared-gpu-0-evar", "ownerReferences": owner_of(other)}
    cluster.plane.request("POST", cluster.config_maps, {"metadata": metadata, "data": {"mine": "1"}})
    before = cluster.config_map("a-shared-gpu-0-evar")
    cluster.share("a", node, group)
    status = cluster.wait_for("a", "Failed")
    text = f"ConfigMap {cluster.namespace}/a-shared-gpu-0-evar belongs to pod {cluster.namespace}/other"
    assert status["reason"] == f"GPUSharing ConfigMapConflict: {text}"
    assert cluster.conditions("a")["GPUSharing"]["message"] == text
    assert cluster.config_map("a-shared-gpu-0-evar") == before
    assert cluster.all_config_maps() == ["a-shared-gpu-0-evar"], "the first map was not taken back"
    cluster.assert_unbound("a")
    assert cluster.group_labels("a") == {}
    cluster.wait_until_freed(group)


def test_maps_left_by_an_earlier_attempt_are_taken_over(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    made = cluster.shared_pod("a")
    for name in ("a-shared-gpu-0", "a-shared-gpu-0-evar"):
        metadata = {"name": name, "ownerReferences": owner_of(made)}
        data = {"NVIDIA_VISIBLE_DEVICES": "GPU-of-old", "CUDA_DEVICE_MEMORY_LIMIT": "1m"}
        cluster.plane.request("POST", cluster.config_maps, {"metadata": metadata, "data": data})
    cluster.ask_share("a", node, group, owner=made)
    cluster.wait_for("a", "Succeeded")
    assert cluster.data("a-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in cluster.data("a-shared-gpu-0")
    assert cluster.data("a-shared-gpu-0-evar") == {}


@pytest.mark.parametrize("name", [MAP, WHOLE])
@pytest.mark.parametrize(
    ("data", "fields", "told"),
    [
        ({"app.conf": "x"}, {}, "holds what no binder writes (app.conf)"),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "mine": "1"}, {}, "holds what no binder writes (mine)"),
        (None, {"binaryData": {"blob": "AAAA"}}, "holds what no binder writes (blob)"),
        ({"GPU_PORTION": "1"}, {"binaryData": {"blob": "AAAA"}}, "holds what no binder writes (blob)"),
        (dict.fromkeys("edcba", "1"), {}, "holds what no binder writes (a, b, c and 2 more)"),
        ({f"key-{number:05}": "x" * 80 for number in range(8000)}, {}, "key-00002 and 7997 more)"),
        ({"GPU_PORTION": "1"}, {"immutable": True}, "has no owner and is immutable"),
    ],
    ids=["text", "beside ours", "binary", "binary beside ours", "many", "huge", "immutable"],
)
def test_a_map_of_somebody_without_an_owner_stays(
    cluster: Sharing, name: str, data: dict[str, str] | None, fields: Object, told: str
) -> None:
    """F-57: a pod's author chooses its name by an annotation."""
    group = cluster.group()
    made = cluster.make_config_map(name, data, **fields)
    cluster.share("a", cluster.node(), group)
    message = conflict(cluster)
    assert message.startswith(f"ConfigMap {cluster.namespace}/{name} ")
    assert told in message
    assert len(message) < 300
    assert cluster.config_map(name) == made
    assert cluster.all_config_maps() == [name]
    cluster.wait_until_freed(group)


@pytest.mark.parametrize(
    "data", [None, {}, {"NVIDIA_VISIBLE_DEVICES": "old"}], ids=["no data", "empty", "ours"]
)
def test_a_map_that_was_taken_over_is_given_back(cluster: Sharing, data: dict[str, str] | None) -> None:
    """F-57: this request did not make it, so it does not delete it."""
    group = cluster.group()
    made = cluster.make_config_map(MAP, data)["metadata"]
    with cluster.bindings_denied():
        cluster.share("a", cluster.node(), group, backoffLimit=2)
        cluster.wait_for("a", "Failed")
        cluster.wait_for_attempts("a", 2)
    left = cluster.config_map(MAP)["metadata"]
    assert left["uid"] == made["uid"]
    assert not left.get("ownerReferences")
    assert not left.get("annotations")
    assert cluster.all_config_maps() == [MAP]
    cluster.wait_until_freed(group)


@pytest.mark.parametrize("fields", [{"immutable": True}, {"binaryData": {"blob": "AAAA"}}], ids=str)
def test_a_map_of_this_pod_that_cannot_stay_as_it_is(cluster: Sharing, fields: Object) -> None:
    node, group = cluster.node(), cluster.group()
    made = cluster.shared_pod("a")
    for name in (MAP, WHOLE):
        cluster.make_config_map(name, {"GPU_PORTION": "9"}, owner_of(made), **fields)
    cluster.ask_share("a", node, group, owner=made)
    cluster.wait_for("a", "Succeeded")
    assert set(cluster.data(MAP)) == KEYS
    for name in (MAP, WHOLE):
        found = cluster.config_map(name)
        assert found["metadata"]["ownerReferences"] == owner_of(made)
        assert "binaryData" not in found
        assert "immutable" not in found


def test_a_map_that_is_right_already_is_not_written(cluster: Sharing, proxy: Proxy) -> None:
    """A map without data is one with none; both maps are right in the second attempt."""
    node, group = cluster.node(), cluster.group()
    path = f"/namespaces/{cluster.namespace}/"
    refused = Rule(
        Answer(500, {"kind": "Status", "code": 500, "message": "no"}),
        method="DELETE",
        path=f"{path}configmaps/",
        times=2,
    )
    denied = Rule(
        Answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}),
        method="POST",
        path=f"{path}pods/a/binding",
        times=1,
    )
    with proxy.rule(refused), proxy.rule(denied):
        cluster.share("a", node, group, backoffLimit=2)
        cluster.wait_for("a", "Succeeded", within_s=20)
    assert refused.count == 2
    assert proxy.count("PUT", f"{path}configmaps/") == 0


def test_a_map_that_is_being_deleted(cluster: Sharing) -> None:
    """It would be gone before the pod has read it."""
    node, group = cluster.node(), cluster.group()
    made, path = cluster.shared_pod("a"), f"{cluster.config_maps}/{MAP}"
    cluster.make_config_map(MAP, {}, owner_of(made))
    cluster.hold(path)
    cluster.plane.request("DELETE", path)
    cluster.ask_share("a", node, group, owner=made, backoffLimit=6)
    status = cluster.wait_for_attempts("a", 1)
    text = f"ConfigMap {cluster.namespace}/{MAP} is being deleted"
    assert status["reason"] == f"GPUSharing ConfigMapConflict: {text}"
    cluster.let_go(path)
    cluster.wait_for("a", "Succeeded", within_s=40)
    assert set(cluster.data(MAP)) == KEYS


@pytest.mark.parametrize("beside", [True, False], ids=["beside the pod", "alone"])
def test_a_map_of_another_kind_of_owner(cluster: Sharing, beside: bool) -> None:
    """Whether it lives is not for us to find out."""
    group, made = cluster.group(), cluster.shared_pod("a")
    uid = cluster.make_config_map("keeper", {})["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper"}
    owners = [*(owner_of(made) if beside else []), {**owner, "uid": uid}]
    before = cluster.make_config_map(WHOLE, {}, owners)
    cluster.ask_share("a", cluster.node(), group, owner=made)
    text = f"ConfigMap {cluster.namespace}/{WHOLE} belongs to ConfigMap keeper"
    assert conflict(cluster) == text
    assert cluster.config_map(WHOLE) == before
    assert cluster.all_config_maps() == [WHOLE, "keeper"]
    cluster.wait_until_freed(group)


# A pod that gets to another node.


def hanging(cluster: Sharing) -> Rule:
    return Rule(Hang(), method="POST", path=f"/namespaces/{cluster.namespace}/pods/a/binding")


def elsewhere(cluster: Sharing) -> None:
    assert cluster.wait_for("a", "Failed")["reason"].startswith("Bound AlreadyBoundElsewhere: ")


def test_the_maps_of_a_pod_that_got_to_another_node_go(cluster: Sharing, proxy: Proxy) -> None:
    """F-26: they name the GPU of our node."""
    wanted, real, group = cluster.node(), cluster.node(), cluster.group()
    with proxy.rule(hanging(cluster)) as held:
        cluster.share("a", wanted, group)
        wait_until(lambda: held.count == 1)
        assert cluster.all_config_maps() == [MAP, WHOLE]
        cluster.bind_by_hand("a", real)
    elsewhere(cluster)
    assert cluster.all_config_maps() == []
    cluster.wait_until_freed(group)


@pytest.mark.parametrize("name", [MAP, WHOLE])
def test_the_maps_that_another_binder_has_written_since_stay(
    cluster: Sharing, proxy: Proxy, name: str
) -> None:
    """F-26: both, since a pod needs both."""
    wanted, real, group = cluster.node(), cluster.node(), cluster.group()
    with proxy.rule(hanging(cluster)) as held:
        made = cluster.share("a", wanted, group)
        wait_until(lambda: held.count == 1)
        metadata = {"name": name, "ownerReferences": owner_of(made)}
        body = {"metadata": metadata, "data": {"NVIDIA_VISIBLE_DEVICES": "GPU-of-the-other-node"}}
        cluster.plane.request("PUT", f"{cluster.config_maps}/{name}", body)
        cluster.bind_by_hand("a", real)
    elsewhere(cluster)
    assert cluster.all_config_maps() == [MAP, WHOLE]
    assert cluster.data(name) == {"NVIDIA_VISIBLE_DEVICES": "GPU-of-the-other-node"}
    cluster.wait_until_freed(group)
