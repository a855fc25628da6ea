"""The controller that docs/controller.md shows: two processes on a real API server, with just its rights."""

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from controlplane import ControlPlane, RequestError

from tests.binder import ROOT, environment
from tests.polling import wait_until

EXAMPLES = ROOT / "docs/examples"
HOME, NAME = "kai-scheduler", "registry"
MERGE = "application/merge-patch+json"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/pull-secrets"


class Copies:
    """Namespaces, and the secret in each."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def make_namespace(self, wanted: str | None = "true") -> str:
        name = f"copies-{uuid4().hex[:8]}"
        labels = {} if wanted is None else {"copy-pull-secret": wanted}
        self.plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        return name

    def label(self, namespace: str, wanted: str | None) -> None:
        delta = {"metadata": {"labels": {"copy-pull-secret": wanted}}}
        self.plane.request("PATCH", f"/api/v1/namespaces/{namespace}", delta, MERGE)

    def path(self, namespace: str) -> str:
        return f"/api/v1/namespaces/{namespace}/secrets"

    def write(self, namespace: str, password: str, **metadata: Any) -> None:  # noqa: ANN401
        data = {"password": base64.b64encode(password.encode()).decode()}
        body = {"metadata": {"name": NAME, **metadata}, "type": "Opaque", "data": data}
        try:
            self.plane.request("POST", self.path(namespace), body)
        except RequestError:
            self.plane.request("PATCH", f"{self.path(namespace)}/{NAME}", {"data": data}, MERGE)

    def read(self, namespace: str) -> str | None:
        """The password in the secret; None if there is none."""
        try:
            secret = self.plane.request("GET", f"{self.path(namespace)}/{NAME}")
        except RequestError:
            return None
        return base64.b64decode(secret["data"]["password"]).decode()

    def delete(self, namespace: str) -> None:
        self.plane.request("DELETE", f"{self.path(namespace)}/{NAME}")

    def wait(self, namespace: str, password: str | None) -> None:
        wait_until(lambda: self.read(namespace) == password, within_s=60)

    def holder(self) -> str:
        """Who leads; empty if nobody does."""
        try:
            return str(self.plane.request("GET", LEASE)["spec"].get("holderIdentity") or "")
        except RequestError:
            return ""


@pytest.fixture
def copies(control_plane: ControlPlane) -> Copies:
    control_plane.kubectl("apply", "-f", str(EXAMPLES / "pull_secrets.yaml"))
    return Copies(control_plane)


@pytest.fixture
def start(control_plane: ControlPlane, copies: Copies, tmp_path: Path) -> Iterator[Any]:
    """Starts processes; each must end well."""
    kubeconfig = control_plane.service_account_kubeconfig(HOME, "pull-secrets")
    started: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "log"

    def run() -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(EXAMPLES / "pull_secrets.py"), f"{HOME}/{NAME}"]
        env = environment({"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)})
        with log.open("ab") as out:
            started.append(subprocess.Popen(command, env=env, stdout=out, stderr=out))
        return started[-1]

    yield run
    for process in started:
        process.send_signal(signal.SIGTERM)
    codes = [process.wait(60) for process in started]
    assert codes == [0] * len(started), log.read_text()
    assert "Traceback" not in log.read_text()


def test_it_copies_and_hands_over(copies: Copies, start: Any) -> None:  # noqa: ANN401
    copies.write(HOME, "one")
    before, other, foreign = copies.make_namespace(), copies.make_namespace(None), copies.make_namespace()
    copies.write(foreign, "mine")
    first = start()
    copies.wait(before, "one")
    leader = wait_until(copies.holder)
    second = start()

    copies.write(HOME, "two")
    copies.wait(before, "two")
    copies.write(before, "tampered")
    copies.wait(before, "two")
    copies.delete(before)
    copies.wait(before, "two")

    copies.label(other, "true")
    copies.wait(other, "two")
    copies.label(other, None)
    copies.wait(other, None)
    assert copies.read(foreign) == "mine"

    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    wait_until(lambda: copies.holder() not in ("", leader), within_s=60)
    later = copies.make_namespace()
    copies.wait(later, "two")
    assert second.poll() is None

    copies.label(later, "false")
    copies.wait(later, None)
    events = copies.plane.request("GET", "/api/v1/namespaces/default/events")["items"]
    told = {(event["involvedObject"]["name"], event["reason"]) for event in events}
    assert (foreign, "SecretExists") in told


def test_the_page_shows_the_whole_of_it() -> None:
    """Block by block, with words between."""
    page = (ROOT / "docs/controller.md").read_text()
    blocks = re.findall(r"<!-- example: pull_secrets.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 3
    code = [line for line in "\n".join(blocks).splitlines() if line]
    assert code == [line for line in (EXAMPLES / "pull_secrets.py").read_text().splitlines() if line]
