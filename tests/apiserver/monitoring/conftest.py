"""A control plane with nothing but what these tests make, and Prometheus' engine over what binders say."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.cluster import prepared_plane
from tests.limits import Limits
from tests.sharing import Agents


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Requests that other tests left would be counted as well."""
    with prepared_plane(tmp_path_factory.mktemp("monitored-plane")) as plane:
        yield plane


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents) -> Iterator[Limits]:
    """A fresh namespace, of which no request stays."""
    made = Limits.beside(control_plane, agents)
    yield made
    control_plane.request("DELETE", made.requests)
