"""Starts and stops a local control plane: etcd, API server and, unless unwanted, controller manager.

Called by the demo, the tests and the benchmarks. Invariant: everything listens on 127.0.0.1, lives in one
folder and ends with ``stop`` or with this process, whichever comes first.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane.build import Binaries, Progress, ensure_binaries, say
from controlplane.client import JSON, Client, RequestError, answers
from controlplane.flags import (
    Layout,
    apiserver_flags,
    claims_config,
    claims_gate,
    controller_manager_flags,
    etcd_flags,
    with_overrides,
)
from controlplane.pki import write_keys
from controlplane.process import ControlPlaneError, Guard, Program, free_ports

START_TIMEOUT_S = 90.0
STOP_GRACE_S = 3.0
TOKEN_DURATION_S = 30 * 24 * 3600
CLUSTER = "kai-binder-local"
AUDIT_POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@dataclass(slots=True)
class _Running:
    """What exists only between start and stop."""

    binaries: Binaries
    layout: Layout
    client: Client
    guard: Guard
    programs: dict[str, Program] = field(default_factory=dict)


class ControlPlane:
    """A Kubernetes control plane of one's own, with RBAC on and without kubelet and scheduler.

    Args:
        directory: Gets the logs, the kubeconfigs and, while it runs, the data. It is created when missing.
        kubernetes: The minor to run, see ``supported_kubernetes``.
        runtime_config: API groups to switch, such as ``{"resource.k8s.io/v1beta1": "true"}``. Device claims
            are served in any case, in the best versions that the minor knows, unless this says otherwise.
        apiserver_flags: More flags for the API server; they win over the ones that are set here.
        controller_manager: Whether to run the controller manager.
        controller_manager_flags: More flags for the controller manager.
        audit: Whether to write every request to ``audit_log``.
        progress: Gets a line at a time while programs are built.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kubernetes: str = "1.36",
        runtime_config: Mapping[str, str] | None = None,
        apiserver_flags: Sequence[str] = (),
        controller_manager: bool = True,
        controller_manager_flags: Sequence[str] = (),
        audit: bool = False,
        progress: Progress = say,
    ) -> None:
        self.directory = directory.absolute()
        self.kubernetes = kubernetes
        self.admin_token = secrets.token_hex(16)
        self._runtime_config = dict(runtime_config or {})
        self._apiserver_flags = list(apiserver_flags)
        self._with_controller_manager = controller_manager
        self._controller_manager_flags = list(controller_manager_flags)
        self._audit = audit
        self._progress = progress
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        """Starts the control plane."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the control plane."""
        self.stop()

    def start(self) -> None:
        """Starts all programs, on fresh data, and waits until pods can be created.

        Raises:
            BuildError: A program can neither be found nor built.
            ControlPlaneError: A program did not come up; the text has the end of its log.
        """
        if self._running is not None:
            raise ControlPlaneError("this control plane runs already")
        binaries = ensure_binaries(self.kubernetes, self._progress)
        self._remove_data()
        self._data.mkdir(mode=0o700, parents=True)
        keys = write_keys(self._data / "pki")
        apiserver_port, etcd_port, peer_port = free_ports(3)
        layout = Layout(apiserver_port, etcd_port, peer_port, self._data, keys)
        client = Client(layout.apiserver_url, keys.ca, self.admin_token)
        self._running = _Running(binaries, layout, client, Guard())
        try:
            self._write_inputs(layout)
            self._add_programs(self._running)
            self._bring_up(self._running)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops what was started, last first, and removes the data; logs and kubeconfigs stay."""
        running, self._running = self._running, None
        if running is None:
            return
        for program in reversed(running.programs.values()):
            program.stop(STOP_GRACE_S)
        running.guard.close()
        self._remove_data()

    def kill_apiserver(self) -> None:
        """Kills the API server (SIGKILL), as a crash would. Its data stay, and so do the other programs."""
        self._run.programs["kube-apiserver"].kill()

    def start_apiserver(self) -> None:
        """Starts the API server again after ``kill_apiserver``: same port, same data, same tokens.

        Raises:
            ControlPlaneError: It did not come up; the text has the end of its log.
        """
        server = self._run.programs["kube-apiserver"]
        server.start()
        server.wait_until(self._run.client.is_ready, START_TIMEOUT_S)

    def kill_etcd(self) -> None:
        """Kills etcd (SIGKILL), as a crash would. Its data stay; the API server waits for it."""
        self._run.programs["etcd"].kill()

    def start_etcd(self) -> None:
        """Starts etcd again after ``kill_etcd``, on the same data.

        Raises:
            ControlPlaneError: It did not come up; the text has the end of its log.
        """
        etcd = self._run.programs["etcd"]
        etcd.start()
        etcd.wait_until(lambda: answers(f"{self.etcd_url}/health"), START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """The address of the API server."""
        return self._run.layout.apiserver_url

    @property
    def etcd_url(self) -> str:
        """The address of etcd, for tests that compact the history, say."""
        return self._run.layout.etcd_url

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that signed the API server's."""
        return self._run.layout.keys.ca

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig that may do everything (group ``system:masters``)."""
        return self.directory / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON line per request and stage, when started with ``audit=True``."""
        return self.directory / "audit.log"

    @property
    def pids(self) -> dict[str, int | None]:
        """The process ids by program, None for one that is down."""
        return {name: program.pid for name, program in self._run.programs.items()}

    def token(self, namespace: str, name: str, *, bound_secret: str | None = None) -> str:
        """Asks for a real token of a ServiceAccount (TokenRequest), good for a month.

        Args:
            namespace: Its namespace.
            name: Its name.
            bound_secret: A Secret of the same namespace, created when missing: when it is deleted the token
                is refused, after the ten seconds for which the API server remembers its last verdict.
        """
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_DURATION_S}
        if bound_secret is not None:
            uid = self._ensure_secret(namespace, bound_secret)
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Secret", "name": bound_secret, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.request("POST", path, body)["status"]["token"])

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, bound_secret: str | None = None
    ) -> Path:
        """Writes a kubeconfig with a fresh token of a ServiceAccount, see ``token``."""
        path = self.directory / f"{namespace}-{name}.kubeconfig"
        token = self.token(namespace, name, bound_secret=bound_secret)
        self._write_kubeconfig(path, f"{namespace}:{name}", token, namespace)
        return path

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        """Runs kubectl as admin.

        Args:
            *args: Its arguments.
            input: What it reads, for ``-f -``.
            check: Whether to raise when it fails.

        Returns:
            What it printed; with ``check=False`` its complaints too.

        Raises:
            ControlPlaneError: It failed.
        """
        # A cache of its own: the user's may hold the resources of an earlier server on the same port.
        own = ["--kubeconfig", str(self.admin_kubeconfig), "--cache-dir", str(self._data / "kubectl")]
        command = [str(self._run.binaries.kubectl), *own, *args]
        done = subprocess.run(command, input=input or "", capture_output=True, text=True, check=False)
        if not check:
            return done.stdout + done.stderr
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def metrics(self) -> str:
        """The API server's own metrics, as text."""
        return self._run.client.send("GET", "/metrics").decode()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """Sends one request as admin, for tests.

        Args:
            method: The HTTP method.
            path: The path with its query, such as ``/api/v1/namespaces/default/pods``.
            body: What to send, as JSON.
            content_type: Of the body; a PATCH needs one such as ``application/merge-patch+json``.

        Returns:
            The parsed answer.

        Raises:
            RequestError: The API server answered with an error.
            OSError: It cannot be reached.
        """
        return self._run.client.request(method, path, body, content_type)

    @property
    def _run(self) -> _Running:
        if self._running is None:
            raise ControlPlaneError("this control plane is not started")
        return self._running

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _remove_data(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)

    def _add_programs(self, running: _Running) -> None:
        binaries, layout = running.binaries, running.layout
        audit_log = self.audit_log if self._audit else None
        runtime_config = {**claims_config(self.kubernetes), **self._runtime_config}
        gate = claims_gate(self.kubernetes)
        server_flags = with_overrides(
            [*apiserver_flags(layout, runtime_config, audit_log), *gate], self._apiserver_flags
        )
        commands: dict[str, list[str]] = {
            "etcd": [str(binaries.etcd), *etcd_flags(layout)],
            "kube-apiserver": [str(binaries.kube_apiserver), *server_flags],
        }
        if self._with_controller_manager:
            manager_flags = with_overrides(
                [*controller_manager_flags(layout, self.admin_kubeconfig), *gate],
                self._controller_manager_flags,
            )
            program = str(binaries.kube_controller_manager)
            commands["kube-controller-manager"] = [program, *manager_flags]
        self.audit_log.unlink(missing_ok=True)
        for name, command in commands.items():
            log = self.directory / f"{name}.log"
            log.unlink(missing_ok=True)
            running.programs[name] = Program(name, command, log, running.guard)

    def _bring_up(self, running: _Running) -> None:
        etcd, server = running.programs["etcd"], running.programs["kube-apiserver"]
        manager = running.programs.get("kube-controller-manager")
        client = running.client
        etcd.start()
        etcd.wait_until(lambda: answers(f"{running.layout.etcd_url}/health"), START_TIMEOUT_S)
        server.start()
        server.wait_until(client.is_ready, START_TIMEOUT_S)
        server.wait_until(lambda: client.exists("/api/v1/namespaces/default"), START_TIMEOUT_S)
        if manager is not None:
            manager.start()
            manager.wait_until(lambda: client.exists(f"{ACCOUNTS}/default"), START_TIMEOUT_S)
        else:  # the admission of pods wants it, and nobody else makes it
            client.request("POST", ACCOUNTS, {"metadata": {"name": "default"}})

    def _write_inputs(self, layout: Layout) -> None:
        _write_private(layout.tokens, f'{self.admin_token},admin,admin,"system:masters"\n')
        _write_private(layout.audit_policy, json.dumps(AUDIT_POLICY))
        self._write_kubeconfig(self.admin_kubeconfig, "admin", self.admin_token, "default")

    def _write_kubeconfig(self, path: Path, user: str, token: str, namespace: str) -> None:
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        context = {"cluster": CLUSTER, "user": user, "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CLUSTER, "cluster": cluster}],
            # The token itself: some clients, kr8s among them, do not read a "tokenFile".
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": CLUSTER, "context": context}],
            "current-context": CLUSTER,
        }
        _write_private(path, json.dumps(content, indent=2))  # JSON is YAML too

    def _ensure_secret(self, namespace: str, name: str) -> str:
        """The uid of a Secret, which is created when missing."""
        path = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            secret = self.request("POST", path, {"metadata": {"name": name}})
        except RequestError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            secret = self.request("GET", f"{path}/{name}")
        return str(secret["metadata"]["uid"])


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only this user can read, since it may hold a token."""
    with suppress(FileNotFoundError):
        path.unlink()  # one that was there might be readable by others
    path.touch(mode=0o600)
    path.write_text(text)
