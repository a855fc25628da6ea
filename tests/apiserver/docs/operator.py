"""Plays KAI's operator, and the kubelet of its pods, for as much of both as the pages of docs/ speak of."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from controlplane import ControlPlane, RequestError

NAMESPACE = "kai-scheduler"
CONFIG = "/apis/kai.scheduler/v1/configs/kai-config"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
OURS = {"played-by": "operator"}
KAI_IMAGE = "registry.example.com/kai/binder:v0.18.2"
MERGE = "application/merge-patch+json"
POLL_S = 0.1
Object = dict[str, Any]

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "configs.kai.scheduler"},
    "spec": {
        "group": "kai.scheduler",
        "scope": "Cluster",
        "names": {"kind": "Config", "plural": "configs"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


class Operator:
    """Keeps the binder's Deployment and two webhook configurations as the Config says; pods get ready."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def image(self) -> str:
        """Of the binder's Deployment, whoever made it; empty if there is none."""
        found = self._get(f"{DEPLOYMENTS}/binder")
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"]) if found else ""

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            with suppress(RequestError):  # somebody was faster; the next look will do
                self._look()

    def _look(self) -> None:
        spec = (self._get(CONFIG) or {}).get("spec", {})
        self._binder(spec.get("binder", {}).get("service", {}))
        enabled = spec.get("admission", {}).get("service", {}).get("enabled", True)
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            self._keep(f"{HOOKS}/{kind}", {"metadata": {"name": "kai-admission"}}, wanted=enabled)
        for pod in self._plane.request("GET", PODS)["items"]:
            if pod["status"].get("phase") != "Running":
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self._plane.request(
                    "PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": ready}, MERGE
                )

    def _binder(self, service: Object) -> None:
        image = service.get("image")
        named = f"{image['repository']}/{image['name']}:{image['tag']}" if image else KAI_IMAGE
        labels = {"app": "binder"}
        account = "/api/v1/namespaces/kai-scheduler/serviceaccounts"
        self._keep(account, {"metadata": {"name": "binder"}}, wanted=True)
        pod = {"serviceAccountName": "binder", "containers": [{"name": "binder", "image": named}]}
        body = {
            "metadata": {"name": "binder", "labels": OURS},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        self._keep(DEPLOYMENTS, body, wanted=service.get("enabled", True))
        if service.get("enabled", True) and self.image() != named:
            self._plane.request("PATCH", f"{DEPLOYMENTS}/binder", {"spec": body["spec"]}, MERGE)

    def _keep(self, path: str, body: Object, *, wanted: bool) -> None:
        name = body["metadata"]["name"]
        found = self._get(f"{path}/{name}")
        if wanted and found is None:
            self._plane.request("POST", path, body)
        elif not wanted and found and OURS.items() <= (found["metadata"].get("labels") or {}).items():
            self._plane.request("DELETE", f"{path}/{name}?propagationPolicy=Background")
        elif not wanted and found and name == "kai-admission":
            self._plane.request("DELETE", f"{path}/{name}")

    def _get(self, path: str) -> Object | None:
        try:
            return self._plane.request("GET", path)
        except RequestError as error:
            if error.status != 404:
                raise
            return None
