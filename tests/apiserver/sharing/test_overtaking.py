"""F-22: a bind that is given a device does not overtake the release of that device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from controlplane import ControlPlane
from kubelet import Answer

from tests.binder import Binder, Binders
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.proxy import Hang, Proxy, Rule
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, RESERVATIONS, Sharing

LOOK_S = 1.0
TIMEOUT_S = 6
WHOLE = {"receivedGPU": {"count": 1, "portion": "1.00"}}
MIG = {"receivedResourceType": "MigInstance", "receivedGPU": {"portion": "0.00"}}
CPU = {"receivedGPU": {"portion": "0.00"}}


@pytest.fixture(scope="module")
def binder(
    control_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """One that goes through the proxy."""
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start(f"--resource-reservation-allocation-timeout={TIMEOUT_S}")
        made.close()
    finally:
        made.kill()


pytestmark = pytest.mark.usefixtures("binder")


@contextmanager
def late_release(cluster: Sharing, proxy: Proxy, node: str) -> Iterator[str]:
    """A group of this node whose last user has gone, and whose reservation is not released yet."""
    group = cluster.group()
    cluster.share(f"last-{node}", node, group)
    cluster.wait_for(f"last-{node}", "Succeeded")
    name = cluster.reservation(group)["metadata"]["name"]
    rule = Rule(Hang(), method="DELETE", path=f"^{RESERVATION_PODS}/{name}$")
    with proxy.rule(rule):
        cluster.delete_pod(f"last-{node}")
        wait_until(lambda: rule.count > 0)
        yield name
    cluster.wait_until_freed(group)


@pytest.mark.parametrize("spec", [WHOLE, MIG], ids=["whole", "mig"])
def test_a_bind_with_a_device_waits_for_the_release(
    cluster: Sharing, proxy: Proxy, spec: dict[str, object]
) -> None:
    """F-22: else the kubelet refuses the pod for good."""
    node, other = cluster.node(), cluster.node()
    with late_release(cluster, proxy, node) as name:
        cluster.pod_and_request("gpu", node, **spec)
        cluster.pod_and_request("cpu", node, **CPU)
        cluster.pod_and_request("gpu-elsewhere", other, **spec)
        for done in ("cpu", "gpu-elsewhere"):
            cluster.wait_for(done, "Succeeded")
        conditions = wait_until(lambda: cluster.conditions("gpu"))
        text = f"Bound waits for reservation pod {RESERVATIONS}/{name}, which nobody needs, to be released"
        assert conditions["Bound"]["message"] == text
        assert cluster.node_of("gpu") is None
    cluster.wait_for("gpu", "Succeeded", within_s=5)


def test_a_new_reservation_waits_for_the_release(cluster: Sharing, proxy: Proxy) -> None:
    """F-22: it needs a GPU as well."""
    node, group = cluster.node(), cluster.group()
    with late_release(cluster, proxy, node):
        cluster.share("a", node, group)
        time.sleep(LOOK_S)
        assert cluster.reservations(group) == []
    cluster.wait_for("a", "Succeeded", within_s=5)
    assert cluster.status("a").get("failedAttempts", 0) == 0


def test_a_release_that_does_not_come(cluster: Sharing, proxy: Proxy) -> None:
    """F-22: a pod that its kubelet would refuse is not bound; the message says what holds the GPU."""
    node = cluster.node()
    with late_release(cluster, proxy, node) as name:
        cluster.pod_and_request("gpu", node, **WHOLE)
        status = cluster.wait_for("gpu", "Failed", within_s=TIMEOUT_S + 5)
        text = f"reservation pod {RESERVATIONS}/{name}, which nobody needs, holds a GPU of node {node} still"
        assert status["reason"] == f"Bound ReservationTimeout: {text}"
        cluster.assert_unbound("gpu")


def test_the_wait_ends_when_somebody_needs_the_reservation(cluster: Sharing, proxy: Proxy) -> None:
    """F-22: then it is not released, and the scheduler knows that its GPU is in use."""
    node = cluster.node()
    with late_release(cluster, proxy, node) as name:
        cluster.pod_and_request("gpu", node, **WHOLE)
        time.sleep(LOOK_S)
        assert cluster.node_of("gpu") is None
        found = cluster.plane.request("GET", f"{RESERVATION_PODS}/{name}")
        made = cluster.shared_pod("later")
        cluster.ask_share("later", node, found["metadata"]["labels"][GROUP_LABEL], owner=made)
        cluster.wait_for("gpu", "Succeeded", within_s=5)
        cluster.delete_request("later")


def test_the_wait_ends_with_the_request(cluster: Sharing, proxy: Proxy) -> None:
    node = cluster.node()
    with late_release(cluster, proxy, node):
        made = cluster.pod_and_request("gpu", node, **WHOLE)
        time.sleep(LOOK_S)
        cluster.delete_request("gpu")
        cluster.ask("gpu", cluster.node(), owner=made, **WHOLE)
        cluster.wait_for("gpu", "Succeeded", within_s=3)


def test_reservations_that_are_needed_hold_nobody_up(cluster: Sharing, proxy: Proxy) -> None:
    """Used by a pod, waited for by a bind, or kept for the next attempt: nothing is asked of the server."""
    node, groups = cluster.node(), [cluster.group() for _ in range(4)]
    cluster.share("user", node, groups[0])
    cluster.agents.set(groups[1], None)
    cluster.share("waits", node, groups[1])
    cluster.share("last", node, groups[2])
    for name in ("user", "last"):
        cluster.wait_for(name, "Succeeded")
    cluster.wait_for_reservation(groups[1])
    with cluster.bindings_denied():
        cluster.share("retried", node, groups[3], backoffLimit=20)
        cluster.wait_for_attempts("retried", 1)
    asked = proxy.count("", f"^{RESERVATION_PODS}")
    started_s = time.monotonic()
    cluster.pod_and_request("gpu", node, **WHOLE)
    cluster.wait_for("gpu", "Succeeded", within_s=2)
    assert time.monotonic() - started_s < 2
    assert proxy.count("", f"^{RESERVATION_PODS}") == asked
    cluster.agents.forget(groups[1])
    cluster.wait_for("waits", "Succeeded")


def test_a_reservation_that_goes_slowly_holds_its_gpu(cluster: Sharing) -> None:
    """F-22: until the kubelet has ended it."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    path = f"{RESERVATION_PODS}/{cluster.reservation(group)['metadata']['name']}"
    cluster.hold(path)
    cluster.delete_pod("a")
    wait_until(lambda: "deletionTimestamp" in cluster.reservation(group)["metadata"])
    cluster.pod_and_request("gpu", node, **WHOLE)
    time.sleep(LOOK_S)
    assert cluster.node_of("gpu") is None
    cluster.let_go(path)
    cluster.wait_for("gpu", "Succeeded", within_s=5)


def test_an_ended_reservation_holds_nothing(cluster: Sharing, proxy: Proxy) -> None:
    """F-22 with F-20: the kubelet has freed its GPU."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, Answer(failure="UnexpectedAdmissionError"))
    with proxy.rule(Rule(Hang(), method="DELETE", path=f"^{RESERVATION_PODS}/")):
        cluster.share("a", node, group)
        cluster.wait_for("a", "Failed")
        cluster.pod_and_request("gpu", node, **WHOLE)
        cluster.wait_for("gpu", "Succeeded", within_s=3)
    cluster.plane.request("PATCH", f"{cluster.pods}/a", {"metadata": {"labels": {"look": "again"}}}, MERGE)
    cluster.wait_until_freed(group)
