"""Storage classes, volumes and claims of one test, as the admin makes and reads them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object
from tests.cluster import MERGE, Cluster
from tests.polling import wait_until
from tests.provisioner import PROVISIONER, SELECTED_NODE

HOSTNAME = "kubernetes.io/hostname"
LOCAL = "kubernetes.io/no-provisioner"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"


def host_affinity(node: str) -> Object:
    """The node affinity of a volume that is on one node."""
    where = {"key": HOSTNAME, "operator": "In", "values": [node]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}


class Volumes:
    """Makes what pods with claims need, in names of its own, for what belongs to no namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.plane: ControlPlane = cluster.plane
        self.claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
        self._suffix = uuid4().hex[:8]

    def unique(self, name: str) -> str:
        """The name in the cluster of what a test calls by a plain one."""
        return f"{name}-{self._suffix}"

    def node(self, name: str = "n1", **labels: str) -> str:
        """A node that volumes can be on; returns its name in the cluster."""
        whole = self.unique(name)
        return self.cluster.node(whole, {HOSTNAME: whole, **labels})

    def storage_class(self, name: str = "local", provisioner: str = LOCAL, **fields: object) -> str:
        """A class whose claims wait for a pod unless told otherwise; returns its name in the cluster."""
        whole = self.unique(name)
        body = {
            "metadata": {"name": whole},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
            **fields,
        }
        self.plane.request("POST", CLASSES, body)
        return whole

    def made_class(self, name: str = "made", **fields: object) -> str:
        """A class of the stub."""
        return self.storage_class(name, PROVISIONER, **fields)

    def volume(
        self, name: str, class_name: str, node: str | None, *, size: str = "1Gi", **fields: object
    ) -> str:
        """A volume, local to a node if one is given, that the volume controller says is free."""
        whole = self.unique(name)
        labels = fields.pop("labels", {})
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/mnt/{whole}"},
            **({"nodeAffinity": host_affinity(node)} if node else {}),
            **fields,
        }
        self.plane.request("POST", VOLUMES, {"metadata": {"name": whole, "labels": labels}, "spec": spec})
        if "claimRef" not in spec:
            wait_until(lambda: self.get_volume(whole).get("status", {}).get("phase") == "Available")
        return whole

    def claim(self, name: str, class_name: str | None, *, size: str = "1Gi", **fields: object) -> Object:
        """A claim."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **fields}
        if class_name is not None:
            spec["storageClassName"] = class_name
        return self.plane.request("POST", self.claims, {"metadata": {"name": name}, "spec": spec})

    def made_anew(self, name: str, class_name: str) -> bool:
        """Makes a claim whose namesake is being deleted; False if that is not gone yet."""
        try:
            self.claim(name, class_name)
        except RequestError as error:
            if error.status != 409:
                raise
            return False
        return True

    def bound_claim(self, name: str, class_name: str, volume: str) -> Object:
        """A claim that is bound to this volume before any pod comes."""
        self.claim(name, class_name, volumeName=volume)
        wait_until(lambda: self.get_claim(name).get("status", {}).get("phase") == "Bound")
        return self.get_claim(name)

    def get_claim(self, name: str) -> Object:
        return self.plane.request("GET", f"{self.claims}/{name}")

    def get_volume(self, name: str) -> Object:
        return self.plane.request("GET", f"{VOLUMES}/{name}")

    def patch_claim(self, name: str, delta: Object) -> Object:
        return self.plane.request("PATCH", f"{self.claims}/{name}", delta, MERGE)

    def patch_volume(self, name: str, delta: Object) -> Object:
        return self.plane.request("PATCH", f"{VOLUMES}/{name}", delta, MERGE)

    def delete_volume(self, name: str) -> None:
        """Has a volume gone, whatever protects it."""
        self.plane.request("DELETE", f"{VOLUMES}/{name}")
        self.patch_volume(name, {"metadata": {"finalizers": None}})

    def selected_node(self, claim: str) -> str | None:
        found: str | None = (self.get_claim(claim)["metadata"].get("annotations") or {}).get(SELECTED_NODE)
        return found

    def owner(self, volume: str) -> str | None:
        """The name of the claim that a volume is for."""
        found: str | None = (self.get_volume(volume)["spec"].get("claimRef") or {}).get("name")
        return found

    def volume_of(self, claim: str) -> str:
        """The volume that a claim is bound to."""
        found = self.get_claim(claim)
        assert found["status"]["phase"] == "Bound", found
        return str(found["spec"]["volumeName"])

    @contextmanager
    def controllers_paused(self) -> Iterator[None]:
        """Keeps the volume controller, and all others, from doing anything."""
        pid = self.plane.pids["kube-controller-manager"]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def pod_and_request(self, name: str, node: str, *claims: str, **spec: object) -> Object:
        """A pod with these claims, and its request."""
        made = self.cluster.pod(name, claims=claims)
        self.cluster.ask(name, node, owner=made, **spec)
        return made

    def delete_requests(self) -> None:
        """Has no request of this test wait any longer, for the binder of the next one."""
        self.plane.request("DELETE", self.cluster.requests)

    def reason(self, name: str, *, within_s: float = 10.0) -> str:
        """Why a request has failed."""
        return str(self.cluster.wait_for(name, "Failed", within_s=within_s)["reason"])

    def wait_until_shown(self, name: str, *, within_s: float = 8.0) -> str:
        """Waits until a request says that it waits; returns for what."""

        def check() -> str:
            condition = self.cluster.conditions(name).get("VolumeBinding", {})
            assert condition.get("reason") == "Waiting", condition
            return str(condition["message"])

        return wait_until(check, within_s=within_s)
