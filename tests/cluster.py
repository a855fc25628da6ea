"""One namespace of a real control plane, as the admin who watches the binder sees and changes it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.objects import REQUEST_VERSION, bind_request, node, pod
from tests.polling import wait_until

ROOT = Path(__file__).parents[1]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"

ORDER = ("VolumeBinding", "DynamicResources", "GPUSharing", "Bound")
"""Conditions of a request for no shared GPU, with the default plugins."""


def minor() -> str:
    """The minor of Kubernetes that these tests run on."""
    return os.environ.get("KUBERNETES", "1.36")


@contextmanager
def prepared_plane(directory: Path, **options: Any) -> Iterator[ControlPlane]:  # noqa: ANN401
    """A control plane, of the minor that KUBERNETES names, with our namespaces, CRD and roles."""
    with ControlPlane(directory, kubernetes=minor(), **options) as plane:
        plane.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        plane.kubectl("apply", "-k", str(ROOT / "config/crd"))
        plane.kubectl("apply", "-k", str(ROOT / "config/rbac"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane


class Cluster:
    """Makes pods, nodes and requests, and reads what became of them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.requests = f"/apis/{REQUEST_VERSION}/namespaces/{namespace}/bindrequests"

    @classmethod
    def fresh(cls, plane: ControlPlane) -> Self:
        """A namespace of one's own, with the ServiceAccount without which no pod can be created in it."""
        name = f"test-{uuid4().hex[:10]}"
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
            plane.request("POST", accounts, {"metadata": {"name": "default"}})
        except RequestError as error:
            if error.status != 409:  # the controller manager was faster
                raise
        return cls(plane, name)

    def node(self, name: str = "", labels: dict[str, str] | None = None) -> str:
        """Makes a node and returns its name, which is new unless it is given."""
        name = name or f"node-{uuid4().hex[:10]}"
        self.plane.request("POST", "/api/v1/nodes", node(name, **(labels or {})))
        return name

    def pod(self, name: str, **options: Any) -> Object:  # noqa: ANN401
        """Makes a pod; options as in `objects.pod`."""
        return self.plane.request("POST", self.pods, pod(name, **options))

    def request(self, name: str, spec: Object, owner: Object | None = None) -> Object:
        """Makes a request with this very spec."""
        return self.plane.request("POST", self.requests, bind_request(name, spec, owner))

    def ask(self, name: str, node_name: str, *, owner: Object | None = None, **spec: Any) -> Object:  # noqa: ANN401
        """Makes a request for the pod of this name."""
        whole = {"podName": name, "selectedNode": node_name, "receivedResourceType": "Regular", **spec}
        return self.request(name, whole, owner)

    def pod_and_request(self, name: str, node_name: str, **spec: Any) -> Object:  # noqa: ANN401
        """Makes both, as the scheduler would: the pod owns the request. Returns the pod."""
        made = self.pod(name)
        self.ask(name, node_name, owner=made, **spec)
        return made

    def delete_pod(self, name: str) -> None:
        """Has a pod gone at once, as nobody here would end its containers."""
        self.plane.request("DELETE", f"{self.pods}/{name}?gracePeriodSeconds=0")

    def bind_by_hand(self, name: str, node_name: str) -> None:
        """Binds a pod as some other scheduler would."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.plane.request("POST", f"{self.pods}/{name}/binding", body)

    def patch_pod_status(self, name: str, status: Object) -> Object:
        return self.plane.request("PATCH", f"{self.pods}/{name}/status", {"status": status}, STRATEGIC)

    def patch_status(self, name: str, status: Object) -> Object:
        """Changes a request's status, as another writer would."""
        return self.plane.request("PATCH", f"{self.requests}/{name}/status", {"status": status}, MERGE)

    def patch_request(self, name: str, delta: Object) -> Object:
        return self.plane.request("PATCH", f"{self.requests}/{name}", delta, MERGE)

    def get_pod(self, name: str) -> Object:
        return self.plane.request("GET", f"{self.pods}/{name}")

    def get_request(self, name: str) -> Object:
        return self.plane.request("GET", f"{self.requests}/{name}")

    def all_pods(self) -> list[Object]:
        return list(self.plane.request("GET", self.pods)["items"])

    def all_requests(self) -> list[Object]:
        return list(self.plane.request("GET", self.requests)["items"])

    def node_of(self, name: str) -> str | None:
        """The node that a pod is on."""
        found: str | None = self.get_pod(name)["spec"].get("nodeName")
        return found

    def annotations(self, name: str) -> dict[str, str]:
        """The annotations of a pod."""
        return dict(self.get_pod(name)["metadata"].get("annotations") or {})

    def pod_bound(self, name: str) -> Object | None:
        """The condition PodBound of a pod."""
        conditions = self.get_pod(name)["status"].get("conditions") or []
        found = [item for item in conditions if item["type"] == "PodBound"]
        assert len(found) <= 1
        return found[0] if found else None

    def status(self, name: str) -> Object:
        """The status of a request; empty while there is none."""
        return dict(self.get_request(name).get("status") or {})

    def conditions(self, name: str) -> dict[str, Object]:
        """The conditions of a request by their type, in their order."""
        return {item["type"]: item for item in self.status(name).get("conditions") or ()}

    def wait_for(self, name: str, phase: str, *, within_s: float = 10.0) -> Object:
        """Waits for the phase of a request and returns its status."""
        return wait_until(lambda: self._status_in(name, phase), within_s=within_s)

    def wait_for_attempts(self, name: str, attempts: int, *, within_s: float = 10.0) -> Object:
        """Waits until so many attempts have failed and returns the status."""

        def check() -> Object:
            status = self.status(name)
            assert status.get("failedAttempts", 0) >= attempts, status
            return status

        return wait_until(check, within_s=within_s)

    def wait_for_all(self, count: int, *, phase: str = "Succeeded", within_s: float = 30.0) -> None:
        """Waits until the namespace has so many requests and all are in a phase."""

        def check() -> bool:
            found = {item["metadata"]["name"]: item.get("status") or {} for item in self.all_requests()}
            others = {name: status for name, status in found.items() if status.get("phase") != phase}
            assert not others, f"of {len(found)} these are not {phase}: {others}"
            assert len(found) == count, f"there are {len(found)} requests, not {count}"
            return True

        wait_until(check, within_s=within_s)

    def events(self, name: str, kind: str = "Pod", *, reason: str = "") -> list[Object]:
        """The binder's events about an object, oldest first."""
        query = f"?fieldSelector=involvedObject.name={name},involvedObject.kind={kind}"
        found = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/events{query}")["items"]
        ours = [item for item in found if (item.get("source") or {}).get("component") == "binder"]
        return [item for item in ours if reason in ("", item["reason"])]

    def wait_for_event(self, name: str, reason: str, kind: str = "Pod", *, within_s: float = 10.0) -> Object:
        """Waits for an event of this reason and returns it."""
        return wait_until(lambda: self.events(name, kind, reason=reason), within_s=within_s)[0]

    def assert_unbound(self, name: str) -> None:
        """The pod waits as before, and nothing of a bind is left on it."""
        found = self.get_pod(name)
        assert "nodeName" not in found["spec"]
        annotations = found["metadata"].get("annotations") or {}
        assert "received-resource-type" not in annotations
        assert "kai.scheduler/numa-placement-predicted" not in annotations

    @contextmanager
    def bindings_denied(self, message: str = "no bindings in this namespace") -> Iterator[None]:
        """Has an admission policy refuse each binding in this namespace (403)."""
        name, here = self.namespace, {"kubernetes.io/metadata.name": self.namespace}
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods/binding"],
        }
        matched = {"resourceRules": [rule], "namespaceSelector": {"matchLabels": here}}
        verdict = {"expression": "false", "message": message, "reason": "Forbidden"}
        spec = {"matchConstraints": matched, "validations": [verdict]}
        self.plane.request("POST", POLICIES, {"metadata": {"name": name}, "spec": spec})
        binding = {"policyName": name, "validationActions": ["Deny"]}
        self.plane.request("POST", POLICY_BINDINGS, {"metadata": {"name": name}, "spec": binding})
        wait_until(lambda: self._probe() == 403)
        try:
            yield
        finally:
            self.plane.request("DELETE", f"{POLICY_BINDINGS}/{name}")
            self.plane.request("DELETE", f"{POLICIES}/{name}")
            wait_until(lambda: self._probe() == 404)

    def _probe(self) -> int:
        """What the server answers to a binding of no pod: the policies are asked first."""
        try:
            self.bind_by_hand("probe", "nowhere")
        except RequestError as error:
            return error.status
        raise AssertionError("a pod that does not exist was bound")

    def _status_in(self, name: str, phase: str) -> Object:
        status = self.status(name)
        assert status.get("phase") == phase, status
        return status


class Phases:
    """The phases that requests were seen in, by polling."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seen: dict[str, set[str]] = {}

    def follow(self, seconds: float) -> None:
        """Looks for so long."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            for item in self._cluster.all_requests():
                phase = (item.get("status") or {}).get("phase", "")
                self.seen.setdefault(item["metadata"]["name"], set()).add(phase)
            time.sleep(0.04)
