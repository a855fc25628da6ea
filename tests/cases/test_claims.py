"""Device claims: what went wrong elsewhere, on the real API server and resource claim controller."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.binder import Binders
from tests.claims import (
    FINALIZER,
    GPU,
    LIMIT,
    STATUS,
    Claims,
    allocation,
    brings,
    extended,
    plane_serving,
    supported,
    user,
    uses,
)
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.proxy import Answer, Delay, Hang, Proxy, Rule

KIND = "DynamicResources"
CONFLICT = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409}


@pytest.fixture
def claims(cluster: Cluster) -> Claims:
    return Claims(cluster)


def ask(cluster: Cluster, node: str, claim: str, *, name: str = "a", **spec: object) -> Object:
    """A pod with this claim and a request that brings a GPU for it. Returns the pod."""
    pod = cluster.pod(name, resourceClaims=uses(gpu=claim))
    owner = None if "backoffLimit" in spec else pod
    cluster.request(
        name,
        {
            "podName": name,
            "selectedNode": node,
            "receivedResourceType": "Regular",
            "resourceClaimAllocations": brings("gpu", allocation(node)),
            **spec,
        },
        owner,
    )
    return pod


def strangers(count: int) -> list[Object]:
    """Users of a claim that the resource claim controller does not know how to check, and so keeps."""
    return [
        {"apiGroup": "example.com", "resource": "jobs", "name": f"job-{index}", "uid": f"uid-{index}"}
        for index in range(count)
    ]


# KAI #2038, #1481: "cannot tell" is not "no".


def test_kai_2038_dra_support_is_not_decided_while_the_server_is_away(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    node = cluster.node()
    claims.make("one")
    away = proxy.add(Rule(Answer(503), path=r"^/(version|apis)(/resource\.k8s\.io)?$"))
    binder = binders.start(ready=False)
    ask(cluster, node, "one")
    wait_until(lambda: away.count >= 2, within_s=30)
    proxy.remove(away)
    # It started now, but still cannot find out which version of the API there is.
    away = proxy.add(Rule(Answer(503), path=r"^/apis/resource\.k8s\.io$", times=3))
    cluster.wait_for("a", "Succeeded", within_s=60)
    assert away.count == 4
    assert claims.users("one") == ["a"]
    assert cluster.status("a").get("failedAttempts", 0) == 0, (
        "the server's absence is no failure of the request"
    )
    binder.wait_until_ready()


# KAI PR #1241; HAMi PR #1917: no resource.k8s.io at all.


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with plane_serving(tmp_path_factory.mktemp("bare")) as plane:
        yield Cluster.fresh(plane)


def test_kai_pr_1241_without_the_api_only_requests_with_claims_fail(bare: Cluster, tmp_path: Path) -> None:
    binders = Binders(tmp_path, bare.plane.service_account_kubeconfig("kai-scheduler", "binder"))
    try:
        binders.start()
        node = bare.node()
        ask(bare, node, "one", name="claim")
        bare.pod("extended", limits={GPU: "1"})
        bare.ask("extended", node, extendedResourceClaimAllocation=extended(node))
        bare.pod_and_request("plain", node)
        bare.wait_for("plain", "Succeeded")
        for name in ("claim", "extended"):
            assert bare.wait_for(name, "Failed")["reason"] == (
                f"{KIND} Unsupported: pod {bare.namespace}/{name} needs resource claims on node {node}, but "
                "the API server does not serve resource.k8s.io in any of the versions v1, v1beta2, v1beta1, "
                "v1alpha3"
            )
            bare.assert_unbound(name)
        binders.close()
    finally:
        binders.kill()


# KAI PR #1091: claims stay marked as bound to a device after a bind that failed or was given up.


def test_kai_pr_1091_a_failed_bind_frees_the_claim(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        ask(cluster, node, "one", backoffLimit=1)
        cluster.wait_for("a", "Failed")
    claims.assert_free("one")


def test_kai_pr_1091_a_retry_finds_its_devices(cluster: Cluster, claims: Claims, binders: Binders) -> None:
    """F-17: given back between attempts, they could be handed out, and the retry would write them again."""
    binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        pod = ask(cluster, node, "one", backoffLimit=3)
        for attempts in (1, 2):
            cluster.wait_for_attempts("a", attempts)
            assert claims.status("one") == {"allocation": allocation(node), "reservedFor": [user(pod)]}
            assert claims.protected("one")
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert claims.users("one") == ["a"]


def test_kai_pr_1091_the_devices_go_after_the_last_attempt(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    """F-17: also if that has not come as far as the claim."""
    binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        pod = ask(cluster, node, "one", backoffLimit=2)
        cluster.wait_for_attempts("a", 1)
        assert claims.status("one") == {"allocation": allocation(node), "reservedFor": [user(pod)]}
        cluster.patch_pod_status("a", {"phase": "Failed"})
        cluster.wait_for_attempts("a", 2)
    claims.assert_free("one")


@pytest.mark.parametrize("what", ["requests", "pods"])
def test_kai_pr_1091_the_devices_go_with_request_and_pod(
    cluster: Cluster, claims: Claims, binders: Binders, what: str
) -> None:
    """F-17: what is kept for a retry that never comes, since its request or its pod is deleted."""
    binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        pod = ask(cluster, node, "one", backoffLimit=9)
        cluster.wait_for_attempts("a", 2)
        assert claims.status("one") == {"allocation": allocation(node), "reservedFor": [user(pod)]}
        path = f"{cluster.requests}/a" if what == "requests" else f"{cluster.pods}/a?gracePeriodSeconds=0"
        cluster.plane.request("DELETE", path)
        wait_until(lambda: not claims.status("one"))
    wait_until(lambda: not claims.protected("one"))


def test_kai_pr_1091_the_devices_go_with_the_pod_while_no_binder_runs(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    """Kubernetes frees what is reserved for a pod that is gone, and only that."""
    binder = binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        ask(cluster, node, "one", backoffLimit=9)
        cluster.wait_for_attempts("a", 2)
        binder.kill()
    assert claims.status("one")
    for path in (f"{cluster.requests}/a", f"{cluster.pods}/a?gracePeriodSeconds=0"):
        cluster.plane.request("DELETE", path)
    wait_until(lambda: not claims.status("one"), within_s=30)
    wait_until(lambda: not claims.protected("one"))


def test_kai_pr_1091_a_shared_claim_stays_with_the_others(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    other = ask(cluster, node, "one", name="other")
    cluster.wait_for("other", "Succeeded")
    with cluster.bindings_denied():
        ask(cluster, node, "one", backoffLimit=1)
        cluster.wait_for("a", "Failed")
    assert claims.status("one") == {"allocation": allocation(node), "reservedFor": [user(other)]}


def test_kai_pr_1091_a_request_deleted_in_the_middle_of_its_bind(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    with cluster.bindings_denied():
        hanging = proxy.add(Rule(Hang(), method="POST", path="pods/a/binding"))
        ask(cluster, node, "one")
        wait_until(lambda: hanging.count)
        assert claims.users("one") == ["a"]
        cluster.plane.request("DELETE", f"{cluster.requests}/a")
        proxy.remove(hanging)
        wait_until(lambda: not claims.status("one"))
    wait_until(lambda: not claims.protected("one"))
    claims.assert_free("one")


# k8s PR #129543: one claim, very many pods.


def test_k8s_pr_129543_no_room_for_the_257th(cluster: Cluster, claims: Claims, binders: Binders) -> None:
    """F-13: users come and go, so while attempts are left it is tried again; each waits longer."""
    binders.start()
    node = cluster.node()
    claims.make("full")
    claims.give("full", allocation(node))
    limit = claims.limit("full")
    before = claims.give("full", allocation(node), strangers(limit))
    ask(cluster, node, "full", backoffLimit=9)
    status = cluster.wait_for_attempts("a", 2)
    text = f"claim {cluster.namespace}/full is reserved for {limit} pods, which is the limit: job-0, job-1"
    assert status["reason"].startswith(f"{KIND} ClaimFull: {text}")
    assert claims.get("full") == before
    cluster.assert_unbound("a")

    claims.patch_status("full", {"reservedFor": strangers(limit)[1:]})
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert len(claims.users("full")) == limit

    ask(cluster, node, "full", name="b")
    assert cluster.wait_for("b", "Failed")["reason"].startswith(f"{KIND} ClaimFull: "), "no attempt was left"


def test_k8s_pr_129543_no_gpu_is_reserved_for_a_claim_without_room(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    binders.start()
    node, group = cluster.node(), cluster.namespace
    claims.make("full")
    claims.give("full", allocation(node))
    if claims.limit("full") < LIMIT:
        pytest.skip("this server has a lower limit of status.reservedFor, which is known by its refusal only")
    claims.give("full", allocation(node), strangers(LIMIT))
    gpu: Object = {"receivedGPU": {"count": 1, "portion": "0.50"}, "selectedGPUGroups": [group]}
    ask(cluster, node, "full", receivedResourceType="Fraction", **gpu)
    assert cluster.wait_for("a", "Failed")["reason"].startswith(f"{KIND} ClaimFull: ")
    reservations = "/api/v1/namespaces/kai-resource-reservation/pods?labelSelector=runai-gpu-group%3D"
    assert not cluster.plane.request("GET", reservations + group)["items"]


def test_k8s_pr_129543_300_requests_for_255_places(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    node = cluster.node()
    claims.make("shared")
    claims.give("shared", allocation(node), strangers(1))
    limit = claims.limit("shared")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: ask(cluster, node, "shared", name=f"p{index}"), range(limit + 44)))
    direct = cluster.plane.service_account_kubeconfig("kai-scheduler", "binder")
    binders.start("--max-concurrent-reconciles=50", kubeconfig=direct)

    def finished() -> list[Object]:
        requests = cluster.all_requests()
        open_ = [
            item
            for item in requests
            if (item.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]
        assert not open_, f"{len(open_)} of {len(requests)} are not finished"
        return requests

    requests = wait_until(finished, within_s=300)
    bound = {item["metadata"]["name"] for item in requests if item["status"]["phase"] == "Succeeded"}
    reasons = [item["status"]["reason"] for item in requests if item["status"]["phase"] == "Failed"]
    users = claims.users("shared")
    assert len(users) == len(set(users)) == limit
    assert set(users) == bound | {"job-0"}, "a place was lost, or given to a pod that is not bound"
    assert len(reasons) == 45
    assert all(reason.startswith(f"{KIND} ClaimFull") for reason in reasons)
    on_node = {pod["metadata"]["name"] for pod in cluster.all_pods() if pod["spec"].get("nodeName")}
    assert on_node == bound


def test_k8s_pr_129543_a_conflict_is_read_again_and_retried(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    rule = Rule(Answer(409, CONFLICT), method="PATCH", path="resourceclaims/one/status", times=5)
    with proxy.rule(rule):
        ask(cluster, node, "one")
        cluster.wait_for("a", "Succeeded")
    assert rule.count == 6
    assert proxy.count("GET", "resourceclaims/one$") == 6
    assert cluster.status("a").get("failedAttempts", 0) == 0


# k8s #141274; KAI #1455: a pod that has ended, or is ending, is put into reservedFor.


def fail(cluster: Cluster) -> None:
    cluster.patch_pod_status("a", {"phase": "Failed"})


def begin_deletion(cluster: Cluster) -> None:
    cluster.plane.request("DELETE", f"{cluster.pods}/a")


@pytest.mark.parametrize(("end", "reason"), [(fail, "PodFinished"), (begin_deletion, "PodTerminating")])
def test_k8s_141274_a_pod_that_ends_while_its_claim_is_read(
    cluster: Cluster,
    claims: Claims,
    binders: Binders,
    proxy: Proxy,
    end: Callable[[Cluster], None],
    reason: str,
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    rule = proxy.add(Rule(Delay(2), method="GET", path="resourceclaims/one$", times=1))
    pod = {"name": "a", "finalizers": ["example.com/own"]}
    body = {
        "metadata": pod,
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "busybox"}],
            "resourceClaims": uses(gpu="one"),
        },
    }
    cluster.plane.request("POST", cluster.pods, body)
    cluster.ask("a", node, resourceClaimAllocations=brings("gpu", allocation(node)))
    wait_until(lambda: rule.count)
    end(cluster)
    assert cluster.wait_for("a", "Failed")["reason"].startswith(
        f"{KIND} {reason}: pod {cluster.namespace}/a "
    )
    assert proxy.count("PATCH", "resourceclaims") == 0
    claims.assert_free("one")
    cluster.plane.request(
        "PATCH", f"{cluster.pods}/a", {"metadata": {"finalizers": None}}, "application/merge-patch+json"
    )


def test_k8s_141274_a_pod_that_another_scheduler_binds_meanwhile(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node, elsewhere = cluster.node(), cluster.node()
    claims.make("one")
    rule = proxy.add(Rule(Delay(2), method="GET", path="resourceclaims/one$", times=1))
    ask(cluster, node, "one")
    wait_until(lambda: rule.count)
    cluster.bind_by_hand("a", elsewhere)
    assert "AlreadyBoundElsewhere" in cluster.wait_for("a", "Failed")["reason"]
    claims.assert_free("one")


def test_k8s_141274_a_pod_that_has_ended(cluster: Cluster, claims: Claims, binders: Binders) -> None:
    node = cluster.node()
    claims.make("one")
    ask(cluster, node, "one")
    fail(cluster)
    binders.start()
    assert "PodFinished" in cluster.wait_for("a", "Failed")["reason"]
    claims.assert_free("one")


# k8s PR #124931: the finalizer is taken away between the two writes.


def test_k8s_pr_124931_an_allocated_claim_always_has_its_finalizer(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node = cluster.node()
    claims.make("one")
    rule = proxy.add(Rule(Delay(3), method="PATCH", path="resourceclaims/one/status", times=1))
    ask(cluster, node, "one")
    wait_until(lambda: rule.count)
    assert claims.protected("one")
    claims.patch("one", {"metadata": {"finalizers": None}})
    cluster.wait_for("a", "Succeeded")
    assert rule.count == 2, "the first write was to be refused"
    claim = claims.get("one")
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["status"]["allocation"] == allocation(node)


# k8s #133590, PR #141556: the claim for extended resources is made, but the pod is not told.


def ask_extended(cluster: Cluster, node: str, **spec: object) -> None:
    cluster.pod("a", limits={GPU: "1"})
    whole = {"podName": "a", "selectedNode": node, "extendedResourceClaimAllocation": extended(node), **spec}
    cluster.request("a", whole)


@supported
def test_k8s_133590_the_pods_status_cannot_be_written_twice(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node = cluster.node()
    # Each attempt that fails also tries to write the condition PodBound there.
    with proxy.rule(Rule(Answer(500), method="PATCH", path="pods/a/status", times=4)):
        ask_extended(cluster, node, backoffLimit=9)
        cluster.wait_for("a", "Succeeded", within_s=30)
    (claim,) = claims.all()
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]
    assert cluster.status("a")["failedAttempts"] == 2


@supported
def test_k8s_133590_nothing_is_left_after_the_last_attempt(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy
) -> None:
    binders.start()
    node = cluster.node()
    with proxy.rule(Rule(Answer(500), method="PATCH", path="pods/a/status")):
        ask_extended(cluster, node, backoffLimit=2)
        cluster.wait_for_attempts("a", 2, within_s=20)
    assert not claims.all()


@supported
@pytest.mark.parametrize("place", ["resourceclaims/.*/status", "pods/a/status"])
def test_k8s_133590_killed_between_the_creation_and_the_patch(
    cluster: Cluster, claims: Claims, binders: Binders, proxy: Proxy, place: str
) -> None:
    binder = binders.start()
    node = cluster.node()
    rule = proxy.add(Rule(Hang(), method="PATCH", path=place))
    ask_extended(cluster, node)
    wait_until(lambda: rule.count)
    (made,) = claims.all()
    binder.kill()
    proxy.remove(rule)
    binder.start()
    cluster.wait_for("a", "Succeeded", within_s=30)
    (claim,) = claims.all()
    assert claim["metadata"]["uid"] == made["metadata"]["uid"]
    assert cluster.get_pod("a")["status"][STATUS]["resourceClaimName"] == claim["metadata"]["name"]


# spectrocloud #213: since Kubernetes 1.36 the status of a claim needs a right on resourceclaims/binding.


def test_spectrocloud_213_the_shipped_role_suffices(
    cluster: Cluster, claims: Claims, binders: Binders
) -> None:
    binders.start()  # as the shipped ServiceAccount
    node = cluster.node()
    claims.make("one")
    ask(cluster, node, "one")
    cluster.wait_for("a", "Succeeded")
    assert claims.users("one") == ["a"]
