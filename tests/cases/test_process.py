"""Public reports about processes: started too early, stopped in the middle, or leaking."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.audit import bindings
from tests.binder import Binder, Binders
from tests.cases.conftest import ACCOUNT
from tests.cluster import CRD, MERGE, ROOT, Cluster
from tests.polling import wait_until
from tests.proxy import Answer, Delay, Proxy, Refuse, Rule

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases/2ad35f9c.kai.scheduler"
ELECT = ("--leader-elect", "--leader-election-namespace=kai-scheduler")


def test_k8s_105261_a_pod_made_anew_before_the_binder_starts(cluster: Cluster, binders: Binders) -> None:
    cluster.pod_and_request("a", cluster.node())
    cluster.delete_pod("a")
    new = cluster.pod("a", limits={"cpu": "2"})
    binders.start()

    def settled() -> bool:
        found = cluster.all_requests()  # the garbage collector may be the first
        return not found or (found[0].get("status") or {}).get("phase") == "Failed"

    wait_until(settled)
    time.sleep(0.5)
    found = cluster.get_pod("a")
    assert found["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]


def test_kai_2038_1481_the_server_is_not_there_at_the_start(
    cluster: Cluster, binders: Binders, proxy: Proxy
) -> None:
    """ "Cannot tell" is not "no": claims are never ignored."""
    with proxy.rule(Rule(Answer(503), path="^/(version|apis|api)")) as refused:
        binder = binders.start(ready=False)
        wait_until(lambda: refused.count >= 2, within_s=20)
        time.sleep(4)
        assert binder.running
        assert binder.answers("readyz") != 200
    binder.wait_until_ready()
    cluster.pod_and_request("plain", cluster.node())
    pod = cluster.pod("claims", resourceClaims=[{"name": "gpu", "resourceClaimName": "none"}])
    cluster.ask("claims", cluster.node(), owner=pod, resourceClaimAllocations=[{"name": "gpu"}])
    cluster.wait_for("plain", "Succeeded")
    assert cluster.wait_for("claims", "Failed")["reason"].startswith("DynamicResources ")
    cluster.assert_unbound("claims")


STEPS = {
    "binding": ("POST", "pods/a/binding$"),
    "status of the request": ("PATCH", "bindrequests/a/status$"),
    "condition of the pod": ("PATCH", "pods/a/status$"),
    "event": ("POST", "events$"),
}


@pytest.mark.parametrize("step", STEPS)
def test_kubeuser_51_sigterm_in_the_middle_of_a_bind(
    cluster: Cluster, binders: Binders, proxy: Proxy, control_plane: ControlPlane, step: str
) -> None:
    """The work is finished, then the lease is released; a stop is no failed attempt."""
    method, path = STEPS[step]
    binder = binders.start(*ELECT)
    with proxy.rule(Rule(Delay(1.5), method=method, path=f"{cluster.namespace}/{path}")) as delayed:
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: delayed.count >= 1, within_s=25)
        assert binder.stop() == 0
    assert control_plane.request("GET", LEASE)["spec"].get("holderIdentity", "") == ""
    status = cluster.status("a")
    assert status["phase"] == "Succeeded"
    assert "failedAttempts" not in status
    assert (cluster.pod_bound("a") or {})["status"] == "True"
    assert [event["reason"] for event in cluster.events("a")] == ["Bound"]


@pytest.mark.parametrize("step", list(STEPS)[:2])
def test_kubeuser_51_sigkill_in_the_middle_of_a_bind(
    cluster: Cluster, binders: Binders, proxy: Proxy, control_plane: ControlPlane, step: str
) -> None:
    method, path = STEPS[step]
    binder = binders.start()
    node = cluster.node()
    with proxy.rule(Rule(Delay(20), method=method, path=f"{cluster.namespace}/{path}")) as delayed:
        cluster.pod_and_request("a", node)
        wait_until(lambda: delayed.count == 1)
        binder.kill()
    assert "status" not in cluster.get_request("a")
    binder.start()
    status = cluster.wait_for("a", "Succeeded")
    assert "failedAttempts" not in status
    assert cluster.node_of("a") == node
    assert bindings(control_plane.audit_log, cluster.namespace) == ["a"]


def test_kopf_980_tokens_that_end_one_after_the_other(
    cluster: Cluster, binders: Binders, proxy: Proxy, control_plane: ControlPlane
) -> None:
    """Every watch survives each of five new logins, with work under way; no login beside another."""
    token = control_plane.token(*ACCOUNT)
    path = proxy.kubeconfig(token)
    binder = binders.start(kubeconfig=path)
    for number in range(5):
        old, token = token, control_plane.token(*ACCOUNT)
        assert token != old
        proxy.kubeconfig(token, path=path)
        end_token(proxy, old)
        for each in range(4):
            cluster.pod_and_request(f"p-{number}-{each}", cluster.node())
        for each in range(4):
            cluster.wait_for(f"p-{number}-{each}", "Succeeded", within_s=15)
        wait_until_watched_with(proxy, token)
    assert 5 <= binder.log.count("loading them again") <= 10
    assert binder.answers("readyz") == 200
    assert "Traceback" not in binder.log


def end_token(proxy: Proxy, token: str) -> None:
    """From now on the token is refused, and the watches that it opened break."""
    before = set(proxy.open_watches)
    proxy.add(Rule(Refuse(), method="WATCH", token=token, where=lambda call: call in before))
    proxy.add(Rule(Answer(401), token=token))


def wait_until_watched_with(proxy: Proxy, token: str) -> None:
    kinds = {"bindrequests", "pods", "nodes"}

    def check() -> bool:
        mine = [call for call in proxy.open_watches if call.token == token]
        return {call.path.rpartition("/")[2] for call in mine} >= kinds

    wait_until(check, within_s=20)


@pytest.fixture
def loose_crd(control_plane: ControlPlane) -> Iterator[None]:
    """A CRD that takes anything, until `restore` is called or the test ends."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = control_plane.request("GET", CRD)["spec"]["versions"]
    loosened = [{**version, "schema": {"openAPIV3Schema": anything}} for version in versions]
    control_plane.request("PATCH", CRD, {"spec": {"versions": loosened}}, MERGE)
    yield
    restore(control_plane)


def restore(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-k", str(ROOT / "config/crd"), "--server-side", "--force-conflicts")


MALFORMED: dict[str, Object] = {
    "gpu-is-text": {"spec": {"podName": "x", "selectedNode": "n", "receivedGPU": "x"}},
    "groups-are-null": {"spec": {"podName": "x", "selectedNode": "n", "selectedGPUGroups": None}},
    "groups-are-numbers": {"spec": {"podName": "x", "selectedNode": "n", "selectedGPUGroups": [1]}},
    "limit-is-text": {"spec": {"podName": "x", "selectedNode": "n", "backoffLimit": "two"}},
    "unknown-phase": {"spec": {"podName": "x", "selectedNode": "n"}, "status": {"phase": "Dancing"}},
    "no-spec": {},
    "spec-is-text": {"spec": "bind it"},
    "spec-is-null": {"spec": None},
    "status-is-text": {"spec": {"podName": "x", "selectedNode": "n"}, "status": "fine"},
    "conditions-are-text": {
        "spec": {"podName": "x", "selectedNode": "n"},
        "status": {"conditions": "good", "failedAttempts": "many", "phase": 7},
    },
    "pod-is-a-number": {"spec": {"podName": 5, "selectedNode": "n"}},
    "zones-are-text": {"spec": {"podName": "x", "selectedNode": "n", "predictedNUMAZones": ["a"]}},
}


@pytest.mark.usefixtures("loose_crd")
def test_cassandra_operator_118_objects_that_cannot_be_decoded(
    control_plane: ControlPlane, cluster: Cluster, binders: Binders
) -> None:
    """Each alone fails and says so; the others bind, and do so after a restart too."""

    def create(name: str) -> bool:
        """False while the server still has the strict schema in mind."""
        head = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest"}
        body = {**head, "metadata": {"name": name}, **MALFORMED[name]}
        try:
            made = control_plane.request("POST", cluster.requests, body)
            if "status" in body:
                whole = {**body, "metadata": made["metadata"]}
                control_plane.request("PUT", f"{cluster.requests}/{name}/status", whole)
        except RequestError as error:
            if error.status not in (400, 409, 422):
                raise
            return error.status == 409
        return True

    wait_until(lambda: all(create(name) for name in MALFORMED))
    restore(control_plane)
    node = cluster.node()
    cluster.pod_and_request("good-before", node)
    binder = binders.start()
    cluster.wait_for("good-before", "Succeeded", within_s=20)
    cluster.pod_and_request("good-after", node)
    cluster.wait_for("good-after", "Succeeded")

    def all_told() -> bool:
        untold = [
            name
            for name in MALFORMED
            if not isinstance(status := cluster.get_request(name).get("status"), dict)
            or status.get("phase") != "Failed"
        ]
        assert not untold, untold
        return True

    wait_until(all_told, within_s=20)
    reason = cluster.status("limit-is-text")["reason"]
    assert reason == "Bound InvalidRequest: spec.backoffLimit is 'two', which is not a whole number"
    assert "PodNotFound" in cluster.status("groups-are-null")["reason"]
    assert binder.stop() == 0
    versions = {name: cluster.get_request(name)["metadata"]["resourceVersion"] for name in MALFORMED}
    binder.start()
    cluster.pod_and_request("good-again", node)
    cluster.wait_for("good-again", "Succeeded")
    time.sleep(1)
    assert versions == {name: cluster.get_request(name)["metadata"]["resourceVersion"] for name in MALFORMED}
    assert "Traceback" not in binder.log
    assert binder.answers("healthz") == 200


def resident_mib(binder: Binder) -> float:
    lines = Path(f"/proc/{binder.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def sockets(binder: Binder) -> int:
    links = [link for link in Path(f"/proc/{binder.pid}/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_kopf_1172_memory_and_sockets_stay_flat(cluster: Cluster, binders: Binders) -> None:
    """Rounds of requests that come, fail and go, with pods that carry 50 KiB of environment."""
    binder = binders.start()
    env = [{"name": "BIG", "value": "x" * 50_000}]
    memory: list[float] = []
    opened: list[int] = []
    for number in range(5):
        for each in range(20):
            name = f"p-{number}-{each}"
            containers = [{"name": "main", "image": "busybox", "env": env}]
            pod = cluster.pod(name, containers=containers)
            cluster.ask(name, "no-such-node", owner=pod, backoffLimit=1)
        cluster.wait_for_all(20, phase="Failed")
        cluster.plane.request("DELETE", cluster.requests)
        cluster.plane.request("DELETE", f"{cluster.pods}?gracePeriodSeconds=0")
        wait_until(lambda: not cluster.all_requests())
        memory.append(resident_mib(binder))
        opened.append(sockets(binder))
    assert memory[-1] - memory[1] < 6, memory
    assert opened[-1] <= max(opened[:2]) + 5, opened
