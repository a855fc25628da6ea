"""Every expression of dashboard and alerts, by Prometheus' engine over the metrics of running processes."""

import math
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from controlplane import ControlPlane
from monitoringgen import DASHBOARD, panels
from picture import picture
from promql import Answer, Query, Scrape, evaluate

from tests.binder import Binders
from tests.certificates import Mount
from tests.limits import ENABLED, Limits
from tests.monitoring import ALERTS, SCRAPED_EVERY_S, TARGET, scrape
from tests.scraping import OPENMETRICS
from tests.sharing import Agents
from tests.webhook import Keys, Webhook, installed

HOOK = {"job": "kai-binder-admission", "instance": "webhook-0", "namespace": "kai-scheduler"}
PANELS = {
    f"{panel.title}, {legend}": expr.replace("$__rate_interval", "2m").replace("$job", "binder.*")
    for panel in panels()
    for legend, expr in panel.lines.items()
}
RULES = {f"{name}, rule": rule["expr"] for name, rule in ALERTS.items()}


@pytest.fixture(scope="module")
def answers(
    control_plane: ControlPlane, agents: Agents, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Answer]]:
    """What each expression gives after binds, failures and a wait."""
    directory = tmp_path_factory.mktemp("monitoring")
    cluster = Limits.beside(control_plane, agents)
    made = Binders(directory, control_plane.service_account_kubeconfig("kai-scheduler", "binder"))
    keys, mount = Keys.make(directory), Mount(tmp_path_factory.mktemp("tls"))
    mount.put(keys.pair)
    webhook = Webhook(directory / "none", directory / "webhook.log", ("--binder-metrics-url=",))
    webhook.mount = mount
    try:
        binder = made.start(env=ENABLED)
        webhook.start()
        with installed(webhook, control_plane, keys.authority):
            cluster.pod_and_request("early", "no-such-node")
        cluster.wait_for("early", "Failed", within_s=30)
        scrapes = [(scrape(binder), scrape(webhook))]
        node, group = cluster.card(), cluster.group()
        cluster.pod_and_request("bound", node)
        cluster.pod_and_request("lost", "no-such-node")
        cluster.limited("first", node, group)
        cluster.limited("second", node, group)
        for name, phase in (("bound", "Succeeded"), ("lost", "Failed"), ("second", "Succeeded")):
            cluster.wait_for(name, phase, within_s=30)
        scrapes.append((scrape(binder), scrape(webhook)))
        yield _evaluated(scrapes)
        made.close()
    finally:
        made.kill()
        webhook.kill()


def _evaluated(scrapes: list[tuple[str, str]]) -> dict[str, Answer]:
    """The state before, for two minutes, then that after."""
    whole, now_s = [], 1_000_000.0
    for texts in (*[scrapes[0]] * 4, *[scrapes[1]] * 2):
        now_s += SCRAPED_EVERY_S
        for text, target in zip(texts, ({**TARGET, "pod": "binder-0"}, HOOK), strict=True):
            whole.append(Scrape(now_s, text, target, OPENMETRICS))
    wanted = {**PANELS, **RULES}
    result = evaluate(whole, queries=[Query(expr, now_s) for expr in wanted.values()])
    return dict(zip(wanted, result.answers, strict=True))


@pytest.mark.parametrize("name", [*PANELS, *RULES])
def test_it_is_promql_over_metrics_that_are_there(name: str, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    assert answer.error == ""
    assert answer.warnings == (), "such as: this is no counter"


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_has_something_to_show(name: str, answers: dict[str, Answer]) -> None:
    series = answers[name].series
    assert series
    values = [value for one in series for _, value in one.points]
    if name != "Duration of reviews, p99":  # there were none in this time
        assert any(map(math.isfinite, values)), "not even one step, or the like, has a number"


def test_the_labels_of_legends_are_there(answers: dict[str, Answer]) -> None:
    for name in PANELS:
        legend = name.rpartition(", ")[2]
        for label in (part.partition("}}")[0] for part in legend.split("{{")[1:]):
            assert all(label in one.labels for one in answers[name].series), name


def test_rules_are_quiet_when_little_has_happened(answers: dict[str, Answer]) -> None:
    """One of four binds has failed: that alone wakes nobody."""
    loud = {name for name in RULES if answers[name].series}
    assert loud == set()


def test_the_values_are_those_of_what_was_done(answers: dict[str, Answer]) -> None:
    assert answers["Shared GPUs and their shares, shares"].value >= 2
    assert answers["Shared GPUs and their shares, with a limit of memory"].value >= 2
    assert answers["Failed for good, failed"].value == pytest.approx(0.25, abs=0.1), "rates are extrapolated"
    (leads,) = answers["Who binds, {{instance}}"].series
    assert (leads.labels["instance"], leads.points[0][1]) == ("binder-0", 1.0)
    (reason,) = answers["Failed attempts by reason, {{reason}}"].series
    assert reason.labels == {"reason": "NodeGone"}
    (memory,) = answers["Memory, {{instance}}"].series
    assert memory.labels["job"] == "binder", "not the webhook's, nor any other program's"


def test_the_dashboard_is_up_to_date_and_asks_what_is_tested() -> None:
    assert Path(DASHBOARD).read_text().count('"expr"') == sum(len(panel.lines) for panel in panels())


def test_the_picture_is_drawn_the_same_each_time() -> None:
    text = "# TYPE kai_binder_shared_gpus gauge\nkai_binder_shared_gpus %d\n"
    scrapes = [Scrape(float(second), text % (second % 7), TARGET) for second in range(1, 40)]
    first, second = (picture(scrapes, 1.0, "8s", ["Shared GPUs", "Binds"]) for _ in range(2))
    assert first == second
    drawn = ElementTree.fromstring(first)  # noqa: S314 -- our own
    lines = [item for item in drawn.iter() if item.tag.endswith("polyline")]
    assert len(lines) == 1
    assert len(lines[0].attrib["points"].split()) == 39
    assert "■ shared GPUs" in first
