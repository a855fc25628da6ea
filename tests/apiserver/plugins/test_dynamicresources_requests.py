"""What device claims cost in requests, and what stale answers do: each test has a binder of its own."""

import json
import time
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.binder import Binders
from tests.claims import LIMITS, STATUS, Claims, allocation, brings, extended, prepared, supported, user, uses
from tests.cluster import Cluster
from tests.features import BINDING_CONDITIONS, needs
from tests.polling import wait_until
from tests.proxy import Answer, Hang, Proxy, Rule

KIND = "DynamicResources"
CACHED = {
    "/api/v1/pods",
    "/api/v1/nodes",
    "/api/v1/namespaces/kai-resource-reservation/pods",
    "/apis/scheduling.run.ai/v1alpha2/bindrequests",
}


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


@pytest.fixture
def token(binder_kubeconfig: Path) -> str:
    user_: Object = json.loads(binder_kubeconfig.read_text())["users"][0]
    return str(user_["user"]["token"])


def ask(
    cluster: Cluster, node: str, device: str = "gpu-0", *, name: str = "a", owner: Object | None = None
) -> None:
    """A request that brings a device for extended resources."""
    cluster.ask(name, node, owner=owner, extendedResourceClaimAllocation=extended(node, device))


@supported
def test_f18_what_an_older_binder_left_without_a_hint(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-18: it is looked for once in a binder's life, not at each bind; and used, or removed."""
    node = cluster.node()
    pods = [cluster.pod("a", limits=LIMITS), cluster.pod("b", limits=LIMITS)]
    names = [claims.leave_behind(pod, node, f"gpu-{index}", told=False) for index, pod in enumerate(pods)]
    binders.start(kubeconfig=proxy.kubeconfig(token))
    for pod, device in zip(pods, ("gpu-0", "gpu-2"), strict=True):  # for b it is another device
        ask(cluster, node, device, name=pod["metadata"]["name"], owner=pod)
    for name in ("a", "b"):
        cluster.wait_for(name, "Succeeded")
    found = {claim["metadata"]["name"]: claims.users(claim["metadata"]["name"]) for claim in claims.all()}
    assert found[names[0]] == ["a"]
    assert names[1] not in found
    assert len(found) == 2
    assert proxy.count("GET", "/resourceclaims$") == 2, "that, and who has devices, as b is given one"


@supported
def test_f18_requests_of_a_bind(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-18: three for the claim; five before, a list of the namespace's claims among them.

    The list of all claims, which shows who has devices, is shared by the binds of a moment.
    """
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    for index, name in enumerate(("first", "second")):  # the first one asks for the version and older claims
        before = len(proxy.calls)
        pod = cluster.pod(name, limits=LIMITS)
        ask(cluster, node, f"gpu-{index}", name=name, owner=pod)
        cluster.wait_for(name, "Succeeded")
    sent = [call for call in proxy.calls[before:] if not call.watches and "/events" not in call.path]
    devices = f"/apis/{claims.version}/resourceclaims"
    calls = [str(call) for call in sent if call.path != devices]
    assert len(sent) - len(calls) <= 1
    claim, pods = (
        f"{claims.path}/second-extended-resources-{pod['metadata']['uid']}",
        cluster.pods + "/second",
    )
    wanted = [
        f"POST {claims.path} -> 201",
        f"PATCH {claim}/status -> 200",
        f"PATCH {pods}/status -> 200",
        f"POST {pods}/binding -> 201",
    ]
    first = calls.index(wanted[0])
    assert calls[first : first + 4] == wanted
    # On a busy machine a cache may have to list anew meanwhile, which is not for this bind.
    assert [call for call in calls if call.startswith("GET") and call.split()[1] not in CACHED] == []


@supported
def test_f19_a_pod_that_is_on_the_node_already_keeps_its_claim(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-19: the caches of a new leader are behind; the pod is looked at before anything is discarded."""
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    pod = cluster.pod("a", limits=LIMITS)
    cluster.pod_and_request("seen", node)  # once it is bound, the binder has seen the other one as well
    cluster.wait_for("seen", "Succeeded")
    with proxy.rule(Rule(Hang(), method="WATCH", path="/pods$")):
        name = claims.leave_behind(pod, node, "gpu-1")
        cluster.bind_by_hand("a", node)
        before, told = claims.get(name), cluster.get_pod("a")["status"][STATUS]
        ask(cluster, node, "gpu-0", owner=pod)  # an older decision, for another device
        cluster.wait_for("a", "Succeeded")
    assert claims.get(name) == before
    assert [claim["metadata"]["name"] for claim in claims.all()] == [name]
    assert cluster.get_pod("a")["status"][STATUS] == told


@supported
def test_a_quota_that_is_being_updated_means_again(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-23: the server's 409 to a create is no verdict, unless it says AlreadyExists."""
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    busy = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Conflict",
        "code": 409,
        "details": {"name": "quota", "kind": "resourcequotas"},
    }
    with proxy.rule(Rule(Answer(409, busy), method="POST", path="/resourceclaims$", times=3)) as rule:
        ask(cluster, node, owner=cluster.pod("a", limits=LIMITS))
        cluster.wait_for("a", "Succeeded")
    assert rule.count == 4
    assert len(claims.all()) == 1


@needs(BINDING_CONDITIONS)
def test_f15_a_wait_for_a_device_asks_nothing(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-15: it was 1.7 requests a second for each pod that waits."""
    binders.start(kubeconfig=proxy.kubeconfig(token))
    node = cluster.node()
    claims.make("one")
    cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", prepared(node)))
    wait_until(lambda: KIND in cluster.conditions("a"))
    before = len(proxy.calls)
    time.sleep(3)
    here = [call for call in proxy.calls[before:] if cluster.namespace in call.path]
    assert [str(call) for call in here if not call.watches] == []
    claims.report(node, "example.com/attached")
    cluster.wait_for("a", "Succeeded", within_s=2)


@supported
def test_f16_a_server_that_was_upgraded(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """F-16: the version of the API is forgotten by whatever request finds that it is gone."""
    older = {"kind": "APIGroup", "name": "resource.k8s.io", "versions": [{"version": "v1beta2"}]}
    with proxy.rule(Rule(Answer(200, older), path=r"^/apis/resource\.k8s\.io$", times=1)) as rule:
        binders.start(kubeconfig=proxy.kubeconfig(token))
        node = cluster.node()
        ask(cluster, node, owner=cluster.pod("a", limits=LIMITS))
        cluster.wait_for("a", "Succeeded")
    assert rule.count == 2
    assert proxy.count("", "/apis/resource.k8s.io/v1beta2/") == 1
    assert len(claims.all()) == 1


def test_many_users_of_one_claim_read_it_once(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """Each begins with the claim as the one before has left it; before, each read it, and the pod."""
    node, count = cluster.node(), 30  # Kubernetes 1.31 allows 32 users
    claims.make("shared")
    pods = [cluster.pod(f"p{index}", resourceClaims=uses(gpu="shared")) for index in range(count)]
    for pod in pods:
        name = pod["metadata"]["name"]
        cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
    binders.start("--max-concurrent-reconciles=10", kubeconfig=proxy.kubeconfig(token))
    cluster.wait_for_all(count)
    assert sorted(claims.users("shared")) == sorted(pod["metadata"]["name"] for pod in pods)
    assert proxy.count("GET", "/resourceclaims/shared$") <= count // 4
    assert proxy.count("PATCH", "/resourceclaims/shared/status$") == count
    assert proxy.count("GET", f"{cluster.pods}/") == 0


def test_what_the_one_before_left_is_no_verdict(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, token: str
) -> None:
    """Somebody else gives the claim other devices between two writes: the second is refused, and reads it."""
    node = cluster.node()
    claims.make("shared")
    rule = Rule(Hang(), method="PATCH", path="/resourceclaims/shared/status$", skip=1, times=1)
    with proxy.rule(rule):
        binders.start(kubeconfig=proxy.kubeconfig(token))
        for name in ("a", "b"):
            pod = cluster.pod(name, resourceClaims=uses(gpu="shared"))
            cluster.ask(name, node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
        wait_until(lambda: rule.count == 2)
        (first,) = claims.users("shared")
        claims.patch_status("shared", {"allocation": None, "reservedFor": None})
        claims.give("shared", allocation(node, "gpu-7"), [user(cluster.pod("other"))])
    second = "b" if first == "a" else "a"
    reason = cluster.wait_for(second, "Failed")["reason"]
    assert f"AllocationConflict: claim {cluster.namespace}/shared has gpu-7" in reason
    assert second not in claims.users("shared")
