"""One real control plane for all tests in this directory, set up with the files that we ship."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.cluster import Cluster, prepared_plane
from tests.features import skip_where_it_cannot  # noqa: F401 -- a fixture, for all tests here
from tests.proxy import Proxy
from tests.sharing import Agents, playing_agents

BINDER = ("kai-scheduler", "binder")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"  # aiohttp, beneath the client, knows no other


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane for all tests that do not break it."""
    with prepared_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="module")
def agents(control_plane: ControlPlane) -> Iterator[Agents]:
    """Plays kubelet and reservation agent; tests say by group what it does.

    It ends with the module: of two that play on one control plane, the other one would answer, too.
    """
    with playing_agents(control_plane) as decisions:
        yield decisions


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Cluster:
    """A fresh namespace, and what a test does and reads there."""
    return Cluster.fresh(control_plane)


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """A fresh namespace, with the ServiceAccount without which no pod can be created in it."""
    return cluster.namespace


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy before the API server, without any rule yet."""
    with Proxy(control_plane.url, control_plane.ca_file, tmp_path) as running:
        yield running


@pytest.fixture
def binder_kubeconfig(control_plane: ControlPlane) -> Path:
    """Credentials of the ServiceAccount that the binder runs as, with the rights that we ship."""
    return control_plane.service_account_kubeconfig(*BINDER)


@pytest.fixture
def binders(control_plane: ControlPlane, tmp_path: Path, binder_kubeconfig: Path) -> Iterator[Binders]:
    """Starts binders for one test; they are stopped after it, and each must end well."""
    made = Binders(tmp_path, binder_kubeconfig)
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One binder for all tests of a module."""
    kubeconfig = control_plane.service_account_kubeconfig(*BINDER)
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start()
        made.close()
    finally:
        made.kill()
