"""The webhook as it is shipped, called by a real API server; each file has its own, and takes it away."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.certificates import Mount
from tests.sharing import Agents
from tests.webhook import Keys, Users, Webhooks


@pytest.fixture
def users(control_plane: ControlPlane, agents: Agents) -> Users:
    """A fresh namespace, in which users make pods."""
    return Users.beside(control_plane, agents)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A certificate for this machine."""
    return Keys.make(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def webhooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhooks]:
    """Starts webhooks for one file; they are stopped after it, and each must end well."""
    made = Webhooks(tmp_path_factory.mktemp("webhooks"))
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Mount:
    """That certificate, mounted."""
    made = Mount(tmp_path_factory.mktemp("tls"))
    made.put(keys.pair)
    return made
