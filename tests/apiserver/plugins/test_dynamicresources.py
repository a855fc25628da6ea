"""Device claims on the real API server, with the real resource claim controller, under the shipped role."""

import pytest

from controller.runtime.client import Object
from tests.claims import (
    FINALIZER,
    Claims,
    allocation,
    brings,
    from_template,
    user,
    uses,
)
from tests.cluster import Cluster
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")

KIND = "DynamicResources"


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def reason_of(cluster: Cluster, name: str) -> str:
    """Why a request has failed, without the condition's name."""
    reason = str(cluster.wait_for(name, "Failed")["reason"])
    assert reason.startswith(f"{KIND} "), reason
    return reason.removeprefix(f"{KIND} ")


# Allocating.


def test_a_claim_is_allocated_and_reserved_as_kube_scheduler_does(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("one", finalizers=["example.com/own"])
    pod = cluster.pod("a", resourceClaims=uses(gpu="one"))
    wanted = allocation(node)
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", wanted))
    cluster.wait_for("a", "Succeeded")
    assert cluster.node_of("a") == node
    claim = claims.get("one")
    assert claim["metadata"]["finalizers"] == ["example.com/own", FINALIZER]
    assert claim["status"] == {"allocation": wanted, "reservedFor": [user(pod)]}
    condition = cluster.conditions("a")[KIND]
    assert (condition["status"], condition["reason"]) == ("True", "Reconciled")
    assert condition["message"] == f"claim {cluster.namespace}/one has gpu-0 of gpu.example.com (pool {node})"


def test_a_claim_made_from_a_template(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make_template("gpu-each")
    pod = cluster.pod("a", resourceClaims=from_template(gpu="gpu-each"))
    wait_until(claims.all)
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
    wait_until(lambda: cluster.get_pod("a")["status"].get("resourceClaimStatuses"))
    cluster.wait_for("a", "Succeeded")
    (claim,) = claims.all()
    assert claim["status"] == {"allocation": allocation(node), "reservedFor": [user(pod)]}
    assert claim["metadata"]["finalizers"] == [FINALIZER]


def assert_waits_for_claim(cluster: Cluster, entry: str) -> None:
    """The request waits for the resource claim controller, and says so."""
    wait_until(lambda: KIND in cluster.conditions("a"))
    condition = cluster.conditions("a")[KIND]
    assert (condition["status"], condition["reason"]) == ("Unknown", "Waiting")
    what = f"claim {entry} of pod {cluster.namespace}/a from its template"
    assert condition["message"] == f"waits for the resource claim controller to make {what}"
    cluster.assert_unbound("a")


def test_a_claim_that_is_not_made_yet_is_waited_for(cluster: Cluster, claims: Claims) -> None:
    """It is on its way, as the volume of F-6: no reason to fail, which costs the gang a cycle."""
    node = cluster.node()
    pod = cluster.pod("a", resourceClaims=from_template(gpu="late"))
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
    assert_waits_for_claim(cluster, "gpu")
    claims.make_template("late")
    status = cluster.wait_for("a", "Succeeded", within_s=60)
    assert status.get("failedAttempts", 0) == 0
    (claim,) = claims.all()
    assert claim["status"] == {"allocation": allocation(node), "reservedFor": [user(pod)]}


def test_a_claim_from_a_template_that_was_deleted_is_made_anew(cluster: Cluster, claims: Claims) -> None:
    """The resource claim controller makes another one, of another name."""
    node = cluster.node()
    pod = cluster.pod("a", resourceClaims=from_template(gpu="late"))
    cluster.patch_pod_status("a", {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gone"}]})
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
    assert_waits_for_claim(cluster, "gpu")
    claims.make_template("late")
    cluster.wait_for("a", "Succeeded", within_s=60)
    (claim,) = claims.all()
    assert claim["status"]["reservedFor"] == [user(pod)]


def test_a_wait_for_a_claim_ends_with_the_pod(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod("a", resourceClaims=from_template(gpu="never"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    assert_waits_for_claim(cluster, "gpu")
    cluster.delete_pod("a")
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert "PodNotFound" in reason or "PodTerminating" in reason


def test_no_claim_needed(cluster: Cluster, claims: Claims) -> None:
    """An entry of the pod's status without a name says so."""
    node = cluster.node()
    cluster.pod("a", resourceClaims=from_template(gpu="no-such-template"))
    cluster.patch_pod_status("a", {"resourceClaimStatuses": [{"name": "gpu"}]})
    cluster.ask("a", node)
    cluster.wait_for("a", "Succeeded")
    assert cluster.conditions("a")[KIND]["message"] == "no claim is needed"


def test_several_claims_in_one_request(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("one")
    claims.make("two")
    pod = cluster.pod("a", resourceClaims=uses(x="one", y="two"))
    both = brings("y", allocation(node, "gpu-2")) + brings("x", allocation(node, "gpu-1"))
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=both)
    cluster.wait_for("a", "Succeeded")
    assert claims.status("one")["allocation"] == allocation(node, "gpu-1")
    assert claims.status("two")["allocation"] == allocation(node, "gpu-2")


# Sharing.


def test_a_shared_claim_with_an_equal_allocation_is_just_reserved(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("shared")
    pods = [cluster.pod(name, resourceClaims=uses(gpu="shared")) for name in ("a", "b")]
    for pod in pods:
        name = pod["metadata"]["name"]
        cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
        cluster.wait_for(name, "Succeeded")
    assert claims.status("shared") == {
        "allocation": allocation(node),
        "reservedFor": [user(pod) for pod in pods],
    }


def test_an_allocated_claim_needs_no_entry_in_the_request(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("given")
    claims.give("given", allocation(node))
    pod = cluster.pod("a", resourceClaims=uses(gpu="given"))
    cluster.ask("a", node, owner=pod)
    cluster.wait_for("a", "Succeeded")
    assert claims.status("given") == {"allocation": allocation(node), "reservedFor": [user(pod)]}


def test_an_allocated_claim_gets_the_finalizer_that_it_lacks(cluster: Cluster, claims: Claims) -> None:
    """The Go binder leaves such claims (D-22)."""
    node = cluster.node()
    claims.make("given")
    claims.patch_status("given", {"allocation": allocation(node)})
    cluster.pod("a", resourceClaims=uses(gpu="given"))
    cluster.ask("a", node)
    cluster.wait_for("a", "Succeeded")
    assert claims.protected("given")


# Refusing.


def test_another_allocation_is_a_conflict(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("taken")
    other = cluster.pod("other", schedulerName="another-scheduler")
    before = claims.give("taken", allocation(node, "gpu-7"), [user(other)])
    cluster.pod("a", resourceClaims=uses(gpu="taken"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node, "gpu-1")))
    assert reason_of(cluster, "a") == (
        f"AllocationConflict: claim {cluster.namespace}/taken has gpu-7 of gpu.example.com (pool {node}) "
        f"already, reserved for other; the request for node {node} wants gpu-1 of gpu.example.com "
        f"(pool {node})"
    )
    assert claims.get("taken") == before
    cluster.assert_unbound("a")


@pytest.mark.parametrize("brought", [True, False])
def test_devices_of_another_node_are_a_conflict(cluster: Cluster, claims: Claims, brought: bool) -> None:
    node, elsewhere = cluster.node(), cluster.node()
    claims.make("far")
    if not brought:
        claims.give("far", allocation(elsewhere))
    cluster.pod("a", resourceClaims=uses(gpu="far"))
    allocations = brings("gpu", allocation(elsewhere)) if brought else []
    cluster.ask("a", node, resourceClaimAllocations=allocations)
    reason = reason_of(cluster, "a")
    assert reason.startswith(
        f"AllocationConflict: claim {cluster.namespace}/far has gpu-0 of gpu.example.com"
    )
    assert f"which cannot be used on node {node}" in reason
    assert claims.users("far") == []


def test_a_claim_without_devices_and_without_an_entry(cluster: Cluster, claims: Claims) -> None:
    """The Go binder binds the pod, which then cannot start (D-22)."""
    node = cluster.node()
    claims.make("empty")
    cluster.pod("a", resourceClaims=uses(gpu="empty"))
    cluster.ask("a", node)
    assert reason_of(cluster, "a") == (
        f"ClaimUnallocated: claim {cluster.namespace}/empty has no devices, "
        f"and the request for node {node} brings none for it"
    )
    claims.assert_free("empty")


def test_a_claim_that_does_not_exist(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod("a", resourceClaims=uses(gpu="nowhere"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    text = f"ClaimNotFound: claim {cluster.namespace}/nowhere of pod a does not exist"
    assert reason_of(cluster, "a") == text


def test_a_claim_that_was_made_for_another_pod(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make_template("gpu-each")
    other = cluster.pod("other", resourceClaims=from_template(gpu="gpu-each"))
    (claim,) = wait_until(claims.all)
    name = claim["metadata"]["name"]
    cluster.pod("a", resourceClaims=from_template(gpu="no-such-template"))
    cluster.patch_pod_status("a", {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]})
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    reason = reason_of(cluster, "a")
    text = f"claim {cluster.namespace}/{name} was made for the pod with uid {other['metadata']['uid']}"
    assert reason.startswith(f"ClaimNotOwned: {text}, not for pod a ")
    claims.assert_free(name)


def test_a_claim_that_a_leader_owns_and_its_workers_use(cluster: Cluster, claims: Claims) -> None:
    """F-14: only a claim from a template has to belong to the pod; one that it names may have any owner."""
    node = cluster.node()
    leader = cluster.pod("leader")
    kept = {key: leader["metadata"][key] for key in ("name", "uid")}
    owner = {"apiVersion": "v1", "kind": "Pod", "controller": True, **kept}
    claims.make("shared", ownerReferences=[owner])
    workers = [cluster.pod(name, resourceClaims=uses(gpu="shared")) for name in ("a", "b")]
    for pod in workers:
        name = pod["metadata"]["name"]
        cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
        cluster.wait_for(name, "Succeeded")
    assert claims.users("shared") == ["a", "b"]


def test_a_claim_of_a_template_that_the_pod_does_not_own(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("foreign")
    cluster.pod("a", resourceClaims=from_template(gpu="no-such-template"))
    cluster.patch_pod_status(
        "a", {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "foreign"}]}
    )
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    assert reason_of(cluster, "a").startswith(f"ClaimNotOwned: claim {cluster.namespace}/foreign should come")
    claims.assert_free("foreign")


def test_a_claim_in_deletion(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("going", finalizers=["example.com/own"])
    claims.delete("going")
    cluster.pod("a", resourceClaims=uses(gpu="going"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    assert reason_of(cluster, "a") == f"ClaimTerminating: claim {cluster.namespace}/going is being deleted"
    claims.patch("going", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"resourceClaimAllocations": brings("other", {"devices": {}})},
            "spec.resourceClaimAllocations[0] is for claim 'other', which pod a does not have; it has gpu",
        ),
        (
            {"resourceClaimAllocations": [{"name": "gpu"}]},
            "spec.resourceClaimAllocations[0], for claim 'gpu', brings no allocation",
        ),
        (
            {"extendedResourceClaimAllocation": {"deviceRequests": [], "containerMappings": []}},
            "spec.extendedResourceClaimAllocation has no allocation, no deviceRequests, no containerMappings",
        ),
    ],
)
def test_requests_that_make_no_sense(cluster: Cluster, claims: Claims, spec: Object, text: str) -> None:
    claims.make("one")
    cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", cluster.node(), backoffLimit=7, **spec)
    assert reason_of(cluster, "a") == f"InvalidRequest: {text}"
    assert cluster.status("a")["failedAttempts"] == 7, "another attempt would end the same"
    claims.assert_free("one")


def test_an_extended_claim_without_allocation_for_a_pod_without_claims(cluster: Cluster) -> None:
    """The Go binder ignores it (D-22)."""
    cluster.pod_and_request("a", cluster.node(), extendedResourceClaimAllocation={})
    assert reason_of(cluster, "a").startswith(
        "InvalidRequest: spec.extendedResourceClaimAllocation has no allocation"
    )
    cluster.assert_unbound("a")


def test_what_the_server_refuses_is_told_with_claim_devices_and_node(
    cluster: Cluster, claims: Claims
) -> None:
    node = cluster.node()
    claims.make("one")
    cluster.pod("a", resourceClaims=uses(gpu="one"))
    wanted = allocation(node, request="no-such-request")
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", wanted))
    reason = reason_of(cluster, "a")
    text = f"cannot get gpu-0 of gpu.example.com (pool {node}) on node {node}: "
    assert reason.startswith(f"Rejected: claim {cluster.namespace}/one {text}")
    assert "no-such-request" in reason
    assert not claims.status("one")


# Rolling back.


def test_a_failed_bind_leaves_the_claim_free(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("one", finalizers=["example.com/own"])
    with cluster.bindings_denied():
        pod = cluster.pod("a", resourceClaims=uses(gpu="one"))
        cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
        cluster.wait_for("a", "Failed")
    claim = claims.get("one")
    assert not claim.get("status")
    assert claim["metadata"]["finalizers"] == ["example.com/own"]


def test_rollback_keeps_what_others_use(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("shared")
    other = cluster.pod("other", resourceClaims=uses(gpu="shared"))
    cluster.ask("other", node, owner=other, resourceClaimAllocations=brings("gpu", allocation(node)))
    cluster.wait_for("other", "Succeeded")
    with cluster.bindings_denied():
        cluster.pod("a", resourceClaims=uses(gpu="shared"))
        cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
        cluster.wait_for("a", "Failed")
    assert claims.status("shared") == {"allocation": allocation(node), "reservedFor": [user(other)]}
    assert claims.protected("shared")


def test_rollback_keeps_devices_that_the_request_did_not_bring(cluster: Cluster, claims: Claims) -> None:
    node = cluster.node()
    claims.make("given")
    claims.give("given", allocation(node))
    with cluster.bindings_denied():
        cluster.pod("a", resourceClaims=uses(gpu="given"))
        cluster.ask("a", node)
        cluster.wait_for("a", "Failed")
    assert claims.status("given") == {"allocation": allocation(node)}


def test_rollback_of_a_claim_after_one_that_failed(cluster: Cluster, claims: Claims) -> None:
    """T-19: what was done before the step that failed is taken back."""
    node = cluster.node()
    claims.make("good")
    claims.make("bad")
    cluster.pod("a", resourceClaims=uses(x="good", y="bad"))
    cluster.ask("a", node, resourceClaimAllocations=brings("x", allocation(node)))
    assert reason_of(cluster, "a").startswith("ClaimUnallocated")
    claims.assert_free("good")
