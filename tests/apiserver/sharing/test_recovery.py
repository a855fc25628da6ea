"""A binder that ends at some step of a shared bind: the next one finishes it, once, leaving nothing over."""

import signal
from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.polling import wait_until
from tests.proxy import Hang, Proxy, Rule
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, Sharing

STEPS = ("reservation", "wait", "map", "evar", "binding", "status")


@pytest.fixture(scope="module")
def shared(
    control_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """A binder that a test ends, and that is started again by it."""
    kubeconfig = proxy.kubeconfig(control_plane.token("kai-scheduler", "binder"))
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start()
        made.close()
    finally:
        made.kill()


@pytest.fixture
def binder(shared: Binder) -> Binder:
    if not shared.running:
        start_again(shared)
    return shared


def start_again(binder: Binder) -> None:
    """With more patience than usual: these tests start many."""
    binder.kill()
    binder.start(ready=False).wait_until_ready(within_s=90)


def pause(cluster: Sharing, step: str) -> Rule:
    """Holds the call of a step back."""
    match step:
        case "reservation":
            return Rule(Hang(), method="POST", path=f"^{RESERVATION_PODS}$")
        case "wait":
            return Rule(Hang(), method="NONE")
        case "map":
            return Rule(Hang(), method="POST", path=f"^{cluster.config_maps}$")
        case "evar":
            return Rule(Hang(), method="POST", path=f"^{cluster.config_maps}$", skip=1)
        case "binding":
            return Rule(Hang(), method="POST", path=f"^{cluster.pods}/a/binding$")
        case "status":
            return Rule(Hang(), method="PATCH", path=f"^{cluster.requests}/a/status$")
    raise AssertionError(step)


def assert_bound_once(cluster: Sharing, node: str, *groups: str) -> None:
    status = cluster.wait_for("a", "Succeeded", within_s=30)
    assert status.get("failedAttempts", 0) == 0
    assert cluster.node_of("a") == node
    devices = [cluster.device(group) for group in groups]  # one reservation each
    assert cluster.data("a-shared-gpu-0") == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(devices),
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }
    assert cluster.all_config_maps() == ["a-shared-gpu-0", "a-shared-gpu-0-evar"]
    form = (
        {f"{GROUP_LABEL}/{group}": group for group in groups} if len(groups) > 1 else {GROUP_LABEL: groups[0]}
    )
    wait_until(lambda: cluster.group_labels("a") == form)
    assert cluster.annotations("a")["received-resource-type"] == "Fraction"
    cluster.delete_pod("a")
    cluster.wait_until_freed(*groups)


def reach(cluster: Sharing, proxy: Proxy, step: str, *groups: str) -> tuple[str, Rule]:
    """Begins a bind and waits until it is held at a step."""
    node, rule = cluster.node(), proxy.add(pause(cluster, step))
    if step == "wait":
        for group in groups:
            cluster.agents.set(group, None)
    cluster.share("a", node, *groups)
    if step == "wait":
        cluster.wait_for_reservation(groups[-1])
    else:
        wait_until(lambda: rule.count > (step == "evar"))
    return node, rule


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_before_a_step(cluster: Sharing, binder: Binder, proxy: Proxy, step: str) -> None:
    groups = [cluster.group(), cluster.group()] if step in ("reservation", "wait") else [cluster.group()]
    node, rule = reach(cluster, proxy, step, *groups)
    binder.kill()
    proxy.remove(rule)
    for group in groups:
        cluster.agents.forget(group)
    start_again(binder)
    assert_bound_once(cluster, node, *groups)


@pytest.mark.parametrize("step", ["reservation", "wait", "evar", "status"])
def test_sigterm_at_a_step(cluster: Sharing, binder: Binder, proxy: Proxy, step: str) -> None:
    """What is under way is finished, or left for the next binder; it is no failed attempt either way."""
    group = cluster.group()
    node, rule = reach(cluster, proxy, step, group)
    binder.signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in binder.log)
    assert binder.exit_code is None or step == "wait"
    proxy.remove(rule)
    assert binder.wait(within_s=15) == 0
    assert cluster.status("a").get("failedAttempts", 0) == 0
    cluster.agents.forget(group)
    start_again(binder)
    assert_bound_once(cluster, node, group)


def test_requests_deleted_while_no_binder_runs(cluster: Sharing, binder: Binder, proxy: Proxy) -> None:
    """The next start frees what nobody needs any more."""
    groups = [cluster.group(), cluster.group()]
    _, rule = reach(cluster, proxy, "evar", *groups)
    binder.kill()
    proxy.remove(rule)
    cluster.delete_request("a")
    assert len(cluster.reservations(groups[0])) == 1
    start_again(binder)
    cluster.wait_until_freed(*groups)
    cluster.assert_unbound("a")
    cluster.delete_pod("a")


def test_users_end_while_no_binder_runs(cluster: Sharing, binder: Binder) -> None:
    node, group, other = cluster.node(), cluster.group(), cluster.group()
    cluster.share("a", node, group)
    cluster.share("b", node, other)
    cluster.wait_for_all(2)
    binder.kill()
    cluster.set_phase("a", "Succeeded")
    cluster.set_phase("b", "Running")
    start_again(binder)
    cluster.wait_until_freed(group)
    assert len(cluster.reservations(other)) == 1
    assert "deletionTimestamp" not in cluster.get_pod("b")["metadata"]
