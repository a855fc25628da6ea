"""What a binder says of shared GPUs, and which it gives back; alone, and where others serve node pools."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, CONFIG_MAPS, GPU_INDEX, NODES, PODS
from controller.runtime import errors
from controller.runtime.client import Object, Resource
from tests.scraping import Scraped
from tests.unit.binder.world import RESERVATIONS, Memory, World

pytestmark = pytest.mark.anyio

LABEL = "pool"
STATES = "used", "expected", "unanswered", "unneeded"


def of_pool(server: Memory, pool: str) -> World:
    return World(server, f"--nodepool-label-key={LABEL}", f"--partition-label-value={pool}")


def value(world: World, name: str, **labels: str) -> float:
    return Scraped.read(world.metrics.render()[0].decode()).value(f"kai_binder_{name}", **labels)


def states(world: World) -> dict[str, float]:
    """The states that reservations are in."""
    counted = {state: value(world, "reservations", state=state) for state in STATES}
    return {state: number for state, number in counted.items() if number}


def reservations(server: Memory) -> set[str]:
    return {name for namespace, name in server.keys(PODS) if namespace == RESERVATIONS}


def share(world: World, name: str, node: str, group: str, pool: str = "") -> None:
    """A pod that has its share, and its request, in a pool."""
    labels = {LABEL: pool} if pool else {}
    pod = world.pod(name, node=node, group=group, labels=labels)
    pod["metadata"]["labels"] |= labels
    world.ask(pod, node, group=group, labels=labels)


async def test_pods_whose_request_says_that_memory_is_limited_are_counted() -> None:
    server = Memory()
    world = World(server)
    world.node("node")
    world.reservation("gpu-reservation-g", "node", "g")
    for name in ("limited", "not-limited"):
        share(world, name, "node", "g")
    request = server.found(BIND_REQUESTS, "limited", "default")
    condition = {"type": "GPUMemoryLimit", "status": "True", "reason": "Reconciled", "message": "m"}
    request["status"]["conditions"] = [condition]
    async with world.running():
        assert value(world, "gpu_shares") == 2
        assert value(world, "gpu_memory_limits") == 1


async def test_each_reservation_is_counted_by_the_binder_that_has_its_node() -> None:
    server = Memory()
    ours, theirs = of_pool(server, "a"), of_pool(server, "b")
    ours.node("node", **{LABEL: "b"})
    ours.reservation("gpu-reservation-g", "node", "g")
    share(ours, "user", "node", "g", "b")
    async with ours.running(), theirs.running():
        assert (states(ours), states(theirs)) == ({}, {"used": 1})


async def test_a_node_that_changes_its_pool_takes_its_reservations_along() -> None:
    """Nothing else changes, so nothing else tells of it; a share's reservation may be in another pool."""
    server = Memory()
    world = of_pool(server, "a")
    world.node("node", **{LABEL: "b"})
    world.reservation("gpu-reservation-g", "node", "g")
    share(world, "user", "node", "g", "a")
    async with world.running():
        for pool, counted in (("b", {}), ("a", {"used": 1}), ("b", {}), ("a", {"used": 1})):
            world.label(NODES, "node", "", **{LABEL: pool})
            await anyio.sleep(1)
            assert states(world) == counted
            assert value(world, "gpu_shares") == 1
            assert value(world, "unreserved_gpu_shares") == 0


@pytest.mark.parametrize("node", ["node-1", "node-2"])
async def test_a_rival_reservation_stays_while_a_request_of_another_pool_may_go_by_it(node: str) -> None:
    server = Memory()
    world = of_pool(server, "a")
    for name in ("node-1", "node-2"):
        world.node(name, **{LABEL: "a"})
    user = world.pod("user", node="node-1", group="g")
    user["metadata"]["labels"][LABEL] = "a"
    told = {"NVIDIA_VISIBLE_DEVICES": "GPU-gpu-reservation-g-1"}
    metadata = {"name": "user-shared-gpu-0", "namespace": "default"}
    server.put(CONFIG_MAPS, {"metadata": metadata, "data": told})
    world.reservation("gpu-reservation-g-1", "node-1", "g")
    world.reservation("gpu-reservation-g-2", node, "g")
    waits = world.pod("waits", group="g", labels={LABEL: "b"})
    world.ask(waits, node, group="g", labels={LABEL: "b"})
    async with world.running():
        await anyio.sleep(5)
        kept = {pod["metadata"]["name"] for pod in world.caches.reservations}
        assert kept == {"gpu-reservation-g-1", "gpu-reservation-g-2"}
        world.end("waits")
        await anyio.sleep(40)
        assert [pod["metadata"]["name"] for pod in world.caches.reservations] == ["gpu-reservation-g-1"]


async def test_a_reservation_of_another_make_is_young_although_our_clock_is_hours_ahead() -> None:
    """Another binder has just made it; the request that it is for has not come yet."""
    server = Memory()
    world = World(server)
    by_the_servers_clock = datetime.now(UTC) - timedelta(hours=3)
    async with world.running():
        await anyio.sleep(1)
        world.node("node-1")
        world.reservation("others", "node-1", "g", creationTimestamp=by_the_servers_clock.isoformat())
        await anyio.sleep(8)
        assert reservations(server) == {"others"}
        await anyio.sleep(8)
        assert reservations(server) == set()


async def test_a_reservation_of_another_make_that_has_been_there_is_freed_at_once() -> None:
    server = Memory()
    world = World(server)
    async with world.running():
        world.node("node-1")
        world.reservation("others", "node-1", "g")
        share(world, "a", "node-1", "g")
        await anyio.sleep(20)
        world.finish("a")
        await anyio.sleep(1)
        assert reservations(server) == set()


async def test_a_request_that_finds_its_pod_bound_neither_gives_nor_takes_a_gpu() -> None:
    """D-5, D-10: its group has no reservation, and that of the pod has no other request."""
    server = Memory()
    world = World(server)
    async with world.running():
        world.node("node-1")
        world.reservation("first", "node-1", "g1")
        pod = world.pod("p", node="node-1", group="g1")
        world.ask(pod, "node-1", group="g2", is_new=True)
        await anyio.sleep(60)
        assert world.phase("p") == "Succeeded"
        assert ("default", "p") in server.keys(PODS), "it was deleted for a GPU that it never had"
        assert reservations(server) == {"first"}
        world.finish("p")
        await anyio.sleep(60)
        assert reservations(server) == set()


async def test_a_pod_that_was_bound_by_hand_is_neither_labelled_nor_deleted() -> None:
    """T-1: its request succeeds, and nothing else happens."""
    server = Memory()
    world = World(server)
    async with world.running():
        world.node("node-1")
        pod = world.pod("p", node="node-1", annotations={"gpu-fraction": "0.5"})
        world.ask(pod, "node-1", group="g2", is_new=True)
        await anyio.sleep(60)
        assert world.phase("p") == "Succeeded"
        assert not server.found(PODS, "p", "default")["metadata"].get("labels")


async def test_a_request_of_nobody_does_nothing_to_a_later_pod_of_the_name() -> None:
    """B-10: it has no owner, so it stays when its pod goes."""
    server = Memory()
    world = World(server)
    async with world.running():
        world.node("node-1")
        pod = world.pod("p", group="g1")
        item = world.ask(pod, "node-1", group="g1")
        item["metadata"].pop("ownerReferences")
        server.put(BIND_REQUESTS, item)
        await anyio.sleep(5)
        assert world.phase("p") == "Succeeded"
        server.remove(PODS, "p", "default")
        await anyio.sleep(60)
        world.pod("p", node="node-1")
        await anyio.sleep(60)
        assert not server.found(PODS, "p", "default")["metadata"].get("labels")


class Sliced(Memory):
    """Every reservation reports the same card, as where the device plugin hands out replicas."""

    card = "GPU-one"

    def put(self, resource: Resource, item: Object) -> Object:
        if resource == PODS and item["metadata"].get("namespace") == RESERVATIONS:
            group = item["metadata"]["labels"]["runai-gpu-group"]
            if not group.startswith(self.silent):
                item["metadata"].setdefault("annotations", {})[GPU_INDEX] = self.card
        return super().put(resource, item)


def bind(world: World, name: str, group: str, node: str = "node") -> None:
    """A new pod that is to get a share of a group."""
    world.ask(world.pod(name, group=group), node, group=group)


def reason(world: World, name: str) -> str:
    return str(world.server.found(BIND_REQUESTS, name, "default")["status"]["reason"])


async def test_two_groups_do_not_get_one_device() -> None:
    server = Sliced()
    world = World(server)
    world.node("node")
    async with world.running():
        for name, group in (("a", "g1"), ("b", "g2"), ("c", "g1")):
            bind(world, name, group)
            await anyio.sleep(5)
        assert [world.phase(name) for name in "abc"] == ["Succeeded", "Failed", "Succeeded"]
        text = reason(world, "b")
        assert "ReservationConflict: GPU groups g1 and g2 report the same device GPU-one" in text
        # Once its users have gone the card may be given anew.
        for name in "ac":
            world.end(name)
        await anyio.sleep(5)
        bind(world, "d", "g2")
        await anyio.sleep(5)
        assert world.phase("d") == "Succeeded"


@pytest.mark.parametrize("_", range(8))  # the order of tasks is anyone's
async def test_two_groups_do_not_get_one_device_at_the_same_time(_: int) -> None:
    server = Sliced()
    server.latency_s = 0.1
    world = World(server)
    world.node("node")
    async with world.running():
        bind(world, "a", "g1")
        bind(world, "b", "g2")
        await anyio.sleep(10)
        assert sorted(world.phase(name) for name in "ab") == ["Failed", "Succeeded"]


async def test_an_older_reservation_that_names_the_device_of_a_bound_pod_later() -> None:
    server = Sliced()
    world = World(server)
    world.node("node")
    async with world.running():
        bind(world, "b", "silent")
        await anyio.sleep(5)
        bind(world, "a", "g1")
        await anyio.sleep(5)
        (silent,) = [pod for pod in world.caches.reservations if not pod["metadata"].get("annotations")]
        metadata = {**silent["metadata"], "annotations": {GPU_INDEX: Sliced.card}}
        server.put(PODS, {**silent, "metadata": metadata})
        await anyio.sleep(5)
        assert [world.phase(name) for name in "ab"] == ["Succeeded", "Failed"]


async def test_while_a_bind_goes_by_a_device_no_other_group_gets_it() -> None:
    """Nothing shows yet that the first one has it: its Binding is under way."""
    server = Sliced()
    world = World(server)
    world.node("node")
    world.reservation("gpu-reservation-old", "node", "silent", creationTimestamp="2026-01-01T00:00:00Z")
    waits = world.pod("waits", group="silent")
    world.ask(waits, "node", group="silent")
    async with world.running():
        await anyio.sleep(5)
        server.latency_s = 2.0
        bind(world, "a", "g1")
        await anyio.sleep(7)
        silent = server.found(PODS, "gpu-reservation-old", RESERVATIONS)
        metadata = {**silent["metadata"], "annotations": {GPU_INDEX: Sliced.card}}
        server.put(PODS, {**silent, "metadata": metadata})
        await anyio.sleep(40)
        assert [world.phase(name) for name in ("a", "waits")] == ["Succeeded", "Failed"]


@pytest.mark.parametrize("former", ["on another node", "by an index", "terminating", "gone", "another now"])
async def test_a_device_that_is_no_other_groups(former: str) -> None:
    server = Sliced()
    world = World(server)
    for name in ("node", "other"):
        world.node(name)
    server.card = "0" if former == "by an index" else server.card
    goes = {"deletionTimestamp": "2026-01-02T00:00:00Z"} if former == "terminating" else {}
    share(world, "user", "other" if former == "on another node" else "node", "g1")
    world.reservation("former", "other" if former == "on another node" else "node", "g1", **goes)
    async with world.running():
        if former in ("gone", "another now"):  # but nobody was told yet
            metadata = {**server.found(PODS, "former", RESERVATIONS)["metadata"]}
            key = (RESERVATIONS, "former")
            metadata |= {"uid": "2"} if former == "gone" else {"annotations": {GPU_INDEX: "GPU-two"}}
            server._kinds[PODS][key] = {**server._kinds[PODS][key], "metadata": metadata}
        bind(world, "b", "g2")
        await anyio.sleep(5)
        assert world.phase("b") == "Succeeded"


def tell(server: Memory, name: str, device: str, key: str = "NVIDIA_VISIBLE_DEVICES") -> None:
    """The map of a pod with a share."""
    metadata = {"name": f"{name}-shared-gpu-0", "namespace": "default"}
    server.put(CONFIG_MAPS, {"metadata": metadata, "data": {key: device}})


def two_reservations(world: World) -> None:
    """Of one group: nothing but its users tells that the younger one counts."""
    world.reservation("gpu-reservation-old", "node", "g", creationTimestamp="2026-01-01T00:00:00Z")
    world.reservation("gpu-reservation-new", "node", "g", creationTimestamp="2026-01-02T00:00:00Z")


OLD, NEW = "gpu-reservation-old", "gpu-reservation-new"


@pytest.mark.parametrize("variables", [3, 300])
async def test_the_reservation_that_a_large_pod_goes_by_stays(variables: int) -> None:
    server = Memory()
    world = World(server)
    world.node("node")
    user = world.pod("user", node="node", group="g")
    user["spec"]["containers"][0]["env"] = [
        {"name": f"A_VARIABLE_OF_MINE_{number}", "value": "x"} for number in range(variables)
    ]
    server.put(PODS, user)
    world.ask(user, "node", group="g")
    tell(server, "user", f"GPU-{NEW}")
    two_reservations(world)
    async with world.running():
        await anyio.sleep(60)
        assert reservations(server) == {NEW}


@pytest.mark.parametrize("ending", ["gpus.devices", "cdi"])
async def test_the_reservation_that_a_large_pod_goes_by_an_annotation_stays(ending: str) -> None:
    server = Memory()
    world = World(server)
    world.node("node")
    key = "nvidia.cdi.k8s.io/container.main" if ending == "cdi" else f"nvidia.com/container.main.{ending}"
    user = world.pod("user", node="node", group="g")
    user["metadata"]["annotations"] |= {key: f"GPU-{NEW}", "gpu-memory": "x" * 10_000}
    server.put(PODS, user)
    world.ask(user, "node", group="g")
    two_reservations(world)
    async with world.running():
        await anyio.sleep(60)
        assert reservations(server) == {NEW}


async def test_the_devices_stand_under_the_key_that_the_container_looks_for() -> None:
    server = Memory()
    world = World(server)
    world.node("node")
    user = world.pod("user", node="node", group="g")
    reference = {"configMapKeyRef": {"name": "user-shared-gpu-0", "key": "mine"}}
    user["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": reference}]
    server.put(PODS, user)
    world.ask(user, "node", group="g")
    tell(server, "user", f"GPU-{NEW}", "mine")
    two_reservations(world)
    async with world.running():
        await anyio.sleep(60)
        assert reservations(server) == {NEW}


async def test_no_reservation_goes_while_it_is_not_known_by_which_one_somebody_goes() -> None:
    server = Memory()
    world = World(server)
    world.node("node")
    for name in ("known", "unknown"):
        share(world, name, "node", "g")
    tell(server, "known", f"GPU-{NEW}")
    two_reservations(world)
    async with world.running():
        await anyio.sleep(60)
        assert reservations(server) == {OLD, NEW}
        tell(server, "unknown", f"GPU-{NEW}")  # no cache tells of it
        await anyio.sleep(40)
        assert reservations(server) == {NEW}


class Late(Memory):
    """Watches do not tell that a pod was bound, or that a reservation has answered."""

    late = False

    def _tell(self, resource: Resource, kind: str, item: Object) -> None:
        is_user = item["metadata"]["name"] == "user" and item["spec"].get("nodeName")
        if not (self.late and resource == PODS and (is_user or item["metadata"]["name"] == NEW)):
            super()._tell(resource, kind, item)


@pytest.mark.parametrize("has_labels", [True, False])
async def test_the_reservation_of_a_pod_whose_bind_no_cache_shows_yet_stays(has_labels: bool) -> None:
    server = Late()
    world = World(server)
    world.node("node")
    share(world, "first", "node", "g")
    tell(server, "first", f"GPU-{NEW}")
    world.reservation(NEW, "node", "g", creationTimestamp="2026-01-02T00:00:00Z")
    async with world.running():
        server.late = True
        bind(world, "user", "g")
        await anyio.sleep(1)
        assert world.phase("user") == "Succeeded"
        if not has_labels:  # there are servers that do not take them from the Binding
            del server.found(PODS, "user", "default")["metadata"]["labels"]
        world.reservation(OLD, "node", "g", creationTimestamp="2026-01-01T00:00:00Z")
        world.end("first")
        await anyio.sleep(5)
        assert NEW in reservations(server)


async def test_a_rival_that_has_just_named_the_device_in_use_stays() -> None:
    server = Late()
    world = World(server)
    world.node("node")
    world.reservation(OLD, "node", "g", creationTimestamp="2026-01-01T00:00:00Z")
    share(world, "user", "node", "g")
    async with world.running():
        world.reservation(NEW, "node", "g", creationTimestamp="2026-01-02T00:00:00Z")
        await anyio.sleep(5)  # it is not known by which one he goes
        server.late = True
        new = server.found(PODS, NEW, RESERVATIONS)
        server.put(PODS, {**new, "metadata": {**new["metadata"], "annotations": {GPU_INDEX: "GPU-his"}}})
        tell(server, "user", "GPU-his")
        await anyio.sleep(31)
        assert reservations(server) == {NEW}


class JustThen(Memory):
    """A reservation answers right after the binder has read it for the nth time, and some reads fail."""

    nth = 0
    failing: frozenset[int] = frozenset()
    reads = 0

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        if resource != PODS or namespace != RESERVATIONS:
            return await super().get(resource, name, namespace, subresource=subresource)
        self.reads += 1
        if self.reads in self.failing:
            raise errors.from_status("GET", 500, {}, "etcd is tired")
        item = await super().get(resource, name, namespace, subresource=subresource)
        if self.reads == self.nth:
            pod = self.found(PODS, name, namespace)
            self.put(PODS, {**pod, "metadata": {**pod["metadata"], "annotations": {GPU_INDEX: "GPU-1"}}})
        return item


@pytest.mark.parametrize(
    ("nth", "failing"),
    [(2, frozenset()), (3, frozenset({2}))],
    ids=["the group is looked at", "the next bind"],
)
async def test_a_reservation_that_was_given_up_and_answers_just_then_stays(
    nth: int, failing: frozenset[int]
) -> None:
    server = JustThen()
    server.nth, server.failing = nth, failing
    world = World(server)
    world.node("node")
    async with world.running():
        bind(world, "a", "silent")
        await anyio.sleep(25)
        if not failing:  # it waits for the same pod
            bind(world, "b", "silent")
        await anyio.sleep(14)
        before = {pod["metadata"]["uid"] for pod in world.caches.reservations}
        await anyio.sleep(1.0)
        if failing:
            bind(world, "b", "silent")
        await anyio.sleep(20)
        assert {pod["metadata"]["uid"] for pod in world.caches.reservations} == before
        assert [world.phase(name) for name in "ab"] == ["Failed", "Succeeded"]


@pytest.mark.parametrize("first", ["node", "other"])
async def test_a_group_on_two_nodes_is_bound_to_the_reservation_of_the_node(first: str) -> None:
    world = World(Memory())
    for node in ("node", "other"):
        world.node(node)
        day = "01" if node == first else "02"
        world.reservation(f"gpu-reservation-{node}", node, "g", creationTimestamp=f"2026-01-{day}T00:00:00Z")
        share(world, f"user-{node}", node, "g")
        tell(world.server, f"user-{node}", f"GPU-gpu-reservation-{node}")
    async with world.running():
        for node in ("node", "other"):
            bind(world, f"new-{node}", "g", node)
        await anyio.sleep(5)
        assert [world.phase(f"new-{node}") for node in ("node", "other")] == ["Succeeded", "Succeeded"]


@pytest.mark.parametrize("left", ["node", "other"])
async def test_of_a_group_on_two_nodes_each_reservation_goes_with_its_own_users(left: str) -> None:
    world = World(Memory())
    gone = "other" if left == "node" else "node"
    for node in ("node", "other"):
        world.node(node)
        world.reservation(f"gpu-reservation-{node}", node, "g")
        share(world, f"user-{node}", node, "g")
        tell(world.server, f"user-{node}", f"GPU-gpu-reservation-{node}")
    async with world.running():
        await anyio.sleep(15)
        world.end(f"user-{gone}")
        await anyio.sleep(15)
        assert reservations(world.server) == {f"gpu-reservation-{left}"}
