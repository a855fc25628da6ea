"""What happens between a reservation and the binding, while a bind waits for something else."""

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.claims import Claims, allocation, brings, uses
from tests.cluster import Phases
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.proxy import Hang, Proxy, Refuse, Rule
from tests.sharing import GROUP_LABEL, Sharing, shared_pod
from tests.volumes import Volumes


@pytest.fixture
def binder(control_plane: ControlPlane, proxy: Proxy, binders: Binders) -> Binder:
    return binders.start(kubeconfig=proxy.kubeconfig(control_plane.token("kai-scheduler", "binder")))


def wait_for_a_disk(cluster: Sharing, volumes: Volumes, node: str, *groups: str) -> None:
    """A share of a GPU that is reserved, and a volume that nobody makes yet."""
    volumes.claim("data", volumes.made_class())
    body = shared_pod("a")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    body["spec"].setdefault("volumes", []).append(volume)
    pod = cluster.plane.request("POST", cluster.pods, body)
    cluster.ask_share("a", node, *groups, owner=pod, backoffLimit=1)
    wait_until(lambda: volumes.selected_node("data") == node)


@pytest.mark.usefixtures("binder")
def test_a_reservation_that_is_lost_meanwhile(cluster: Sharing) -> None:
    """Else the pod would run on a GPU that nobody holds for it."""
    volumes, group = Volumes(cluster), cluster.group()
    node = volumes.node()
    wait_for_a_disk(cluster, volumes, node, group)
    cluster.delete_reservations(group)
    # Another pod of the group must not get another GPU than the first one was told.
    cluster.share("b", node, group)
    cluster.wait_for("b", "Failed")
    assert cluster.status("b")["reason"].startswith("GPUReserved ReservationLost: ")
    with Provisioner(cluster.plane, cluster.namespace):
        cluster.wait_for("a", "Failed", within_s=20)
    assert cluster.status("a")["reason"].startswith("GPUReserved ReservationLost: ")
    cluster.assert_nothing_left("a", group)


@pytest.mark.usefixtures("binder")
def test_a_request_that_is_changed_meanwhile(cluster: Sharing) -> None:
    """The pod must not be bound by a decision that no longer stands."""
    volumes, group = Volumes(cluster), cluster.group()
    node, other = volumes.node(), volumes.node("n2")
    wait_for_a_disk(cluster, volumes, node, group)
    cluster.patch_request("a", {"spec": {"selectedNode": other, "selectedGPUGroups": [cluster.group()]}})
    with Provisioner(cluster.plane, cluster.namespace):
        cluster.wait_for_event("a", "RequestChanged", "BindRequest", within_s=20)
        wait_until(lambda: cluster.status("a").get("phase") in ("Succeeded", "Failed"), within_s=30)
    # Whether the new decision can stand is the disk's affair: it is made for the one node or for the other.
    assert cluster.node_of("a") in (None, other)
    cluster.wait_until_freed(group)
    if cluster.node_of("a") is None:
        assert cluster.status("a")["reason"].startswith("VolumeBinding ")
        cluster.assert_nothing_left("a")


@pytest.mark.usefixtures("binder")
def test_a_request_that_is_changed_meanwhile_has_not_failed(cluster: Sharing) -> None:
    """B-13: it may fail once, so that the scheduler would take it for over, and delete it."""
    node, first, second = cluster.node(), cluster.group(), cluster.group()
    cluster.agents.set(first, None)
    phases = Phases(cluster)
    cluster.share("a", node, first)
    cluster.wait_for_reservation(first)
    cluster.patch_request("a", {"spec": {"selectedGPUGroups": [second]}})
    phases.follow(4)
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert "Failed" not in phases.seen["a"]
    assert not cluster.status("a").get("failedAttempts")
    cluster.wait_until_freed(first)
    assert cluster.group_labels("a") == {GROUP_LABEL: second}


def test_a_node_that_is_gone_after_a_crash(cluster: Sharing, binder: Binder, proxy: Proxy) -> None:
    """What the attempt that broke off had written is taken back, though no attempt can be made any more."""
    group, node = cluster.group(), cluster.node()
    rule = proxy.add(Rule(Hang(), method="POST", path=f"^{cluster.pods}/a/binding$"))
    cluster.share("a", node, group)
    wait_until(lambda: rule.count > 0)
    assert cluster.all_config_maps()
    binder.kill()
    proxy.remove(rule)
    cluster.plane.request("DELETE", f"/api/v1/nodes/{node}")
    binder.start()
    cluster.wait_for("a", "Failed")
    assert cluster.status("a")["reason"] == f"Bound NodeGone: node {node} does not exist"
    cluster.assert_nothing_left("a", group)


@pytest.mark.usefixtures("binder")
def test_a_request_that_is_deleted_after_an_attempt_was_broken_off(cluster: Sharing, proxy: Proxy) -> None:
    """Its work is taken back, though no attempt follows that would have ended."""
    group, node = cluster.group(), cluster.node()
    Claims(cluster).make("card")
    body = shared_pod("a", spec={"resourceClaims": uses(card="card")})
    pod = cluster.plane.request("POST", cluster.pods, body)
    with proxy.rule(Rule(Refuse(), method="POST", path=f"^{cluster.pods}/a/binding$")) as rule:
        devices = brings("card", allocation(node))
        cluster.ask_share("a", node, group, owner=pod, resourceClaimAllocations=devices, backoffLimit=3)
        wait_until(lambda: rule.count > 0)
        assert cluster.all_config_maps()
        assert Claims(cluster).users("card") == ["a"]
        cluster.delete_request("a")
    wait_until(lambda: not cluster.all_config_maps(), within_s=30)
    wait_until(lambda: not Claims(cluster).protected("card"))
    cluster.assert_nothing_left("a", group)
    Claims(cluster).assert_free("card")
