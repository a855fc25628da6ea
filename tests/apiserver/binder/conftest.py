"""A control plane for the tests that kill it, change its CRD, or count and read every request to it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.cluster import Cluster, prepared_plane

FLAGS = ("--leader-elect", "--leader-election-namespace=kai-scheduler")


@pytest.fixture(scope="session")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Audited, and without a controller manager, so that nobody but the binder sends anything."""
    directory = tmp_path_factory.mktemp("own-plane")
    with prepared_plane(directory, audit=True, controller_manager=False) as plane:
        yield plane


@pytest.fixture
def own_cluster(own_plane: ControlPlane) -> Iterator[Cluster]:
    cluster = Cluster.fresh(own_plane)
    yield cluster
    # A request that is tried again and again would be counted with those of a later test.
    own_plane.request("DELETE", cluster.requests)


@pytest.fixture
def own_binders(own_plane: ControlPlane, tmp_path: Path) -> Iterator[Binders]:
    made = Binders(tmp_path, own_plane.service_account_kubeconfig("kai-scheduler", "binder"))
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def start(own_plane: ControlPlane, own_binders: Binders, tmp_path: Path) -> "Start":
    return Start(own_plane, own_binders, tmp_path)


class Start:
    """Starts binders with a token each, by which the audit log tells them apart."""

    def __init__(self, plane: ControlPlane, binders: Binders, directory: Path) -> None:
        self._plane = plane
        self._binders = binders
        self._directory = directory

    def __call__(self, name: str, clock: Path | None = None) -> Binder:
        written = self._plane.service_account_kubeconfig("kai-scheduler", "binder")
        kubeconfig = shutil.copy(written, self._directory / f"{name}.kubeconfig")
        binder = self._binders.make(*FLAGS, kubeconfig=Path(kubeconfig))
        binder.clock = clock
        return binder.start()
