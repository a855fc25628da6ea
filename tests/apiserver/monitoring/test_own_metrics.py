"""The binder's own metrics, for binds, failures, waits and shares as they happen on a real API server."""

from contextlib import suppress
from datetime import UTC, datetime

from controlplane import RequestError

from controller.binder.measures import PREFIX
from tests.binder import Binder, Binders
from tests.limits import ENABLED, Limits
from tests.polling import wait_until
from tests.scraping import Scraped, scraped

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"
LEASE = "2ad35f9c.kai.scheduler"


def wait_for(binder: Binder, name: str, value: float, /, **labels: str) -> Scraped:
    """Waits until a metric of ours has this value."""

    def check() -> Scraped:
        found = scraped(binder)
        assert found.value(PREFIX + name, **labels) == value, found.of(PREFIX + name)
        return found

    return wait_until(check, within_s=30.0)


def test_binds_failures_and_their_reasons(cluster: Limits, binders: Binders) -> None:
    binder, node = binders.start(), cluster.node()
    before = scraped(binder)
    assert before.value(f"{PREFIX}binds_total", result="failed", reason="NodeGone") == 0, (
        "there from the start"
    )
    for number in range(5):
        cluster.pod_and_request(f"bound-{number}", node)
    cluster.pod_and_request("over", "no-such-node")
    cluster.pod_and_request("tries", "no-such-node", backoffLimit=2)
    cluster.request("nonsense", {})
    for number in range(5):
        cluster.wait_for(f"bound-{number}", "Succeeded")
    cluster.wait_for_attempts("tries", 2, within_s=30)
    wait_for(binder, "binds_total", 2, result="failed", reason="NodeGone")
    after = wait_for(binder, "binds_total", 1, result="failed", reason="InvalidRequest")
    grown = after.minus(before)
    attempts, steps = f"{PREFIX}bind_attempts_total", f"{PREFIX}step_failures_total"
    assert grown.value(f"{PREFIX}binds_total", result="bound", reason="Reconciled") == 5
    assert grown.value(attempts, result="bound", reason="Reconciled") == 5
    assert grown.value(attempts, result="failed", reason="NodeGone") == 3, "one, and two of two"
    assert grown.value(attempts, result="failed", reason="InvalidRequest") == 1
    assert grown.value(steps, step="Bound") == 4
    assert grown.total(attempts) == 9
    assert grown.value(f"{PREFIX}bind_duration_seconds_count") == 5
    assert 0 < grown.value(f"{PREFIX}bind_duration_seconds_sum") < 5 * 30
    assert grown.value(f"{PREFIX}step_duration_seconds_count", step="Bound") == 5
    assert grown.value(f"{PREFIX}step_duration_seconds_count", step="VolumeBinding") == 0, "nothing to do"
    requests = f"{PREFIX}api_requests_total"
    assert grown.value(requests, verb="create", resource="pods/binding", code="201") == 5
    assert grown.value(requests, verb="patch", resource="bindrequests/status", code="200") >= 9
    assert grown.value(requests, verb="get", resource="nodes", code="404") == 3
    assert after.value(requests, verb="watch", resource="bindrequests", code="200") >= 1
    assert after.value(requests, verb="list", resource="bindrequests", code="200") >= 1
    assert grown.total(requests) == grown.total("rest_client_requests_total")


def test_waits_shares_and_limits_from_the_first_to_the_last(cluster: Limits, binders: Binders) -> None:
    agents, node, group, other = cluster.agents, cluster.card(), cluster.group(), cluster.group()
    agents.set(group, None)  # its agent says nothing yet
    binder = binders.start(env=ENABLED)
    was = wait_for(binder, "leading", 1)
    shares = was.value(f"{PREFIX}gpu_shares")
    gpus, limits = was.value(f"{PREFIX}shared_gpus"), was.value(f"{PREFIX}gpu_memory_limits")

    cluster.limited("waits", node, group)
    wait_for(binder, "waiting_requests", 1, step="GPUReserved")
    wait_for(binder, "reservations", 1, state="unanswered")
    found = wait_until(lambda: _older_than(binder, 1.0))
    assert found.value(f"{PREFIX}unfinished_requests", state="new") == 1
    assert found.value(f"{PREFIX}gpu_shares") == shares
    agents.forget(group)
    cluster.wait_for("waits", "Succeeded", within_s=30)
    cluster.limited("second", node, group)
    cluster.limited("third", node, other)
    cluster.wait_for("third", "Succeeded", within_s=30)
    cluster.wait_for("second", "Succeeded", within_s=30)
    found = wait_for(binder, "gpu_shares", shares + 3)
    assert found.value(f"{PREFIX}shared_gpus") == gpus + 2
    assert found.value(f"{PREFIX}reservations", state="used") == gpus + 2
    assert found.value(f"{PREFIX}gpu_memory_limits") == limits + 3
    assert found.value(f"{PREFIX}waiting_requests", step="GPUReserved") == 0
    assert found.value(f"{PREFIX}oldest_wait_seconds", step="GPUReserved") == 0
    assert found.value(f"{PREFIX}unfinished_requests", state="new") == 0
    assert found.value(f"{PREFIX}step_duration_seconds_sum", step="GPUReserved") > 1

    # After a restart what there is, is known again, from the first look on; what was done is not.
    assert binder.stop() == 0
    found = wait_for(binder.start(), "gpu_shares", shares + 3)
    assert found.value(f"{PREFIX}shared_gpus") == gpus + 2
    assert found.value(f"{PREFIX}gpu_memory_limits") == limits + 3
    assert found.value(f"{PREFIX}binds_total", result="bound", reason="Reconciled") == 0

    cluster.delete_pod("third")
    found = wait_for(binder, "gpu_shares", shares + 2)
    wait_for(binder, "reservations", gpus + 1, state="used")
    cluster.set_phase("second", "Succeeded")  # its containers have ended
    wait_for(binder, "gpu_memory_limits", limits + 1)
    cluster.delete_pod("waits")
    cluster.delete_pod("second")
    wait_for(binder, "gpu_shares", shares)
    found = wait_for(binder, "shared_gpus", gpus)
    assert found.value(f"{PREFIX}gpu_memory_limits") == limits


def _older_than(binder: Binder, seconds: float) -> Scraped:
    found = scraped(binder)
    assert found.value(f"{PREFIX}oldest_wait_seconds", step="GPUReserved") > seconds
    return found


def test_a_share_whose_reservation_was_taken_away_is_told(cluster: Limits, binders: Binders) -> None:
    node, group = cluster.node(), cluster.group()
    binder = binders.start()
    was = wait_for(binder, "leading", 1).value(f"{PREFIX}unreserved_gpu_shares")
    cluster.share("user", node, group)
    cluster.wait_for("user", "Succeeded", within_s=30)
    cluster.hold(f"{cluster.pods}/user")  # it is to go, and takes its time
    cluster.delete_reservations(group)
    wait_for(binder, "unreserved_gpu_shares", was + 1)
    cluster.let_go(f"{cluster.pods}/user")
    with suppress(RequestError):
        cluster.delete_pod("user")
    wait_for(binder, "unreserved_gpu_shares", was)


def test_requests_that_are_tried_again_and_those_that_go(cluster: Limits, binders: Binders) -> None:
    binder = binders.start("--rate-limiter-base-delay=600", "--rate-limiter-max-delay=600")
    cluster.pod_and_request("again", "no-such-node", backoffLimit=5)
    found = wait_for(binder, "unfinished_requests", 1, state="failed")
    assert found.value(f"{PREFIX}unfinished_requests", state="new") == 0
    assert found.value(f"{PREFIX}binds_total", result="failed", reason="NodeGone") == 0, "not for good"
    cluster.delete_request("again")
    wait_for(binder, "unfinished_requests", 0, state="failed")


def test_a_standby_says_nothing_but_that(cluster: Limits, binders: Binders) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now}
    with suppress(RequestError):
        cluster.plane.request("DELETE", f"{LEASES}/{LEASE}")
    cluster.plane.request("POST", LEASES, {"metadata": {"name": LEASE}, "spec": spec})
    cluster.pod_and_request("left", "no-such-node")
    binder = binders.start("--leader-elect", "--leader-election-namespace=kai-scheduler")
    found = scraped(binder)
    assert found.value(f"{PREFIX}leading") == 0
    gauges = ("unfinished_requests", "waiting_requests", "reservations", "shared_gpus", "gpu_shares")
    assert [name for name in gauges if found.of(PREFIX + name)] == []
    cluster.plane.request("DELETE", f"{LEASES}/{LEASE}")
    found = wait_for(binder, "leading", 1)
    assert {name for name in gauges if found.of(PREFIX + name)} == set(gauges)
    cluster.wait_for("left", "Failed")
    assert binder.stop() == 0
