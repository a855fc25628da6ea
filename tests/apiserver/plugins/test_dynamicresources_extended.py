"""The claim for extended resources: one per pod, over all attempts (B-65…B-67, T-20)."""

import os

import pytest

from controller.runtime.client import Object
from tests.claims import EXTENDED, FINALIZER, GPU, Claims, allocation, extended, user
from tests.cluster import MERGE, Cluster
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")

KIND = "DynamicResources"
STATUS = "extendedResourceClaimStatus"
LIMITS = {GPU: "1"}

supported = pytest.mark.skipif(
    os.environ.get("KUBERNETES") == "1.35", reason="the feature gate DRAExtendedResource is off by default"
)


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def ask(
    cluster: Cluster, node: str, device: str = "gpu-0", *, name: str = "a", owner: Object | None = None
) -> None:
    cluster.ask(name, node, owner=owner, extendedResourceClaimAllocation=extended(node, device))


def left_behind(cluster: Cluster, claims: Claims, pod: Object, node: str, device: str = "gpu-0") -> str:
    """A claim from a bind that nobody ended: allocated, reserved, named in the pod's status."""
    metadata = {
        "generateName": "a-extended-resources-",
        "annotations": {EXTENDED: "true"},
        "finalizers": [FINALIZER],
        "ownerReferences": [owner_of(pod)],
    }
    spec = {"devices": {"requests": extended(node)["deviceRequests"]}}
    made = cluster.plane.request("POST", claims.path, {"metadata": metadata, "spec": spec})
    name = str(made["metadata"]["name"])
    claims.patch_status(
        name, {"allocation": extended(node, device)["allocation"], "reservedFor": [user(pod)]}
    )
    mappings = extended(node)["containerMappings"]
    body = {"status": {STATUS: {"resourceClaimName": name, "requestMappings": mappings}}}
    cluster.plane.request("PATCH", f"{cluster.pods}/a/status", body, MERGE)
    return name


def owner_of(pod: Object) -> Object:
    kept = {key: pod["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": "v1", "kind": "Pod", "controller": True, "blockOwnerDeletion": True, **kept}


@supported
def test_claim_and_pod_status(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    metadata, wanted = claim["metadata"], extended(node)
    assert metadata["generateName"] == "a-extended-resources-"
    assert metadata["annotations"] == {EXTENDED: "true"}
    assert metadata["finalizers"] == [FINALIZER]
    assert metadata["ownerReferences"] == [owner_of(pod)]
    assert claim["spec"] == {"devices": {"requests": wanted["deviceRequests"]}}
    assert claim["status"] == {"allocation": wanted["allocation"], "reservedFor": [user(pod)]}
    told = {"resourceClaimName": metadata["name"], "requestMappings": wanted["containerMappings"]}
    found = cluster.get_pod("a")
    assert found["status"][STATUS] == told
    assert found["spec"]["nodeName"] == node


@supported
def test_t20_rollback_clears_claim_and_pod_status(cluster: Cluster, claims: Claims) -> None:
    """And does so twice; then the next attempt finds a clean slate."""
    node = cluster.node()
    cluster.pod("a", limits=LIMITS)
    with cluster.bindings_denied():
        cluster.ask("a", node, backoffLimit=3, extendedResourceClaimAllocation=extended(node))
        for attempts in (1, 2):
            cluster.wait_for_attempts("a", attempts)
            assert not claims.all()
            assert STATUS not in cluster.get_pod("a")["status"]
    cluster.wait_for("a", "Succeeded", within_s=20)
    (claim,) = claims.all()
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]


@supported
def test_a_claim_that_an_earlier_attempt_left_is_used(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    name = left_behind(cluster, claims, pod, node)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert [claim["metadata"]["name"] for claim in claims.all()] == [name]
    assert claims.users(name) == ["a"]


@supported
def test_devices_of_another_node_are_not_used_again(cluster: Cluster, claims: Claims) -> None:
    """The scheduler has changed its mind while the binder was down (D-23)."""
    node, elsewhere = cluster.node(), cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    old = left_behind(cluster, claims, pod, elsewhere)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    assert claim["metadata"]["name"] != old
    assert claim["status"]["allocation"] == extended(node)["allocation"]
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]


@supported
def test_a_claim_that_hangs_in_deletion_is_not_used_again(cluster: Cluster, claims: Claims) -> None:
    """D-23; its devices are free again, although somebody else still holds it."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    old = left_behind(cluster, claims, pod, node)
    claims.patch(old, {"metadata": {"finalizers": [FINALIZER, "example.com/own"]}})
    claims.delete(old)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    hanging = claims.get(old)
    assert not hanging.get("status")
    assert hanging["metadata"]["finalizers"] == ["example.com/own"]
    (claim,) = [item for item in claims.all() if item["metadata"]["name"] != old]
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]
    claims.patch(old, {"metadata": {"finalizers": None}})


@supported
def test_a_later_decision_without_devices_removes_what_an_earlier_one_left(
    cluster: Cluster, claims: Claims
) -> None:
    """The kubelet goes by the pod's status: it would look for the devices of the other node."""
    node, elsewhere = cluster.node(), cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    left_behind(cluster, claims, pod, elsewhere)
    cluster.ask("a", node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert not claims.all()
    assert STATUS not in cluster.get_pod("a")["status"]


@supported
def test_claims_of_other_pods_are_left_alone(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    for name in ("a", "b"):
        pod = cluster.pod(name, limits=LIMITS)
        ask(cluster, node, f"gpu-{name}", name=name, owner=pod)
        cluster.wait_for(name, "Succeeded")
    assert sorted(claims.users(claim["metadata"]["name"]) for claim in claims.all()) == [["a"], ["b"]]


@supported
def test_the_claim_goes_with_its_pod(cluster: Cluster, claims: Claims) -> None:
    """Owner and finalizer are such that Kubernetes' own controllers clean up."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    cluster.delete_pod("a")
    wait_until(lambda: not claims.all(), within_s=30)


@pytest.mark.skipif(os.environ.get("KUBERNETES") != "1.35", reason="the feature gate is on by default")
def test_a_server_without_the_feature(cluster: Cluster, claims: Claims) -> None:
    """It drops the field from the pod's status: the containers would start without their devices."""
    node = cluster.node()
    cluster.pod("a", limits=LIMITS)
    ask(cluster, node)
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"{KIND} Unsupported: pod {cluster.namespace}/a needs status.{STATUS}")
    assert not claims.all()
    cluster.assert_unbound("a")


# Devices that their driver prepares before the bind (DRADeviceBindingConditions).


def prepared(node: str) -> Object:
    """An allocation that is good only once the driver says so."""
    awaited, feared = ["example.com/attached"], ["example.com/broken"]
    return allocation(node, bindingConditions=awaited, bindingFailureConditions=feared)


def report(claims: Claims, node: str, type_: str, message: str = "") -> None:
    """What the driver says of the device of claim `one`."""
    said = {
        "type": type_,
        "status": "True",
        "reason": "Told",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": "gpu.example.com", "pool": node, "device": "gpu-0", "conditions": [said]}
    claims.patch_status("one", {"devices": [device]})


@supported
@pytest.mark.parametrize("works", [True, False])
def test_devices_that_need_preparing(cluster: Cluster, claims: Claims, works: bool) -> None:
    node = cluster.node()
    claims.make("one")
    cluster.pod("a", resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}])
    allocations = [{"name": "gpu", "allocation": prepared(node)}]
    cluster.ask("a", node, resourceClaimAllocations=allocations)
    wait_until(lambda: claims.users("one"))
    wait_until(lambda: KIND in cluster.conditions("a"))
    condition = cluster.conditions("a")[KIND]
    assert (condition["status"], condition["reason"]) == ("Unknown", "Waiting")
    text = f"device gpu-0 of claim {cluster.namespace}/one to be example.com/attached"
    assert condition["message"] == f"waits for {text}"
    assert "allocationTimestamp" in claims.status("one")["allocation"]
    cluster.assert_unbound("a")
    if works:
        report(claims, node, "example.com/attached")
        cluster.wait_for("a", "Succeeded")
    else:
        report(claims, node, "example.com/broken", "no link")
        reason = cluster.wait_for("a", "Failed")["reason"]
        text = f"device gpu-0 of claim {cluster.namespace}/one cannot be used: example.com/broken, no link"
        assert reason == f"{KIND} DeviceNotReady: {text}, on node {node}"
        claims.assert_free("one")
