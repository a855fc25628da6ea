"""Devices that another claim has, on the real API server, which does not compare."""

import pytest

from tests.claims import LIMITS, Claims, allocation, brings, extended, own_name, supported, user, uses
from tests.cluster import Cluster
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")

KIND = "DynamicResources"


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def ask(cluster: Cluster, node: str, name: str, claim: str) -> None:
    pod = cluster.pod(name, resourceClaims=uses(gpu=claim))
    cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))


def test_a_device_that_another_claim_has(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    other = cluster.pod("other", schedulerName="another-scheduler")
    for name in ("taken", "one"):
        claims.make(name)
    claims.give("taken", allocation(node), [user(other)])
    ask(cluster, node, "a", "one")
    assert cluster.wait_for("a", "Failed")["reason"] == (
        f"{KIND} AllocationConflict: claim {cluster.namespace}/one cannot get gpu-0 of gpu.example.com "
        f"(pool {node}) on node {node}: claim {cluster.namespace}/taken has that already, reserved for other"
    )
    cluster.assert_unbound("a")
    claims.assert_free("one")
    claims.patch_status("taken", {"allocation": None, "reservedFor": None})
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    cluster.wait_for("a", "Succeeded")
    assert claims.users("one") == ["a"]


@supported
def test_extended_resources_of_many_pods_on_one_device(cluster: Cluster, claims: Claims) -> None:
    """As KAI's scheduler asks for it, which does not count what such requests are about to get."""
    node, names = cluster.node(), [f"p{index}" for index in range(8)]
    pods = {name: cluster.pod(name, limits=LIMITS) for name in names}
    for name in names:
        cluster.ask(name, node, owner=pods[name], extendedResourceClaimAllocation=extended(node))
    wait_until(lambda: all(cluster.status(name).get("phase") in ("Succeeded", "Failed") for name in names))
    (bound,) = [name for name in names if cluster.node_of(name)]
    for name in {*names} - {bound}:
        assert cluster.status(name)["reason"].startswith(f"{KIND} AllocationConflict: ")
    (claim,) = claims.all()
    assert claim["metadata"]["name"] == own_name(pods[bound])


def test_a_device_goes_from_claim_to_claim(cluster: Cluster, claims: Claims) -> None:
    """What the binder knows of a moment ago is no verdict."""
    node = cluster.node()
    for name in ("a", "b", "c"):
        claims.make(name)
        ask(cluster, node, name, name)
        cluster.wait_for(name, "Succeeded")
        claims.patch_status(name, {"allocation": None, "reservedFor": None})
