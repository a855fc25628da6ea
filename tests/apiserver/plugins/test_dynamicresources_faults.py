"""Device claims with a server that fails, is slow, or lacks rights: each test has a binder of its own."""

import json
import time
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.binder import Binders
from tests.claims import Claims, allocation, brings, user, uses
from tests.cluster import Cluster
from tests.features import STATUS_RIGHTS, needs
from tests.proxy import Answer, Delay, Hang, Proxy, Rule

KIND = "DynamicResources"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterrole"


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


@pytest.fixture
def token(binder_kubeconfig: Path) -> str:
    user_: Object = json.loads(binder_kubeconfig.read_text())["users"][0]
    return str(user_["user"]["token"])


def test_requests_of_a_bind_and_their_order(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    for name in ("first", "second"):  # the first one also asks for the version of the API
        claims.make(name)
        before = len(proxy.calls)
        pod = cluster.pod(name, resourceClaims=uses(gpu=name))
        cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node, name)))
        cluster.wait_for(name, "Succeeded")
    # Binds of a moment share the list of all claims, so this one may have paid for it or not.
    sent = [call for call in proxy.calls[before:] if not call.watches]
    assert [call.path for call in sent].count(f"/apis/{claims.version}/resourceclaims") <= 1
    # Nor what is asked of others: who uses a GPU that an earlier test has left reserved.
    mine = [call for call in sent if f"/namespaces/{cluster.namespace}/" in call.path]
    calls = [str(call) for call in mine if not call.path.endswith("/events")]
    pods, one = cluster.pods + "/second", f"{claims.path}/second"
    wanted = [
        f"GET {one} -> 200",
        f"PATCH {one} -> 200",
        f"PATCH {one}/status -> 200",
        f"POST {pods}/binding -> 201",
    ]
    first = calls.index(wanted[0])
    assert calls[first : first + 4] == wanted
    assert sum("resource.k8s.io" in call for call in calls) == 3
    assert not any(call.startswith(f"GET {pods}") for call in calls), "the cache knows the pod"
    assert proxy.count("GET", "^/apis/resource.k8s.io$") == 1


def test_a_pod_without_claims_pays_nothing(
    cluster: Cluster, binders: Binders, proxy: Proxy, token: str
) -> None:
    binders.start(kubeconfig=proxy.kubeconfig(token))
    cluster.pod_and_request("a", cluster.node())
    cluster.wait_for("a", "Succeeded")
    assert proxy.count("", "resource.k8s.io") == 0
    assert cluster.conditions("a")[KIND]["reason"] == "NotApplicable"


def test_rollback_survives_a_server_that_fails_meanwhile(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    claims.make("one")
    with (
        cluster.bindings_denied(),
        proxy.rule(Rule(Answer(500), method="PATCH", path="resourceclaims/one/status", skip=1, times=2)),
    ):
        cluster.pod("a", resourceClaims=uses(gpu="one"))
        cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
        cluster.wait_for("a", "Failed")
    claims.assert_free("one")


def test_a_rollback_that_fails_is_told(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    claims.make("one")
    claims.make("two")
    with (
        cluster.bindings_denied(),
        proxy.rule(Rule(Answer(500), method="PATCH", path="resourceclaims/one/status", skip=1)),
    ):
        cluster.pod("a", resourceClaims=uses(x="one", y="two"))
        both = brings("x", allocation(node, "gpu-1")) + brings("y", allocation(node, "gpu-2"))
        cluster.ask("a", node, resourceClaimAllocations=both)
        reason = cluster.wait_for("a", "Failed", within_s=30)["reason"]
    assert f"claim {cluster.namespace}/one stays reserved on node {node}" in reason
    claims.assert_free("two")


def test_bind_timeout(cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str) -> None:
    """B-61: it bounds all of the plugin's work."""
    plugins = {"dynamicresources": {"arguments": {"bindTimeoutSeconds": "1"}}}
    binders.start(f"--plugins={json.dumps(plugins)}", kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    claims.make("one")
    claims.make("two")
    with proxy.rule(Rule(Hang(), method="GET", path="resourceclaims/two", times=1)):
        cluster.pod("a", resourceClaims=uses(x="one", y="two"))
        both = brings("x", allocation(node, "gpu-1")) + brings("y", allocation(node, "gpu-2"))
        cluster.ask("a", node, resourceClaimAllocations=both)
        assert cluster.wait_for("a", "Failed")["reason"] == (
            f"{KIND} BindTimeout: the claims of pod {cluster.namespace}/a were not ready on node {node} "
            f"within 1 s; it ended while reserving claim {cluster.namespace}/two"
        )
    claims.assert_free("one")
    claims.assert_free("two")


def test_a_write_that_is_under_way_when_the_time_is_over(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """It is waited for: else it would land after the rollback had found nothing to take back."""
    plugins = {"dynamicresources": {"arguments": {"bindTimeoutSeconds": "1"}}}
    binders.start(f"--plugins={json.dumps(plugins)}", kubeconfig=proxy.kubeconfig(token))
    node, other = cluster.node(), cluster.pod("other")
    claims.make("one")
    claims.make("two")
    claims.give("one", allocation(node), [user(other)])
    before = claims.users("one")
    with proxy.rule(Rule(Delay(3.0), method="PATCH", path="resourceclaims/one/status", times=1)) as rule:
        cluster.pod("a", resourceClaims=uses(x="one", y="two"))
        cluster.ask("a", node, resourceClaimAllocations=brings("y", allocation(node, "gpu-2")))
        assert "BindTimeout" in cluster.wait_for("a", "Failed", within_s=20)["reason"]
        assert rule.count >= 1
        time.sleep(3.5)
    assert claims.users("one") == before
    claims.assert_free("two")


def account(cluster: Cluster, *left_out: str) -> Path:
    """Credentials with the rights that we ship, but without those on some resources."""
    plane, name = cluster.plane, cluster.namespace
    rules = []
    for rule in plane.request("GET", f"{ROLES}s/kai-binder-python")["rules"]:
        kept = [resource for resource in rule["resources"] if resource not in left_out]
        rules += [{**rule, "resources": kept}] if kept else []
    plane.request("POST", f"{ROLES}s", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
    plane.request("POST", f"{ROLES}bindings", binding)
    return plane.service_account_kubeconfig(name, "default")


@needs(STATUS_RIGHTS)
def test_the_right_on_bindings_of_claims_is_needed(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    """spectrocloud #213: so the shipped role has it, under which all other tests run."""
    claims.make("one")
    binders.start(kubeconfig=account(cluster, "resourceclaims/binding"))
    node = cluster.node()
    cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"{KIND} Forbidden: claim {cluster.namespace}/one cannot get gpu-0")
    assert "resourceclaims/binding" in reason


def test_a_role_without_claims(cluster: Cluster, claims: Claims, binders: Binders) -> None:
    claims.make("one")
    rights = account(cluster, "resourceclaims", "resourceclaims/status", "resourceclaims/binding")
    binders.start(kubeconfig=rights)
    node = cluster.node()
    cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    reason = cluster.wait_for("a", "Failed")["reason"]
    assert reason.startswith(f"{KIND} Forbidden: GET resourceclaims {cluster.namespace}/one")
    cluster.pod_and_request("plain", node)
    cluster.wait_for("plain", "Succeeded")
