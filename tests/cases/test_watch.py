"""Public reports about watches: expired, mute, cut; and lists that do not end."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from controlplane import ControlPlane

from tests.binder import Binders
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.proxy import Answer, CutLine, Hang, Proxy, Refuse, Rule

IDLE_S = 30.0
"""Documented in controller/runtime/cache.py: no change stays unseen longer while the server is up."""

KINDS = ("bindrequests", "pods", "nodes")
EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "code": 410,
    "reason": "Expired",
    "message": "too old resource version",
}


def wait_for_watches(proxy: Proxy) -> None:
    """Waits until each kind is watched."""
    wait_until(lambda: {call.path.rpartition("/")[2] for call in proxy.open_watches} >= set(KINDS))
    time.sleep(0.3)


@pytest.mark.parametrize("inside", [False, True], ids=["as an answer", "inside the stream"])
def test_kr8s_476_the_watch_gets_410_expired(
    cluster: Cluster, binders: Binders, proxy: Proxy, inside: bool
) -> None:
    binder = binders.start()
    wait_for_watches(proxy)
    lists = {kind: proxy.count("GET", f"/{kind}$") for kind in KINDS}
    line = json.dumps({"type": "ERROR", "object": EXPIRED}) + "\n"
    answer = Answer(200, line) if inside else Answer(410, EXPIRED)
    with proxy.rule(Rule(Refuse(), method="WATCH")):
        node = cluster.node()
        for number in range(3):
            cluster.pod_and_request(f"p-{number}", node)
        for kind in KINDS:
            proxy.add(Rule(answer, method="WATCH", path=f"/{kind}$", times=1))
    cluster.wait_for_all(3)
    for kind in KINDS:
        wait_until(lambda kind=kind: proxy.count("GET", f"/{kind}$") > lists[kind])  # type: ignore[misc]
    assert "Traceback" not in binder.log


def test_kopf_585_957_the_watch_goes_mute(cluster: Cluster, binders: Binders, proxy: Proxy) -> None:
    binders.start()
    wait_for_watches(proxy)
    mute = set(proxy.open_watches)
    with proxy.rule(Rule(Hang(), method="WATCH", where=lambda call: call in mute)):
        cluster.pod_and_request("a", cluster.node())
        asked_s = time.monotonic()
        cluster.wait_for("a", "Succeeded", within_s=IDLE_S + 10)
        assert time.monotonic() - asked_s < IDLE_S + 5


@pytest.mark.parametrize("in_good_order", [False, True])
def test_kuryr_pr_295_the_watch_is_cut_in_the_middle_of_a_line(
    cluster: Cluster, binders: Binders, proxy: Proxy, in_good_order: bool
) -> None:
    binder = binders.start()
    wait_for_watches(proxy)
    mine = {call for call in proxy.open_watches if call.path.endswith("bindrequests")}
    with proxy.rule(Rule(CutLine(in_good_order), method="WATCH")):
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: not mine & set(proxy.open_watches))
    cluster.wait_for("a", "Succeeded")
    assert "Traceback" not in binder.log


def test_kr8s_544_lists_end_whatever_their_length(
    control_plane: ControlPlane, cluster: Cluster, binders: Binders, proxy: Proxy
) -> None:
    everywhere = control_plane.request("GET", "/apis/scheduling.run.ai/v1alpha2/bindrequests")["items"]
    for namespace in {item["metadata"]["namespace"] for item in everywhere}:
        path = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{namespace}/bindrequests"
        control_plane.request("DELETE", path)
    count = 0
    for wanted in (0, 1, 99, 100, 101, 250):
        with ThreadPoolExecutor(4) as pool:  # empty ones: they are seen, and cost little
            list(pool.map(lambda number: cluster.request(f"r-{number}", {}), range(count, wanted)))
        before = proxy.count("PATCH", "/status$")
        binder = binders.start()
        cluster.wait_for_all(wanted, phase="Failed")
        assert binder.stop() == 0
        assert proxy.count("PATCH", "/status$") - before == wanted - count
        count = wanted
