"""Waiting for the agent to report its GPU: what is shown, what ends the wait, whom it delays (nobody)."""

import time
from collections.abc import Iterator

import pytest
from controlplane import ControlPlane
from kubelet import Answer, device_of

from tests.binder import Binder, Binders
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.sharing import GPU_INDEX, ORDER, RESERVATION_PODS, Sharing

TIMEOUT_S = 6
LONG_S = 0.7 * TIMEOUT_S
"""Shorter than the time-out: what happens within this time was no time-out."""


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One with a single worker and little patience."""
    kubeconfig = control_plane.service_account_kubeconfig("kai-scheduler", "binder")
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    flags = (f"--resource-reservation-allocation-timeout={TIMEOUT_S}", "--max-concurrent-reconciles=1")
    try:
        yield made.start(*flags)
        made.close()
    finally:
        made.kill()


pytestmark = pytest.mark.usefixtures("binder")


def stuck(cluster: Sharing, *, devices: int = 1) -> list[str]:
    """Groups whose agents say nothing."""
    groups = [cluster.group() for _ in range(devices)]
    for group in groups:
        cluster.agents.set(group, None)
    return groups


def name_of(cluster: Sharing, group: str) -> str:
    return f"kai-resource-reservation/{cluster.wait_for_reservation(group)['metadata']['name']}"


def test_a_wait_is_shown_and_delays_nobody(cluster: Sharing) -> None:
    node, (group,), other = cluster.node(), stuck(cluster), cluster.group()
    cluster.share("a", node, group)
    name = name_of(cluster, group)
    cluster.share("other", node, other)
    cluster.pod_and_request("cpu", node)
    for done in ("other", "cpu"):
        cluster.wait_for(done, "Succeeded", within_s=LONG_S)
    conditions = wait_until(lambda: cluster.conditions("a"), within_s=LONG_S)
    assert tuple(conditions) == ORDER
    assert (conditions["GPUReserved"]["status"], conditions["GPUReserved"]["reason"]) == (
        "Unknown",
        "Waiting",
    )
    assert conditions["GPUReserved"]["message"] == f"waits for reservation pod {name} to report its GPU"
    assert conditions["GPUSharing"]["reason"] == "Blocked"
    assert cluster.status("a").get("phase", "") == ""
    cluster.agents.set(group, device_of)
    cluster.wait_for("a", "Succeeded", within_s=LONG_S)
    assert cluster.conditions("a")["GPUReserved"]["status"] == "True"


def test_a_wait_that_is_over_soon_is_not_shown(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, Answer(device="7", delay_s=0.5))
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    assert cluster.conditions("a")["GPUReserved"]["message"] == f"group {group} is GPU 7 of node {node}"


def test_no_device_within_the_time(cluster: Sharing) -> None:
    """Also of two groups: one time for all, not one for each."""
    node, groups = cluster.node(), stuck(cluster, devices=2)
    cluster.share("a", node, *groups)
    asked_s = time.monotonic()
    name = name_of(cluster, groups[0])
    status = cluster.wait_for("a", "Failed", within_s=2 * TIMEOUT_S)
    assert TIMEOUT_S - 1 < time.monotonic() - asked_s < 2 * TIMEOUT_S - 1
    text = f"reservation pod {name} reported no GPU within {TIMEOUT_S} s; its phase is Pending"
    assert status["reason"] == f"GPUReserved ReservationTimeout: {text}"
    condition = cluster.conditions("a")["GPUReserved"]
    assert (condition["status"], condition["reason"]) == ("False", "ReservationTimeout")
    cluster.wait_for_event("a", "ReservationTimeout", "BindRequest")
    cluster.assert_nothing_left("a", *groups)


def test_a_reservation_that_was_silent_for_the_whole_time_is_replaced(cluster: Sharing) -> None:
    """F-21: else the next attempt, or the next request, waits for it in vain."""
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group, backoffLimit=3)
    before = cluster.wait_for_reservation(group)["metadata"]["uid"]
    cluster.agents.set(group, lambda pod: None if pod["metadata"]["uid"] == before else device_of(pod))
    cluster.wait_for_attempts("a", 1, within_s=2 * TIMEOUT_S)
    status = cluster.wait_for("a", "Succeeded", within_s=LONG_S)
    assert status["failedAttempts"] == 1
    assert cluster.reservation(group)["metadata"]["uid"] != before


def test_a_request_that_came_later_waits_on_for_the_new_reservation(cluster: Sharing) -> None:
    """F-21: the time of the first is over, its own is not."""
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    before = cluster.wait_for_reservation(group)["metadata"]["uid"]
    cluster.agents.set(group, lambda pod: None if pod["metadata"]["uid"] == before else device_of(pod))
    time.sleep(TIMEOUT_S / 2)
    cluster.share("b", node, group)
    cluster.wait_for("a", "Failed", within_s=TIMEOUT_S)
    cluster.wait_for("b", "Succeeded", within_s=TIMEOUT_S / 2)
    assert cluster.status("b").get("failedAttempts", 0) == 0
    assert cluster.data("b-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)
    assert cluster.reservation(group)["metadata"]["uid"] != before


@pytest.mark.parametrize("what", ["request", "pod"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_silent_reservation_of_a_request_that_went_is_replaced(
    cluster: Sharing, what: str, when: str
) -> None:
    """F-21: whether the next one waits for it already, or comes right behind."""
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    before = cluster.wait_for_reservation(group)["metadata"]["uid"]
    cluster.agents.set(group, lambda pod: None if pod["metadata"]["uid"] == before else device_of(pod))
    if when == "before":
        cluster.share("b", node, group)
        wait_until(lambda: cluster.conditions("b"), within_s=LONG_S)  # it waits
    if what == "request":
        cluster.delete_request("a")
    else:
        cluster.delete_pod("a")
    if when == "after":
        cluster.share("b", node, group)
    cluster.wait_for("b", "Succeeded", within_s=2)
    assert cluster.status("b").get("failedAttempts", 0) == 0
    assert cluster.data("b-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == cluster.device(group)


def test_one_that_waits_along_goes_and_nothing_is_replaced(cluster: Sharing) -> None:
    """F-21: the reservation was not made for it."""
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    before = cluster.wait_for_reservation(group)["metadata"]["uid"]
    cluster.share("b", node, group)
    wait_until(lambda: cluster.conditions("b"), within_s=LONG_S)
    cluster.delete_request("b")
    cluster.agents.set(group, device_of)
    cluster.wait_for("a", "Succeeded", within_s=LONG_S)
    assert cluster.reservation(group)["metadata"]["uid"] == before


def test_a_silent_reservation_that_has_users_is_not_replaced(cluster: Sharing) -> None:
    """F-21: it has answered once; somebody has taken the answer off, and its users go by it."""
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    cluster.set_phase("a", "Running")
    before = cluster.reservation(group)["metadata"]
    delta = {"metadata": {"annotations": {GPU_INDEX: None}}}
    cluster.plane.request("PATCH", f"{RESERVATION_PODS}/{before['name']}", delta, MERGE)
    cluster.share("b", node, group)
    status = cluster.wait_for("b", "Failed", within_s=2 * TIMEOUT_S)
    assert status["reason"].startswith("GPUReserved ReservationTimeout: ")
    time.sleep(1)
    assert cluster.reservation(group)["metadata"]["uid"] == before["uid"]
    assert "deletionTimestamp" not in cluster.get_pod("a")["metadata"]


WAITING = {"name": "resource-reservation", "image": "x", "imageID": "", "ready": False, "restartCount": 3}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            {"containerStatuses": [{**WAITING, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "its phase is Pending; container resource-reservation: ImagePullBackOff",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        **WAITING,
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                        "lastState": {
                            "terminated": {
                                "exitCode": 1,
                                "reason": "Error",
                                "message": "no NVML\n" + "x" * 999,
                            }
                        },
                    }
                ],
            },
            "its phase is Running; container resource-reservation: CrashLoopBackOff: back-off 40s; "
            "it ended with exit code 1: Error: no NVML ",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "no room",
                    }
                ]
            },
            "its phase is Pending; PodScheduled: Unschedulable: no room",
        ),
    ],
    ids=["image", "crash", "room"],
)
def test_the_time_out_says_what_holds_the_reservation_up(
    cluster: Sharing, status: dict[str, object], text: str
) -> None:
    """F-24: its phase alone says nothing."""
    node, group = cluster.node(), cluster.group()
    cluster.agents.set(group, Answer(status=status))
    cluster.share("a", node, group)
    name = name_of(cluster, group)
    reason = cluster.wait_for("a", "Failed", within_s=2 * TIMEOUT_S)["reason"]
    head = f"GPUReserved ReservationTimeout: reservation pod {name} reported no GPU within {TIMEOUT_S} s; "
    assert reason.startswith(f"{head}{text}"), reason
    assert len(reason) < len(head) + 500


@pytest.mark.parametrize("what", ["request", "pod"])
def test_the_wait_ends_with_the_request_or_the_pod(cluster: Sharing, what: str) -> None:
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    name_of(cluster, group)
    if what == "request":
        cluster.delete_request("a")
    else:
        cluster.delete_pod("a")
    cluster.wait_until_freed(group, within_s=LONG_S)


def test_the_wait_ends_when_the_pod_is_about_to_go(cluster: Sharing) -> None:
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group, backoffLimit=3)
    name_of(cluster, group)
    cluster.hold(f"{cluster.pods}/a")
    cluster.delete_pod("a")
    status = cluster.wait_for("a", "Failed", within_s=LONG_S)
    assert status["reason"] == f"GPUReserved PodTerminating: pod {cluster.namespace}/a is being deleted"
    assert status["failedAttempts"] == 3, "no attempt can end better"
    cluster.assert_nothing_left("a", group)
    cluster.let_go(f"{cluster.pods}/a")


def test_the_wait_ends_when_the_reservation_is_deleted(cluster: Sharing) -> None:
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    name = name_of(cluster, group)
    cluster.delete_reservations(group)
    status = cluster.wait_for("a", "Failed", within_s=LONG_S)
    # The server may tell of a deletion at once in two steps.
    head = f"GPUReserved ReservationFailed: reservation pod {name}"
    assert status["reason"] in (f"{head} was deleted", f"{head} is being deleted")
    cluster.assert_nothing_left("a", group)


def test_the_wait_ends_when_the_reservation_is_about_to_go(cluster: Sharing) -> None:
    node, (group,) = cluster.node(), stuck(cluster)
    cluster.share("a", node, group)
    name = name_of(cluster, group)
    cluster.plane.request("DELETE", f"/api/v1/namespaces/kai-resource-reservation/pods/{name.split('/')[1]}")
    status = cluster.wait_for("a", "Failed", within_s=LONG_S)
    assert status["reason"] == f"GPUReserved ReservationFailed: reservation pod {name} is being deleted"
    cluster.assert_nothing_left("a", group)


def test_a_reservation_that_is_going_is_waited_for_and_replaced(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    before = cluster.reservation(group)["metadata"]
    path = f"{RESERVATION_PODS}/{before['name']}"
    cluster.hold(path)
    cluster.delete_pod("a")
    wait_until(lambda: "deletionTimestamp" in cluster.reservation(group)["metadata"])
    cluster.share("b", node, group)
    conditions = wait_until(lambda: cluster.conditions("b"), within_s=LONG_S)
    name = f"kai-resource-reservation/{before['name']}"
    message = f"waits for the former reservation pod {name} to go"
    assert conditions["GPUReserved"]["message"] == message
    cluster.let_go(path)
    cluster.wait_for("b", "Succeeded", within_s=LONG_S)
    assert cluster.reservation(group)["metadata"]["uid"] != before["uid"]


def test_a_reservation_that_does_not_go(cluster: Sharing) -> None:
    """The wait for it ends with the request, too: a new one of the same pod is not kept waiting."""
    node, group, other = cluster.node(), cluster.group(), cluster.group()
    cluster.share("a", node, group)
    cluster.wait_for("a", "Succeeded")
    name = cluster.reservation(group)["metadata"]["name"]
    cluster.hold(f"{RESERVATION_PODS}/{name}")
    cluster.delete_pod("a")
    wait_until(lambda: "deletionTimestamp" in cluster.reservation(group)["metadata"])
    try:
        made = cluster.share("b", node, group)
        wait_until(lambda: cluster.conditions("b"), within_s=LONG_S)
        cluster.delete_request("b")
        cluster.ask_share("b", cluster.node(), other, owner=made)  # the GPU of this node is not free
        cluster.wait_for("b", "Succeeded", within_s=2)
        cluster.share("c", node, group)
        status = cluster.wait_for("c", "Failed", within_s=2 * TIMEOUT_S)
        text = f"the former reservation pod kai-resource-reservation/{name} does not go"
        assert status["reason"] == f"GPUReserved ReservationTimeout: {text}"
    finally:
        cluster.let_go(f"{RESERVATION_PODS}/{name}")


def test_many_stuck_groups(cluster: Sharing) -> None:
    """More than there are workers, and pods that wait for one group together."""
    node, groups, good = cluster.node(), stuck(cluster, devices=8), cluster.group()
    for number, group in enumerate(groups):
        for letter in "ab":
            cluster.share(f"{letter}-{number}", node, group)
    cluster.share("good", node, good)
    cluster.wait_for("good", "Succeeded", within_s=LONG_S)
    for group in groups:
        cluster.agents.set(group, device_of)
    cluster.wait_for_all(17, within_s=20)
    assert all(len(cluster.reservations(group)) == 1 for group in groups)
