"""What volumes cost in requests, and what a binder makes of its work when it is broken off or cut off."""

from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.apiserver.conftest import BINDER
from tests.binder import Binder, Binders
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.proxy import Answer, Call, CutLine, Proxy, Rule
from tests.volumes import Volumes

STORAGE = r"/persistentvolume|/storage\.k8s\.io/"


@pytest.fixture
def volumes(cluster: Cluster) -> Iterator[Volumes]:
    made = Volumes(cluster)
    yield made
    made.delete_requests()


@pytest.fixture
def provisioner(cluster: Cluster) -> Iterator[Provisioner]:
    with Provisioner(cluster.plane, cluster.namespace) as running:
        yield running


@pytest.fixture
def proxied(proxy: Proxy, binders: Binders, control_plane: ControlPlane) -> Binder:
    """A binder behind the proxy, with the rights that we ship; it ends before the proxy does."""
    return binders.start(kubeconfig=proxy.kubeconfig(control_plane.token(*BINDER)))


def storage_calls(proxy: Proxy) -> list[str]:
    """Verb and kind of the requests for volumes so far, but for what guards a wait of a second or more."""
    wanted = Rule(CutLine(), path=STORAGE)
    calls = [call for call in proxy.calls if wanted.applies(call)]
    return [f"{'WATCH' if call.watches else call.method} {kind(call)}" for call in calls]


def kind(call: Call) -> str:
    kinds = (
        "persistentvolumeclaims",
        "persistentvolumes",
        "storageclasses",
        "csidrivers",
        "csistoragecapacities",
    )
    return next(kind for kind in kinds if f"/{kind}" in call.path)


@pytest.mark.usefixtures("proxied")
def test_a_pod_without_claims_costs_nothing(cluster: Cluster, volumes: Volumes, proxy: Proxy) -> None:
    cluster.pod_and_request("a", volumes.node())
    cluster.wait_for("a", "Succeeded")
    assert storage_calls(proxy) == []


@pytest.mark.usefixtures("proxied")
def test_a_bound_claim_costs_two_reads(cluster: Cluster, volumes: Volumes, proxy: Proxy) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volumes.bound_claim("data", local, volumes.volume("v", local, node))
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert storage_calls(proxy) == ["GET persistentvolumeclaims", "GET persistentvolumes"]


@pytest.mark.usefixtures("proxied")
def test_a_static_volume_costs_one_write(cluster: Cluster, volumes: Volumes, proxy: Proxy) -> None:
    node, local = volumes.node(), volumes.storage_class()
    volumes.volume("v", local, node)
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert storage_calls(proxy)[:5] == [
        "GET persistentvolumeclaims",
        "GET storageclasses",
        "GET persistentvolumes",
        "PATCH persistentvolumes",
        "WATCH persistentvolumeclaims",
    ]
    # On a machine so busy that the controller takes a second, the volume is watched as well.
    assert storage_calls(proxy)[5:] in ([], ["WATCH persistentvolumes"])


@pytest.mark.usefixtures("proxied")
def test_a_provisioned_volume_costs_one_write(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, provisioner: Provisioner
) -> None:
    provisioner.delay_s = 3.0
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert storage_calls(proxy) == [
        "GET persistentvolumeclaims",
        "GET storageclasses",
        "GET persistentvolumes",
        "GET csidrivers",
        "PATCH persistentvolumeclaims",
        "WATCH persistentvolumeclaims",
        "GET persistentvolumes",
    ]


def test_a_binder_that_was_killed_during_the_wait_finds_its_work_done(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, provisioner: Provisioner, proxied: Binder
) -> None:
    provisioner.silent = True
    node, local, made = volumes.node(), volumes.storage_class(), volumes.made_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("data", local)
    volumes.claim("scratch", made)
    volumes.pod_and_request("a", node, "data", "scratch")
    volumes.wait_until_shown("a", within_s=15)
    proxied.kill()
    proxied.start()
    wait_until(lambda: proxy.count("WATCH", "/persistentvolumeclaims$") >= 2)
    provisioner.silent = False
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert volumes.volume_of("data") == volume
    assert proxy.count("PATCH", f"/persistentvolumes/{volume}$") == 1
    assert proxy.count("PATCH", "/persistentvolumeclaims/scratch$") == 1


@pytest.mark.usefixtures("proxied")
def test_a_wait_survives_watches_that_break(
    cluster: Cluster, volumes: Volumes, proxy: Proxy, provisioner: Provisioner
) -> None:
    provisioner.delay_s = 2.0
    node, made = volumes.node(), volumes.made_class()
    volumes.claim("data", made)
    proxy.add(Rule(CutLine(), method="WATCH", path="/persistentvolumeclaims$", times=1))
    gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
    proxy.add(Rule(Answer(410, gone), method="WATCH", path="/persistentvolumeclaims$", times=1))
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert proxy.count("WATCH", "/persistentvolumeclaims$") >= 3


@pytest.mark.usefixtures("proxied")
def test_a_write_that_is_forbidden_says_for_what_it_was(
    cluster: Cluster, volumes: Volumes, proxy: Proxy
) -> None:
    """As with the role of the Go binder, which may not write volumes."""
    node, local = volumes.node(), volumes.storage_class()
    volume = volumes.volume("v", local, node)
    volumes.claim("data", local)
    refusal = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}
    proxy.add(Rule(Answer(403, refusal), method="PATCH", path="/persistentvolumes/"))
    volumes.pod_and_request("a", node, "data")
    text = f"claim {cluster.namespace}/data (class {local}) to volume {volume}: no"
    reason = volumes.reason("a")
    assert reason.startswith(f"VolumeBinding Forbidden: PATCH persistentvolumes {volume}: ")
    assert reason.endswith(text)


@pytest.mark.usefixtures("proxied")
def test_a_list_of_volumes_comes_in_pages(cluster: Cluster, volumes: Volumes, proxy: Proxy) -> None:
    node, local = volumes.node(), volumes.storage_class()
    right = volumes.volume("right", local, node)
    page = {"kind": "PersistentVolumeList", "apiVersion": "v1", "metadata": {"continue": "x"}, "items": []}

    def first(call: Call) -> bool:
        return call.path.endswith("/persistentvolumes") and "continue" not in call.query and not call.watches

    def second(call: Call) -> bool:
        return call.query.get("continue") == "x"

    found = {**page, "metadata": {"resourceVersion": "1"}, "items": [volumes.get_volume(right)]}
    proxy.add(Rule(Answer(200, page), where=first))
    proxy.add(Rule(Answer(200, found), where=second))
    volumes.claim("data", local)
    volumes.pod_and_request("a", node, "data")
    cluster.wait_for("a", "Succeeded")
    assert volumes.volume_of("data") == right
