"""Device claims on a real control plane, as users, drivers and other schedulers write them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from controlplane import ControlPlane, RequestError
from controlplane.flags import CLAIMS, claim_versions

from controller.plugins.claims.model import FLAT_VERSIONS, device_requests
from controller.runtime.client import Object
from tests.cluster import MERGE, Cluster, minor, prepared_plane
from tests.features import EXTENDED_RESOURCES, needs

FINALIZER = "resource.kubernetes.io/delete-protection"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
DRIVER = "gpu.example.com"
GPU = "example.com/gpu"
LIMIT = 256
STATUS = "extendedResourceClaimStatus"
LIMITS = {GPU: "1"}

supported = needs(EXTENDED_RESOURCES)
"""Of tests with extended resources."""


class Claims:
    """Makes claims and reads what became of them, by default in the best version that the server knows."""

    def __init__(self, cluster: Cluster, version: str = "") -> None:
        version = version or claim_versions(cluster.plane.kubernetes)[0]
        self.cluster = cluster
        self._plane = cluster.plane
        self.version = f"resource.k8s.io/{version}"
        self.path = f"/apis/{self.version}/namespaces/{cluster.namespace}/resourceclaims"
        self.templates = self.path.replace("resourceclaims", "resourceclaimtemplates")

    @property
    def flat(self) -> bool:
        """Whether device requests have their fields without `exactly` around them."""
        return self.version.rpartition("/")[2] in FLAT_VERSIONS

    def shaped(self, spec: Object) -> Object:
        """The spec of a claim of v1, as this version has it."""
        requests = device_requests(spec["devices"]["requests"], self.version.rpartition("/")[2])
        return {**spec, "devices": {**spec["devices"], "requests": requests}}

    def make(self, name: str, **metadata: object) -> Object:
        """A claim for one GPU, as a user writes it."""
        body = {"metadata": {"name": name, **metadata}, "spec": self.spec()}
        return self._plane.request("POST", self.path, body)

    def spec(self) -> Object:
        """For one GPU."""
        wanted = {"deviceClassName": DRIVER}
        request = wanted if self.flat else {"exactly": wanted}
        return {"devices": {"requests": [{"name": "gpu", **request}]}}

    def make_template(self, name: str) -> None:
        """A template for claims of one GPU."""
        self._plane.request(
            "POST", self.templates, {"metadata": {"name": name}, "spec": {"spec": self.spec()}}
        )

    def get(self, name: str) -> Object:
        found: Object = without_nulls(self._plane.request("GET", f"{self.path}/{name}"))
        return found

    def all(self) -> list[Object]:
        return list(without_nulls(self._plane.request("GET", self.path)["items"]))

    def status(self, name: str) -> Object:
        return dict(self.get(name).get("status") or {})

    def users(self, name: str) -> list[str]:
        """The pods that a claim is reserved for."""
        return [item["name"] for item in self.status(name).get("reservedFor") or ()]

    def patch_status(self, name: str, status: Object) -> Object:
        path = f"{self.path}/{name}/status"
        stored: Object = without_nulls(self._plane.request("PATCH", path, {"status": status}, MERGE))
        return stored

    def patch(self, name: str, delta: Object) -> Object:
        return self._plane.request("PATCH", f"{self.path}/{name}", delta, MERGE)

    def delete(self, name: str) -> None:
        self._plane.request("DELETE", f"{self.path}/{name}")

    def exists(self, name: str) -> bool:
        return name in [claim["metadata"]["name"] for claim in self.all()]

    def protected(self, name: str) -> bool:
        """Whether it has the finalizer of allocated claims."""
        return FINALIZER in (self.get(name)["metadata"].get("finalizers") or ())

    def give(self, name: str, allocation: Object, users: Sequence[Object] = ()) -> Object:
        """Allocates a claim as another scheduler would, for these pods."""
        finalizers = self.get(name)["metadata"].get("finalizers") or []
        self.patch(name, {"metadata": {"finalizers": sorted({*finalizers, FINALIZER})}})
        return self.patch_status(name, {"allocation": allocation, "reservedFor": list(users) or None})

    def limit(self, name: str) -> int:
        """How many pods a claim may be reserved for on this server; nothing is changed.

        Args:
            name: Of a claim that has devices.
        """
        users = [{"resource": "pods", "name": f"p{index}", "uid": f"p{index}"} for index in range(LIMIT)]
        try:
            body = {"status": {"reservedFor": users}}
            self._plane.request("PATCH", f"{self.path}/{name}/status?dryRun=All", body, MERGE)
        except RequestError as error:
            found = re.search(r"reservedFor: Too (?:long|many).* (\d+)", str(error))
            if found is None:
                raise
            return int(found[1])
        return LIMIT

    def assert_free(self, name: str) -> None:
        """Nothing is left of a bind that failed."""
        claim = self.get(name)
        assert not claim.get("status"), claim["status"]
        assert not claim["metadata"].get("finalizers")

    def make_extended(self, pod: Object, node: str, name: str = "", **metadata: object) -> str:
        """A pod's claim for extended resources, as a crash after its creation leaves it. Returns its name.

        Args:
            pod: The pod.
            node: Where the device is.
            name: As this binder gives it; empty as older ones had it made up.
            **metadata: More of it.
        """
        whole = {
            **({"name": name} if name else {}),
            "generateName": f"{pod['metadata']['name']}-extended-resources-",
            "annotations": {EXTENDED: "true"},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner_of(pod)],
            **metadata,
        }
        spec = {"devices": {"requests": extended(node)["deviceRequests"]}}
        made = self._plane.request("POST", self.path, {"metadata": whole, "spec": spec})
        return str(made["metadata"]["name"])

    def leave_behind(self, pod: Object, node: str, device: str = "gpu-0", *, told: bool = True) -> str:
        """A claim of a bind that an older binder did not end: allocated, reserved, and named by the pod."""
        name = self.make_extended(pod, node)
        devices = extended(node, device)["allocation"]
        self.patch_status(name, {"allocation": devices, "reservedFor": [user(pod)]})
        if told:
            mappings = extended(node)["containerMappings"]
            body = {"status": {STATUS: {"resourceClaimName": name, "requestMappings": mappings}}}
            path = f"{self.cluster.pods}/{pod['metadata']['name']}/status"
            self._plane.request("PATCH", path, body, MERGE)
        return name

    def report(self, node: str, type_: str, message: str = "", *, claim: str = "one") -> None:
        """What the driver says of the device gpu-0 of a claim."""
        said = {
            "type": type_,
            "status": "True",
            "reason": "Told",
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        device = {"driver": DRIVER, "pool": node, "device": "gpu-0", "conditions": [said]}
        self.patch_status(claim, {"devices": [device]})


@contextmanager
def plane_serving(directory: Path, *versions: str) -> Iterator[ControlPlane]:
    """A control plane with these versions of resource.k8s.io only, perhaps none.

    The Node authorizer is off, because the server is not ready before that has listed ResourceSlices in it;
    and so is the controller manager, which knows the best one only.
    """
    known = claim_versions(minor())
    lacking = [version for version in versions if version not in known]
    if lacking:
        pytest.skip(f"Kubernetes {minor()} knows no device claims of {CLAIMS}/{lacking[0]}")
    with prepared_plane(
        directory,
        runtime_config={f"{CLAIMS}/{version}": str(version in versions).lower() for version in known},
        apiserver_flags=("--authorization-mode=RBAC",),
        controller_manager=False,
    ) as plane:
        yield plane


def without_nulls(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    """What the server says, without fields that are null: 1.33 and before write `adminAccess` so."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def allocation(node: str, device: str = "gpu-0", *, request: str = "gpu", **more: object) -> Object:
    """One device that only one node can use, as KAI's scheduler writes it."""
    result = {"device": device, "driver": DRIVER, "pool": node, "request": request, **more}
    return {"devices": {"results": [result]}, "nodeSelector": only_on(node)}


def only_on(node: str) -> Object:
    """The node selector of a device that belongs to a node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def brings(entry: str, devices: Object) -> list[Object]:
    """The resourceClaimAllocations of a request for one claim."""
    return [{"name": entry, "allocation": devices}]


def extended(node: str, device: str = "gpu-0") -> Object:
    """The extendedResourceClaimAllocation of a request for one GPU, as KAI's scheduler writes it."""
    name = "container-0-request-0"
    exactly = {"allocationMode": "ExactCount", "count": 1, "deviceClassName": DRIVER}
    return {
        "allocation": allocation(node, device, request=name),
        "deviceRequests": [{"name": name, "exactly": exactly}],
        "containerMappings": [{"containerName": "main", "requestName": name, "resourceName": GPU}],
    }


def prepared(node: str, device: str = "gpu-0") -> Object:
    """An allocation that is good only once the driver says so (DRADeviceBindingConditions)."""
    awaited, feared = ["example.com/attached"], ["example.com/broken"]
    return allocation(node, device, bindingConditions=awaited, bindingFailureConditions=feared)


def own_name(pod: Object) -> str:
    """The name that this binder gives to the claim for a pod's extended resources (F-18)."""
    return f"{pod['metadata']['name']}-extended-resources-{pod['metadata']['uid']}"


def owner_of(pod: Object) -> Object:
    """The owner of that claim."""
    kept = {key: pod["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": "v1", "kind": "Pod", "controller": True, "blockOwnerDeletion": True, **kept}


def user(pod: Object) -> Object:
    """A pod as a claim's reservedFor names it."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def uses(**claims: str) -> list[Object]:
    """The resourceClaims of a pod: entry and claim."""
    return [{"name": entry, "resourceClaimName": name} for entry, name in claims.items()]


def from_template(**templates: str) -> list[Object]:
    """The same for templates."""
    return [{"name": entry, "resourceClaimTemplateName": name} for entry, name in templates.items()]
