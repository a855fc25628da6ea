"""Devices that their driver prepares before the bind (DRADeviceBindingConditions)."""

from typing import Any

import pytest

from controller.runtime.client import Object
from tests.claims import Claims, allocation, brings, prepared, uses
from tests.cluster import Cluster
from tests.features import BINDING_CONDITIONS, needs
from tests.polling import wait_until

pytestmark = [pytest.mark.usefixtures("binder"), needs(BINDING_CONDITIONS)]

KIND = "DynamicResources"


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def ask(cluster: Cluster, claims: Claims, node: str, **spec: Any) -> Object:  # noqa: ANN401
    """A pod whose device is being prepared, and a request for it. Returns the pod."""
    claims.make("one")
    pod = cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", prepared(node)), **spec)
    wait_until(lambda: claims.users("one"))
    return pod


def test_f15_a_wait_for_a_device_ends_with_the_request(cluster: Cluster, claims: Claims) -> None:
    """F-15: the pod's next request is not held up by the wait of the one that was deleted."""
    node, elsewhere = cluster.node(), cluster.node()
    ask(cluster, claims, node)
    wait_until(lambda: KIND in cluster.conditions("a"))
    cluster.plane.request("DELETE", f"{cluster.requests}/a")
    cluster.ask("a", elsewhere, resourceClaimAllocations=brings("gpu", allocation(elsewhere)))
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == elsewhere
    assert claims.status("one")["allocation"] == allocation(elsewhere)


def test_f15_a_device_that_failed_is_final(cluster: Cluster, claims: Claims) -> None:
    """F-15: the request names the device, so each retry would get it again."""
    node = cluster.node()
    ask(cluster, claims, node, backoffLimit=7)
    claims.report(node, "example.com/broken", "no link")
    status = cluster.wait_for("a", "Failed")
    assert status["failedAttempts"] == 7
    assert "DeviceNotReady" in status["reason"]
    claims.assert_free("one")


def test_f15_a_claim_that_is_taken_away_while_its_device_is_prepared(
    cluster: Cluster, claims: Claims
) -> None:
    """F-15."""
    node = cluster.node()
    ask(cluster, claims, node)
    claims.patch_status("one", {"reservedFor": None})
    reason = cluster.wait_for("a", "Failed", within_s=3)["reason"]
    assert f"claim {cluster.namespace}/one was taken away while its devices were prepared" in reason


def test_f15_devices_of_several_claims(cluster: Cluster, claims: Claims) -> None:
    """F-15: one that fails is seen while another is waited for."""
    node = cluster.node()
    claims.make("one")
    claims.make("two")
    cluster.pod("a", resourceClaims=uses(x="one", y="two"))
    both = brings("x", prepared(node, "gpu-1")) + brings("y", prepared(node))
    cluster.ask("a", node, resourceClaimAllocations=both)
    wait_until(lambda: claims.users("two"))
    claims.report(node, "example.com/broken", "no link", claim="two")
    assert "cannot be used: example.com/broken, no link" in cluster.wait_for("a", "Failed")["reason"]
    for name in ("one", "two"):
        claims.assert_free(name)


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
        claims.report(node, "example.com/attached")
        cluster.wait_for("a", "Succeeded")
    else:
        claims.report(node, "example.com/broken", "no link")
        reason = cluster.wait_for("a", "Failed")["reason"]
        text = f"device gpu-0 of claim {cluster.namespace}/one cannot be used: example.com/broken, no link"
        assert reason == f"{KIND} DeviceNotReady: {text}, on node {node}"
        claims.assert_free("one")
