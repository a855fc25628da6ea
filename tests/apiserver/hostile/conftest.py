"""A tenant and those whom he may harm, each in a namespace of one's own; a binder of each file."""

import pytest
from controlplane import ControlPlane

from tests.hostile import Tenant
from tests.sharing import Agents, Sharing


@pytest.fixture
def victim(control_plane: ControlPlane, agents: Agents) -> Sharing:
    """Somebody else's namespace."""
    return Sharing.beside(control_plane, agents)


@pytest.fixture
def tenant(control_plane: ControlPlane, agents: Agents) -> Tenant:
    """The tenant's, who may make pods, ConfigMaps, claims and BindRequests in it."""
    return Tenant.fresh_beside(control_plane, agents)
