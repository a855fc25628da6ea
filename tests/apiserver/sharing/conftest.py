"""Reservation agents for the control plane of these tests, and namespaces in which GPUs are shared."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.proxy import Proxy
from tests.sharing import Agents, Sharing


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
