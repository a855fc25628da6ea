"""A provisioner of volumes for one namespace, played by the test.

It obeys `volume.kubernetes.io/selected-node`, in a thread of its own, and only looks after claims whose class
names it as the provisioner. The volumes that it makes are real objects: the volume controller binds them.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from controlplane import ControlPlane, RequestError

from controller.runtime.client import Object

PROVISIONER = "stub.example.com"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
MERGE = "application/merge-patch+json"


class Provisioner:
    """Makes a volume for each claim that is handed to it.

    Attributes:
        delay_s: How long it takes over each.
        silent: Whether it does nothing at all.
        refuse_after_s: After so long it takes the node off the claim instead; None for a willing one.
        place: Where the volume really is, given the node that was asked for.
        anywhere: Whether every node can use it.
        selections: Claim and node, each time that it saw a node being selected.
    """

    def __init__(self, plane: ControlPlane, namespace: str, name: str = PROVISIONER) -> None:
        self.delay_s = 0.0
        self.silent = False
        self.refuse_after_s: float | None = None
        self.anywhere = False
        self.place: Callable[[str], str] = lambda node: node
        self.selections: list[tuple[str, str]] = []
        self._plane = plane
        self._name = name
        self._claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        self._classes: dict[str, str] = {}
        self._seen: dict[tuple[str, str], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with suppress(OSError, RequestError):  # changed under our hands, or the server is away
                silent = self.silent  # as it was when the claims were read: a test may change it meanwhile
                for claim in self._plane.request("GET", self._claims)["items"]:
                    self._look(claim, silent=silent)

    def _look(self, claim: Object, *, silent: bool) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        node = (metadata.get("annotations") or {}).get(SELECTED_NODE)
        key = (metadata["uid"], node or "")
        for other in [other for other in self._seen if other[0] == key[0] and other != key]:
            del self._seen[other]
        if not node or self._provisioner_of(spec.get("storageClassName", "")) != self._name:
            return
        if key not in self._seen:
            self._seen[key] = time.monotonic()
            self.selections.append((metadata["name"], node))
        waited_s = time.monotonic() - self._seen[key]
        if silent or spec.get("volumeName"):
            return
        if self.refuse_after_s is not None:
            if waited_s >= self.refuse_after_s:
                delta = {"metadata": {"annotations": {SELECTED_NODE: None}}}
                self._plane.request("PATCH", f"{self._claims}/{metadata['name']}", delta, MERGE)
        elif waited_s >= self.delay_s:
            self._make(claim, self.place(node))

    def _provisioner_of(self, class_name: str) -> str:
        if class_name and class_name not in self._classes:
            found = self._plane.request("GET", f"/apis/storage.k8s.io/v1/storageclasses/{class_name}")
            self._classes[class_name] = found["provisioner"]
        return self._classes.get(class_name, "")

    def _make(self, claim: Object, node: str) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        name = f"pvc-{metadata['uid']}"
        reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
        where = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        volume: Object = {
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": self._name}},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "volumeMode": spec["volumeMode"],
                "storageClassName": spec["storageClassName"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"/mnt/{name}"},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
            },
        }
        if self.anywhere:
            del volume["spec"]["nodeAffinity"]
        try:
            self._plane.request("POST", "/api/v1/persistentvolumes", volume)
        except RequestError as error:
            if error.status != 409:
                raise
