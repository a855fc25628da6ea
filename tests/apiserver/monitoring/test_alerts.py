"""Each alert fires when its cause is made: with the metrics of real processes in which it is, and time."""

import ast
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from controlplane import RequestError

from tests.binder import Binder, Binders
from tests.certificates import Mount
from tests.cluster import Cluster
from tests.limits import ENABLED, Limits
from tests.monitoring import ALERTS, TARGET, Timeline, assert_fires, minutes_until, scrape, with_value
from tests.polling import wait_until
from tests.proxy import Delay, Proxy, Rule
from tests.scraping import Scraped
from tests.sharing import RESERVATION_PODS
from tests.webhook import Keys, Webhook

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"
LEASE = "2ad35f9c.kai.scheduler"
ELECTING = ("--leader-elect", "--leader-election-namespace=kai-scheduler")


def text_when(binder: Binder, name: str, at_least: float, /, **labels: str) -> str:
    """Its metrics, once this one has got so high."""

    def check() -> str:
        text = scrape(binder)
        found = Scraped.read(text, is_open=True)
        assert found.value(name, **labels) >= at_least, found.of(name)
        return text

    return wait_until(check, within_s=40.0)


def leading(binder: Binder) -> str:
    return text_when(binder, "kai_binder_leading", 1)


def test_no_leader(cluster: Cluster, binders: Binders) -> None:
    """KaiBinderNoLeader: all stand by, none answers, or there is none."""
    with suppress(RequestError):
        cluster.plane.request("DELETE", f"{LEASES}/{LEASE}")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now}
    cluster.plane.request("POST", LEASES, {"metadata": {"name": LEASE}, "spec": spec})
    binder = binders.start(*ELECTING)
    standing_by = scrape(binder)
    cluster.plane.request("DELETE", f"{LEASES}/{LEASE}")
    well = leading(binder)
    assert_fires("KaiBinderNoLeader", [well], [standing_by])
    assert_fires("KaiBinderNoLeader", [well], [None])
    assert_fires("KaiBinderNoLeader", [well], [])
    assert_shard_without_leader(well, standing_by)
    assert_shard_without_leader(well, None)
    assert binder.stop() == 0


SHARD = {**TARGET, "job": "binder-gpu-nodes"}
"""A binder of a pool, as the ServiceMonitor names its job, and so does the plain scrape."""


def assert_shard_without_leader(well: str, ill: str | None) -> None:
    """That another binds is no comfort for this one's pool."""
    line, name = Timeline(), "KaiBinderNoLeader"
    for minutes, text in ((20.0, well), (minutes_until(name), ill)):
        line.goes_on(minutes, well, text, targets=[TARGET, SHARD])
    shown = [item for item in line.result().alerts if item.name == name and item.state == "firing"]
    assert {item.labels.get("job") for item in shown} == {"binder-gpu-nodes"}
    assert shown[0].annotations["summary"] == "No binder of binder-gpu-nodes binds pods"


def test_two_leaders(binders: Binders) -> None:
    """KaiBinderTwoLeaders: two without leader election."""
    first, second = leading(binders.start()), leading(binders.start())
    standby = second.replace("kai_binder_leading 1.0", "kai_binder_leading 0.0")
    assert_fires("KaiBinderTwoLeaders", [first, standby], [first, second])
    line = Timeline()
    line.goes_on(minutes_until("KaiBinderTwoLeaders"), first, second, targets=[TARGET, SHARD])
    assert line.result().firing() == set(), "one for each shard"


def test_failing_binds(cluster: Cluster, binders: Binders) -> None:
    """KaiBinderBindsFailing: a node that is not there, for several pods."""
    binder = binders.start()
    before = leading(binder)
    for number in range(4):
        cluster.pod_and_request(f"lost-{number}", "no-such-node")
    name = "kai_binder_binds_total"
    after = text_when(binder, name, 4, result="failed", reason="NodeGone")
    assert_fires("KaiBinderBindsFailing", [before], [after])
    line = Timeline()
    line.goes_on(20, before)
    series = 'kai_binder_binds_total{reason="Reconciled",result="bound"}'
    line.goes_on(20, with_value(after, series, 100))
    assert "KaiBinderBindsFailing" not in line.result().firing(), "4 of 104"


def test_faults(cluster: Cluster, binders: Binders, tmp_path: Path) -> None:
    """KaiBinderFaults: a plugin from outside raises."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kai_binder.plugins]\nfaulty = faulty:Faulty\n")
    binder = binders.start(env={"PYTHONPATH": str(tmp_path)})
    before = leading(binder)
    cluster.pod_and_request("unlucky", cluster.node())
    name = "kai_binder_bind_attempts_total"
    after = text_when(binder, name, 1, result="failed", reason="InternalError")
    assert Scraped.read(after, is_open=True).value("kai_binder_step_failures_total", step="Faulty") == 1
    assert_fires("KaiBinderFaults", [before], [after])


FAULTY = """
from controller.plugins.base import BindContext, Plugin

class Faulty(Plugin):
    name = "faulty"
    condition_type = "Faulty"
    requires = ()
    priority = 1

    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext):
        raise RuntimeError("a fault")
"""


def test_waits_and_reservations_without_an_answer(cluster: Limits, binders: Binders) -> None:
    """KaiBinderWaitStuck, by a time-out and by age, and KaiBinderReservationsUnanswered: a silent agent."""
    quick = binders.start("--resource-reservation-allocation-timeout=1")
    before, group = leading(quick), cluster.group()
    cluster.agents.set(group, None)
    cluster.share("in-vain", cluster.node(), group, backoffLimit=3)
    ended = {"result": "failed", "reason": "ReservationTimeout"}
    vain = text_when(quick, "kai_binder_bind_attempts_total", 3, **ended)
    assert_fires("KaiBinderWaitStuck", [before], [vain], reason="ReservationTimeout")
    quick.stop()

    binder, group = binders.start("--resource-reservation-allocation-timeout=600"), cluster.group()
    before = leading(binder)
    cluster.agents.set(group, None)
    cluster.share("waits", cluster.node(), group)
    name = "kai_binder_oldest_wait_seconds"
    waits = text_when(binder, name, 0.5, step="GPUReserved")
    later = with_value(waits, 'kai_binder_oldest_wait_seconds{step="GPUReserved"}', 400)
    assert_fires("KaiBinderWaitStuck", [before], [later], [waits], step="GPUReserved")
    found = Scraped.read(waits, is_open=True)
    assert found.value("kai_binder_reservations", state="unanswered") >= 1
    assert_fires("KaiBinderReservationsUnanswered", [before], [waits])
    cluster.agents.forget(group)
    cluster.wait_for("waits", "Succeeded", within_s=30)


def test_behind_on_the_queue(cluster: Cluster, binders: Binders, proxy: Proxy) -> None:
    """KaiBinderBehind: one worker, and a server that takes 11 s for each Binding."""
    token = cluster.plane.token("kai-scheduler", "binder")
    binder = binders.start("--max-concurrent-reconciles=1", kubeconfig=proxy.kubeconfig(token))
    before, node = leading(binder), cluster.node()
    with proxy.rule(Rule(Delay(11), method="POST", path="/binding$")):
        for name in ("a", "b", "c"):
            cluster.pod_and_request(name, node)
        waits = 'workqueue_queue_duration_seconds_bucket{controller="bindrequest",le="%s",name="bindrequest"}'
        found = text_when(
            binder, "workqueue_queue_duration_seconds_count", 3, controller="bindrequest", name="bindrequest"
        )
        assert waits % "10.0" in found
        slow = Scraped.read(found, is_open=True)
        bucket = {"controller": "bindrequest", "name": "bindrequest"}
        within = slow.value("workqueue_queue_duration_seconds_bucket", le="10.0", **bucket)
        assert within < slow.value("workqueue_queue_duration_seconds_count", **bucket), "c waited for longer"
    for name in ("a", "b", "c"):
        cluster.wait_for(name, "Succeeded", within_s=60)
    # It stays as slow: at each scrape, as many more that have waited so long.
    assert_behind(before, found)


def assert_behind(before: str, slow: str) -> None:
    line, grown = Timeline(), before
    line.goes_on(20, before)
    start = Scraped.read(before, is_open=True)
    end = Scraped.read(slow, is_open=True)
    for step in range(1, 25):
        grown = slow
        for (name, labels), value in end.samples.items():
            if name.startswith("workqueue_queue_duration_seconds") and ("name", "bindrequest") in labels:
                was = start.samples.get((name, labels), 0.0)
                inner = ",".join(f'{key}="{text}"' for key, text in sorted(labels))
                grown = with_value(grown, f"{name}{{{inner}}}", was + step * (value - was))
        line.goes_on(0.5, grown)
    assert "KaiBinderBehind" in line.result().firing(line.now_s)
    # Nothing is taken up at all, though something waits.
    series = 'workqueue_depth{controller="bindrequest",name="bindrequest",priority=""}'
    assert_fires("KaiBinderBehind", [before], [with_value(before, series, 7)])


def test_reservations_for_nobody(cluster: Limits, binders: Binders) -> None:
    """KaiBinderReservationsUnneeded: one that cannot be removed."""
    binder, group, node = binders.start(), cluster.group(), cluster.node()
    before = leading(binder)
    cluster.share("user", node, group)
    cluster.wait_for("user", "Succeeded", within_s=30)
    path = f"{RESERVATION_PODS}/{cluster.reservation(group)['metadata']['name']}"
    cluster.hold(path)
    cluster.delete_pod("user")
    ill = text_when(binder, "kai_binder_reservations", 1, state="unneeded")
    cluster.let_go(path)
    assert_fires("KaiBinderReservationsUnneeded", [before], [ill])


def test_shares_of_gpus_that_nobody_holds(cluster: Limits, binders: Binders) -> None:
    """KaiBinderSharesUnreserved: somebody removed a reservation under its user."""
    binder, group = binders.start(), cluster.group()
    before = leading(binder)
    cluster.share("user", cluster.node(), group)
    cluster.wait_for("user", "Succeeded", within_s=30)
    cluster.hold(f"{cluster.pods}/user")
    cluster.delete_reservations(group)
    ill = text_when(binder, "kai_binder_unreserved_gpu_shares", 1)
    cluster.let_go(f"{cluster.pods}/user")
    with suppress(RequestError):  # the binder may have evicted it
        cluster.delete_pod("user")
    assert_fires("KaiBinderSharesUnreserved", [before], [ill])


def test_a_server_that_refuses(cluster: Cluster, binders: Binders) -> None:
    """KaiBinderServerRefuses: a policy forbids Bindings."""
    binder, node = binders.start(), cluster.node()
    before = leading(binder)
    with cluster.bindings_denied():
        for number in range(3):
            cluster.pod_and_request(f"denied-{number}", node)
        name = "kai_binder_api_requests_total"
        after = text_when(binder, name, 3, verb="create", resource="pods/binding", code="403")
    line = Timeline()
    line.goes_on(20, before)
    # It goes on refusing: at each scrape, as many more of each kind.
    start, end = Scraped.read(before, is_open=True), Scraped.read(after, is_open=True)
    for step in range(1, 25):
        text = after
        for labels, value in end.of(name).items():
            was = start.samples.get((name, labels), 0.0)
            inner = ",".join(f'{key}="{label}"' for key, label in sorted(labels))
            text = with_value(text, f"{name}{{{inner}}}", was + step * (value - was))
        line.goes_on(0.5, text)
    result = line.result()
    shown = [item for item in result.alerts if item.at_s == line.now_s and item.state == "firing"]
    assert [(item.name, item.labels["code"]) for item in shown if "code" in item.labels] == [
        ("KaiBinderServerRefuses", "403")
    ]
    (alert,) = (item for item in shown if item.name == "KaiBinderServerRefuses")
    assert "% of the binder's requests with 403" in alert.annotations["summary"]


@pytest.fixture
def webhook(tmp_path: Path, binders: Binders) -> Webhook:
    """A webhook that limits memory, beside a binder that does not."""
    binder = binders.start()
    keys = Keys.make(tmp_path)
    folder = tmp_path / "tls"
    folder.mkdir()
    mount = Mount(folder)
    mount.put(keys.pair)
    url = f"http://127.0.0.1:{binder.metrics_port}/metrics"
    made = Webhook(
        tmp_path / "none", tmp_path / "webhook.log", (f"--binder-metrics-url={url}",), dict(ENABLED)
    )
    made.mount = mount
    return made


def test_binder_and_webhook_disagree(webhook: Webhook) -> None:
    """KaiBinderAdmissionDiffers: the memory limit is on in one of the two."""
    try:
        webhook.start()
        ill = text_when(webhook, "kai_binder_admission_binder_plugins", 1, found="different")
        well = ill.replace('found="different"', 'found="same"')
        assert_fires("KaiBinderAdmissionDiffers", [well], [ill])
        assert webhook.stop() == 0
    finally:
        webhook.kill()


def test_a_certificate_that_is_about_to_end(webhook: Webhook) -> None:
    """KaiBinderCertificateEnds: six days before."""
    try:
        webhook.start()
        text = scrape(webhook)
        ends_s = Scraped.read(text, is_open=True).value("kai_binder_admission_certificate_not_after_seconds")
        assert ends_s > time.time()
        alert, day_s = "KaiBinderCertificateEnds", 86400
        for days, fires in ((8, False), (6, True)):
            line = Timeline(now_s=ends_s - days * day_s)
            line.goes_on(minutes_until(alert), text, targets=[{**TARGET, "job": "kai-binder-admission"}])
            result = line.result()
            assert (alert in result.firing()) is fires
        (shown,) = [item for item in result.alerts if item.at_s == line.now_s and item.name == alert]
        assert shown.annotations["summary"].startswith("The webhook's certificate ends in 5d 23h")
        assert webhook.stop() == 0
    finally:
        webhook.kill()


def test_every_alert_has_its_test() -> None:
    tree = ast.parse(Path(__file__).read_text())
    told = " ".join(ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef))
    assert {name for name in ALERTS if name not in told} == set()
