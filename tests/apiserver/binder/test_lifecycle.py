"""What is not lost, and not done twice, when the binder or the API server ends in the middle of work."""

import time
from concurrent.futures import ThreadPoolExecutor

from controlplane import ControlPlane

from tests.audit import bindings
from tests.binder import Binders
from tests.cluster import Cluster
from tests.polling import wait_until

COUNT = 60


def open_requests(cluster: Cluster, count: int) -> None:
    """Makes so many pods with requests that nobody has seen yet."""
    node = cluster.node()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: cluster.pod_and_request(f"p-{number}", node), range(count)))


def phases(cluster: Cluster) -> dict[str, str]:
    return {
        item["metadata"]["name"]: (item.get("status") or {}).get("phase", "")
        for item in cluster.all_requests()
    }


def bound(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.all_pods() if pod["spec"].get("nodeName")}


def wait_for_some_done(cluster: Cluster) -> None:
    wait_until(lambda: "Succeeded" in phases(cluster).values(), within_s=30)


def assert_each_bound_once(cluster: Cluster, plane: ControlPlane, *, unlogged: int = 0) -> None:
    """Binds that were under way when the server or its client was killed may be `unlogged`."""
    names = sorted(phases(cluster))
    assert sorted(bound(cluster)) == names
    logged = bindings(plane.audit_log, cluster.namespace)
    assert len(logged) == len(set(logged)) >= len(names) - unlogged
    for item in cluster.all_requests():
        assert item["status"]["phase"] == "Succeeded"
        assert item["status"].get("failedAttempts", 0) == 0


def test_sigterm_in_the_middle_of_work(own_cluster: Cluster, own_binders: Binders) -> None:
    """What was begun is finished and told, what was not is left alone."""
    open_requests(own_cluster, COUNT)
    binder = own_binders.start("--max-concurrent-reconciles=4", ready=False)
    wait_for_some_done(own_cluster)
    stopped_s = time.monotonic()
    assert binder.stop() == 0
    assert time.monotonic() - stopped_s < 10
    now = phases(own_cluster)
    done = {name for name, phase in now.items() if phase == "Succeeded"}
    assert 0 < len(done) < COUNT
    assert set(now.values()) == {"Succeeded", ""}
    assert bound(own_cluster) == done
    assert all(
        "status" not in item for item in own_cluster.all_requests() if item["metadata"]["name"] not in done
    )
    for name in done:
        assert (own_cluster.pod_bound(name) or {}).get("status") == "True"
        assert [event["reason"] for event in own_cluster.events(name)] == ["Bound"], "events were not flushed"
    binder.start()
    own_cluster.wait_for_all(COUNT, within_s=60)
    assert_each_bound_once(own_cluster, own_cluster.plane)


def test_kill_in_the_middle_of_work(own_cluster: Cluster, own_binders: Binders) -> None:
    open_requests(own_cluster, COUNT)
    binder = own_binders.start(ready=False)
    wait_for_some_done(own_cluster)
    binder.kill()
    assert bound(own_cluster) < set(phases(own_cluster))
    binder.start()
    own_cluster.wait_for_all(COUNT, within_s=60)
    assert_each_bound_once(own_cluster, own_cluster.plane, unlogged=10)


def test_a_restart_forgets_no_attempts(own_cluster: Cluster, own_binders: Binders) -> None:
    own_cluster.pod_and_request("a", "no-such-node", backoffLimit=3)
    own_cluster.pod_and_request("over", "no-such-node")
    binder = own_binders.start()
    own_cluster.wait_for_attempts("a", 2)
    own_cluster.wait_for("over", "Failed")
    binder.kill()
    before = own_cluster.get_request("over")["metadata"]["resourceVersion"]
    assert own_cluster.status("a")["failedAttempts"] == 2
    binder.start()
    own_cluster.wait_for_attempts("a", 3)
    time.sleep(1)
    assert own_cluster.status("a")["failedAttempts"] == 3
    assert own_cluster.get_request("over")["metadata"]["resourceVersion"] == before


def test_the_api_server_dies_while_100_requests_are_open(
    own_plane: ControlPlane, own_cluster: Cluster, own_binders: Binders
) -> None:
    open_requests(own_cluster, 100)
    binder = own_binders.start(ready=False)
    wait_for_some_done(own_cluster)
    own_plane.kill_apiserver()
    try:
        time.sleep(1)
        assert binder.running
    finally:
        own_plane.start_apiserver()
    own_cluster.wait_for_all(100, within_s=90)
    assert_each_bound_once(own_cluster, own_plane, unlogged=20)
    assert binder.answers("healthz") == 200
    assert "Traceback" not in binder.log
