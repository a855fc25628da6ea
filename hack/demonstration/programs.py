"""The binder and the webhook beside a local control plane: installed as we ship them, run as processes.

Called by ``play``. Invariants: each has the rights of its ServiceAccount and no others; both get the one
setting of plugins that the overlay has; no process outlives this one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from controlplane import ControlPlane, RequestError
from controlplane.client import answers
from controlplane.process import Guard, Program, free_ports

from demonstration.cases import OVERLAY, ROOT

Object = dict[str, Any]

AGENT = "registry.example.com/kai-binder:demo"
"""Nobody pulls it: our agent runs for the reservation pods as a process."""
HOST = "localhost"
"""A name for the certificate that the webhook makes: no Service leads out of this control plane."""
PODS = "/api/v1/namespaces/default/pods"
START_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
PREFIX = "runai/shared-gpu-configmap"


class Programs:
    """What runs beside the control plane.

    Attributes:
        plane: The control plane, started.
        setting: The overlay's setting of plugins, for binder and webhook.
        binder_log: The binder's log.
        webhook_log: The webhook's log.
    """

    def __init__(self, directory: Path, plane: ControlPlane, guard: Guard) -> None:
        """Starts nothing yet.

        Args:
            directory: For the logs.
            plane: The control plane, started.
            guard: Ends the programs if this process dies.
        """
        self.plane = plane
        self.setting: Mapping[str, str] = {}
        self.binder_log, self.webhook_log = directory / "binder.log", directory / "webhook.log"
        self._guard = guard
        self._ports = dict(
            zip(("binder", "metrics", "webhook", "health", "other"), free_ports(5), strict=True)
        )

    @property
    def metrics_url(self) -> str:
        """Where the binder's metrics are."""
        return f"http://127.0.0.1:{self._ports['metrics']}/metrics"

    @property
    def health_url(self) -> str:
        """Where the binder says whether it is ready."""
        return f"http://127.0.0.1:{self._ports['binder']}/readyz"

    def install(self) -> None:
        """Applies the overlay, but for its Deployments, and has the API server call the webhook here."""
        items = list(yaml.safe_load_all(self.plane.kubectl("kustomize", str(OVERLAY))))
        (self.setting,) = (item["data"] for item in items if item["kind"] == "ConfigMap")
        kept = [item for item in items if item["kind"] != "Deployment"]
        for item in kept:
            for webhook in item.get("webhooks") or []:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://{HOST}:{self._ports['webhook']}{path}"}
        self.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(kept))
        self.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")

    @contextmanager
    def running(self, binder_only: Mapping[str, str] | None = None) -> Iterator[None]:
        """Runs both until the block ends.

        Args:
            binder_only: Settings that only the binder gets.

        Raises:
            ControlPlaneError: One did not become ready; the text has the end of its log.
        """
        binder = self._program("binder", self._binder(), self.binder_log, binder_only or {})
        webhook = self._program("webhook", self._webhook(), self.webhook_log, {})
        try:
            binder.start()
            binder.wait_until(lambda: answers(self.health_url), START_TIMEOUT_S)
            webhook.start()  # later, as it compares its plugins with the binder's when it starts
            webhook.wait_until(
                lambda: answers(f"http://127.0.0.1:{self._ports['health']}/readyz"), START_TIMEOUT_S
            )
            webhook.wait_until(self._prepares, START_TIMEOUT_S)
            yield
        finally:
            webhook.stop(STOP_GRACE_S)
            binder.stop(STOP_GRACE_S)

    def _program(self, name: str, arguments: list[str], log: Path, more: Mapping[str, str]) -> Program:
        environment = {"PYTHONPATH": str(ROOT), **self.setting, **more}
        return Program(name, [sys.executable, "-m", "controller", *arguments], log, self._guard, environment)

    def _binder(self) -> list[str]:
        return [
            f"--kubeconfig={self.plane.service_account_kubeconfig('kai-scheduler', 'binder')}",
            f"--metrics-bind-address=127.0.0.1:{self._ports['metrics']}",
            f"--health-probe-bind-address=127.0.0.1:{self._ports['binder']}",
            f"--resource-reservation-pod-image={AGENT}",
        ]

    def _webhook(self) -> list[str]:
        return [
            "admission",
            f"--kubeconfig={self.plane.service_account_kubeconfig('kai-scheduler', 'kai-binder-admission')}",
            f"--webhook-bind-address=127.0.0.1:{self._ports['webhook']}",
            f"--metrics-bind-address=127.0.0.1:{self._ports['other']}",
            f"--health-probe-bind-address=127.0.0.1:{self._ports['health']}",
            f"--binder-metrics-url={self.metrics_url}",
            "--self-signed-certificate",
            f"--webhook-service-name={HOST}",
        ]

    def _prepares(self) -> bool:
        """Whether the API server has the webhook prepare pods; it takes a moment to learn whom to trust."""
        container = {"name": "main", "image": "busybox"}
        pod: Object = {
            "metadata": {"name": "probe", "annotations": {"gpu-fraction": "0.5"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": [container]},
        }
        try:
            seen = self.plane.request("POST", f"{PODS}?dryRun=All", pod)
        except RequestError:
            return False
        return PREFIX in seen["metadata"]["annotations"]


def annotations_of(plane: ControlPlane, pod: str) -> Mapping[str, str]:
    """The annotations of a pod of namespace default."""
    found: Mapping[str, str] = plane.request("GET", f"{PODS}/{pod}")["metadata"].get("annotations") or {}
    return found
