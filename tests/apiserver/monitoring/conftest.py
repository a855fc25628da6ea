"""Namespaces with pods that share GPUs, binders, and Prometheus' engine over what they say."""

import pytest
from controlplane import ControlPlane

from tests.limits import Limits
from tests.sharing import Agents


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents) -> Limits:
    """A fresh namespace."""
    return Limits.beside(control_plane, agents)
