"""docs/metrics.md, the alerts and the dashboard say what the processes show: names, types, labels."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import monitoringgen
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from controller.admission.measures import Measures
from controller.binder.census import Census
from controller.binder.metrics import BinderMetrics
from controller.kai.names import LEASE_NAME
from controller.planning import plan
from controller.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\| [^|]+ \|$", re.M)
RULES = yaml.safe_load(monitoringgen.PLAIN.read_text())["groups"]
ALERTS = [rule for group in RULES for rule in group["rules"]]
NAME = re.compile(r"\b(?:kai_binder|workqueue|controller_runtime|leader_election|rest_client|process)_\w+")

Metric = tuple[str, str, tuple[str, ...]]


def documented(heading: str) -> list[Metric]:
    """The rows below a heading: name, type and labels."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [(name, kind, words_in(labels)) for name, kind, labels in ROW.findall(section)]


def words_in(labels: str) -> tuple[str, ...]:
    return tuple(sorted(re.findall(r"`(\w+)`", labels)))


def registered(registry: CollectorRegistry) -> Iterator[Metric]:
    """What a registry has, by the names that stand there."""
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            families, labels = collector.describe(), tuple(sorted(collector._labelnames))
            for family in families:
                suffix = "_total" if family.type == "counter" else ""
                yield family.name + suffix, family.type, labels
        elif isinstance(collector, Census):
            for family in collector.describe():
                yield family.name, family.type, tuple(sorted(collector.labels_of(family.name)))


@pytest.fixture(scope="module")
def binder() -> BinderMetrics:
    return BinderMetrics(plan(Settings(), []))


def test_every_metric_of_the_binder_is_there_and_no_other(binder: BinderMetrics) -> None:
    assert sorted(documented("Metrics of the binder")) == sorted(registered(binder.registry))


def test_every_metric_of_the_webhook_is_there_and_no_other() -> None:
    registry = CollectorRegistry()
    Measures(registry)
    assert sorted(documented("Metrics of the webhook")) == sorted(registered(registry))


def test_names_keep_to_the_conventions() -> None:
    ours = [*documented("Metrics of the binder"), *documented("Metrics of the webhook")]
    assert len(ours) > 30
    for name, kind, _ in ours:
        assert name.endswith("_total") == (kind == "counter")
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_the_number_of_series_is_bounded(binder: BinderMetrics) -> None:
    """As docs/metrics.md says: 500, whatever comes."""
    for number in range(1000):
        binder.measures.failed(f"step-{number}", f"Reason{number}", final=True)
    text = binder.render()[0].decode()
    series = [line for line in text.splitlines() if line.startswith("kai_binder_")]
    assert len(series) < 500
    assert 'kai_binder_binds_total{reason="Other",result="failed"} 1000.0' in text
    assert 'kai_binder_step_failures_total{step="Bound"} 1000.0' in text


def words(expressions: Iterable[str]) -> set[str]:
    return {name for expr in expressions for name in NAME.findall(expr)}


def test_expressions_name_only_what_is_documented() -> None:
    rows = (*documented("Metrics of the binder"), *documented("Metrics of the webhook"))
    known = {name for name, _, _ in rows} | {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    known |= {
        f"{name}_{part}" for name, kind, _ in rows if kind == "histogram" for part in ("bucket", "count")
    }
    used = words(rule["expr"] for rule in ALERTS)
    used |= words(expr for panel in monitoringgen.panels() for expr in panel.lines.values())
    assert used - known == set()
    assert len(used) > 15


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_leads_to_what_to_do(rule: dict[str, object]) -> None:
    notes = rule["annotations"]
    assert isinstance(notes, dict)
    assert set(notes) == {"summary", "description", "runbook"}
    assert notes["runbook"] == f"docs/metrics.md#{str(rule['alert']).lower()}"
    section = PAGE.partition(f"\n### {rule['alert']}\n")[2].partition("\n### ")[0]
    assert len(section) > 100


def test_the_page_has_no_other_alerts() -> None:
    assert re.findall(r"^### (\w+)$", PAGE, re.M) == [rule["alert"] for rule in ALERTS]


def test_the_page_names_the_lease_that_there_is() -> None:
    assert LEASE_NAME in PAGE


@pytest.mark.parametrize("name", re.findall(r"`(config/[\w/.-]+)`", PAGE))
def test_files_that_the_page_names_are_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_what_is_written_by_hack_monitoring_is_up_to_date() -> None:
    for path, text in monitoringgen.files():
        assert path.read_text() == text, "run hack/monitoring"


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana asks of one: places that do not overlap, numbers once, a data source to choose."""
    dashboard = json.loads(monitoringgen.DASHBOARD.read_text())
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    variables = {item["name"]: item for item in dashboard["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert "uid" in dashboard
    assert "__inputs" not in dashboard, "the data source is a variable"


def test_the_plain_scrape_finds_what_the_deployments_name() -> None:
    """Labels and ports in the scrape configuration are those of the pods that we ship."""
    (job,) = yaml.safe_load((ROOT / "config/prometheus/plain/scrape.yaml").read_text())["scrape_configs"]
    (apps, port) = [item for item in job["relabel_configs"] if item.get("action") == "keep"]
    assert not re.fullmatch(port["regex"], "http-webhook")
    for path in ("manager", "admission"):
        (deployment,) = yaml.safe_load_all((ROOT / f"config/{path}/deployment.yaml").read_text())
        template = deployment["spec"]["template"]
        assert re.fullmatch(apps["regex"], template["metadata"]["labels"]["app"])
        (container,) = template["spec"]["containers"]
        assert any(re.fullmatch(port["regex"], item["name"]) for item in container["ports"])
        namespaces = job["kubernetes_sd_configs"][0]["namespaces"]["names"]
        assert deployment["metadata"]["namespace"] in namespaces
    assert re.fullmatch(apps["regex"], labels_of_shard()["app"])
    assert not re.fullmatch(apps["regex"], "binderless")


def test_the_plain_scrape_finds_the_binder_that_the_operator_runs() -> None:
    """Its container names no port: Prometheus makes one target of it, whose address has none."""
    (job,) = yaml.safe_load((ROOT / "config/prometheus/plain/scrape.yaml").read_text())["scrape_configs"]
    made = yaml.safe_load((ROOT / "tests/data/operator-binder-deployment.yaml").read_text())
    template = made["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert "ports" not in container
    found = {
        "__address__": "10.0.0.7",
        "__meta_kubernetes_pod_ip": "10.0.0.7",
        "__meta_kubernetes_pod_label_app": template["metadata"]["labels"]["app"],
    }
    ours = {
        **found,
        "__address__": "10.0.0.7:9090",
        "__meta_kubernetes_pod_container_port_name": "http-metrics",
    }
    arguments = container["args"]
    address = arguments[arguments.index("--metrics-bind-address") + 1]
    assert relabeled(job, found)["__address__"] == f"10.0.0.7{address}"
    assert relabeled(job, ours)["__address__"] == "10.0.0.7:9090"


def relabeled(job: dict[str, Any], labels: dict[str, str]) -> dict[str, str]:
    """What Prometheus makes of a target, by the two actions that are in use here."""
    labels = {**labels}
    for item in job["relabel_configs"]:
        text = ";".join(labels.get(name, "") for name in item["source_labels"])
        match = re.fullmatch(item.get("regex", "(.*)"), text)
        if item.get("action") == "keep":
            assert match, item
        elif match:
            labels[item["target_label"]] = match.expand(item.get("replacement", "$1").replace("$", "\\"))
    return labels


def labels_of_shard() -> dict[str, str]:
    """What config/overlays/shard puts on everything, its Service and its pods as well."""
    overlay = yaml.safe_load((ROOT / "config/overlays/shard/kustomization.yaml").read_text())
    return {name: text for item in overlay["labels"] for name, text in item["pairs"].items()}


def test_the_service_monitors_find_each_service_once() -> None:
    documents = list(yaml.safe_load_all((ROOT / "config/prometheus/service_monitor.yaml").read_text()))
    by_name = {item["metadata"]["name"]: item["spec"]["selector"]["matchLabels"] for item in documents}
    assert set(by_name) == {"binder", "binder-of-pool", "kai-binder-admission"}
    binder = {"app": "binder"}  # all that the Service of KAI's operator has
    shard = {**binder, **labels_of_shard()}
    hook = {"app": "kai-binder-admission"}
    for labels, name in ((binder, "binder"), (shard, "binder-of-pool"), (hook, "kai-binder-admission")):
        assert [found for found, asked in by_name.items() if asked.items() <= labels.items()] == [name]
    for document in documents:
        folder = "admission" if "admission" in document["metadata"]["name"] else "manager"
        service = yaml.safe_load((ROOT / f"config/{folder}/service.yaml").read_text())
        assert service["metadata"]["labels"] == {"admission": hook, "manager": binder}[folder]
        assert document["spec"]["namespaceSelector"]["matchNames"] == [service["metadata"]["namespace"]]
        (endpoint,) = document["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
