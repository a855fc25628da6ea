"""Runs the reservation agent for reservation pods, as a kubelet runs their container: test equipment.

Called by the kubelet stub. Each pod has a process of our own agent, with a token of its service account that
is bound to the pod, the environment that its manifest asks for, and a GPU that is not there. Invariant: a
process ends with its pod, with `stop`, or with this process, whichever comes first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controlplane import ControlPlane
from controlplane.process import Guard, Program

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
TOKEN_DURATION_S = 3600
STOP_GRACE_S = 5.0


class Containers:
    """The containers that run, by the uid of their pod.

    Attributes:
        log: What the agents say, all of them.
    """

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        """Starts nothing yet.

        Args:
            plane: The control plane.
            directory: Gets the log, and a folder for each pod.
        """
        self.log = directory / "agents.log"
        self._plane = plane
        self._directory = directory
        self._guard = Guard()
        self._programs: dict[str, Program] = {}

    def start(self, pod: Object, device: str) -> None:
        """Starts the agent in the only container of a pod.

        Args:
            pod: A reservation pod.
            device: The one that NVML finds there.

        Raises:
            RequestError: The pod went meanwhile.
        """
        metadata, spec = pod["metadata"], pod["spec"]
        (container,) = spec["containers"]
        folder = self._directory / metadata["name"] / metadata["uid"]
        account = folder / "serviceaccount"
        account.mkdir(mode=0o700, parents=True, exist_ok=True)  # a try before may have failed
        (account / "token").write_text(self._token(metadata, spec["serviceAccountName"]))
        (account / "ca.crt").write_bytes(self._plane.ca_file.read_bytes())
        termination_log = folder / "termination-log"
        termination_log.touch()
        command = [sys.executable, str(ROOT / "hack" / "agent.py")]
        command += ["--nvml", json.dumps({"cards": [{"uuid": device}]})]
        command += ["--account", str(account), "--termination-log", str(termination_log)]
        program = Program(metadata["name"], command, self.log, self._guard, self._environment(pod, container))
        program.start()
        self._programs[metadata["uid"]] = program

    def keep(self, uids: Iterable[str]) -> None:
        """Ends the containers of all pods but these."""
        for uid in self._programs.keys() - set(uids):
            self._programs.pop(uid).stop(STOP_GRACE_S)

    def stop(self) -> None:
        """Ends all."""
        self.keep(())
        self._guard.close()

    def running(self) -> set[str]:
        """Names of the pods whose container runs now."""
        return {program.name for program in list(self._programs.values()) if program.pid is not None}

    def _token(self, pod: Object, account: str) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_DURATION_S, "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{pod['namespace']}/serviceaccounts/{account}/token"
        return str(self._plane.request("POST", path, body)["status"]["token"])

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        """What the manifest asks for, and where the API server is."""
        address = urlsplit(self._plane.url)
        fields = {f"metadata.{name}": pod["metadata"][name] for name in ("name", "namespace", "uid")}
        asked = {}
        for entry in container.get("env") or []:
            source = entry.get("valueFrom")
            asked[entry["name"]] = fields[source["fieldRef"]["fieldPath"]] if source else entry["value"]
        return {
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "PYTHONPATH": str(ROOT),
            **asked,
        }
