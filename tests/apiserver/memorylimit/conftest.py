"""Namespaces with pods that share GPUs, and a binder that limits their memory, seen through a proxy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binders
from tests.limits import ENABLED, Limits, Seen
from tests.proxy import Proxy
from tests.sharing import Agents

ACCOUNT = ("kai-scheduler", "binder")


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents) -> Limits:
    """A fresh namespace."""
    return Limits.beside(control_plane, agents)


@pytest.fixture(scope="module")
def seen(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """One binder with the limit turned on, for all tests of a module."""
    directory: Path = tmp_path_factory.mktemp("memorylimit")
    with Proxy(control_plane.url, control_plane.ca_file, directory) as proxy:
        made = Binders(directory, proxy.kubeconfig(control_plane.token(*ACCOUNT)))
        try:
            yield Seen(proxy, made.start(env=ENABLED))
            made.close()
        finally:
            made.kill()
