"""One control plane, and what every scenario does on it: create pods and requests, run a binder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from controlplane import ControlPlane

from benchmark.binder import NO_LIMIT, Binder, Subject
from benchmark.figures import PEER
from benchmark.objects import (
    CLAIMS,
    NAMESPACE,
    NODE,
    PODS,
    REQUESTS,
    RESERVATIONS,
    Object,
    bind_request,
    claim,
    pod,
)
from benchmark.watching import Endings

ROOT = Path(__file__).resolve().parents[2]
CREATORS = 8
AT_ONCE = 500
"""Objects that are deleted by one request."""
FILLING = "bench-filling"
"""Label of pods that are there for the size of the cluster only."""

Pods = Mapping[str, tuple[str, str]]
"""Uid and GPU group of each pod, by its name."""


class Bench:
    """The control plane of all runs.

    Attributes:
        subject: What is measured now.
        peer: The other program, if there is one, for what needs both at a time.
    """

    def __init__(self, subject: Subject) -> None:
        """Prepares nothing yet.

        Args:
            subject: What is measured first; it may be replaced between two measurements.
        """
        self.subject = subject
        self.peer: Subject | None = None
        self._number = 0
        self._filled = 0
        self._pool = ThreadPoolExecutor(CREATORS)

    @property
    def plane(self) -> ControlPlane:
        """The control plane."""
        return self.subject.plane

    def prepare(self) -> None:
        """CRD, roles, namespace and node."""
        self.plane.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        self.plane.kubectl("apply", "-k", str(ROOT / "config/crd"))
        self.plane.kubectl("apply", "-k", str(ROOT / "config/rbac"))
        self.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        self.plane.kubectl("create", "namespace", NAMESPACE)
        self.plane.kubectl("wait", "--for=create", "-n", NAMESPACE, "serviceaccount/default", "--timeout=30s")
        # Which rights a peer needs is its own affair.
        self.plane.kubectl("create", "serviceaccount", PEER, "--namespace=kai-scheduler")
        account = f"--serviceaccount=kai-scheduler:{PEER}"
        self.plane.kubectl("create", "clusterrolebinding", PEER, "--clusterrole=cluster-admin", account)
        labels = {"nvidia.com/gpu.memory": "15360"}
        self.plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})

    def clear(self) -> None:
        """Removes what earlier runs left, so that a binder finds only what is counted."""
        chosen = f"labelSelector={FILLING}!=yes"
        # Reservations too: the next binder would take away those of the last one, and be charged for it.
        for path in (REQUESTS, PODS, RESERVATIONS):
            self._delete(f"{path}?{chosen}")

    def fill(self, count: int) -> None:
        """Creates large pods that nobody binds, until there are so many, for the size of the cluster only."""
        first, self._filled = self._filled, max(self._filled, count)
        bodies = (pod(f"large-{number}", padding=6000) for number in range(first, self._filled))
        self.create(PODS, (_filling(body) for body in bodies))

    def empty(self) -> None:
        """Removes what `fill` made."""
        self._delete(f"{PODS}?labelSelector={FILLING}=yes")
        self._filled = 0

    def _delete(self, path: str) -> None:
        """Removes a collection, in parts: the server answers only when all of a part are gone."""
        while self.plane.request("GET", f"{path}&limit=1")["items"]:
            self.plane.request("DELETE", f"{path}&limit={AT_ONCE}", {"gracePeriodSeconds": 0})

    def create(self, path: str, bodies: Iterable[Object]) -> list[Object]:
        """Creates many objects, several at a time."""
        return list(self._pool.map(lambda body: self.plane.request("POST", path, body), bodies))

    def pods(self, count: int, *, per_group: int = 0, padding: int = 0, claims: Sequence[str] = ()) -> Pods:
        """Creates pods, all with the same claims."""
        names = self.names("run", count)
        groups = {
            name: f"group-{self._number}-{number // per_group}" if per_group else ""
            for number, name in enumerate(names)
        }
        bodies = (pod(name, group=groups[name], padding=padding, claims=claims) for name in names)
        return {
            item["metadata"]["name"]: (item["metadata"]["uid"], groups[item["metadata"]["name"]])
            for item in self.create(PODS, bodies)
        }

    def pods_that_wait(self, count: int, storage: str) -> list[str]:
        """Creates pods with a new claim each, and the requests for them; returns the names of the claims."""
        names = self.names("wait", count)
        self.create(CLAIMS, (claim(name, storage) for name in names))
        made = self.create(PODS, (pod(name, claims=[name]) for name in names))
        self.decide({item["metadata"]["name"]: (item["metadata"]["uid"], "") for item in made})
        return names

    def names(self, word: str, count: int) -> list[str]:
        """Names that no earlier run had."""
        self._number += 1
        return [f"{word}{self._number}-{number}" for number in range(count)]

    def decide(self, pods: Pods) -> None:
        """Creates the requests for pods."""
        self.create(REQUESTS, (bind_request(name, uid, group=group) for name, (uid, group) in pods.items()))

    @contextmanager
    def warm_binder(self, flags: Sequence[str] = NO_LIMIT) -> Iterator[Binder]:
        """Runs a binder for the block, which begins once it has bound a pod; nothing is left of that."""
        with self.binder(flags) as binder:
            pods = self.pods(1)
            with Endings(self.plane) as endings:
                self.decide(pods)
                binder.wait_ended(endings, 1)
            for path in (f"{where}/{name}" for name in pods for where in (REQUESTS, PODS)):
                self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
            yield binder

    @contextmanager
    def binder(self, flags: Sequence[str] = NO_LIMIT, prefix: Sequence[str] = ()) -> Iterator[Binder]:
        """Runs a binder for the block."""
        binder = Binder(self.subject, flags, prefix)
        binder.start()
        try:
            yield binder
        finally:
            binder.stop(10.0)


def _filling(body: Object) -> Object:
    return {**body, "metadata": {**body["metadata"], "labels": {FILLING: "yes"}}}
