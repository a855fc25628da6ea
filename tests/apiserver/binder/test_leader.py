"""Two binders with --leader-elect: one works, and no other beside it."""

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.apiserver.binder.conftest import FLAGS, Start
from tests.audit import answered, credential_of
from tests.binder import Binder, Binders
from tests.cluster import MERGE, Cluster
from tests.polling import wait_until
from tests.proxy import Hang, Proxy, Rule
from tests.stepped import step

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases/2ad35f9c.kai.scheduler"
LEADS = "This process leads now"
NOW = "2026-01-01T00:00:00.000000Z"
READS = ("get", "list", "watch")


def leads(binder: Binder) -> bool:
    return LEADS in binder.log


def test_one_works_and_the_other_takes_over(start: Start, own_cluster: Cluster) -> None:
    first = start("first")
    wait_until(lambda: leads(first))
    second = start("second")
    assert second.answers("readyz") == 200, "a standby is ready, or a rollout would never end"
    node = own_cluster.node()
    for number in range(5):
        own_cluster.pod_and_request(f"a-{number}", node)
    own_cluster.wait_for_all(5)
    assert (first.log.count("Bound a pod"), second.log.count("Bound a pod")) == (5, 0)
    assert not leads(second)

    assert first.stop() == 0
    released_s = time.monotonic()
    wait_until(lambda: leads(second))
    assert time.monotonic() - released_s < 5, "the lease was not released"
    own_cluster.pod_and_request("b", node)
    own_cluster.wait_for("b", "Succeeded")
    assert second.log.count("Bound a pod") == 1
    assert second.stop() == 0


def test_kthena_1793_a_leader_that_was_stopped_past_its_lease_writes_nothing_more(
    start: Start, own_plane: ControlPlane, own_cluster: Cluster, tmp_path: Path
) -> None:
    """Whatever it thinks the time is: its clock is set back by hours before."""
    clock = tmp_path / "clock"
    step(clock, 0)
    first = start("first", clock)
    wait_until(lambda: leads(first))
    second = start("second")
    node = own_cluster.node()
    own_cluster.pod_and_request("a", node)
    own_cluster.wait_for("a", "Succeeded")
    own_cluster.wait_for_event("a", "Bound")
    step(clock, -3 * 3600)
    first.signal(signal.SIGSTOP)
    try:
        for number in range(5):
            own_cluster.pod_and_request(f"b-{number}", node)
        wait_until(lambda: leads(second), within_s=30)
        taken = own_plane.request("GET", LEASE)["spec"]["acquireTime"]
        own_cluster.wait_for_all(6)
        for number in range(5):  # more that the first one will see when it wakes
            own_cluster.pod_and_request(f"c-{number}", "no-such-node", backoffLimit=9)
    finally:
        first.signal(signal.SIGCONT)
    assert first.wait() == 1
    assert "the lease 2ad35f9c.kai.scheduler was lost" in first.log
    assert "Traceback" not in first.log

    entries = answered(own_plane.audit_log, credential=credential_of(first.kubeconfig))
    writes = [entry for entry in entries if entry["verb"] not in READS]
    assert [entry["requestURI"] for entry in writes if entry["requestReceivedTimestamp"] > taken] == []
    bindings = [
        uri for entry in writes if (uri := entry["requestURI"]).partition("?")[0].endswith("/binding")
    ]
    assert [uri.partition("?")[0] for uri in bindings if f"/{own_cluster.namespace}/" in uri] == [
        f"{own_cluster.pods}/a/binding"
    ]
    assert second.log.count("Bound a pod") == 5


def have_another_lead(control_plane: ControlPlane) -> None:
    """Makes a Lease that somebody holds for an hour, instead of one that other tests may have left."""
    lease: Object = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "2ad35f9c.kai.scheduler", "namespace": "kai-scheduler"},
        "spec": {"holderIdentity": "before", "leaseDurationSeconds": 3600, "renewTime": NOW},
    }
    with suppress(RequestError):
        control_plane.request("DELETE", LEASE)
    control_plane.request("POST", LEASE.rpartition("/")[0], lease)


def test_a_pod_that_the_leader_before_has_bound_is_not_worked_on(
    cluster: Cluster, proxy: Proxy, binders: Binders, control_plane: ControlPlane
) -> None:
    """F-19: this process's cache has not seen the Binding yet, and what it would do could undo things."""
    have_another_lead(control_plane)
    try:
        made = cluster.pod("a", resourceClaims=[{"name": "card", "resourceClaimName": "no-such-claim"}])
        kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
        binder = binders.start(*FLAGS, kubeconfig=kubeconfig)
        wait_until(lambda: any(call.path.endswith("/v1/pods") for call in proxy.open_watches))
        node = cluster.node()
        with proxy.rule(Rule(Hang(), method="WATCH", path="/v1/pods$")):
            cluster.bind_by_hand("a", node)
            cluster.ask("a", node, owner=made)
            control_plane.request("PATCH", LEASE, {"spec": {"holderIdentity": ""}}, MERGE)
            status = cluster.wait_for("a", "Succeeded", within_s=20)
        assert "reason" not in status
        text = "did not run: the pod was on its node already"
        assert cluster.conditions("a")["DynamicResources"]["message"] == text
        assert proxy.count("GET", "/resourceclaims") == 0
        assert binder.stop() == 0
    finally:
        control_plane.request("DELETE", LEASE)


@pytest.mark.parametrize("ended", ["for good", "deleted", "made anew"])
def test_a_request_that_the_leader_before_has_ended_is_not_worked_on(
    cluster: Cluster, proxy: Proxy, binders: Binders, control_plane: ControlPlane, ended: str
) -> None:
    """Found by the model of attempts: the pod was bound, though for the scheduler its request had failed."""
    have_another_lead(control_plane)
    try:
        node = cluster.node()
        made = cluster.pod("a")
        cluster.ask("a", node, owner=made, backoffLimit=3)
        kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
        binder = binders.start(*FLAGS, kubeconfig=kubeconfig)
        wait_until(lambda: any(call.path.endswith("/bindrequests") for call in proxy.open_watches))
        with proxy.rule(Rule(Hang(), method="WATCH", path="/bindrequests$")):
            path = f"{cluster.requests}/a"
            if ended == "for good":
                status = {"phase": "Failed", "failedAttempts": 3, "observedGeneration": 1, "reason": "no"}
                control_plane.request("PATCH", f"{path}/status", {"status": status}, MERGE)
            else:
                control_plane.request("DELETE", path)
            if ended == "made anew":
                cluster.ask("a", "no-such-node", owner=made)
            asked = proxy.count("GET", "bindrequests/a$")
            control_plane.request("PATCH", LEASE, {"spec": {"holderIdentity": ""}}, MERGE)
            wait_until(lambda: leads(binder), within_s=30)
            wait_until(lambda: proxy.count("GET", "bindrequests/a$") > asked)
            time.sleep(1)
            cluster.assert_unbound("a")
            assert proxy.count("POST", "pods/a/binding$") == 0
            if ended == "for good":
                assert cluster.status("a")["failedAttempts"] == 3
            assert binder.log.count("A bind failed") == 0
        assert binder.stop() == 0
    finally:
        control_plane.request("DELETE", LEASE)
