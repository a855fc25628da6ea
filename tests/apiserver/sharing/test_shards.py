"""Binders that serve a node pool each: every request is bound once, by its own, and nobody's GPU is released.

Requests, nodes and pods are labelled as KAI's scheduler of a shard does it: the request when it is made, the
pod after that, so that the binder often has the request before the pod's label. The default shard labels
nothing.
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import yaml
from controlplane import ControlPlane, RequestError

from controller.kai.nodepool import NODE_POOL_LABEL, lease_name_of
from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.cluster import MERGE, ROOT
from tests.polling import wait_until
from tests.sharing import GROUP_LABEL, RESERVATION_PODS, Agents, Sharing

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"
ELECTED = ("--leader-elect", "--leader-election-namespace=kai-scheduler")
WITHIN_S = 60.0
"""On a busy machine."""
LOOK_S = 1.5
"""What is to stay is looked at again after so long."""


class Pools(Sharing):
    """A namespace, and objects in node pools; the empty name is the default shard's."""

    def node_in(self, pool: str) -> str:
        return self.node(labels={NODE_POOL_LABEL: pool} if pool else {})

    def move(self, path: str, pool: str) -> None:
        """Gives an object to another pool."""
        delta = {"metadata": {"labels": {NODE_POOL_LABEL: pool or None}}}
        self.plane.request("PATCH", path, delta, MERGE)

    def move_node(self, node: str, pool: str) -> None:
        self.move(f"/api/v1/nodes/{node}", pool)

    def move_request(self, name: str, pool: str) -> None:
        self.move(f"{self.requests}/{name}", pool)

    def move_pod(self, name: str, pool: str) -> None:
        self.move(f"{self.pods}/{name}", pool)

    def ask_in(self, pool: str, name: str, pod: Object, node: str, **spec: Any) -> None:  # noqa: ANN401
        """Makes a request as the scheduler of that shard would, which labels the pod afterwards."""
        metadata: Object = {
            "name": name,
            "labels": {"selected-node": node, **({NODE_POOL_LABEL: pool} if pool else {})},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
            ],
        }
        whole = {"podName": name, "selectedNode": node, "receivedResourceType": "Regular", **spec}
        body = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "metadata": metadata}
        self.plane.request("POST", self.requests, {**body, "spec": whole})
        if pool:
            self.move_pod(name, pool)

    def bind_in(self, pool: str, name: str, node: str, **spec: Any) -> None:  # noqa: ANN401
        self.ask_in(pool, name, self.pod(name), node, **spec)

    def share_in(self, pool: str, name: str, node: str, group: str, **spec: Any) -> None:  # noqa: ANN401
        gpu = {"count": 1, "portion": "0.20"}
        spec = {"receivedResourceType": "Fraction", "receivedGPU": gpu, "selectedGPUGroups": [group], **spec}
        self.ask_in(pool, name, self.shared_pod(name), node, **spec)

    def assert_shares(self, name: str, group: str) -> None:
        """A pod has what its share needs: node, labels, maps, and a reservation that holds the device."""
        assert self.group_labels(name) == {GROUP_LABEL: group}
        assert self.data(f"{name}-shared-gpu-0")["NVIDIA_VISIBLE_DEVICES"] == self.device(group)

    def assert_kept(self, group: str, uid: str) -> None:
        time.sleep(LOOK_S)
        metadata = self.reservation(group)["metadata"]
        assert metadata["uid"] == uid
        assert "deletionTimestamp" not in metadata


@pytest.fixture
def cluster(control_plane: ControlPlane, agents: Agents) -> Pools:
    return Pools.beside(control_plane, agents)


@pytest.fixture
def pool(cluster: Pools) -> Callable[[str], str]:
    """Names of pools that no other test has, by a short name; the default shard has none."""
    return lambda name: f"{name}-{cluster.namespace}" if name else ""


Serve = Callable[..., Binder]


@pytest.fixture
def serve(binders: Binders, pool: Callable[[str], str]) -> Serve:
    """Starts a binder of a pool, told of it in the way of KAI's scheduler."""

    def start(name: str, *flags: str) -> Binder:
        key, value = (f"--nodepool-label-key={NODE_POOL_LABEL}", f"--partition-label-value={pool(name)}")
        return binders.start(key, value, *flags)

    return start


def bound_by(binder: Binder, namespace: str = "") -> list[str]:
    """The pods that a binder says it bound, once for each time; of one namespace, if that is said."""
    lines = [line for line in binder.log.splitlines() if "Bound a pod" in line and f"key={namespace}" in line]
    return sorted(word.removeprefix("pod=") for line in lines for word in line.split() if word[:4] == "pod=")


def run_all(tasks: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(4) as workers:
        for made in [workers.submit(task) for task in tasks]:
            made.result()


def delete_all_pods(cluster: Pools) -> None:
    run_all([partial(cluster.delete_pod, item["metadata"]["name"]) for item in cluster.all_pods()])


def grant_lease(plane: ControlPlane, name: str) -> None:
    """The rights that the shipped overlay gives a shard, for a Lease of this name."""
    text = (ROOT / "config/overlays/shard/lease.yaml").read_text()
    for item in yaml.safe_load_all(text.replace("2ad35f9c.kai.scheduler-gpu-nodes", name)):
        item["metadata"]["name"] = name
        if item["kind"] == "RoleBinding":
            item["roleRef"]["name"] = name
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/kai-scheduler/{item['kind'].lower()}s"
        plane.request("POST", path, item)


def test_shards_side_by_side_under_load(
    control_plane: ControlPlane, cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    for name in ("a", "B_1"):
        grant_lease(control_plane, lease_name_of(pool(name)))
    binders = {name: serve(name, *ELECTED) for name in ("a", "B_1", "")}
    nodes = {name: cluster.node_in(pool(name)) for name in binders}
    groups = {name: [cluster.group() for _ in range(5)] for name in binders}
    wanted: dict[str, list[str]] = {name: [] for name in binders}
    tasks: list[Callable[[], None]] = []
    for name, node in nodes.items():
        short = name.lower().replace("_", "-") or "default"
        for number in range(30):
            wanted[name].append(f"{short}-{number:02}")
            tasks.append(partial(cluster.bind_in, pool(name), wanted[name][-1], node))
        for number in range(15):
            wanted[name].append(f"{short}-s-{number:02}")
            group = groups[name][number % 5]
            tasks.append(partial(cluster.share_in, pool(name), wanted[name][-1], node, group))
    random.shuffle(tasks)
    run_all(tasks)
    cluster.wait_for_all(len(tasks), within_s=WITHIN_S)
    for name, binder in binders.items():
        assert bound_by(binder, cluster.namespace) == sorted(wanted[name])
        lease = cluster.plane.request("GET", f"{LEASES}/{lease_name_of(pool(name))}")
        assert f"identity={lease['spec']['holderIdentity']}" in binder.log, "each shard has one of its own"
        for group in groups[name]:
            labels = cluster.reservation(group)["metadata"]["labels"]
            assert labels.get(NODE_POOL_LABEL, "") == pool(name)
    assert all(not item["status"].get("failedAttempts") for item in cluster.all_requests())
    delete_all_pods(cluster)
    for name in binders:
        cluster.wait_until_freed(*groups[name], within_s=WITHIN_S)


def test_a_pool_is_renamed_while_binds_are_under_way(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """Nobody is lost, nothing fails, each pod has what it needs, and in the end all is freed."""
    first, second = serve("a"), serve("b")
    node, groups = cluster.node_in(pool("a")), [cluster.group() for _ in range(6)]
    for group in groups[:3]:
        cluster.agents.set(group, None)
    shares = {f"s-{number:02}": groups[number % 6] for number in range(18)}

    def tasks_in(name: str, part: int) -> list[Callable[[], None]]:
        plain = [partial(cluster.bind_in, pool(name), f"c-{part}-{number:02}", node) for number in range(20)]
        some = list(shares.items())[part::2]
        return [*plain, *(partial(cluster.share_in, pool(name), each, node, group) for each, group in some)]

    def rename() -> None:
        """While the scheduler goes on under the name that it knows."""
        cluster.move_node(node, pool("b"))
        for item in cluster.all_requests():
            cluster.move_request(item["metadata"]["name"], pool("b"))
        for item in cluster.all_pods():
            cluster.move_pod(item["metadata"]["name"], pool("b"))

    before = tasks_in("a", 0)
    run_all(before[::2])
    run_all([rename, *before[1::2]])
    run_all([rename, *tasks_in("b", 1)])
    for group in groups:
        cluster.agents.forget(group)
    cluster.wait_for_all(40 + len(shares), within_s=WITHIN_S)
    assert all(not item["status"].get("failedAttempts") for item in cluster.all_requests())
    for name, group in shares.items():
        cluster.assert_shares(name, group)
    for binder in (first, second):
        assert bound_by(binder)
        assert "A bind failed" not in binder.log
        assert "Removed a reservation pod" not in binder.log
    delete_all_pods(cluster)
    cluster.wait_until_freed(*groups, within_s=WITHIN_S)
    assert "Removed a reservation pod" not in first.log, "the node is not in its pool any more"


def test_a_bind_that_waits_goes_on_in_the_other_shard(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """What the first binder did is neither undone nor done again: not its reservation, nor anything else."""
    first, second = serve("a"), serve("b")
    node, group = cluster.node_in(pool("a")), cluster.group()
    cluster.agents.set(group, None)
    cluster.share_in(pool("a"), "x", node, group)
    uid = cluster.wait_for_reservation(group, within_s=WITHIN_S)["metadata"]["uid"]
    cluster.move_node(node, pool("b"))
    cluster.move_request("x", pool("b"))
    cluster.move_pod("x", pool("b"))
    wait_until(lambda: "has gone to another shard" in first.log, within_s=WITHIN_S)
    cluster.assert_kept(group, uid)
    cluster.agents.forget(group)
    status = cluster.wait_for("x", "Succeeded", within_s=WITHIN_S)
    assert not status.get("failedAttempts")
    assert (bound_by(first), bound_by(second)) == ([], ["x"])
    cluster.assert_shares("x", group)
    assert cluster.reservation(group)["metadata"]["uid"] == uid


def test_a_request_that_moves_and_whose_node_does_not(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """The reservation stays the first shard's, and the other one's request keeps it."""
    first, second = serve("a"), serve("b")
    node, group = cluster.node_in(pool("a")), cluster.group()
    cluster.agents.set(group, None)
    cluster.share_in(pool("a"), "x", node, group)
    uid = cluster.wait_for_reservation(group, within_s=WITHIN_S)["metadata"]["uid"]
    cluster.move_request("x", pool("b"))
    wait_until(lambda: "has gone to another shard" in first.log, within_s=WITHIN_S)
    cluster.assert_kept(group, uid)
    cluster.agents.forget(group)
    cluster.wait_for("x", "Succeeded", within_s=WITHIN_S)
    assert bound_by(second) == ["x"]
    noted = cluster.reservation(group)["metadata"]["annotations"]["kai.scheduler/used-by-bind-request"]
    assert noted == cluster.get_request("x")["metadata"]["uid"]
    cluster.move_pod("x", pool("b"))
    cluster.assert_kept(group, uid)
    first.stop()
    first.start()
    cluster.assert_kept(group, uid)
    cluster.delete_pod("x")
    with suppress(RequestError):  # its owner is gone, and so may it be
        cluster.plane.request("DELETE", f"{cluster.requests}/x")
    # No cache of the first shard tells of that: it looks now and then.
    cluster.wait_until_freed(group, within_s=WITHIN_S + 30)
    assert "Removed a reservation pod" not in second.log


def test_a_failed_attempt_of_a_request_that_has_moved_is_not_undone(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """What plugins keep for a retry is the other shard's: its maps stay, and its bind succeeds."""
    first = serve("a")
    node, group = cluster.node_in(pool("a")), cluster.group()
    with cluster.bindings_denied():
        cluster.share_in(pool("a"), "x", node, group, backoffLimit=20)
        cluster.wait_for_attempts("x", 2, within_s=WITHIN_S)
        uid = cluster.reservation(group)["metadata"]["uid"]
        cluster.move_node(node, pool("b"))
        cluster.move_request("x", pool("b"))
        cluster.assert_kept(group, uid)
    serve("b")
    cluster.wait_for("x", "Succeeded", within_s=WITHIN_S)
    cluster.assert_shares("x", group)
    assert cluster.reservation(group)["metadata"]["uid"] == uid
    assert "Removed a reservation pod" not in first.log


def test_a_request_without_the_label_is_the_default_shards(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """The request decides: neither its pod's label nor its node's."""
    other, default = serve("a"), serve("")
    node, group = cluster.node_in(pool("a")), cluster.group()
    for name in ("plain", "pod-of-a"):
        cluster.bind_in("", name, cluster.node_in(""))
    cluster.move_pod("pod-of-a", pool("a"))
    cluster.bind_in("", "node-of-a", node)
    cluster.share_in("", "share", node, group)
    cluster.bind_in(pool("a"), "in-a", cluster.node_in(""))
    cluster.wait_for_all(5, within_s=WITHIN_S)
    assert bound_by(default) == ["node-of-a", "plain", "pod-of-a", "share"]
    assert bound_by(other) == ["in-a"]
    uid = cluster.reservation(group)["metadata"]["uid"]
    cluster.assert_kept(group, uid)


def test_nobody_binds_what_is_in_no_pool_that_is_served(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    binders = serve("a"), serve("")
    cluster.bind_in(pool("c"), "lonely", cluster.node_in(pool("c")))
    cluster.bind_in(pool("a"), "served", cluster.node_in(pool("a")))
    cluster.wait_for("served", "Succeeded", within_s=WITHIN_S)
    assert cluster.status("lonely") == {}
    assert [bound_by(binder) for binder in binders] == [["served"], []]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_restart_beside_the_reservations_of_others(
    cluster: Pools, serve: Serve, pool: Callable[[str], str], labelled: bool
) -> None:
    """At its start each looks at all groups, and releases none that anybody uses, in whatever pool he is."""
    binders = [serve("a"), serve("b"), serve("")]
    used = {}
    for name in ("a", "b", ""):
        group = cluster.group()
        cluster.share_in(pool(name), f"user-{name or 'default'}", cluster.node_in(pool(name)), group)
        used[group] = f"user-{name or 'default'}"
    cluster.wait_for_all(3, within_s=WITHIN_S)
    if not labelled:  # the scheduler did not get to it
        for name in used.values():
            cluster.move_pod(name, "")
    uids = {group: cluster.reservation(group)["metadata"]["uid"] for group in used}
    for binder in binders:
        binder.stop()
        binder.start()
    for group, uid in uids.items():
        cluster.assert_kept(group, uid)
    binders[0].stop()  # its groups wait for it
    for name in used.values():
        cluster.delete_pod(name)
    groups = list(used)
    cluster.wait_until_freed(*groups[1:], within_s=WITHIN_S)
    cluster.assert_kept(groups[0], uids[groups[0]])
    binders[0].start()
    cluster.wait_until_freed(groups[0], within_s=WITHIN_S)


def test_a_reservation_without_the_label_is_used_and_released(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """A binder without shards, or KAI's own, has made it: a second one would hold another GPU."""
    node, group = cluster.node_in(pool("a")), cluster.group()
    made = cluster.make_reservation(f"gpu-reservation-{cluster.namespace}", node, group, device="GPU-7")
    cluster.share_in(pool("a"), "x", node, group)
    serve("a")
    serve("")
    cluster.wait_for("x", "Succeeded", within_s=WITHIN_S)
    assert cluster.reservation(group)["metadata"]["uid"] == made["metadata"]["uid"]
    cluster.assert_shares("x", group)
    cluster.assert_kept(group, made["metadata"]["uid"])
    cluster.delete_pod("x")
    cluster.wait_until_freed(group, within_s=WITHIN_S)


def test_a_lost_reservation_is_not_made_anew_beside_a_user_in_another_pool(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """The new one would hold another GPU than that user has; he is not in this shard's cache."""
    node, group = cluster.node_in(pool("a")), cluster.group()
    labels = {GROUP_LABEL: group}
    cluster.shared_pod("old", labels=labels, spec={"nodeName": node})
    serve("a")
    cluster.share_in(pool("a"), "x", node, group)
    cluster.wait_for("x", "Failed", within_s=WITHIN_S)
    assert cluster.conditions("x")["GPUReserved"]["reason"] == "ReservationLost"
    assert cluster.reservations(group) == []


def test_a_pool_that_is_joined_is_cleared_of_what_nobody_needs(
    cluster: Pools, serve: Serve, pool: Callable[[str], str]
) -> None:
    """The binder of the pool in which the node was is gone; who has the node now releases."""
    node, group = cluster.node_in(pool("gone")), cluster.group()
    name = f"gpu-reservation-{cluster.namespace}"
    made = cluster.make_reservation(name, node, group, device="GPU-7")
    cluster.move(f"{RESERVATION_PODS}/{name}", pool("gone"))
    serve("a")
    cluster.assert_kept(group, made["metadata"]["uid"])
    cluster.move_node(node, pool("a"))
    cluster.wait_until_freed(group, within_s=WITHIN_S)


def test_the_shipped_overlays(control_plane: ControlPlane, binders: Binders, cluster: Pools) -> None:
    """Accepted by the server and apart from each other; with their arguments, binders serve their pools."""
    found: dict[str, Object] = {}
    for overlay in ("default-shard", "shard"):
        path = str(ROOT / "config/overlays" / overlay)
        control_plane.kubectl("apply", "--dry-run=server", "--server-side", "--force-conflicts", "-k", path)
        for item in yaml.safe_load_all(control_plane.kubectl("kustomize", path)):
            if item["kind"] == "Role" and item["metadata"]["name"].endswith("-gpu-nodes"):
                assert item["rules"][0]["resourceNames"] == [lease_name_of("gpu-nodes")]
            if item["kind"] in ("Deployment", "Service"):
                found[f"{item['kind']}/{item['metadata']['name']}"] = item
    names = {"binder", "binder-gpu-nodes"}
    assert found.keys() == {f"{kind}/{name}" for kind in ("Deployment", "Service") for name in names}
    for name in names:
        spec = found[f"Deployment/{name}"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert labels == spec["selector"]["matchLabels"] == found[f"Service/{name}"]["spec"]["selector"]
        assert labels == {"app": name}
        assert spec["template"]["spec"]["serviceAccountName"] == "binder"
        arguments = spec["template"]["spec"]["containers"][0]["args"]
        own = ("--metrics-bind-address", "--health-probe-bind-address")
        binders.start(*(word for word in arguments if not word.startswith(own)))
    cluster.bind_in("gpu-nodes", "one", cluster.node_in("gpu-nodes"))
    cluster.bind_in("", "other", cluster.node_in(""))
    cluster.wait_for_all(2, within_s=WITHIN_S)
