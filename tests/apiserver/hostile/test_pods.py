"""What a tenant who may make pods, ConfigMaps and claims in his namespace can do to others."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.claims import Claims, allocation, brings, prepared, uses
from tests.features import BINDING_CONDITIONS, needs
from tests.hostile import HOSTILE_TEXT, Tenant, deep_parameters
from tests.polling import wait_until
from tests.proxy import Proxy
from tests.sharing import GROUP_LABEL, RESERVATIONS, Sharing, owner_of, refusal_of

MAP = "a-shared-gpu-0"
ACCOUNT = ("kai-scheduler", "binder")


@pytest.fixture(scope="module")
def proxy(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    directory: Path = tmp_path_factory.mktemp("proxy")
    with Proxy(control_plane.url, control_plane.ca_file, directory) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def binder(
    control_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """One binder for all tests here, whose requests are counted."""
    made = Binders(tmp_path_factory.mktemp("binder"), proxy.kubeconfig(control_plane.token(*ACCOUNT)))
    try:
        yield made.start("--log-format=json")
        made.close()
    finally:
        made.kill()


# ConfigMaps that ours will write.


def test_a_map_with_thousands_of_owners(tenant: Tenant, victim: Sharing, proxy: Proxy) -> None:
    """Each would be looked at by a request, with a worker busy and a rate limit that all share."""
    pod = tenant.shared_pod("a")
    gone = [
        {"apiVersion": "v1", "kind": "Pod", "name": f"gone-{number}", "uid": f"{number:032x}"}
        for number in range(300)
    ]
    # The garbage collector stops at a kind that it does not know, else it might be done before ours looks.
    unknown = {"apiVersion": "example.com/v1", "kind": "Unknown", "name": "unknown", "uid": f"{300:032x}"}
    tenant.make_config_map(MAP, None, [unknown, *owner_of(pod), *gone])
    before = len(proxy.calls)
    tenant.ask_share("a", victim.node(), tenant.group(), owner=pod)
    message = refusal_of(tenant, "a", "ConfigMapConflict")
    assert "302 owners, and a map of a pod with a share has one" in message
    there = [call for call in proxy.calls[before:] if f"/namespaces/{tenant.namespace}/" in call.path]
    assert 0 < len(there) < 40, "not one for each owner"


def test_a_map_that_may_not_be_changed(tenant: Tenant, victim: Sharing) -> None:
    """His own pod's, so nobody else is asked: it is made anew."""
    pod = tenant.shared_pod("a")
    lies = {"NVIDIA_VISIBLE_DEVICES": "all", "GPU_PORTION": "1"}
    tenant.make_config_map(MAP, lies, owner_of(pod), immutable=True)
    group = tenant.group()
    tenant.ask_share("a", victim.node(), group, owner=pod)
    tenant.wait_for("a", "Succeeded")
    assert tenant.data(MAP)["NVIDIA_VISIBLE_DEVICES"] == victim.device(group)


def test_a_map_whose_owner_has_a_name_that_terminals_obey(
    tenant: Tenant, victim: Sharing, binder: Binder
) -> None:
    pod = tenant.shared_pod("a")
    owner = {"apiVersion": "example.com/v1", "kind": HOSTILE_TEXT, "name": HOSTILE_TEXT, "uid": "1"}
    tenant.make_config_map(MAP, {}, [owner])
    tenant.ask_share("a", victim.node(), tenant.group(), owner=pod)
    message = refusal_of(tenant, "a", "ConfigMapConflict")
    assert message.isprintable()
    assert tenant.status("a")["reason"].isprintable()
    assert (tenant.pod_bound("a") or {})["message"].isprintable()
    assert tenant.admin.wait_for_event("a", "BindingError")["message"].isprintable()
    assert tenant.admin.wait_for_event("a", "ConfigMapConflict", "BindRequest")["message"].isprintable()
    assert all(line.isprintable() for line in binder.log.splitlines())


def test_what_the_container_is_told_is_his_to_change(tenant: Tenant, victim: Sharing) -> None:
    """A limit: the map is in his namespace. Variables are no border between tenants."""
    group = tenant.group()
    tenant.share("a", victim.node(), group)
    tenant.wait_for("a", "Succeeded")
    found = tenant.config_map(MAP)
    found["data"]["NVIDIA_VISIBLE_DEVICES"] = "all"
    tenant.plane.request("PUT", f"{tenant.config_maps}/{MAP}", found)
    time.sleep(1)
    assert tenant.data(MAP)["NVIDIA_VISIBLE_DEVICES"] == "all", "nobody corrects it"


# Labels and pods that pretend.


def test_the_label_of_his_own_group_is_not_believed(tenant: Tenant, victim: Sharing) -> None:
    """Without it he still uses the GPU, and nobody else is given it."""
    group = tenant.group()
    tenant.share("a", victim.node(), group)
    tenant.wait_for("a", "Succeeded")
    tenant.set_label("a", GROUP_LABEL, None)
    time.sleep(1)
    assert victim.reservation(group)


def test_the_label_of_others_groups_holds_nothing_elsewhere(tenant: Tenant, victim: Sharing) -> None:
    node, group = victim.node(), victim.group()
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    tenant.shared_pod("waits", labels={GROUP_LABEL: group})
    tenant.shared_pod("elsewhere", labels={GROUP_LABEL: group}, spec={"nodeName": victim.node()})
    victim.delete_pod("a")
    victim.wait_until_freed(group)


def test_a_pod_on_the_node_with_the_label_holds_the_gpu(tenant: Tenant, victim: Sharing) -> None:
    """A limit: it cannot be told from one that an older binder has bound. It is a pod of the scheduler's,
    which counts it."""
    node, group = victim.node(), victim.group()
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    tenant.shared_pod("liar", labels={GROUP_LABEL: group}, spec={"nodeName": node})
    victim.delete_pod("a")
    time.sleep(1)
    assert victim.reservation(group)
    tenant.delete_pod("liar")
    victim.wait_until_freed(group)


def test_a_pod_that_passes_itself_off_as_a_reservation(tenant: Tenant, victim: Sharing) -> None:
    """Others are told the device of the real one."""
    node, group = victim.node(), victim.group()
    container = {"name": "x", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    name = f"gpu-reservation-{node}"[:63]
    body = {
        "metadata": {
            "name": name,
            "labels": {"app": RESERVATIONS, GROUP_LABEL: group},
            "annotations": {"run.ai/reserve_for_gpu_index": "GPU-of-the-tenant"},
        },
        "spec": {"nodeName": node, "containers": [container]},
    }
    tenant.plane.request("POST", tenant.pods, body)
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    assert victim.data(MAP)["NVIDIA_VISIBLE_DEVICES"] == victim.device(group) != "GPU-of-the-tenant"


def test_a_pod_that_its_finalizer_keeps_holds_no_gpu(tenant: Tenant, victim: Sharing) -> None:
    group = tenant.group()
    tenant.share("a", victim.node(), group)
    tenant.wait_for("a", "Succeeded")
    tenant.hold(f"{tenant.pods}/a")
    tenant.plane.request("DELETE", f"{tenant.pods}/a")
    tenant.admin.set_phase("a", "Failed")  # the kubelet has ended its containers
    victim.wait_until_freed(group)
    tenant.let_go(f"{tenant.pods}/a")


def test_many_requests_for_a_group_whose_pods_no_cache_has(
    tenant: Tenant, victim: Sharing, proxy: Proxy
) -> None:
    """A limit: they keep the GPU reserved. But all are looked at by one list, not each by a request."""
    node, group, count = victim.node(), victim.group(), 12
    victim.share("a", node, group)
    victim.wait_for("a", "Succeeded")
    for number in range(count):
        pod = tenant.pod(f"p-{number}", schedulerName="another", nodeName=node)
        tenant.ask_share(f"p-{number}", node, group, owner=pod)
    tenant.wait_for_all(count)
    looks = f"^/api/v1/namespaces/{tenant.namespace}/pods/p-"
    before = proxy.count("GET", looks)
    victim.delete_pod("a")
    wait_until(lambda: proxy.count("GET", f"^/api/v1/namespaces/{tenant.namespace}/pods$"))
    assert victim.reservation(group)
    assert proxy.count("GET", looks) == before
    tenant.plane.request("DELETE", tenant.requests)
    victim.wait_until_freed(group)


# Texts that make work.


NUMBERS = ["1e999999999", "9" * 100_000, "0." + "9" * 100_000, "1e-999999999", "\u0661"]
ASK = {"fraction": "gpu-fraction", "memory": "gpu-memory", "count": "gpu-fraction-num-devices"}


@pytest.mark.parametrize("text", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_that_are_much_work(tenant: Tenant, victim: Sharing, text: str) -> None:
    started_s = time.monotonic()
    for name, asked in ASK.items():
        annotations = {asked: text, "nvidia.com/container.main.gpu-memory.request": text}
        pod = tenant.shared_pod(name, annotations=annotations)
        tenant.ask_share(name, victim.node(), tenant.group(), owner=pod, portion="0.50")
    ends = ("Failed", "Succeeded")
    wait_until(lambda: all(tenant.status(name).get("phase") in ends for name in ASK))
    assert time.monotonic() - started_s < 10


@needs(BINDING_CONDITIONS)
def test_a_claim_that_is_nested_deeply(tenant: Tenant, victim: Sharing) -> None:
    """It is in every list and watch of claims, which all share who wait for a device."""
    deep, cards = Claims(tenant.admin), Claims(victim)
    opaque = {"driver": "d.example.com", "parameters": {"a": [1]}}
    spec = deep.spec()
    spec["devices"] = {**spec["devices"], "config": [{"opaque": opaque}]}
    for name in ("deep", "deeper"):
        body = {"apiVersion": deep.version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        if name == "deep":
            tenant.his.raw("POST", deep.path, deep_parameters(json.dumps(body)))
    node = victim.node()
    cards.make("one")
    pod = victim.pod("a", resourceClaims=uses(gpu="one"))
    victim.ask("a", node, owner=pod, resourceClaimAllocations=brings("gpu", prepared(node)))
    wait_until(lambda: "DynamicResources" in victim.conditions("a"))
    tenant.his.raw("POST", deep.path, deep_parameters(json.dumps(body)))  # while it is waited for
    cards.report(node, "example.com/attached")
    victim.wait_for("a", "Succeeded")
    mine = tenant.pod("a", resourceClaims=uses(gpu="deep"))
    tenant.ask("a", node, owner=mine, resourceClaimAllocations=brings("gpu", allocation(node, "gpu-9")))
    wait_until(lambda: tenant.status("a").get("phase") in ("Failed", "Succeeded"))
    for name in ("deep", "deeper"):
        tenant.his.raw("DELETE", f"{deep.path}/{name}")


def test_the_binder_was_never_surprised(binder: Binder) -> None:
    assert "Traceback" not in binder.log
    assert "unforeseen" not in binder.log
    assert binder.answers("healthz") == 200
