"""Much of one tenant's, and a binder that begins with it: others are served, within its memory."""

import json
from pathlib import Path

from tests.binder import Binders
from tests.hostile import SHIPPED_MIB, Tenant, memory_mib
from tests.objects import pod
from tests.proxy import Proxy
from tests.sharing import Sharing

FLOOD = 300


def test_a_flood_of_requests_that_fail(tenant: Tenant, victim: Sharing, binders: Binders) -> None:
    """Namespaces take turns: whoever comes with one request does not wait for hundreds of others."""
    while victim.namespace < tenant.namespace:
        victim = Sharing.beside(victim.plane, victim.agents)  # who is listed after the flood
    for number in range(FLOOD):
        tenant.request(f"r-{number}", {"podName": "a", "selectedNode": "no-such-node"})
    victim.pod_and_request("a", victim.node())
    binders.start("--max-concurrent-reconciles=1", ready=False)
    victim.wait_for("a", "Succeeded", within_s=30)
    done = [item for item in tenant.all_requests() if (item.get("status") or {}).get("phase")]
    assert len(done) < FLOOD / 2, "they go on after it"


def test_requests_that_are_large(tenant: Tenant, victim: Sharing, binders: Binders) -> None:
    """What he writes is in the binder's memory, which has a limit."""
    filler = {"driver": "d", "device": "d", "request": "r", "pool": "x" * 1_200_000}
    claims = [{"name": "c", "allocation": {"devices": {"results": [filler]}}}]
    for number in range(40):
        tenant.ask(f"r-{number}", "no-such-node", resourceClaimAllocations=claims)
    victim.pod_and_request("a", victim.node())
    binder = binders.start()
    victim.wait_for("a", "Succeeded", within_s=30)
    assert memory_mib(binder.pid) < SHIPPED_MIB
    assert memory_mib(binder.pid, "VmRSS") < SHIPPED_MIB - 50, "it is not kept either"


def test_pods_that_are_large(
    tenant: Tenant, victim: Sharing, binders: Binders, proxy: Proxy, binder_kubeconfig: Path
) -> None:
    """A page of a list has 500 objects, and each may have 256 KiB of annotations, or 1.5 MB in all."""
    notes = {"example.com/notes": "x" * 250_000}
    for number in range(40):
        tenant.plane.request("POST", tenant.pods, pod(f"p-{number}", annotations=notes))
    victim.pod_and_request("a", victim.node())
    token = json.loads(binder_kubeconfig.read_text())["users"][0]["user"]["token"]
    binder = binders.start(kubeconfig=proxy.kubeconfig(token), ready=False)
    victim.wait_for("a", "Succeeded", within_s=90)
    limits = [
        int(call.query["limit"])
        for call in proxy.calls
        if call.path == "/api/v1/pods" and "limit" in call.query
    ]
    assert min(limits) < 500, limits
    assert memory_mib(binder.pid) < SHIPPED_MIB
