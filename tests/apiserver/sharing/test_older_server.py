"""A server that does not copy a Binding's labels to the pod, as those before Kubernetes 1.35."""

import os
from collections.abc import Iterator

import pytest
from controlplane import ControlPlane

from tests.binder import Binder, Binders
from tests.cluster import prepared_plane
from tests.polling import wait_until
from tests.proxy import Answer, Hang, Proxy, Rule
from tests.sharing import GROUP_LABEL, Agents, Sharing, playing_agents

HAS_GATE = int(os.environ.get("KUBERNETES", "1.36").partition(".")[2]) >= 33
FLAGS = ("--feature-gates=PodTopologyLabelsAdmission=false",) if HAS_GATE else ()
SERVER_ERROR = Answer(500, {"kind": "Status", "code": 500, "message": "etcd is tired"})


@pytest.fixture(scope="module")
def older_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("older-plane")
    with prepared_plane(directory, apiserver_flags=FLAGS, controller_manager=False) as plane:
        yield plane


@pytest.fixture(scope="module")
def older_agents(older_plane: ControlPlane) -> Iterator[Agents]:
    with playing_agents(older_plane) as decisions:
        yield decisions


@pytest.fixture
def cluster(older_plane: ControlPlane, older_agents: Agents) -> Sharing:
    return Sharing.beside(older_plane, older_agents)


@pytest.fixture(scope="module")
def proxy(older_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy(older_plane.url, older_plane.ca_file, tmp_path_factory.mktemp("proxy")) as running:
        yield running


@pytest.fixture(scope="module")
def binder(
    older_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Binder]:
    """One through the proxy, which the last tests start anew."""
    kubeconfig = proxy.kubeconfig(older_plane.token("kai-scheduler", "binder"))
    made = Binders(tmp_path_factory.mktemp("binder"), kubeconfig)
    try:
        yield made.start()
        made.close()
    finally:
        made.kill()


pytestmark = pytest.mark.usefixtures("binder")


def labels_of(*groups: str) -> dict[str, str]:
    return (
        {f"{GROUP_LABEL}/{group}": group for group in groups} if len(groups) > 1 else {GROUP_LABEL: groups[0]}
    )


def test_the_first_pod_and_the_next_ones_are_labelled(cluster: Sharing, proxy: Proxy) -> None:
    node, group, groups = cluster.node(), cluster.group(), [cluster.group(), cluster.group()]
    for name in ("a", "b"):
        cluster.share(name, node, group)
        cluster.wait_for(name, "Succeeded")
        assert cluster.group_labels(name) == labels_of(group)
    cluster.share("two", node, *groups)
    cluster.wait_for("two", "Succeeded")
    assert cluster.group_labels("two") == labels_of(*groups)
    # The first was looked at after it was bound; the next ones are labelled before.
    calls = [call for call in proxy.calls if call.path.startswith(cluster.pods) and call.method != "GET"]
    told = [f"{call.method} {call.path.removeprefix(cluster.pods)}" for call in calls]
    order = [item for item in told if not item.endswith("/status")]
    assert order == [
        "POST /a/binding",
        "PATCH /a",
        "PATCH /b",
        "POST /b/binding",
        "PATCH /two",
        "POST /two/binding",
    ]
    for name in ("a", "b", "two"):
        cluster.delete_pod(name)
    cluster.wait_until_freed(group, *groups)


def test_a_failed_bind_leaves_no_label(cluster: Sharing, binder: Binder) -> None:
    """T-16: of either form; other labels stay."""
    node, group, groups = cluster.node(), cluster.group(), [cluster.group(), cluster.group()]
    warm_up(cluster)
    labels = {GROUP_LABEL: "old", f"{GROUP_LABEL}/old_1": "old", "app": "mine"}
    with cluster.bindings_denied():
        cluster.share("plain", node, group)
        cluster.share("two", node, *groups)
        cluster.share("mixed", node, *groups, pod={"labels": labels})
        for name in ("plain", "two", "mixed"):
            reason = cluster.wait_for(name, "Failed")["reason"]
            assert reason.startswith("Bound Forbidden: POST pods/binding"), reason
            assert cluster.group_labels(name) == {}
    assert cluster.get_pod("mixed")["metadata"]["labels"] == {"app": "mine"}
    cluster.wait_until_freed(group, *groups)


def test_the_labels_cannot_be_written(cluster: Sharing, proxy: Proxy) -> None:
    """T-12: the bind fails, and the reservation goes."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    warm_up(cluster)
    with proxy.rule(Rule(SERVER_ERROR, method="PATCH", path=f"^{cluster.pods}/a$")):
        cluster.share("a", node, *groups)
        status = cluster.wait_for("a", "Failed")
    assert status["reason"] == f"Bound ServerError: PATCH pods {cluster.namespace}/a: etcd is tired"
    cluster.assert_nothing_left("a", *groups)


def test_the_labels_cannot_be_taken_off(cluster: Sharing, proxy: Proxy) -> None:
    """The message says so, the maps are taken back all the same, and the next attempt mends it."""
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    warm_up(cluster)
    second = Rule(SERVER_ERROR, method="PATCH", path=f"^{cluster.pods}/a$", skip=1, times=1)
    with cluster.bindings_denied(), proxy.rule(second):
        cluster.share("a", node, *groups, backoffLimit=2)
        status = cluster.wait_for_attempts("a", 1)
        assert status["reason"].endswith("the pod keeps its GPU group labels: etcd is tired")
        assert cluster.all_config_maps() == []
        cluster.wait_for_attempts("a", 2)
    cluster.assert_nothing_left("a", *groups)


@pytest.mark.parametrize("step", ["labels", "binding", "look"])
def test_kill_9_around_the_labels(cluster: Sharing, binder: Binder, proxy: Proxy, step: str) -> None:
    node, groups = cluster.node(), [cluster.group(), cluster.group()]
    if step != "look":
        warm_up(cluster)
    else:
        restart(binder)
    method, path = {"labels": ("PATCH", "a$"), "binding": ("POST", "a/binding$"), "look": ("GET", "a$")}[step]
    with proxy.rule(Rule(Hang(), method=method, path=f"^{cluster.pods}/{path}")) as rule:
        cluster.share("a", node, *groups)
        wait_until(lambda: rule.count > 0)
        assert cluster.group_labels("a") == (labels_of(*groups) if step == "binding" else {})
        binder.kill()
    binder.start(ready=False).wait_until_ready(within_s=90)
    status = cluster.wait_for("a", "Succeeded", within_s=20)
    assert status.get("failedAttempts", 0) == 0
    wait_until(lambda: cluster.group_labels("a") == labels_of(*groups))
    assert all(len(cluster.reservations(group)) == 1 for group in groups)
    cluster.delete_pod("a")
    cluster.wait_until_freed(*groups)


def restart(binder: Binder) -> None:
    """It forgets what it knows of the server."""
    assert binder.stop() == 0
    binder.start(ready=False).wait_until_ready(within_s=90)


def warm_up(cluster: Sharing) -> None:
    """Lets the binder see what the server does with labels."""
    other = Sharing.fresh(cluster.plane)
    assert isinstance(other, Sharing)
    other.share("warm-up", other.node(), other.group())
    other.wait_for("warm-up", "Succeeded")
    other.delete_pod("warm-up")
