"""Reservation pods with a place for the agent's account, on a control plane on which no stub plays agents."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.agent import ONE_GPU, Agent
from tests.cluster import MERGE, Cluster
from tests.sharing import GPU_INDEX, RESERVATION_PODS, RESERVATIONS

ACCOUNT = "kai-resource-reservation"


class Reservation:
    """A reservation pod.

    Attributes:
        plane: The control plane.
        made: The pod as it was made first.
    """

    def __init__(self, plane: ControlPlane, made: Object) -> None:
        self.plane = plane
        self.made = made

    @classmethod
    def fresh(
        cls,
        plane: ControlPlane,
        node: str,
        *,
        account: str = ACCOUNT,
        annotations: Mapping[str, str] | None = None,
    ) -> Self:
        """One that a test makes."""
        body = body_of(f"gpu-reservation-{uuid4().hex[:16]}", node, account, annotations or {})
        return cls(plane, plane.request("POST", RESERVATION_PODS, body))

    @property
    def name(self) -> str:
        return str(self.made["metadata"]["name"])

    @property
    def account(self) -> str:
        """Its service account."""
        return str(self.made["spec"]["serviceAccountName"])

    @property
    def path(self) -> str:
        return f"{RESERVATION_PODS}/{self.name}"

    def replace(self) -> None:
        """Has it gone at once, and another one of its name made."""
        self.delete()
        node = str(self.made["spec"]["nodeName"])
        self.plane.request("POST", RESERVATION_PODS, body_of(self.name, node, self.account, {}))

    def delete(self) -> None:
        self.plane.request("DELETE", f"{self.path}?gracePeriodSeconds=0")

    def annotate(self, value: str | None) -> None:
        """Writes the annotation as somebody else."""
        self.plane.request("PATCH", self.path, {"metadata": {"annotations": {GPU_INDEX: value}}}, MERGE)

    def annotation(self) -> str | None:
        found: str | None = (self.read()["metadata"].get("annotations") or {}).get(GPU_INDEX)
        return found

    def read(self) -> Object:
        return self.plane.request("GET", self.path)

    def token(self) -> str:
        """A token that is bound to the pod, as its kubelet asks for one."""
        bound = {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": self.made["metadata"]["uid"]}
        spec = {"expirationSeconds": 3600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{RESERVATIONS}/serviceaccounts/{self.account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.plane.request("POST", path, body)["status"]["token"])


def body_of(name: str, node: str, account: str, annotations: Mapping[str, str]) -> Object:
    container = {"name": "resource-reservation", "image": "kai-binder", "args": ["agent"]}
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [container]}
    return {"metadata": {"name": name, "annotations": dict(annotations)}, "spec": spec}


class Agents:
    """Makes agents and sees to it that none outlives the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Agent] = []

    def make(
        self, reservation: Reservation, machine: Mapping[str, Any] = ONE_GPU, *, token: str | None = None
    ) -> Agent:
        """An agent that is not started yet, in the container of this pod.

        Args:
            reservation: The pod.
            machine: What NVML finds there.
            token: Instead of one that is bound to the pod.
        """
        directory = self._directory / f"agent-{len(self._made)}"
        directory.mkdir()
        address = urlsplit(reservation.plane.url)
        environ = {
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "POD_NAMESPACE": RESERVATIONS,
            "POD_NAME": reservation.name,
        }
        made = Agent(directory, environ, machine)
        (made.account / "token").write_text(reservation.token() if token is None else token)
        (made.account / "ca.crt").write_bytes(reservation.plane.ca_file.read_bytes())
        self._made.append(made)
        return made

    def kill(self) -> None:
        for made in self._made:
            made.kill()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def gpu_node(control_plane: ControlPlane) -> str:
    """The node of all reservations. Pods of a node that is not there are deleted after 40 s."""
    return Cluster.fresh(control_plane).node()


@pytest.fixture
def reserve(control_plane: ControlPlane, gpu_node: str) -> Iterator[Callable[..., Reservation]]:
    """Makes reservation pods; they are gone after the test."""
    made: list[Reservation] = []

    def make(**options: Any) -> Reservation:  # noqa: ANN401 -- as of Reservation.fresh
        made.append(Reservation.fresh(control_plane, gpu_node, **options))
        return made[-1]

    yield make
    for reservation in made:
        control_plane.kubectl(
            "delete", "pod", "-n", RESERVATIONS, reservation.name, "--ignore-not-found", "--force"
        )
