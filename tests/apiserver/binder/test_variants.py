"""Clusters that are not as we would wish: another CRD, fewer rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.binder import Binders
from tests.cluster import CRD, ROOT, Cluster
from tests.polling import wait_until

UPSTREAM_CRD = ROOT / "tests/apiserver/data/upstream-crd.yaml"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
WARNING = "The installed CRD of BindRequests is the Go binder's"


def published_schema(plane: ControlPlane) -> str:
    """The schema that the server publishes; empty while it publishes none."""
    try:
        return str(plane.request("GET", "/openapi/v3/apis/scheduling.run.ai/v1alpha2"))
    except RequestError:
        return ""


def stores_conditions(plane: ControlPlane) -> bool:
    """Whether the schema that the server publishes has them."""
    return "observedGeneration" in published_schema(plane)


@pytest.fixture
def upstream_crd(own_plane: ControlPlane) -> Iterator[None]:
    """The Go binder's CRD in place of ours."""
    own_plane.kubectl("replace", "-f", str(UPSTREAM_CRD))
    try:
        wait_until(lambda: not stores_conditions(own_plane), within_s=30)
        yield
    finally:
        own_plane.kubectl("apply", "-k", str(ROOT / "config/crd"), "--server-side", "--force-conflicts")
        wait_until(lambda: stores_conditions(own_plane), within_s=30)


@pytest.mark.usefixtures("upstream_crd")
def test_upstreams_crd(own_cluster: Cluster, own_binders: Binders) -> None:
    binder = own_binders.start()
    own_cluster.pod_and_request("good", own_cluster.node())
    own_cluster.pod_and_request("bad", "no-such-node", backoffLimit=2)
    pod = own_cluster.pod("claim", claims=("no-such-claim",))
    own_cluster.ask("claim", own_cluster.node(), owner=pod)
    assert own_cluster.wait_for("good", "Succeeded") == {"phase": "Succeeded"}
    assert own_cluster.wait_for_attempts("bad", 2) == {
        "phase": "Failed",
        "reason": "Bound NodeGone: node no-such-node does not exist",
        "failedAttempts": 2,
    }
    reason = own_cluster.wait_for("claim", "Failed")["reason"]
    assert reason.startswith("VolumeBinding ClaimNotFound: claim ")
    own_cluster.wait_for_event("claim", "ClaimNotFound", "BindRequest")
    wait_until(lambda: WARNING in binder.log, within_s=15)
    assert binder.log.count(WARNING) == 1
    assert "is older than this binder: the server drops these fields" in binder.log
    assert "predictedNUMAMemoryGroups" in binder.log
    assert "additionalPrinterColumns" not in str(own_cluster.plane.request("GET", CRD)["spec"])


def test_our_crd_is_no_reason_to_warn(own_cluster: Cluster, own_binders: Binders) -> None:
    binder = own_binders.start()
    own_cluster.pod_and_request("a", own_cluster.node())
    own_cluster.wait_for("a", "Succeeded")
    wait_until(lambda: "The installed CRD of BindRequests fits this binder" in binder.log, within_s=15)
    assert " warning " not in binder.log


def test_a_crd_with_fields_of_a_newer_kai(own_cluster: Cluster, own_binders: Binders) -> None:
    """What the scheduler means by them is not done: a person has to know."""
    plane = own_cluster.plane
    crd = plane.request("GET", CRD)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema["warp"] = {"type": "string"}
    plane.request("PUT", CRD, crd)
    try:
        wait_until(lambda: "warp" in published_schema(plane), within_s=30)
        binder = own_binders.start()
        own_cluster.pod_and_request("a", own_cluster.node())
        own_cluster.wait_for("a", "Succeeded")
        told = "is newer than this binder: these fields are not read"
        wait_until(lambda: told in binder.log, within_s=15)
        assert "warp" in binder.log
    finally:
        del schema["warp"]
        crd["metadata"]["resourceVersion"] = plane.request("GET", CRD)["metadata"]["resourceVersion"]
        plane.request("PUT", CRD, crd)
        wait_until(lambda: "warp" not in published_schema(plane), within_s=30)


# 403 on one kind.


def account_without(cluster: Cluster, resource: str, verbs: set[str]) -> Path:
    """An account with the shipped role, less these verbs on a kind."""
    plane, name = cluster.plane, cluster.namespace
    rules: list[Object] = []
    for rule in plane.request("GET", f"{ROLES}/kai-binder-python")["rules"]:
        rest = [other for other in rule["resources"] if other != resource]
        if rest:
            rules.append({**rule, "resources": rest})
        left = [verb for verb in rule["verbs"] if verb not in verbs]
        if resource in rule["resources"] and left:
            rules.append({**rule, "resources": [resource], "verbs": left})
    plane.request("POST", ROLES, {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "limited", "namespace": name}
    plane.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "limited"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    plane.request("POST", ROLE_BINDINGS, body)
    return plane.service_account_kubeconfig(name, "limited")


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_a_kind_that_may_not_be_watched_is_read_one_by_one(
    own_cluster: Cluster, own_binders: Binders, resource: str
) -> None:
    kubeconfig = account_without(own_cluster, resource, {"list", "watch"})
    binder = own_binders.start(kubeconfig=kubeconfig)
    for name in ("a", "b"):
        own_cluster.pod_and_request(name, own_cluster.node())
    own_cluster.wait_for_all(2)
    own_cluster.pod_and_request("bad", "no-such-node")
    assert "NodeGone" in own_cluster.wait_for("bad", "Failed")["reason"]
    # Once for each cache of the kind: reservation pods have one of their own.
    assert binder.log.count("The API server refuses to list a kind") == (2 if resource == "pods" else 1)
    assert binder.answers("healthz") == 200


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_a_kind_that_may_not_be_read_at_all_fails_the_requests(
    own_cluster: Cluster, own_binders: Binders, resource: str
) -> None:
    kubeconfig = account_without(own_cluster, resource, {"get", "list", "watch"})
    own_binders.start(kubeconfig=kubeconfig)
    own_cluster.pod_and_request("a", own_cluster.node())
    reason = own_cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"Bound Forbidden: GET {resource} "), reason
    assert 'cannot get resource "' + resource in reason
    own_cluster.wait_for_event("a", "Forbidden", "BindRequest")
    own_cluster.assert_unbound("a")
