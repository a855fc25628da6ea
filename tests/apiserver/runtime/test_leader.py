"""The lease: one holds it, and knows when it no longer does."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime.client import Client, Object
from controller.runtime.leader import LEASES, Lease, LeaseLostError, LeaseOptions
from tests.apiserver.runtime.conftest import Background, Connect
from tests.polling import eventually
from tests.proxy import Answer, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

Make = Callable[..., Lease]


@pytest.fixture
def make(client: Client, namespace: str) -> Make:
    """Makes one process's hold on the lease of this test, with short times."""

    def lease(identity: str, *, client: Client = client, **more: Any) -> Lease:  # noqa: ANN401
        options = LeaseOptions("test", namespace, identity, duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)
        return Lease(client, options, **more)

    return lease


@pytest.fixture
def found(control_plane: ControlPlane, namespace: str) -> Callable[[], Object]:
    """The spec of the lease, as it is on the server."""
    path = f"/apis/{LEASES.version}/namespaces/{namespace}/leases/test"
    return lambda: dict(control_plane.request("GET", path)["spec"])


async def test_the_first_takes_it_and_writes_down_who_it_is(make: Make, found: Callable[[], Object]) -> None:
    lease = make("first")
    assert not lease.held()
    with anyio.fail_after(2):
        await lease.acquire()
    assert lease.held()
    spec = found()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("first", 2)
    assert spec["leaseTransitions"] == 0
    assert spec["acquireTime"] <= spec["renewTime"]


async def test_a_renewal_is_one_request(make: Make, proxy: Proxy, background: Background) -> None:
    """F-44: of the kind; each renewal read the lease first."""
    lease = make("first")
    await lease.acquire()
    asked = proxy.count("GET", "leases")
    background(lease.hold())
    await eventually(lambda: proxy.count("PUT", "leases") >= 4)
    assert proxy.count("GET", "leases") == asked
    assert lease.held()


async def test_a_renewal_survives_that_another_touched_the_lease(
    make: Make, proxy: Proxy, background: Background, control_plane: ControlPlane, namespace: str
) -> None:
    lease = make("first")
    await lease.acquire()
    holding = background(lease.hold())
    path = f"/apis/{LEASES.version}/namespaces/{namespace}/leases/test"
    for number in range(3):
        delta = {"metadata": {"annotations": {"n": str(number)}}}
        control_plane.request("PATCH", path, delta, "application/merge-patch+json")
        await anyio.sleep(0.5)
        assert lease.held()
    assert not holding.done()
    assert sum(call.status == 409 for call in proxy.calls) >= 2


async def test_what_is_left_of_the_lease(make: Make) -> None:
    """F-36: as long as no other process can lead, and nothing once this one may not write."""
    now_s = 1000.0
    lease = make("first", clock=lambda: now_s)
    assert lease.left_s() == 0
    await lease.acquire()
    assert lease.left_s() == pytest.approx(2.0)
    now_s += 1.1
    assert lease.left_s() == pytest.approx(0.9)
    now_s += 0.2
    assert lease.left_s() == 0


async def test_the_server_drops_a_renewal_that_was_given_up(make: Make, proxy: Proxy) -> None:
    """F-36: of the kind; it was told 29 s for a lease that lasts 2 s."""
    await make("first").acquire()
    told = [float(call.query["timeout"].removesuffix("s")) for call in proxy.calls if "leases" in call.path]
    assert told
    assert max(told) <= 0.4


async def test_the_second_waits_as_long_as_the_first_renews(make: Make, background: Background) -> None:
    first, second = make("first"), make("second")
    await first.acquire()
    background(first.hold())
    with anyio.move_on_after(3.5) as scope:
        await second.acquire()
    assert scope.cancelled_caught, "the lease was taken although it was renewed"
    assert first.held()
    assert not second.held()


async def test_of_two_that_come_at_once_one_gets_it(make: Make, background: Background) -> None:
    leases = [make(f"process-{n}") for n in range(2)]
    tasks = [background(lease.acquire()) for lease in leases]
    done, _ = await asyncio.wait(tasks, timeout=1.5, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert [lease.held() for lease in leases].count(True) == 1


async def test_a_release_hands_over_fast(make: Make, found: Callable[[], Object]) -> None:
    first, second = make("first"), make("second")
    await first.acquire()
    await first.release()
    assert not first.held()
    started_s = time.monotonic()
    with anyio.fail_after(1.5):
        await second.acquire()
    assert time.monotonic() - started_s < 1.0
    assert found()["leaseTransitions"] == 1


async def test_a_release_of_what_was_never_held_does_nothing(make: Make, proxy: Proxy) -> None:
    await make("first").release()
    assert proxy.count("PUT", "leases") == 0


async def test_a_release_does_not_take_it_from_the_next(make: Make, found: Callable[[], Object]) -> None:
    first, second = make("first"), make("second")
    await first.acquire()
    with anyio.fail_after(6):
        await second.acquire()
    await first.release()
    assert found()["holderIdentity"] == "second"


async def test_one_that_is_cut_off_stops_before_another_starts(
    make: Make,
    connect: Connect,
    proxy: Proxy,
    background: Background,
    control_plane: ControlPlane,
    client: Client,
) -> None:
    """The first loses its way to the server; the second, with another token, does not."""
    token = control_plane.token("default", "default")
    _allow_leases(control_plane)
    cut_off = await connect(token=token, deadline_s=5.0)
    first, second = make("first", client=cut_off), make("second")
    await first.acquire()
    lost = background(_until_lost(first))
    taken = background(second.acquire())
    await anyio.sleep(0.5)
    with proxy.rule(Rule(Hang(), token=token)):
        while not taken.done():
            await anyio.sleep(0.005)
            assert not (first.held() and second.held()), "two at a time"
            assert not first.held() or not lost.done()
        with anyio.fail_after(3):
            await lost
    assert second.held()
    assert not first.held()


async def test_a_short_outage_is_survived(make: Make, proxy: Proxy, background: Background) -> None:
    lease = make("first")
    await lease.acquire()
    holding = background(lease.hold())
    with proxy.rule(Rule(Refuse(), path="leases")) as refused:
        await eventually(lambda: refused.count >= 2)
    await anyio.sleep(1.5)
    assert lease.held()
    assert not holding.done()


async def test_an_outage_is_noticed(make: Make, proxy: Proxy) -> None:
    lease = make("first")
    await lease.acquire()
    started_s = time.monotonic()
    with proxy.rule(Rule(Answer(503), path="leases")), pytest.raises(LeaseLostError), anyio.fail_after(4):
        await lease.hold()
    assert not lease.held()
    assert time.monotonic() - started_s < 2.0


async def test_being_robbed_is_noticed_at_the_next_renewal(
    make: Make, control_plane: ControlPlane, namespace: str
) -> None:
    lease = make("first")
    await lease.acquire()
    path = f"/apis/{LEASES.version}/namespaces/{namespace}/leases/test"
    delta = {"spec": {"holderIdentity": "robber", "leaseDurationSeconds": 60}}
    control_plane.request("PATCH", path, delta, "application/merge-patch+json")
    with pytest.raises(LeaseLostError), anyio.fail_after(1):
        await lease.hold()
    assert not lease.held()


async def test_a_lease_that_another_had_meanwhile_is_lost_though_it_is_free_again(
    make: Make, found: Callable[[], Object]
) -> None:
    """A process that stood still while another led, and ended well, must not go on with what it knew."""
    late_s = 0.0
    first, second = make("first", clock=lambda: time.monotonic() + late_s), make("second")
    await first.acquire()
    late_s = 10.0
    with anyio.fail_after(6):
        await second.acquire()
    await second.release()
    with pytest.raises(LeaseLostError), anyio.fail_after(2):
        await first.hold()
    assert not first.held()
    assert found()["holderIdentity"] == ""
    with anyio.fail_after(2):
        await first.acquire()
    assert first.held()


async def test_a_lease_that_was_deleted_is_made_again(
    make: Make,
    control_plane: ControlPlane,
    namespace: str,
    background: Background,
    found: Callable[[], Object],
) -> None:
    lease = make("first")
    await lease.acquire()
    holding = background(lease.hold())
    control_plane.request("DELETE", f"/apis/{LEASES.version}/namespaces/{namespace}/leases/test")
    await anyio.sleep(0.6)
    assert found()["holderIdentity"] == "first"
    assert lease.held()
    assert not holding.done()


@pytest.mark.parametrize(
    "spec", [{}, {"holderIdentity": ""}, {"holderIdentity": "gone", "leaseDurationSeconds": 1}]
)
async def test_what_is_found_is_taken_over(
    make: Make, control_plane: ControlPlane, namespace: str, spec: Object
) -> None:
    path = f"/apis/{LEASES.version}/namespaces/{namespace}/leases"
    control_plane.request("POST", path, {"metadata": {"name": "test"}, "spec": spec})
    with anyio.fail_after(3):
        await make("first").acquire()


async def test_a_process_that_stood_still_knows_it_when_it_goes_on(make: Make) -> None:
    now_s = 1000.0
    lease = make("first", clock=lambda: now_s)
    await lease.acquire()
    now_s += 1.1
    assert lease.held()
    now_s += 0.2
    assert not lease.held()


async def test_other_clocks_do_not_matter(make: Make, control_plane: ControlPlane, namespace: str) -> None:
    """The holder's clock is an hour slow: its lease looks long expired, and is not."""
    path = f"/apis/{LEASES.version}/namespaces/{namespace}/leases"
    spec = {
        "holderIdentity": "slow",
        "leaseDurationSeconds": 3,
        "renewTime": "2020-01-01T00:00:00.000000Z",
    }
    control_plane.request("POST", path, {"metadata": {"name": "test"}, "spec": spec})
    with anyio.move_on_after(2) as scope:
        await make("first").acquire()
    assert scope.cancelled_caught


async def _until_lost(lease: Lease) -> None:
    with pytest.raises(LeaseLostError):
        await lease.hold()


def _allow_leases(plane: ControlPlane) -> None:
    """Rights on leases for the ServiceAccount default/default."""
    base = "/apis/rbac.authorization.k8s.io/v1/"
    rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]
    plane.request("POST", f"{base}clusterroles", {"metadata": {"name": "test-leases"}, "rules": rules})
    binding = {
        "metadata": {"name": "test-leases"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test-leases"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    plane.request("POST", f"{base}clusterrolebindings", binding)
