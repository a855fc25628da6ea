"""What the metrics say of binds that fail, by the names that dashboards know."""

from prometheus_client.parser import text_string_to_metric_families

from tests.binder import Binder, Binders
from tests.cluster import Cluster
from tests.polling import wait_until

BINDING = {"controller": "bindrequest"}


def value(binder: Binder, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(binder.metrics()):
        for sample in family.samples:
            if sample.name == f"controller_runtime_{name}" and sample.labels == {**BINDING, **labels}:
                return sample.value
    return 0.0


def test_failed_binds_are_counted_as_errors(cluster: Cluster, binders: Binders) -> None:
    """F-50: dashboards that were made for the Go binder showed none."""
    binder = binders.start()
    before = value(binder, "reconcile_errors_total"), value(binder, "reconcile_total", result="error")
    cluster.pod_and_request("tries", "no-such-node", backoffLimit=2)
    cluster.pod_and_request("over", "no-such-node")
    cluster.pod_and_request("bound", cluster.node())
    cluster.wait_for("bound", "Succeeded")
    cluster.wait_for("over", "Failed")
    cluster.wait_for_attempts("tries", 2)
    wait_until(lambda: value(binder, "reconcile_errors_total") == before[0] + 3)
    assert value(binder, "reconcile_total", result="error") == before[1] + 3
    assert value(binder, "terminal_reconcile_errors_total") == 2
    assert value(binder, "reconcile_panics_total") == 0
    assert value(binder, "reconcile_total", result="success") >= 1
