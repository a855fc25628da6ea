"""Metrics by their Go names."""

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from controller.runtime.calls import Call, Resource
from controller.runtime.metrics import Metrics, wants_openmetrics

PODS = Resource("v1", "pods")


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, /, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_a_controller_counts_by_its_label() -> None:
    metrics = Metrics()
    pods, others = metrics.controller("pod", 10), metrics.controller("other", 2)
    pods.reconciled("success", 0.12)
    pods.reconciled("error", 3)
    pods.error()
    pods.error(terminal=True)
    pods.panic()
    pods.active(1)
    pods.active(1)
    pods.active(-1)
    others.reconciled("requeue", 0.001)

    prefix = "controller_runtime_"
    assert value(metrics, f"{prefix}reconcile_total", controller="pod", result="success") == 1
    assert value(metrics, f"{prefix}reconcile_total", controller="pod", result="requeue_after") == 0
    assert value(metrics, f"{prefix}reconcile_total", controller="other", result="requeue") == 1
    assert value(metrics, f"{prefix}reconcile_errors_total", controller="pod") == 2
    assert value(metrics, f"{prefix}terminal_reconcile_errors_total", controller="pod") == 1
    assert value(metrics, f"{prefix}reconcile_panics_total", controller="pod") == 1
    assert value(metrics, f"{prefix}reconcile_time_seconds_count", controller="pod") == 2
    assert value(metrics, f"{prefix}reconcile_time_seconds_sum", controller="pod") == pytest.approx(3.12)
    assert value(metrics, f"{prefix}reconcile_time_seconds_bucket", controller="pod", le="0.15") == 1
    assert value(metrics, f"{prefix}max_concurrent_reconciles", controller="pod") == 10
    assert value(metrics, f"{prefix}active_workers", controller="pod") == 1
    assert value(metrics, f"{prefix}active_workers", controller="other") == 0


def test_an_unknown_result_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        Metrics().controller("pod", 1).reconciled("odd", 1)


def test_a_queue_counts_by_its_labels() -> None:
    metrics = Metrics()
    queue = metrics.queue("pod")
    queue.added()
    queue.added()
    queue.depth(2)
    queue.waited(0.5)
    queue.worked(0.25)
    queue.retried()

    labels = {"name": "pod", "controller": "pod"}
    assert value(metrics, "workqueue_depth", **labels, priority="") == 2
    assert value(metrics, "workqueue_adds_total", **labels) == 2
    assert value(metrics, "workqueue_queue_duration_seconds_sum", **labels) == 0.5
    assert value(metrics, "workqueue_work_duration_seconds_sum", **labels) == 0.25
    assert value(metrics, "workqueue_retries_total", **labels) == 1
    assert value(metrics, "workqueue_unfinished_work_seconds", **labels) == 0
    bounds = [
        float(dict(key)["le"])
        for name, key in samples(metrics)
        if name == "workqueue_work_duration_seconds_bucket"
    ]
    assert sorted(bounds)[:2] == [1e-8, 1e-7]


def test_work_under_way_is_computed_when_it_is_read() -> None:
    metrics = Metrics()
    now = [(0.0, 0.0)]
    metrics.queue("pod").track(lambda: now[0])
    now[0] = (7.5, 5.0)
    assert value(metrics, "workqueue_unfinished_work_seconds", name="pod", controller="pod") == 7.5
    assert value(metrics, "workqueue_longest_running_processor_seconds", name="pod", controller="pod") == 5


def test_requests_and_leadership() -> None:
    metrics = Metrics()
    metrics.request(Call("GET", PODS), "200", "10.0.0.1:443")
    metrics.request(Call("GET", PODS), "200", "10.0.0.1:443")
    metrics.request(Call("POST", PODS), "409", "10.0.0.1:443")
    metrics.leader("2ad35f9c", True)
    requests = "rest_client_requests_total"
    assert value(metrics, requests, method="GET", code="200", host="10.0.0.1:443") == 2
    assert value(metrics, requests, method="POST", code="409", host="10.0.0.1:443") == 1
    assert value(metrics, "leader_election_master_status", name="2ad35f9c") == 1
    metrics.leader("2ad35f9c", False)
    assert value(metrics, "leader_election_master_status", name="2ad35f9c") == 0


def test_names_are_those_of_controller_runtime_and_no_others() -> None:
    metrics = Metrics()
    text = metrics.render()[0].decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    # The parser takes the _total off the names of counters.
    assert {name for name in families if not name.startswith("process_")} == {
        "controller_runtime_reconcile",
        "controller_runtime_reconcile_errors",
        "controller_runtime_terminal_reconcile_errors",
        "controller_runtime_reconcile_panics",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_max_concurrent_reconciles",
        "controller_runtime_active_workers",
        "workqueue_depth",
        "workqueue_adds",
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "workqueue_retries",
        "rest_client_requests",
        "leader_election_master_status",
    }
    assert "process_resident_memory_bytes" in families


def test_no_created_series_and_no_global_registry() -> None:
    before = {family.name for family in REGISTRY.collect()}
    first, second = Metrics(), Metrics()
    for metrics in (first, second):
        metrics.controller("pod", 1).reconciled("success", 1)
        metrics.queue("pod").added()
        assert b"_created" not in metrics.render()[0]
        assert b"_created" not in metrics.render("application/openmetrics-text")[0]
    assert {family.name for family in REGISTRY.collect()} == before


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html, */*;q=0.1", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=x;q=much", False),
        ("application/openmetrics-text;q=nan", False),
        (";,;;=,q=1;", False),
    ],
)
def test_openmetrics_is_for_those_who_want_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted
    metrics = Metrics()
    metrics.queue("pod").added()
    body, kind = metrics.render(accept)
    assert kind.startswith(
        "application/openmetrics-text; version=1.0.0" if wanted else "text/plain; version=0.0.4"
    )
    assert body.endswith(b"# EOF\n") is wanted
    families = (openmetrics if wanted else text_string_to_metric_families)(body.decode())
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert values["workqueue_adds_total"] == 1
