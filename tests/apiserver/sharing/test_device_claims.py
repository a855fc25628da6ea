"""Pods that have a share of a GPU and device claims: the claims are looked at before a GPU is reserved."""

from tests.binder import Binders
from tests.claims import Claims, allocation, brings, from_template, uses
from tests.polling import wait_until
from tests.proxy import Proxy
from tests.sharing import Sharing


def start(binders: Binders, proxy: Proxy, cluster: Sharing) -> None:
    binders.start(kubeconfig=proxy.kubeconfig(cluster.plane.token("kai-scheduler", "binder")))


def test_what_was_found_before_the_reservation_is_not_read_again(
    cluster: Sharing, binders: Binders, proxy: Proxy
) -> None:
    start(binders, proxy, cluster)
    node, group, claims = cluster.node(), cluster.group(), Claims(cluster)
    claims.make("one")
    devices = brings("other", allocation(node))
    options = {"spec": {"resourceClaims": uses(other="one")}}
    cluster.share("a", node, group, pod=options, resourceClaimAllocations=devices)  # type: ignore[arg-type]
    cluster.wait_for("a", "Succeeded", within_s=20)
    assert claims.users("one") == ["a"]
    assert proxy.count("GET", f"{claims.path}/one$") == 1


def test_what_was_found_and_has_changed_since_is_read_again(
    cluster: Sharing, binders: Binders, proxy: Proxy
) -> None:
    start(binders, proxy, cluster)
    node, group, claims = cluster.node(), cluster.group(), Claims(cluster)
    claims.make("one")
    cluster.agents.set(group, None)  # no answer yet
    devices = brings("other", allocation(node))
    options = {"spec": {"resourceClaims": uses(other="one")}}
    cluster.share("a", node, group, pod=options, resourceClaimAllocations=devices)  # type: ignore[arg-type]
    cluster.wait_for_reservation(group)
    claims.give("one", allocation(node, "gpu-7"))
    cluster.agents.forget(group)
    reason = cluster.wait_for("a", "Failed", within_s=20)["reason"]
    assert f"AllocationConflict: claim {cluster.namespace}/one has gpu-7" in reason
    assert claims.users("one") == []


def test_no_gpu_is_reserved_before_a_claim_is_made(cluster: Sharing, binders: Binders, proxy: Proxy) -> None:
    start(binders, proxy, cluster)
    node, group, claims = cluster.node(), cluster.group(), Claims(cluster)
    devices = brings("other", allocation(node))
    options = {"spec": {"resourceClaims": from_template(other="late")}}
    cluster.share("a", node, group, pod=options, resourceClaimAllocations=devices)  # type: ignore[arg-type]
    what = f"claim other of pod {cluster.namespace}/a from its template"
    wait_until(lambda: what in str(cluster.status("a").get("conditions")))
    assert not cluster.reservations(group)
    claims.make_template("late")
    cluster.wait_for("a", "Succeeded", within_s=60)
    assert cluster.device(group)
