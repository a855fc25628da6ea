"""What a tenant who may make BindRequests can do to others: nobody but the scheduler should be allowed to."""

import json
import time

import pytest
from controlplane import RequestError

from controller.runtime.parsing import loads
from tests.binder import Binder, Binders
from tests.hostile import HOSTILE_TEXT, Tenant, deep_parameters, memory_mib
from tests.objects import bind_request
from tests.polling import wait_until
from tests.sharing import Sharing

pytestmark = pytest.mark.usefixtures("binder")


def make_deep(tenant: Tenant, name: str) -> None:
    """A request with parameters of a device, which may be anything, as deep as no parser goes."""
    opaque = {"driver": "d.example.com", "parameters": {"a": [1]}}
    allocation = {"devices": {"config": [{"source": "FromClaim", "opaque": opaque}], "results": []}}
    claims = [{"name": "c", "allocation": allocation}]
    spec = {"podName": name, "selectedNode": "n", "resourceClaimAllocations": claims}
    tenant.his.raw("POST", tenant.requests, deep_parameters(json.dumps(bind_request(name, spec))))


def assert_served(victim: Sharing, name: str = "fresh", *, within_s: float = 20.0) -> None:
    """Somebody else is bound all the same."""
    node = victim.node()
    victim.pod_and_request(name, node)
    victim.wait_for(name, "Succeeded", within_s=within_s)
    assert victim.node_of(name) == node


# What is in his hands: the binder does what requests say.


def test_he_chooses_any_node(tenant: Tenant, victim: Sharing) -> None:
    """A limit: no scheduler, quota or node pool is asked."""
    node = victim.node(labels={"kai.scheduler/node-pool": "of-others"})
    tenant.pod_and_request("a", node)
    tenant.wait_for("a", "Succeeded")
    assert tenant.node_of("a") == node


def test_he_takes_part_in_others_gpu(tenant: Tenant, victim: Sharing) -> None:
    """A limit: who knows a group has its GPU, with as much as he likes; others keep theirs, and so long as he
    runs it stays reserved."""
    node, group = victim.node(), victim.group()
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    before = victim.reservation(group)
    tenant.share("mine", node, group, portion="1.00", pod={"fraction": "1.0"})
    tenant.wait_for("mine", "Succeeded")
    assert tenant.data("mine-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == victim.device(group)
    assert victim.reservation(group)["metadata"]["uid"] == before["metadata"]["uid"]
    victim.delete_pod("a")
    time.sleep(1)
    assert victim.reservation(group)["metadata"]["uid"] == before["metadata"]["uid"]
    tenant.delete_pod("mine")
    victim.wait_until_freed(group)


def test_he_changes_a_request_that_succeeded(tenant: Tenant, victim: Sharing) -> None:
    """It is the record of who uses which GPU, but its status is of another spec: his pod's label tells."""
    node, group = victim.node(), victim.group()
    tenant.share("mine", node, group)
    tenant.wait_for("mine", "Succeeded")
    tenant.patch_request("mine", {"spec": {"selectedGPUGroups": [victim.group("other")]}})
    time.sleep(2)
    assert len(victim.reservations(group)) == 1
    assert tenant.get_pod("mine")["spec"]["nodeName"] == node
    tenant.delete_pod("mine")
    victim.wait_until_freed(group)


# What is not.


def test_pods_of_others_are_out_of_reach(tenant: Tenant, victim: Sharing) -> None:
    node, pod = victim.node(), victim.pod("a")
    for number, name in enumerate((f"{victim.namespace}/a", f"../{victim.namespace}/pods/a", "a")):
        tenant.ask(f"r-{number}", node)
        tenant.patch_request(f"r-{number}", {"spec": {"podName": name}})
    owner = {"metadata": {"name": "a", "uid": pod["metadata"]["uid"]}}
    tenant.ask("a", node, owner=owner)
    for number in range(3):
        status = tenant.wait_for(f"r-{number}", "Failed")
        assert status["reason"].split()[1] in ("InvalidRequest:", "PodNotFound:")
    victim.assert_unbound("a")
    assert victim.events("a") == []
    assert victim.get_pod("a")["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]


def test_a_group_of_others_cannot_be_moved(tenant: Tenant, victim: Sharing) -> None:
    node, elsewhere, group = victim.node(), victim.node(), victim.group()
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    before = victim.reservation(group)
    tenant.share("mine", elsewhere, group, backoffLimit=2)
    reason = tenant.wait_for_attempts("mine", 2)["reason"]
    assert reason.startswith("GPUReserved ReservationConflict: ")
    tenant.assert_unbound("mine")
    assert victim.reservation(group)["metadata"]["uid"] == before["metadata"]["uid"]
    victim.delete_pod("a")
    victim.wait_until_freed(group)


def test_a_request_that_only_its_finalizer_keeps_holds_no_gpu(tenant: Tenant, victim: Sharing) -> None:
    group = victim.group()
    tenant.share("mine", victim.node(), group)
    tenant.wait_for("mine", "Succeeded")
    tenant.hold(f"{tenant.requests}/mine")
    tenant.delete_pod("mine")
    victim.wait_until_freed(group)
    tenant.let_go(f"{tenant.requests}/mine")


def test_statuses_are_not_his(tenant: Tenant, victim: Sharing) -> None:
    """Of a new request the server drops it, and the subresource is a right of its own."""
    tenant.pod("a")
    status = {"phase": "Succeeded", "failedAttempts": 7}
    spec = {"podName": "a", "selectedNode": "no-such-node"}
    body = {"metadata": {"name": "a"}, "spec": spec, "status": status}
    tenant.plane.request(
        "POST", tenant.requests, {**body, "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest"}
    )
    assert tenant.wait_for("a", "Failed")["failedAttempts"] == 1
    with pytest.raises(RequestError, match="403"):
        tenant.patch_status("a", status)


# Requests that are too much.


def test_a_request_that_is_nested_deeply(tenant: Tenant, victim: Sharing, binders: Binders) -> None:
    """No parser of JSON reads it, and it is in every list: nobody would be bound any more."""
    make_deep(tenant, "deep")

    def reason() -> str:
        found = loads(tenant.his.raw("GET", f"{tenant.requests}/deep"))
        return str((found.get("status") or {}).get("reason", ""))

    assert "spec.resourceClaimAllocations is nested deeper than 100 levels" in wait_until(reason)
    assert_served(victim)
    assert binders.start().answers("readyz") == 200, "nor does it keep a binder from starting"
    tenant.his.raw("DELETE", f"{tenant.requests}/deep")


def test_a_request_for_more_gpus_than_any_node_has(tenant: Tenant, victim: Sharing, binder: Binder) -> None:
    """Each name is a key in an index, and of a queue."""
    before = memory_mib(binder.pid)
    for number in range(5):
        tenant.share(f"r-{number}", victim.node(), *(f"g{number}-{item}" for item in range(50_000)))
    for number in range(5):
        reason = tenant.wait_for(f"r-{number}", "Failed", within_s=30)["reason"]
        assert "spec names 50000 GPU groups; at most 64 are allowed" in reason
    assert_served(victim)
    assert memory_mib(binder.pid) - before < 60


def test_texts_that_terminals_obey(tenant: Tenant, victim: Sharing, binder: Binder) -> None:
    spec = {"podName": HOSTILE_TEXT, "selectedNode": HOSTILE_TEXT, "receivedResourceType": HOSTILE_TEXT}
    body = bind_request("a", spec)
    body["metadata"]["labels"] = {}
    tenant.plane.request("POST", tenant.requests, body)
    reason = tenant.wait_for("a", "Failed")["reason"]
    assert reason.isprintable()
    event = tenant.admin.wait_for_event("a", "InvalidRequest", "BindRequest")
    assert event["message"].isprintable()
    assert all(line.isprintable() for line in binder.log.splitlines())


def test_many_requests_for_one_pod(tenant: Tenant, victim: Sharing) -> None:
    made, nodes = tenant.pod("a"), [victim.node(), victim.node()]
    for number in range(100):
        tenant.request(f"r-{number}", {"podName": "a", "selectedNode": nodes[number % 2]}, made)

    def ended() -> bool:
        phases = [(item.get("status") or {}).get("phase") for item in tenant.all_requests()]
        return phases.count("Succeeded") == 50 and phases.count("Failed") == 50

    wait_until(ended, within_s=30)
    assert_served(victim)
