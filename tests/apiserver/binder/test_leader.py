"""Two binders with --leader-elect: one works, and no other beside it."""

import shutil
import signal
import time
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.audit import answered, credential_of
from tests.binder import Binder, Binders
from tests.cluster import Cluster
from tests.polling import wait_until

FLAGS = ("--leader-elect", "--leader-election-namespace=kai-scheduler")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases/2ad35f9c.kai.scheduler"
LEADS = "This process leads now"
READS = ("get", "list", "watch")


@pytest.fixture
def start(own_plane: ControlPlane, own_binders: Binders, tmp_path: Path) -> "Start":
    return Start(own_plane, own_binders, tmp_path)


class Start:
    """Starts binders with a token each, by which the audit log tells them apart."""

    def __init__(self, plane: ControlPlane, binders: Binders, directory: Path) -> None:
        self._plane = plane
        self._binders = binders
        self._directory = directory

    def __call__(self, name: str) -> Binder:
        written = self._plane.service_account_kubeconfig("kai-scheduler", "binder")
        kubeconfig = shutil.copy(written, self._directory / f"{name}.kubeconfig")
        return self._binders.start(*FLAGS, kubeconfig=Path(kubeconfig))


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
    start: Start, own_plane: ControlPlane, own_cluster: Cluster
) -> None:
    first = start("first")
    wait_until(lambda: leads(first))
    second = start("second")
    node = own_cluster.node()
    own_cluster.pod_and_request("a", node)
    own_cluster.wait_for("a", "Succeeded")
    own_cluster.wait_for_event("a", "Bound")
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

    def late_writes() -> list[str]:
        entries = answered(own_plane.audit_log, credential=credential_of(first.kubeconfig))
        return [
            entry["requestURI"]
            for entry in entries
            if entry["verb"] not in READS and entry["requestReceivedTimestamp"] > taken
        ]

    assert late_writes() == []
    bound = [line for line in first.log.splitlines() if "Bound a pod" in line]
    assert sum(f"key={own_cluster.namespace}/" in line for line in bound) == 1
    assert second.log.count("Bound a pod") == 5
