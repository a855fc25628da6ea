"""The control plane of these tests, and a binder that reaches it through the misbehaving proxy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.cluster import Cluster, prepared_plane
from tests.features import skip_where_it_cannot  # noqa: F401 -- a fixture, for all tests here
from tests.proxy import Action, Call, Proxy, Rule

ACCOUNT = ("kai-scheduler", "binder")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with prepared_plane(tmp_path_factory.mktemp("control-plane"), audit=True) as plane:
        yield plane


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Cluster:
    return Cluster.fresh(control_plane)


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(control_plane.url, control_plane.ca_file, tmp_path) as running:
        yield running


@pytest.fixture
def binders(control_plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> Iterator[Binders]:
    """Makes binders that go through the proxy."""
    made = Binders(tmp_path, proxy.kubeconfig(control_plane.token(*ACCOUNT)))
    try:
        yield made
        made.close()
    finally:
        made.kill()


@dataclass(frozen=True, slots=True)
class Shared:
    """A binder, and the proxy before it, for all tests of a module; rules are for one namespace."""

    proxy: Proxy
    binder: Binder

    def rule(
        self,
        cluster: Cluster,
        action: Action,
        method: str,
        path: str,
        *,
        times: int | None = None,
        skip: int = 0,
        where: Callable[[Call], bool] = lambda call: True,
    ) -> Rule:
        """A rule for requests to this namespace; put it in force by `proxy.rule` or `proxy.add`."""
        whole = f"/namespaces/{cluster.namespace}/{path}"
        return Rule(action, method=method, path=whole, times=times, skip=skip, where=where)

    def count(self, cluster: Cluster, method: str, path: str) -> int:
        """Requests to this namespace so far."""
        return self.proxy.count(method, f"/namespaces/{cluster.namespace}/{path}")


@pytest.fixture(scope="module")
def shared(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = tmp_path_factory.mktemp("shared")
    with Proxy(control_plane.url, control_plane.ca_file, directory) as proxy:
        made = Binders(directory, proxy.kubeconfig(control_plane.token(*ACCOUNT)))
        try:
            yield Shared(proxy, made.start())
            made.close()
        finally:
            made.kill()
