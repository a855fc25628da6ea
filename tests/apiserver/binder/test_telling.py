"""What the world is told of a bind, and when: the pod before the end, something even while nothing ends."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from controlplane import ControlPlane

from tests.apiserver.binder.test_plugins import ask, install
from tests.binder import Binder, Binders
from tests.cluster import CRD, MERGE, ROOT, Cluster
from tests.polling import wait_until
from tests.proxy import Answer, Hang, Proxy, Rule


@pytest.fixture
def binder(control_plane: ControlPlane, proxy: Proxy, binders: Binders) -> Binder:
    """A binder behind a proxy, not started yet."""
    return binders.make(kubeconfig=proxy.kubeconfig(control_plane.token("kai-scheduler", "binder")))


def is_told(cluster: Cluster, name: str = "a") -> bool:
    return (cluster.pod_bound(name) or {}).get("status") == "True"


# F-67: the pod before the end.


def test_a_pod_is_told_before_the_end_is_written(cluster: Cluster, proxy: Proxy, binder: Binder) -> None:
    """F-67"""
    binder.start()
    with proxy.rule(Rule(Hang(), method="PATCH", path=f"^{cluster.requests}/a/status$")):
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: is_told(cluster))
        assert cluster.status("a") == {}
        binder.kill()
    binder.start()
    cluster.wait_for("a", "Succeeded")
    assert is_told(cluster)


def test_a_pod_that_was_not_told_is_told_by_the_next_process(
    cluster: Cluster, proxy: Proxy, binder: Binder
) -> None:
    """F-67: what is broken off between the two is done over."""
    binder.start()
    with proxy.rule(Rule(Hang(), method="PATCH", path=f"^{cluster.pods}/a/status$")) as held:
        node = cluster.node()
        cluster.pod_and_request("a", node)
        wait_until(lambda: held.count)
        assert cluster.node_of("a") == node
        assert cluster.status("a") == {}, "the end came first"
        binder.kill()
    binder.start()
    cluster.wait_for("a", "Succeeded")
    assert is_told(cluster)


def test_a_pod_that_cannot_be_told_holds_nothing_up(cluster: Cluster, proxy: Proxy, binder: Binder) -> None:
    binder.start()
    for number, code in enumerate((403, 404, 409, 422, 500)):
        with proxy.rule(Rule(Answer(code), method="PATCH", path=f"^{cluster.pods}/a-{number}/status$")):
            cluster.pod_and_request(f"a-{number}", cluster.node())
            cluster.wait_for(f"a-{number}", "Succeeded")
    for name, code in (("a", 503), ("b", 500)):
        with proxy.rule(Rule(Answer(code), method="PATCH", path=f"^{cluster.pods}/{name}/status$", times=2)):
            cluster.pod_and_request(name, cluster.node())
            cluster.wait_for(name, "Succeeded")
        assert is_told(cluster, name)


def test_a_pod_is_told_of_a_failure_that_no_attempt_follows(
    cluster: Cluster, proxy: Proxy, binder: Binder
) -> None:
    """A webhook that must be asked was down for a moment; of an earlier attempt the next one tells."""
    binder.start()
    told = f"^{cluster.pods}/a/status$"
    with proxy.rule(Rule(Answer(500), method="PATCH", path=told, times=3)) as refused:
        cluster.pod_and_request("a", "no-such-node", backoffLimit=2)
        cluster.wait_for_attempts("a", 2, within_s=20)
        assert refused.count == 4, "once for the first attempt, until it was taken for the last"
    condition = cluster.pod_bound("a") or {}
    assert (condition.get("status"), condition.get("reason")) == ("False", "BindingError")


def test_all_pods_are_told_though_the_binder_is_killed_again_and_again(
    cluster: Cluster, binder: Binder
) -> None:
    """F-67"""
    count, node = 150, cluster.node()
    binder.start(ready=False)

    def make(number: int) -> None:
        cluster.pod_and_request(f"p-{number}", node)
        time.sleep(0.1)

    with ThreadPoolExecutor(2) as pool:
        made = pool.map(make, range(count))
        for _ in range(5):
            time.sleep(1.6)
            binder.kill()
            binder.start(ready=False)
        list(made)
    cluster.wait_for_all(count, within_s=60)
    untold = [
        pod["metadata"]["name"]
        for pod in cluster.all_pods()
        if not any(
            item["type"] == "PodBound" and item["status"] == "True"
            for item in pod["status"].get("conditions") or ()
        )
    ]
    assert untold == []


def test_a_status_is_whole_although_a_read_failed_after_a_refusal(
    cluster: Cluster, proxy: Proxy, binder: Binder
) -> None:
    """What had changed it meanwhile was not known then, so it was taken for one that the schema refuses."""
    binder.start()
    with (
        proxy.rule(Rule(Answer(500), method="GET", path=f"^{cluster.requests}/a$", times=1)) as unread,
        proxy.rule(Rule(Hang(), method="PATCH", path=f"^{cluster.requests}/a/status$")) as held,
    ):
        cluster.pod_and_request("a", cluster.node())
        wait_until(lambda: held.count)
        theirs = {"type": "example.com/theirs", "status": "True", "reason": "Mine", "message": ""}
        cluster.patch_status("a", {"conditions": [{**theirs, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        proxy.remove(held)
        cluster.wait_for("a", "Succeeded")
    assert unread.count > 1, "it was read again"
    found = cluster.conditions("a")
    assert (found["Bound"]["status"], found["example.com/theirs"]["status"]) == ("True", "True")


# F-54: something even while nothing ends.


@pytest.mark.parametrize("code", [503, 504, 401])
def test_an_attempt_that_is_interrupted_again_and_again_is_shown(
    cluster: Cluster, proxy: Proxy, binder: Binder, code: int
) -> None:
    """F-54"""
    binder.start()
    words = {"kind": "Status", "status": "Failure", "message": "the guard of bindings sleeps", "code": code}
    refusal = Rule(Answer(code, words), method="POST", path=f"^{cluster.pods}/a/binding$")
    with proxy.rule(refusal):
        cluster.pod_and_request("a", cluster.node())

        def shown() -> str:
            bound = cluster.conditions("a")["Bound"]
            assert (bound["status"], bound["reason"]) == ("Unknown", "Waiting")
            return str(bound["message"])

        wait_until(lambda: cluster.conditions("a"), within_s=20)
        assert refusal.count >= 2, "a single interruption says little"
        assert "the guard of bindings sleeps" in shown()
        assert shown().startswith("Bound waits for the API server, which did not do its part: POST pods")
        status = cluster.status("a")
        assert ("phase" in status, "failedAttempts" in status) == (False, False), "it is not counted"
        assert cluster.conditions("a")["VolumeBinding"]["status"] == "True"
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert {condition["status"] for condition in cluster.conditions("a").values()} == {"True"}


def test_a_single_interruption_leaves_no_trace(cluster: Cluster, proxy: Proxy, binder: Binder) -> None:
    binder.start()
    with proxy.rule(Rule(Answer(503), method="POST", path=f"^{cluster.pods}/a/binding$", times=1)):
        cluster.pod_and_request("a", cluster.node())
        cluster.wait_for("a", "Succeeded")
    assert proxy.count("PATCH", f"^{cluster.requests}/a/status$") == 1


def test_a_pod_that_cannot_be_read_is_shown_too(cluster: Cluster, proxy: Proxy, binder: Binder) -> None:
    """F-54: whatever it is that is interrupted."""
    binder.start()
    made = cluster.pod("a", schedulerName="somebody-else")  # not in the cache
    with proxy.rule(Rule(Answer(503), method="GET", path=f"^{cluster.pods}/a$")):
        cluster.ask("a", cluster.node(), owner=made)
        wait_until(lambda: cluster.conditions("a"), within_s=20)
        assert "GET pods" in cluster.conditions("a")["Bound"]["message"]
    cluster.wait_for("a", "Succeeded", within_s=20)


# F-56: what is shown holds nothing up.


@pytest.fixture
def with_plugins(
    control_plane: ControlPlane, proxy: Proxy, binders: Binders, tmp_path_factory: pytest.TempPathFactory
) -> Binder:
    """A binder with the example plugins, not started yet."""
    directory = tmp_path_factory.mktemp("plugins")
    install(directory)
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    return binders.make(kubeconfig=kubeconfig, env={"PYTHONPATH": str(directory)})


@pytest.fixture
def waiting_binder(with_plugins: Binder) -> Iterator[Binder]:
    """The same, running."""
    yield with_plugins.start()
    with_plugins.kill()


def test_a_write_that_shows_a_wait_does_not_hold_the_end_up(
    cluster: Cluster, proxy: Proxy, waiting_binder: Binder
) -> None:
    """F-56: a second signal ends the process, though the API server keeps silent to a write of a status."""
    binder = waiting_binder
    with proxy.rule(Rule(Hang(), method="PATCH", path=f"^{cluster.requests}/a/status$")) as held:
        ask(cluster, "a", {"waits": "600"})
        wait_until(lambda: held.count)
        asked_s = time.monotonic()
        binder.signal(signal.SIGTERM)
        time.sleep(0.3)
        binder.signal(signal.SIGTERM)
        binder.wait(within_s=20)
        assert time.monotonic() - asked_s < 8


# A status that the schema does not take.


def test_a_status_that_the_schema_refuses_is_told_in_short(
    own_cluster: Cluster, own_binders: Binders, own_plane: ControlPlane
) -> None:
    """F-53: the scheduler waits for phase and failedAttempts, whatever becomes of conditions."""
    cluster = own_cluster
    crd = own_plane.request("GET", CRD)
    for version in crd["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        status["properties"]["conditions"]["maxItems"] = 1
    narrowed = {"spec": {"versions": crd["spec"]["versions"]}}
    own_plane.request("PATCH", CRD, narrowed, MERGE)
    try:
        time.sleep(2)  # the server takes its time to go by a new schema
        own_binders.start()
        cluster.pod_and_request("a", cluster.node())
        cluster.pod_and_request("b", "no-such-node")
        assert cluster.wait_for("a", "Succeeded") == {"phase": "Succeeded"}
        status = cluster.wait_for("b", "Failed")
        assert status == {
            "phase": "Failed",
            "reason": "Bound NodeGone: node no-such-node does not exist",
            "failedAttempts": 1,
        }
    finally:
        own_plane.kubectl("apply", "-k", str(ROOT / "config/crd"), "--server-side", "--force-conflicts")
        time.sleep(2)


# What becomes of an attempt whose request goes at an odd time.


def test_what_was_kept_for_a_retry_goes_if_the_request_goes_before_it_is_told(
    cluster: Cluster, proxy: Proxy, waiting_binder: Binder
) -> None:
    """F-17: the failure could not be written, since nobody is left to read it."""

    def rollbacks() -> str:
        return cluster.annotations("a").get("example.com/told", "").strip()

    untold = Rule(Answer(500), method="PATCH", path=f"^{cluster.requests}/a/status$")
    with proxy.rule(untold):
        ask(cluster, "a", {"keeps": "again"}, backoffLimit=3)
        wait_until(lambda: untold.count)
        assert rollbacks() == "False"
        cluster.plane.request("DELETE", f"{cluster.requests}/a")
    wait_until(lambda: rollbacks() == "False True", within_s=20)


def test_a_wait_ends_with_its_request_though_the_node_cannot_be_watched(
    cluster: Cluster, proxy: Proxy, with_plugins: Binder
) -> None:
    """What can be seen is seen all the same."""
    with proxy.rule(Rule(Answer(403), path="^/api/v1/nodes$")):
        with_plugins.start()
        ask(cluster, "a", {"waits": "600"})
        wait_until(lambda: "It cannot be seen of each object" in with_plugins.log, within_s=30)
        cluster.plane.request("DELETE", f"{cluster.requests}/a")
        wait_until(lambda: f"request {cluster.namespace}/a was deleted" in with_plugins.log)
    with_plugins.kill()
