"""The admission webhook as a process of its own, and the manifests by which an API server calls it."""

import base64
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from controlplane import ControlPlane, RequestError
from controlplane.pki import write_keys
from controlplane.process import free_ports

from controller.admission.tls import KeyPair
from controller.runtime.client import Object
from tests.binder import Binder
from tests.certificates import Mount
from tests.cluster import ROOT, Cluster
from tests.polling import wait_until
from tests.sharing import Sharing

GROUP = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "MutatingWebhookConfiguration": f"{GROUP}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{GROUP}/validatingwebhookconfigurations",
}
WRONG_SHARE = {"gpu-fraction": "2"}
WRONG_CONTAINER = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "no-such-container"}
"""What the validating webhook refuses, and what the mutating one does."""
MUTATE, VALIDATE = "/mutate--v1-pod", "/validate--v1-pod"
COUNTED = re.compile(
    r'^kai_binder_admission_requests_total\{path="([^"]+)",result="(\w+)"\} ([0-9.]+)$', re.M
)


@dataclass(frozen=True, slots=True)
class Keys:
    """A certificate for this machine.

    Attributes:
        authority: PEM, of who signed it.
        pair: The certificate and its key.
    """

    authority: bytes
    pair: KeyPair

    @classmethod
    def make(cls, folder: Path) -> "Keys":
        """Makes a new one."""
        files = write_keys(folder)
        return cls(files.ca.read_bytes(), KeyPair(files.certificate.read_bytes(), files.key.read_bytes()))


@dataclass(slots=True)
class Webhook(Binder):
    """One webhook; `start` and `stop` may follow each other.

    Attributes:
        mount: The certificate that it is given; None: it makes its own.
        port: Where it is called.
    """

    mount: Mount | None = None
    port: int = 0

    def arguments(self) -> list[str]:
        if not self.port:
            (self.port,) = free_ports(1)
        own = [
            "admission",
            f"--webhook-bind-address=127.0.0.1:{self.port}",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
        ]
        if self.mount is None:
            return [*own, f"--kubeconfig={self.kubeconfig}", "--self-signed-certificate"]
        return [
            *own,
            "--kubeconfig=/no/such/file",  # it asks nobody
            f"--tls-cert-file={self.mount.certificate}",
            f"--tls-private-key-file={self.mount.key}",
        ]

    def counts(self) -> dict[tuple[str, str], int]:
        """Requests so far, by path and result."""
        return {(path, result): int(float(value)) for path, result, value in COUNTED.findall(self.metrics())}


def configurations(port: int, authority: bytes | None, host: str = "127.0.0.1") -> list[Object]:
    """The shipped webhook configurations, with a URL in the place of the Service."""
    found = list(yaml.safe_load_all((ROOT / "config/admission/webhooks.yaml").read_text()))
    for item in found:
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://{host}:{port}{path}"}
            if authority is not None:
                webhook["clientConfig"]["caBundle"] = base64.b64encode(authority).decode()
    return found


def apply(plane: ControlPlane, items: list[Object]) -> None:
    """Has the API server call a webhook by these configurations."""
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(items))


def remove(plane: ControlPlane) -> None:
    """Takes the configurations away, and waits until the API server calls nobody any more."""
    for path in PATHS.values():
        try:
            plane.request("DELETE", f"{path}/kai-binder-admission")
        except RequestError as error:
            if error.status != 404:
                raise
    probe = Cluster.fresh(plane)
    wait_until(lambda: verdict(probe, WRONG_SHARE) is None, within_s=30)


@contextmanager
def installed(webhook: Webhook, plane: ControlPlane, authority: bytes) -> Iterator[None]:
    """Has the API server call this webhook for the block."""
    apply(plane, configurations(webhook.port, authority))
    try:
        wait_until_called(plane)
        yield
    finally:
        remove(plane)


def wait_until_called(plane: ControlPlane) -> None:
    """Waits until the API server asks the webhook, by both configurations."""
    probe = Cluster.fresh(plane)
    wait_until(lambda: "mutate.pods" in str(verdict(probe, WRONG_CONTAINER)), within_s=30)
    wait_until(lambda: "validate.pods" in str(verdict(probe, WRONG_SHARE)), within_s=30)


def verdict(probe: Cluster, annotations: Mapping[str, str]) -> str | None:
    """Why a pod with these annotations is refused; None if it is not. Nothing is kept."""
    try:
        probe.plane.request("POST", f"{probe.pods}?dryRun=All", user_pod("probe", annotations))
    except RequestError as error:
        return str(error)
    return None


def user_pod(name: str, annotations: Mapping[str, str], **spec: Any) -> Object:  # noqa: ANN401
    """A pod as a user writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "cuda"}],
            **spec,
        },
    }


class Users(Sharing):
    """A namespace in which users make pods with kubectl."""

    def kubectl(self, *args: str, item: Object | None = None) -> str:
        """What kubectl says in this namespace, complaints and warnings included."""
        text = None if item is None else yaml.safe_dump(item)
        return self.plane.kubectl("--namespace", self.namespace, *args, input=text, check=False)

    def apply(self, item: Object, *flags: str) -> str:
        """Applies an object as a user does."""
        return self.kubectl("apply", *flags, "-f", "-", item=item)


class Webhooks:
    """Makes webhooks and sees to it that none outlives its tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Webhook] = []

    def make(
        self,
        *flags: str,
        mount: Mount | None = None,
        kubeconfig: Path = Path("/no/such/file"),
        env: Mapping[str, str] | None = None,
    ) -> Webhook:
        """A webhook that is not started yet; without a mount it makes its own certificate."""
        log_file = self._directory / f"webhook-{len(self._made)}.log"
        made = Webhook(kubeconfig, log_file, flags, dict(env or {}), mount=mount)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Ends those that still run; each has to end well, and at the second signal at once."""
        running = [webhook for webhook in self._made if webhook.running]
        for webhook in running:
            webhook.signal(signal.SIGTERM)
        wait_until(lambda: all(webhook.answers("readyz") != 200 for webhook in running))
        for webhook in running:
            webhook.signal(signal.SIGTERM)
        codes = [webhook.wait(15) for webhook in running]
        assert codes == [0] * len(codes), [webhook.log[-4000:] for webhook in running]

    def kill(self) -> None:
        """Ends those that still run, at once."""
        for webhook in self._made:
            webhook.kill()
