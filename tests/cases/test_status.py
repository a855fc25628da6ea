"""Public reports about writers that overwrite each other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controlplane import RequestError

from tests.cases.conftest import Shared
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.proxy import Delay


@contextmanager
def looping(step: Callable[[int], None], pause_s: float) -> Iterator[list[int]]:
    """Calls `step` again and again beside the block; gives the numbers of the calls that went well."""
    stop = threading.Event()
    done: list[int] = []

    def run() -> None:
        number = 0
        while not stop.wait(pause_s):
            number += 1
            step(number)
            done.append(number)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_kai_pr_186_conditions_of_others_stay_on_the_pod(shared: Shared, cluster: Cluster) -> None:
    late = f"late-{cluster.namespace}"
    cluster.pod("a")
    foreign = {"type": "example.com/gate", "status": "True", "reason": "Mine"}
    cluster.patch_pod_status("a", {"conditions": [foreign]})

    def toggle(number: int) -> None:
        status = "True" if number % 2 else "False"
        cluster.patch_pod_status("a", {"conditions": [{"type": "PodScheduled", "status": status}]})

    with looping(toggle, 0.02) as toggled:
        cluster.ask("a", late, owner=cluster.get_pod("a"), backoffLimit=6)
        cluster.wait_for_attempts("a", 2)
        cluster.node(late)
        cluster.wait_for("a", "Succeeded")
        wait_until(lambda: (cluster.pod_bound("a") or {}).get("status") == "True")
        wait_until(lambda: len(toggled) > 20)
    conditions = cluster.get_pod("a")["status"]["conditions"]
    assert sorted(item["type"] for item in conditions) == ["PodBound", "PodScheduled", "example.com/gate"]
    mine = next(item for item in conditions if item["type"] == "example.com/gate")
    assert (mine["status"], mine["reason"]) == ("True", "Mine")


def test_controller_runtime_1464_both_writers_of_a_request_are_heard(
    shared: Shared, cluster: Cluster
) -> None:
    """Another writer patches labels and a condition of its own, 20 requests succeed and fail meanwhile."""
    node = cluster.node()
    for number in range(10):
        cluster.pod_and_request(f"good-{number}", node)
        cluster.pod_and_request(f"bad-{number}", "no-such-node", backoffLimit=2)
    names = [f"{kind}-{number}" for number in range(10) for kind in ("good", "bad")]
    counted: dict[str, int] = {}

    def write(number: int) -> None:
        name = names[number % len(names)]
        cluster.patch_request(name, {"metadata": {"labels": {"example.com/seen": str(number)}}})
        present = cluster.get_request(name)
        conditions = (present.get("status") or {}).get("conditions") or []
        others = [item for item in conditions if item["type"] != "example.com/audit"]
        mine = {
            "type": "example.com/audit",
            "status": "True",
            "reason": "Seen",
            "message": str(number),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        version = present["metadata"]["resourceVersion"]
        delta = {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, mine]}}
        try:
            path = f"{cluster.requests}/{name}/status"
            cluster.plane.request("PATCH", path, delta, "application/merge-patch+json")
        except RequestError as error:
            if error.status != 409:
                raise
        else:
            counted[name] = number

    with looping(write, 0.005):
        for number in range(10):
            cluster.wait_for(f"good-{number}", "Succeeded", within_s=20)
            cluster.wait_for_attempts(f"bad-{number}", 2, within_s=20)
    for item in cluster.all_requests():
        name = item["metadata"]["name"]
        found = {condition["type"]: condition for condition in item["status"]["conditions"]}
        if name in counted:
            assert found["example.com/audit"]["message"] == str(counted[name]), name
        assert len(found) == len(item["status"]["conditions"])
        assert found["Bound"]["status"] == ("True" if name.startswith("good") else "False")
    lines = [line for line in shared.binder.log.splitlines() if cluster.namespace in line]
    assert not any("ERROR" in line for line in lines)


def test_controller_runtime_1464_a_condition_that_came_while_ours_was_on_its_way(
    shared: Shared, cluster: Cluster
) -> None:
    audit = {
        "type": "example.com/audit",
        "status": "True",
        "reason": "Seen",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.pod_and_request("a", "no-such-node", backoffLimit=3)
    cluster.wait_for_attempts("a", 1)
    path = "bindrequests/a/status$"
    with shared.proxy.rule(shared.rule(cluster, Delay(1), "PATCH", path)) as delayed:
        wait_until(lambda: delayed.count == 1)
        ours = cluster.status("a")["conditions"]
        cluster.patch_status("a", {"conditions": [*ours, audit]})
        cluster.wait_for_attempts("a", 2)
    assert cluster.conditions("a")["example.com/audit"] == audit
    status = cluster.wait_for_attempts("a", 3)
    assert status["failedAttempts"] == 3
    assert cluster.conditions("a")["example.com/audit"] == audit
