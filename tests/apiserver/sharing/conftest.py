"""Reservation agents for the control plane of these tests, and namespaces in which GPUs are shared."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.proxy import Proxy
from tests.sharing import Agents, Sharing, playing_agents


@pytest.fixture(scope="module")
def agents(control_plane: ControlPlane) -> Iterator[Agents]:
    """Plays kubelet and reservation agent; tests say by group what it does.

    It ends with the module: of two that play on one control plane, the other one would answer, too.
    """
    with playing_agents(control_plane) as decisions:
        yield decisions


@pytest.fixture(scope="module")
def proxy(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy before the API server, for all tests of a module."""
    directory = tmp_path_factory.mktemp("proxy")
    with Proxy(control_plane.url, control_plane.ca_file, directory) as running:
        yield running


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents) -> Sharing:
    """A fresh namespace."""
    return Sharing.beside(control_plane, agents)
