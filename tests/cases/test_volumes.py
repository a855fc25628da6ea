"""Situations with volumes from public bug reports."""

import json
import time
from collections.abc import Callable, Iterator

import pytest

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.provisioner import PROVISIONER, Provisioner
from tests.proxy import Answer, Call, Proxy, Rule
from tests.volumes import Volumes

Start = Callable[..., Binder]

SOON_S = 8.0
"""What has to be seen within two seconds; the rest is for a busy machine."""

CONFLICT: Object = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Conflict",
    "code": 409,
    "message": "the object has been modified",
}


@pytest.fixture
def volumes(cluster: Cluster) -> Iterator[Volumes]:
    made = Volumes(cluster)
    yield made
    made.delete_requests()


@pytest.fixture
def provisioner(cluster: Cluster) -> Iterator[Provisioner]:
    with Provisioner(cluster.plane, cluster.namespace) as running:
        yield running


@pytest.fixture
def start(binders: Binders) -> Start:
    """Starts a binder behind the proxy, with the shipped rights; waits for volumes may be cut short."""

    def run(*flags: str, bind_timeout_s: int = 120) -> Binder:
        plugins = {"volumebinding": {"arguments": {"bindTimeoutSeconds": str(bind_timeout_s)}}}
        return binders.start("--plugins", json.dumps(plugins), *flags)

    return run


# kubernetes #73263, #125338: a pod with two claims, and something goes wrong with the second.


@pytest.fixture
def pair(volumes: Volumes) -> tuple[str, str, list[str]]:
    """A node, a class, and two volumes on that node for the claims `one` and `two`, in this order."""
    node, local = volumes.node(), volumes.storage_class()
    made = [volumes.volume(f"v{size}", local, node, size=f"{size}Gi") for size in "12"]
    volumes.claim("one", local, size="1Gi")
    volumes.claim("two", local, size="2Gi")
    return node, local, made


def writes_of(volume: str, *, times: int | None = None, first: Callable[[], None] | None = None) -> Rule:
    """A conflict at each write of this volume."""

    def matches(call: Call) -> bool:
        found = call.method == "PATCH" and call.path.endswith(f"/persistentvolumes/{volume}")
        if found and first is not None:
            first()
        return found

    return Rule(Answer(409, CONFLICT), where=matches, times=times)


def test_k8s_73263_a_conflict_is_read_again_and_retried_within_the_attempt(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, start: Start, pair: tuple[str, str, list[str]]
) -> None:
    node, _, made = pair
    proxy.add(writes_of(made[1], times=1))
    start()
    volumes.pod_and_request("a", node, "one", "two")
    status = cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in status
    assert [volumes.volume_of(name) for name in ("one", "two")] == made
    assert proxy.count("PATCH", f"/persistentvolumes/{made[0]}$") == 1, "found done, and not written again"
    assert proxy.count("PATCH", f"/persistentvolumes/{made[1]}$") == 2


def test_k8s_125338_a_lasting_conflict_says_which_claim_is_tied_and_a_retry_goes_on(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, start: Start, pair: tuple[str, str, list[str]]
) -> None:
    node, local, made = pair
    rule = proxy.add(writes_of(made[1]))
    start()
    volumes.pod_and_request("a", node, "one", "two", backoffLimit=6)
    cluster.wait_for_attempts("a", 1)
    reason = volumes.reason("a")
    text = f"claim {cluster.namespace}/two (class {local}) to volume {made[1]} was given up after conflicts"
    assert reason.startswith("VolumeBinding Conflict: asking the volume controller to bind ")
    assert text in reason
    assert f"claim {cluster.namespace}/one is tied to volume {made[0]} and so to" in reason
    assert f"claim {cluster.namespace}/two is not tied to a node" in reason
    assert rule.count >= 5
    cluster.assert_unbound("a")
    proxy.remove(rule)
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert [volumes.volume_of(name) for name in ("one", "two")] == made


def test_k8s_73263_another_pod_takes_the_second_volume(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, start: Start, pair: tuple[str, str, list[str]]
) -> None:
    node, local, made = pair
    rival = volumes.claim("rival", local)
    reference = {key: rival["metadata"][key] for key in ("namespace", "name", "uid")}
    taken: list[Object] = []

    def take() -> None:
        if not taken:
            claim_ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference}
            taken.append(volumes.patch_volume(made[1], {"spec": {"claimRef": claim_ref}}))

    proxy.add(writes_of(made[1], times=1, first=take))
    start()
    volumes.pod_and_request("a", node, "one", "two", backoffLimit=6)
    cluster.wait_for_attempts("a", 1)
    reason = volumes.reason("a")
    text = f"there is no volume for claim {cluster.namespace}/two (class {local}) on node {node}"
    assert reason.startswith(f"VolumeBinding NoFittingVolume: {text}: of the volumes of its class, ")
    assert f"claim {cluster.namespace}/one is tied to volume {made[0]} and so to" in reason
    third = volumes.volume("v3", local, node, size="3Gi")
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert [volumes.volume_of(name) for name in ("one", "two")] == [made[0], third]


def test_k8s_73263_a_conflict_with_the_write_of_a_claim(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, proxy: Proxy, start: Start
) -> None:
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    proxy.add(Rule(Answer(409, CONFLICT), method="PATCH", path="/persistentvolumeclaims/data$", times=1))
    start()
    volumes.pod_and_request("a", node, "data")
    assert "failedAttempts" not in cluster.wait_for("a", "Succeeded")
    assert provisioner.selections == [("data", node)]


# kubernetes #100485, sig-storage-lib-external-provisioner #121: the selected node is gone.


def test_k8s_100485_a_new_request_for_another_node_overwrites_the_selected_node(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, start: Start
) -> None:
    provisioner.silent = True
    start()
    first, second, made = volumes.node("n1"), volumes.node("n2"), volumes.made_class()
    volumes.claim("data", made)
    pod = volumes.pod_and_request("a", first, "data")
    wait_until(lambda: volumes.selected_node("data") == first)
    cluster.plane.request("DELETE", f"/api/v1/nodes/{first}")
    assert "VolumeBinding NodeGone: " in volumes.reason("a", within_s=SOON_S)
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    started_s = time.monotonic()
    cluster.ask("a", first, owner=pod)
    assert volumes.reason("a").startswith("Bound NodeGone: ")
    assert time.monotonic() - started_s < SOON_S
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    cluster.ask("a", second, owner=pod)
    wait_until(lambda: volumes.selected_node("data") == second)
    provisioner.silent = False
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == second
    assert provisioner.selections == [("data", first), ("data", second)]


# kubernetes #83181; volcano #4369, #4383: provisioning fails.


def test_k8s_83181_a_provisioner_that_does_not_exist(
    cluster: Cluster, volumes: Volumes, start: Start
) -> None:
    start(bind_timeout_s=3)
    node, made = volumes.node(), volumes.storage_class("nobody", "nobody.example.com")
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    text = (
        "waited 3 s in vain for provisioner nobody.example.com to make a volume for claim "
        f"{cluster.namespace}/data (class {made}) on node {node}"
    )
    reason = volumes.reason("a", within_s=15)
    assert reason.startswith(f"VolumeBinding BindTimeout: {text}; ")
    assert reason.endswith(f"claim {cluster.namespace}/data is marked to be provisioned on node {node}")


def test_k8s_83181_a_provisioner_that_refuses_ends_the_wait_and_is_asked_again_by_a_new_attempt_only(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, proxy: Proxy, start: Start
) -> None:
    provisioner.refuse_after_s = 2.0
    start()
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    started_s = time.monotonic()
    volumes.pod_and_request("a", node, "data", backoffLimit=2)
    cluster.wait_for_attempts("a", 1)
    assert time.monotonic() - started_s < 2.0 + SOON_S
    text = f"provisioning refused node {node} for claim {cluster.namespace}/data (class {made}, provisioner"
    assert volumes.reason("a") == (
        f"VolumeBinding ProvisioningRefused: {text} {PROVISIONER}): the node was taken off the claim again"
    )
    assert proxy.count("PATCH", "/persistentvolumeclaims/") == 1
    cluster.wait_for_attempts("a", 2)
    time.sleep(1.5)
    assert proxy.count("PATCH", "/persistentvolumeclaims/") == 2, "one for each attempt"
    assert len(cluster.events("a", "BindRequest", reason="ProvisioningRefused")) == 1


# kubernetes PR #67556: the claim goes during the wait.


@pytest.fixture
def waiting(volumes: Volumes, provisioner: Provisioner, start: Start) -> str:
    """The class of claim `data`, for which request a has been waiting for three seconds."""
    provisioner.silent = True
    start()
    made = volumes.made_class()
    volumes.claim("data", made)
    volumes.pod_and_request("a", volumes.node(), "data")
    volumes.wait_until_shown("a")
    time.sleep(1.0)
    return made


def test_k8s_pr_67556_the_claim_is_deleted(cluster: Cluster, volumes: Volumes, waiting: str) -> None:
    volumes.plane.request("DELETE", f"{volumes.claims}/data")
    # Whichever is seen first: the controller that protects claims lets go of it a moment later.
    heads = (
        f"VolumeBinding ClaimTerminating: claim {cluster.namespace}/data is being deleted",
        f"VolumeBinding ClaimNotFound: claim {cluster.namespace}/data was deleted while it was being bound",
    )
    assert volumes.reason("a", within_s=SOON_S).startswith(heads)
    cluster.assert_unbound("a")


def test_k8s_pr_67556_the_claim_is_made_anew(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, waiting: str
) -> None:
    volumes.plane.request("DELETE", f"{volumes.claims}/data")
    wait_until(lambda: volumes.made_anew("data", waiting))
    provisioner.silent = False
    # Whichever is seen first.
    seen = ("ClaimTerminating", "ClaimNotFound", "ClaimReplaced")
    heads = tuple(f"VolumeBinding {reason}: claim " for reason in seen)
    assert volumes.reason("a", within_s=SOON_S).startswith(heads)
    assert volumes.selected_node("data") is None, "the new claim was taken for the old one"
    cluster.assert_unbound("a")


def test_k8s_pr_67556_the_claim_is_held_in_deletion(cluster: Cluster, volumes: Volumes, waiting: str) -> None:
    volumes.patch_claim("data", {"metadata": {"finalizers": ["example.com/hold"]}})
    volumes.plane.request("DELETE", f"{volumes.claims}/data")
    reason = volumes.reason("a", within_s=SOON_S)
    volumes.patch_claim("data", {"metadata": {"finalizers": None}})
    assert reason.startswith(
        f"VolumeBinding ClaimTerminating: claim {cluster.namespace}/data is being deleted"
    )


# Requests that wait for volumes which never come (upstream: ten of them stop the binder).


def test_20_requests_that_wait_do_not_keep_others_from_binding(
    cluster: Cluster, volumes: Volumes, provisioner: Provisioner, proxy: Proxy, start: Start
) -> None:
    provisioner.silent = True
    # With the rate limit, which 20 waits that ask again each second would use up.
    start("--max-concurrent-reconciles=10", "--qps=50", "--burst=300")
    node, made = volumes.node(), volumes.made_class()
    for number in range(20):
        volumes.claim(f"data-{number}", made)
        volumes.pod_and_request(f"waits-{number}", node, f"data-{number}")
    for number in range(20):
        volumes.wait_until_shown(f"waits-{number}", within_s=20)
    time.sleep(1.0)
    before = len(proxy.calls)
    time.sleep(4.0)
    assert len(proxy.calls) - before <= 4, "waiting costs requests"
    started_s = time.monotonic()
    for number in range(20):
        cluster.pod_and_request(f"binds-{number}", node)
    for number in range(20):
        cluster.wait_for(f"binds-{number}", "Succeeded")
    assert time.monotonic() - started_s < 10.0
    assert cluster.status("waits-0").get("phase") is None
    provisioner.silent = False
    cluster.wait_for_all(40)
