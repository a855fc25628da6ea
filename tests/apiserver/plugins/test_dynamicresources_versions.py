"""Servers with older versions of resource.k8s.io: found out by asking, and spoken to in their own shape."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.claims import GPU, Claims, allocation, brings, extended, plane_serving, user, uses
from tests.cluster import Cluster
from tests.features import EXTENDED_RESOURCES, skip_without


@pytest.fixture(scope="module", params=["v1beta2", "v1beta1", "v1alpha3"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claims]:
    """A namespace on a server with one version only."""
    with plane_serving(tmp_path_factory.mktemp(request.param), request.param) as plane:
        yield Claims(Cluster.fresh(plane), request.param)


@pytest.fixture
def binder(older: Claims, tmp_path: Path) -> Iterator[Binder]:
    made = Binders(tmp_path, older.cluster.plane.service_account_kubeconfig("kai-scheduler", "binder"))
    try:
        yield made.start()
        made.close()
    finally:
        made.kill()


def test_claims_of_older_servers(older: Claims, binder: Binder) -> None:
    cluster = older.cluster
    node = cluster.node()
    older.make("one")
    pod = cluster.pod("a", resourceClaims=uses(gpu="one"))
    cluster.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", allocation(node)))
    cluster.wait_for("a", "Succeeded")
    assert older.status("one") == {"allocation": allocation(node), "reservedFor": [user(pod)]}


def test_extended_resources_on_older_servers(older: Claims, binder: Binder) -> None:
    skip_without(older.cluster.plane, EXTENDED_RESOURCES)
    cluster = older.cluster
    node = cluster.node()
    before = {claim["metadata"]["name"] for claim in older.all()}
    pod = cluster.pod("b", limits={GPU: "1"})
    cluster.ask("b", node, owner=pod, extendedResourceClaimAllocation=extended(node, "gpu-1"))
    cluster.wait_for("b", "Succeeded")
    (claim,) = [item for item in older.all() if item["metadata"]["name"] not in before]
    (request,) = claim["spec"]["devices"]["requests"]
    (wanted,) = extended(node)["deviceRequests"]
    flat: Object = {"name": wanted["name"], **wanted["exactly"]}
    assert request == (flat if older.flat else wanted)
    assert claim["status"]["allocation"] == extended(node, "gpu-1")["allocation"]

    with cluster.bindings_denied():
        cluster.pod("c", limits={GPU: "1"})
        cluster.ask("c", node, extendedResourceClaimAllocation=extended(node, "gpu-2"))
        cluster.wait_for("c", "Failed")
    assert len(older.all()) == len(before) + 1
