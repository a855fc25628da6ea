"""One real control plane for all tests in this directory, set up with the files that we ship."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from controlplane import ControlPlane, RequestError

from tests.proxy import Proxy

ROOT = Path(__file__).parents[2]
BINDER = ("kai-scheduler", "binder")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"  # aiohttp, beneath the client, knows no other


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane, of the minor that KUBERNETES names, with our CRD and roles."""
    directory = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(directory, kubernetes=os.environ.get("KUBERNETES", "1.36")) as plane:
        plane.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        plane.kubectl("apply", "-k", str(ROOT / "config/crd"))
        plane.kubectl("apply", "-k", str(ROOT / "config/rbac"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A fresh namespace, with the ServiceAccount without which no pod can be created in it."""
    name = f"test-{uuid4().hex[:10]}"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        control_plane.request(
            "POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
        )
    except RequestError as error:
        if error.status != 409:  # the controller manager was faster
            raise
    return name


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy before the API server, without any rule yet."""
    with Proxy(control_plane.url, control_plane.ca_file, tmp_path) as running:
        yield running


@pytest.fixture
def binder_kubeconfig(control_plane: ControlPlane) -> Path:
    """Credentials of the ServiceAccount that the binder runs as, with the rights that we ship."""
    return control_plane.service_account_kubeconfig(*BINDER)
