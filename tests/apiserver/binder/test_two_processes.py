"""Two binders that take turns while requests come in: none is lost or done twice, and somebody leads soon."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest
from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.apiserver.binder.conftest import Start
from tests.audit import answered, bindings
from tests.binder import Binder
from tests.cluster import MERGE, Cluster
from tests.polling import wait_until
from tests.stepped import step

NAME = "2ad35f9c.kai.scheduler"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"
LEASE = f"{LEASES}/{NAME}"
LEADS = "This process leads now"
EVERY_S = 0.2


@pytest.fixture(autouse=True)
def no_lease(own_plane: ControlPlane) -> None:
    """That of an earlier test says nothing here."""
    with suppress(RequestError):
        own_plane.request("DELETE", LEASE)


class Asking:
    """A scheduler that goes on asking, whatever becomes of binders and API server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._node = cluster.node()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.asked = 0

    def _ask(self) -> None:
        for number in count():
            if self._over.wait(EVERY_S):
                return
            # A name is used once: where an answer is lost, there may be a pod without a request.
            with suppress(RequestError, OSError):
                self._cluster.pod_and_request(f"p-{number}", self._node, backoffLimit=3)
                self.asked += 1

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join(60)

    def wait_for_more(self, count: int) -> None:
        """Waits until so many more pods have been bound."""
        before = len(bound(self._cluster))
        wait_until(lambda: len(bound(self._cluster)) >= before + count, within_s=90)


def bound(cluster: Cluster) -> list[str]:
    return bindings(cluster.plane.audit_log, cluster.namespace)


def leads(binder: Binder) -> bool:
    return LEADS in binder.log


def assert_each_done_once(cluster: Cluster, asking: Asking, *, unlogged: int = 0) -> None:
    """What was under way when the API server was killed may be `unlogged`."""
    requests = cluster.all_requests()
    assert len(requests) >= asking.asked > 10
    wait_until(lambda: all(phase == "Succeeded" for phase in phases(cluster)), within_s=60)
    assert {item["status"].get("failedAttempts", 0) for item in cluster.all_requests()} == {0}
    logged = bound(cluster)
    assert len(logged) == len(set(logged)) >= len(requests) - unlogged
    events = [event for event in all_events(cluster) if event["reason"] == "Bound"]
    assert all(event.get("count") == 1 for event in events)


def phases(cluster: Cluster) -> list[str]:
    return [(item.get("status") or {}).get("phase", "") for item in cluster.all_requests()]


def all_events(cluster: Cluster) -> list[Object]:
    path = f"/api/v1/namespaces/{cluster.namespace}/events"
    return list(cluster.plane.request("GET", path)["items"])


def longest_gap_s(cluster: Cluster) -> float:
    """Between one bind and the next, by the API server's clock."""
    moments = sorted(
        datetime.fromisoformat(entry["requestReceivedTimestamp"])
        for entry in answered(cluster.plane.audit_log)
        if (entry.get("objectRef") or {}).get("subresource") == "binding"
        and entry["objectRef"]["namespace"] == cluster.namespace
    )
    return max((later - earlier).total_seconds() for earlier, later in pairwise(moments))


def replaced_one_by_one(start: Start, first: Binder, second: Binder, asking: Asking) -> None:
    """As a Deployment does: a new one, then an old one less."""
    start("third")
    assert first.stop() == 0
    asking.wait_for_more(5)
    start("fourth")
    assert second.stop() == 0
    asking.wait_for_more(5)


def the_leader_killed(start: Start, first: Binder, second: Binder, asking: Asking) -> None:
    first.kill()
    wait_until(lambda: leads(second), within_s=60)
    asking.wait_for_more(5)


@pytest.mark.parametrize(
    ("change", "at_most_s"),
    [(replaced_one_by_one, 12.0), (the_leader_killed, 30.0)],
    ids=["a rolling update", "the leader is killed"],
)
def test_requests_that_come_while_binders_change(
    start: Start,
    own_cluster: Cluster,
    change: Callable[[Start, Binder, Binder, Asking], None],
    at_most_s: float,
) -> None:
    first = start("first")
    wait_until(lambda: leads(first))
    second = start("second")
    asking = Asking(own_cluster)
    with asking.going_on():
        asking.wait_for_more(5)
        change(start, first, second, asking)
    assert_each_done_once(own_cluster, asking)
    gap_s = longest_gap_s(own_cluster)
    print(f"{change.__name__}: {asking.asked} requests, no bind for {gap_s:.1f} s")  # noqa: T201 -- for docs/model.md
    assert gap_s < at_most_s


def test_the_api_server_is_away_for_longer_than_the_lease(
    start: Start, own_plane: ControlPlane, own_cluster: Cluster
) -> None:
    """The leader gives up, which has the kubelet start it again; whoever is first afterwards goes on."""
    first = start("first")
    wait_until(lambda: leads(first))
    second = start("second")
    asking = Asking(own_cluster)
    with asking.going_on():
        asking.wait_for_more(5)
        own_plane.kill_apiserver()
        try:
            assert first.wait(within_s=40) == 1
            assert f"the lease {NAME} was lost" in first.log
            assert second.running
        finally:
            own_plane.start_apiserver()
        first.start()
        asking.wait_for_more(5)
    assert first.log.count(LEADS) + second.log.count(LEADS) == 2
    assert_each_done_once(own_cluster, asking, unlogged=10)
    assert "Traceback" not in first.log + second.log


def test_the_clock_of_the_leader_is_set(start: Start, own_cluster: Cluster, tmp_path: Path) -> None:
    """By hours: what is due, and for how long a lease holds, goes by clocks that nobody sets."""
    clock = tmp_path / "clock"
    step(clock, 0)
    first = start("first", clock)
    wait_until(lambda: leads(first))
    second = start("second")
    asking = Asking(own_cluster)
    with asking.going_on():
        own_cluster.pod_and_request("failing", "no-such-node", backoffLimit=8)
        own_cluster.wait_for_attempts("failing", 1)
        for offset_s in (3 * 3600, -3 * 3600):
            step(clock, offset_s)
            attempts = own_cluster.status("failing")["failedAttempts"]
            asking.wait_for_more(10)
            own_cluster.wait_for_attempts("failing", attempts + 1, within_s=30)
    assert first.log.count(LEADS) == 1
    assert LEADS not in second.log
    own_cluster.plane.request("DELETE", f"{own_cluster.requests}/failing")
    assert_each_done_once(own_cluster, asking)


class Other:
    """A binder of another make that elects by client-go's rules: it writes and reads the same Lease."""

    def __init__(self, plane: ControlPlane, skew: timedelta) -> None:
        self._plane = plane
        self._skew = skew
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def _now(self) -> str:
        return (datetime.now(UTC) + self._skew).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def take(self) -> None:
        spec = {"holderIdentity": "node-1_0b5b", "leaseDurationSeconds": 15, "leaseTransitions": 3}
        spec |= {"acquireTime": self._now(), "renewTime": self._now()}
        try:
            self._plane.request("POST", LEASES, {"metadata": {"name": NAME}, "spec": spec})
        except RequestError:
            self._plane.request("PATCH", LEASE, {"spec": spec}, MERGE)
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(2):
            self._plane.request("PATCH", LEASE, {"spec": {"renewTime": self._now()}}, MERGE)

    def fall_silent(self) -> None:
        self._over.set()
        self._thread.join(30)

    def release(self) -> None:
        self.fall_silent()
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        self._plane.request("PATCH", LEASE, {"spec": spec}, MERGE)


@pytest.mark.parametrize("skew", [timedelta(hours=3), timedelta(hours=-3)], ids=["ahead", "behind"])
def test_a_binder_of_another_make_whose_clock_is_hours_off(
    start: Start, own_plane: ControlPlane, own_cluster: Cluster, skew: timedelta
) -> None:
    """Its lease holds for as long as it is renewed, and for one duration longer, whatever its clock says."""
    other = Other(own_plane, skew)
    other.take()
    binder = start("first")
    own_cluster.pod_and_request("a", own_cluster.node())
    time.sleep(6)
    assert not leads(binder)
    own_cluster.assert_unbound("a")
    other.fall_silent()
    silent_s = time.monotonic()
    wait_until(lambda: leads(binder), within_s=60)
    assert time.monotonic() - silent_s > 12, "it was taken before it ran out"
    own_cluster.wait_for("a", "Succeeded")
    assert own_plane.request("GET", LEASE)["spec"]["leaseTransitions"] == 4


def test_binders_of_two_makes_take_turns(start: Start, own_plane: ControlPlane, own_cluster: Cluster) -> None:
    """What each leaves behind at its end lets the other one have the lease at once."""
    other = Other(own_plane, timedelta())
    other.take()
    binder = start("first")
    own_cluster.pod_and_request("a", own_cluster.node())
    time.sleep(1)
    assert not leads(binder)
    other.release()
    wait_until(lambda: leads(binder), within_s=20)
    own_cluster.wait_for("a", "Succeeded")
    assert binder.stop() == 0
    left = own_plane.request("GET", LEASE)["spec"]
    # client-go takes a lease that nobody holds; it reads the times as MicroTime.
    assert left["holderIdentity"] == ""
    assert left["leaseDurationSeconds"] == 1
    for name in ("acquireTime", "renewTime"):
        datetime.strptime(left[name], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    again = Other(own_plane, timedelta())
    again.take()
    standby = start("second")
    time.sleep(1)
    assert not leads(standby)
    again.release()
