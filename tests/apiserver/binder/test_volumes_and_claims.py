"""Volumes and resource claims: a pod is bound only with those it needs, or not at all."""

import pytest

from tests.cluster import Cluster
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")


def claim(cluster: Cluster, name: str, **spec: object) -> None:
    """A claim of no class, which nobody provisions."""
    whole = {
        "storageClassName": "",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        **spec,
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    cluster.plane.request("POST", path, {"metadata": {"name": name}, "spec": whole})


def volume(cluster: Cluster, claim_name: str, node: str) -> str:
    """A volume for this claim that only one node can use; the controller manager binds the two."""
    name = f"pv-{cluster.namespace}"
    affinity = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "local": {"path": "/data"},
        "claimRef": {"namespace": cluster.namespace, "name": claim_name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
    }
    cluster.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    claim(cluster, claim_name, volumeName=name)
    path = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{claim_name}"

    def bound() -> bool:
        annotations = cluster.plane.request("GET", path)["metadata"].get("annotations") or {}
        return "pv.kubernetes.io/bind-completed" in annotations

    wait_until(bound, within_s=30)
    return name


def host(cluster: Cluster) -> str:
    name = f"host-{cluster.namespace}"
    return cluster.node(name, {"kubernetes.io/hostname": name})


def test_a_pod_whose_claim_is_bound(cluster: Cluster) -> None:
    node = host(cluster)
    name = volume(cluster, "data", node)
    cluster.ask("a", node, owner=cluster.pod("a", claims=("data",)))
    cluster.wait_for("a", "Succeeded")
    condition = cluster.conditions("a")["VolumeBinding"]
    assert (condition["status"], condition["reason"]) == ("True", "Reconciled")
    assert condition["message"].startswith(f"bound: data to {name}")


def test_a_volume_of_another_node(cluster: Cluster) -> None:
    name = volume(cluster, "data", host(cluster))
    node = cluster.node()
    cluster.ask("a", node, owner=cluster.pod("a", claims=("data",)))
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"VolumeBinding VolumeUnreachable: volume {name} ")
    for word in (f"claim {cluster.namespace}/data", f"node {node}", "node affinity"):
        assert word in reason
    cluster.assert_unbound("a")


def test_a_claim_that_is_not_bound(cluster: Cluster) -> None:
    claim(cluster, "data")
    cluster.ask("a", cluster.node(), owner=cluster.pod("a", claims=("data",)))
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"VolumeBinding ClaimUnbound: claim {cluster.namespace}/data is not bound")
    cluster.assert_unbound("a")


# Resource claims: never bound with them ignored.


def test_a_pod_with_a_resource_claim(cluster: Cluster) -> None:
    resource_claims = [{"name": "gpu", "resourceClaimName": "no-such-claim"}]
    cluster.ask("a", cluster.node(), owner=cluster.pod("a", resourceClaims=resource_claims), backoffLimit=3)
    status = cluster.wait_for("a", "Failed")
    assert status["reason"].startswith("DynamicResources ")
    cluster.assert_unbound("a")


def test_a_request_with_an_allocation(cluster: Cluster) -> None:
    allocations = [{"name": "gpu", "allocation": {}}]
    cluster.pod_and_request("a", cluster.node(), resourceClaimAllocations=allocations)
    assert cluster.wait_for("a", "Failed")["reason"].startswith("DynamicResources ")
    cluster.assert_unbound("a")
