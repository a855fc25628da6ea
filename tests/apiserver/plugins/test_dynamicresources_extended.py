"""The claim for extended resources: one per pod, over all attempts (B-65…B-67, T-20)."""

import pytest

from controller.runtime.client import Object
from tests.claims import (
    EXTENDED,
    FINALIZER,
    LIMITS,
    STATUS,
    Claims,
    extended,
    own_name,
    owner_of,
    supported,
    user,
)
from tests.cluster import Cluster
from tests.features import EXTENDED_RESOURCES, is_on
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")

KIND = "DynamicResources"


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def ask(
    cluster: Cluster, node: str, device: str = "gpu-0", *, name: str = "a", owner: Object | None = None
) -> None:
    cluster.ask(name, node, owner=owner, extendedResourceClaimAllocation=extended(node, device))


@supported
def test_claim_and_pod_status(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    metadata, wanted = claim["metadata"], extended(node)
    assert metadata["name"] == own_name(pod)
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
    """After the last attempt; and the next request finds a clean slate."""
    node = cluster.node()
    cluster.pod("a", limits=LIMITS)
    with cluster.bindings_denied():
        cluster.ask("a", node, backoffLimit=1, extendedResourceClaimAllocation=extended(node))
        cluster.wait_for_attempts("a", 1)
        assert not claims.all()
        assert STATUS not in cluster.get_pod("a")["status"]
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    ask(cluster, node)
    cluster.wait_for("a", "Succeeded", within_s=20)
    (claim,) = claims.all()
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]


@supported
def test_f17_between_attempts_the_claim_keeps_its_devices(cluster: Cluster, claims: Claims) -> None:
    """F-17: and stays reserved for the pod while a retry is due."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    with cluster.bindings_denied():
        cluster.ask("a", node, backoffLimit=3, extendedResourceClaimAllocation=extended(node))
        for attempts in (1, 2):
            cluster.wait_for_attempts("a", attempts)
            devices = extended(node)["allocation"]
            assert claims.status(own_name(pod)) == {"allocation": devices, "reservedFor": [user(pod)]}
    cluster.wait_for("a", "Succeeded", within_s=20)
    (claim,) = claims.all()
    assert claim["status"]["reservedFor"] == [user(pod)]
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == own_name(pod)


@supported
def test_a_claim_that_an_earlier_attempt_left_is_used(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    name = claims.leave_behind(pod, node)
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert [claim["metadata"]["name"] for claim in claims.all()] == [name]
    assert claims.users(name) == ["a"]


@supported
def test_devices_of_another_node_are_not_used_again(cluster: Cluster, claims: Claims) -> None:
    """The scheduler has changed its mind while the binder was down (D-23)."""
    node, elsewhere = cluster.node(), cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    old = claims.leave_behind(pod, elsewhere)
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
    old = claims.leave_behind(pod, node)
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
def test_f18_a_claim_of_its_name_is_found_and_used(cluster: Cluster, claims: Claims) -> None:
    """F-18: also if the pod's status does not name it."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    name = claims.make_extended(pod, node, own_name(pod))
    uid = claims.get(name)["metadata"]["uid"]
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    assert (claim["metadata"]["name"], claim["metadata"]["uid"]) == (name, uid)
    assert claims.users(name) == ["a"]
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == name


@supported
def test_f18_a_claim_of_its_name_with_devices_of_another_node_is_replaced(
    cluster: Cluster, claims: Claims
) -> None:
    """F-18."""
    node, elsewhere = cluster.node(), cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    name = claims.make_extended(pod, elsewhere, own_name(pod))
    claims.patch_status(name, {"allocation": extended(elsewhere)["allocation"], "reservedFor": [user(pod)]})
    uid = claims.get(name)["metadata"]["uid"]
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    assert claim["metadata"]["name"] == name
    assert claim["metadata"]["uid"] != uid
    assert claim["status"]["allocation"] == extended(node)["allocation"]


@supported
def test_f18_a_claim_of_its_name_that_hangs_in_deletion(cluster: Cluster, claims: Claims) -> None:
    """F-18: it is freed, another one takes its place, which is found again; rollback leaves neither."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    old = claims.make_extended(pod, node, own_name(pod), finalizers=[FINALIZER, "example.com/own"])
    claims.patch_status(old, {"allocation": extended(node)["allocation"], "reservedFor": [user(pod)]})
    claims.delete(old)
    with cluster.bindings_denied():
        ask(cluster, node, name="a")
        cluster.wait_for("a", "Failed")
        assert [claim["metadata"]["name"] for claim in claims.all()] == [old]
        assert claims.get(old)["metadata"]["finalizers"] == ["example.com/own"]
        assert STATUS not in cluster.get_pod("a")["status"]
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    ask(cluster, node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    (claim,) = [item for item in claims.all() if item["metadata"]["name"] != old]
    assert claim["status"] == {"allocation": extended(node)["allocation"], "reservedFor": [user(pod)]}
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]
    claims.patch(old, {"metadata": {"finalizers": None}})


@supported
def test_f18_somebody_elses_claim_of_that_name(cluster: Cluster, claims: Claims) -> None:
    """F-18: it is left alone, and the message names it."""
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    claims.make(own_name(pod))
    before = claims.get(own_name(pod))
    ask(cluster, node, owner=pod)
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"{KIND} ClaimNotOwned: claim {cluster.namespace}/{own_name(pod)} has the name")
    assert claims.get(own_name(pod)) == before


@supported
def test_f18_a_pod_with_the_longest_name(cluster: Cluster, claims: Claims) -> None:
    """F-18."""
    node, name = cluster.node(), "a" * 196 + "." + "b" * 56
    pod = cluster.pod(name, limits=LIMITS)
    cluster.ask("a", node, owner=pod, podName=name, extendedResourceClaimAllocation=extended(node))
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    assert claim["metadata"]["name"] == f"{'a' * 196}-extended-resources-{pod['metadata']['uid']}"


@supported
def test_a_later_decision_without_devices_removes_what_an_earlier_one_left(
    cluster: Cluster, claims: Claims
) -> None:
    """The kubelet goes by the pod's status: it would look for the devices of the other node."""
    node, elsewhere = cluster.node(), cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    claims.leave_behind(pod, elsewhere)
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


def test_a_server_without_the_feature(cluster: Cluster, claims: Claims) -> None:
    """It drops the field from the pod's status: the containers would start without their devices."""
    if is_on(cluster.plane, EXTENDED_RESOURCES):
        pytest.skip(f"this server has the feature: {EXTENDED_RESOURCES} is on")
    node = cluster.node()
    cluster.pod("a", limits=LIMITS)
    ask(cluster, node)
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"{KIND} Unsupported: pod {cluster.namespace}/a needs status.{STATUS}")
    assert not claims.all()
    cluster.assert_unbound("a")
