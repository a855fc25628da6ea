"""config/prometheus and config/grafana are applied as docs/metrics.md says."""

import json

import pytest
import yaml
from controlplane import ControlPlane
from monitoringgen import DASHBOARD

from controller.runtime.client import Object
from tests.cluster import ROOT
from tests.monitoring import ALERTS

GROUP = "monitoring.coreos.com"


def prometheus_operators(kind: str) -> Object:
    """A type of the operator, as much of it as an API server needs to store its objects."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@pytest.fixture
def operator(control_plane: ControlPlane) -> ControlPlane:
    types = [prometheus_operators(kind) for kind in ("ServiceMonitor", "PrometheusRule")]
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(types))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return control_plane


def test_the_folder_for_the_operator_is_applied(operator: ControlPlane) -> None:
    text = operator.kubectl("apply", "-k", str(ROOT / "config/prometheus"))
    assert sorted(text.split()[::2]) == [
        "prometheusrule.monitoring.coreos.com/kai-binder",
        "servicemonitor.monitoring.coreos.com/binder",
        "servicemonitor.monitoring.coreos.com/binder-of-pool",
        "servicemonitor.monitoring.coreos.com/kai-binder-admission",
    ]
    path = f"/apis/{GROUP}/v1/namespaces/kai-scheduler/prometheusrules/kai-binder"
    groups = operator.request("GET", path)["spec"]["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(ALERTS)


def test_the_dashboard_is_found_by_grafanas_sidecar(control_plane: ControlPlane) -> None:
    control_plane.kubectl("apply", "-k", str(ROOT / "config/grafana"))
    query = "?labelSelector=grafana_dashboard%3D1"
    (found,) = control_plane.request("GET", f"/api/v1/namespaces/kai-scheduler/configmaps{query}")["items"]
    assert json.loads(found["data"]["kai-binder.json"]) == json.loads(DASHBOARD.read_text())
