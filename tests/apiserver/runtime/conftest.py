"""What the tests of the controller runtime share: ConfigMaps to play with, and clients of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from controlplane import ControlPlane
from loguru import logger

from controller.runtime.client import Client, ClientOptions, Object
from tests.proxy import Proxy

Connect = Callable[..., Awaitable[Client]]
Background = Callable[[Coroutine[Any, Any, object]], asyncio.Task[object]]


class ConfigMaps:
    """The ConfigMaps of one namespace, as its admin sees and changes them: not through code under test."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self.namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def body(self, name: str, data: Mapping[str, str] | None = None, **metadata: object) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"of": self.namespace}, **metadata},
            "data": dict(data or {}),
        }

    def create(self, name: str, data: Mapping[str, str] | None = None, **metadata: object) -> Object:
        return self._plane.request("POST", self._path, self.body(name, data, **metadata))

    def get(self, name: str) -> Object:
        return self._plane.request("GET", f"{self._path}/{name}")

    def change(self, name: str, data: Mapping[str, str], **metadata: object) -> Object:
        delta = {"data": dict(data), "metadata": metadata}
        return self._plane.request("PATCH", f"{self._path}/{name}", delta, "application/merge-patch+json")

    def delete(self, name: str) -> None:
        self._plane.request("DELETE", f"{self._path}/{name}")

    def delete_all(self) -> None:
        self._plane.request("DELETE", f"{self._path}?labelSelector=of={self.namespace}")

    @property
    def selectors(self) -> dict[str, str]:
        """Finds these, and no others, in all namespaces."""
        return {"labelSelector": f"of={self.namespace}"}


@pytest.fixture
def config_maps(control_plane: ControlPlane, namespace: str) -> ConfigMaps:
    return ConfigMaps(control_plane, namespace)


@pytest.fixture
async def connect(proxy: Proxy, control_plane: ControlPlane) -> AsyncIterator[Connect]:
    """Makes clients that go through the proxy; `token` and `kubeconfig` choose who they are."""
    async with AsyncExitStack() as clients:

        async def make(
            *,
            token: str = control_plane.admin_token,
            kubeconfig: Path | None = None,
            **options: Any,  # noqa: ANN401
        ) -> Client:
            path = kubeconfig or proxy.kubeconfig(token)
            client = await Client.connect(ClientOptions(kubeconfig=str(path), **options))
            clients.push_async_callback(client.close)
            return client

        yield make


@pytest.fixture
async def client(connect: Connect) -> Client:
    return await connect(deadline_s=10.0)


class Account:
    """A ServiceAccount that has no rights until it is granted some."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self.name = "somebody"
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        plane.request("POST", accounts, {"metadata": {"name": self.name}})

    def token(self, *, bound_secret: str | None = None) -> str:
        return self._plane.token(self._namespace, self.name, bound_secret=bound_secret)

    def grant(self, resource: str, *verbs: str, cluster_wide: bool = False) -> None:
        """Adds rights: in its own namespace, or in all."""
        base = "/apis/rbac.authorization.k8s.io/v1"
        kind = "ClusterRole" if cluster_wide else "Role"
        where = base if cluster_wide else f"{base}/namespaces/{self._namespace}"
        name = f"{self._namespace}-{resource}"
        rules = [{"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}]
        self._plane.request("POST", f"{where}/{kind.lower()}s", {"metadata": {"name": name}, "rules": rules})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self._namespace}],
        }
        self._plane.request("POST", f"{where}/{kind.lower()}bindings", binding)


@pytest.fixture
def account(control_plane: ControlPlane, namespace: str) -> Account:
    return Account(control_plane, namespace)


@pytest.fixture
def logs() -> Iterator[list[str]]:
    """What is logged during the test, a line of level and message each."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message}")
    yield lines
    logger.remove(sink)


@pytest.fixture
async def background(connect: Connect) -> AsyncIterator[Background]:
    """Runs things beside the test until it ends, before its clients are closed; none of them may fail."""
    tasks: list[asyncio.Task[object]] = []

    def start(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
