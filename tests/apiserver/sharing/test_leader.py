"""Who looks after groups when a leader is elected."""

import time
from contextlib import suppress
from datetime import UTC, datetime

from controlplane import RequestError

from tests.binder import Binders
from tests.polling import wait_until
from tests.sharing import GROUP_LABEL, Sharing

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"
LEASE = "2ad35f9c.kai.scheduler"


def test_only_the_leader_looks_after_groups(cluster: Sharing, binders: Binders) -> None:
    """D-27: what was left alone while nobody led is looked at by whoever leads next."""
    plane, group, other = cluster.plane, cluster.group(), cluster.group()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {
        "holderIdentity": "somebody-else",
        "leaseDurationSeconds": 600,
        "acquireTime": now,
        "renewTime": now,
    }
    with suppress(RequestError):
        plane.request("DELETE", f"{LEASES}/{LEASE}")
    plane.request("POST", LEASES, {"metadata": {"name": LEASE}, "spec": spec})
    node = cluster.node()
    cluster.make_reservation(f"before-{cluster.namespace}", node, group, device="0")
    cluster.shared_pod("runs", labels={GROUP_LABEL: other}, spec={"nodeName": node})
    cluster.set_phase("runs", "Running")
    binder = binders.start("--leader-elect", "--leader-election-namespace=kai-scheduler")
    time.sleep(1.5)
    assert len(cluster.reservations(group)) == 1
    assert "deletionTimestamp" not in cluster.get_pod("runs")["metadata"]
    assert "This process leads now" not in binder.log
    plane.request("DELETE", f"{LEASES}/{LEASE}")
    cluster.wait_until_freed(group, within_s=20)
    wait_until(lambda: "deletionTimestamp" in cluster.get_pod("runs")["metadata"])
