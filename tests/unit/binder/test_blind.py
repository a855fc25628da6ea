"""While the server refuses to list the requests, none is taken for deleted, and none is forgotten."""

from collections.abc import Callable, Mapping

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, GPU_INDEX, PODS
from controller.runtime import errors
from controller.runtime.cache import Cache, Key, key_of
from controller.runtime.client import Object, Resource
from controller.runtime.reconcile import Controller, Result
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff, WorkQueue
from tests.unit.binder.world import RESERVATIONS, Memory, World

pytestmark = pytest.mark.anyio

BLIND_AFTER_S = 120.0
"""By then the last watch has ended, and its refusals have lasted long enough to be believed."""
SHARDS = ("--nodepool-label-key=pool", "--partition-label-value=a")


class Closed(Memory):
    """A server that may refuse to list and watch requests."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def _check(self, resource: Resource) -> None:
        if self.is_closed and resource == BIND_REQUESTS:
            raise errors.from_status("LIST", 403, {"reason": "Forbidden"}, "no")

    async def list_page(
        self, resource: Resource, params: Mapping[str, str], namespace: str | None = None
    ) -> Object:
        self._check(resource)
        return await super().list_page(resource, params, namespace)

    async def watch(
        self,
        resource: Resource,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_s: float,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._check(resource)
        await super().watch(resource, params, on_line, idle_s=idle_s, on_open=on_open)


@pytest.mark.parametrize("flags", [(), SHARDS])
async def test_a_request_that_is_to_be_tried_again_is_not_forgotten(flags: tuple[str, ...]) -> None:
    world, labels = World(server := Closed(), *flags), {"pool": "a"}
    server.refuses = lambda _: errors.from_status("POST", 403, {"reason": "Forbidden"}, "no")
    world.node("node", **labels)
    async with world.running():
        pod = world.pod("a", labels=labels)
        world.ask(pod, "node", backoffLimit=10_000, labels=labels)
        await anyio.sleep(30)
        server.is_closed = True
        await anyio.sleep(BLIND_AFTER_S)
        assert world.caches.requests.is_blind
        await anyio.sleep(1200)  # longer than the longest delay between tries
        server.is_closed, server.refuses = False, lambda _: None
        await anyio.sleep(1200)
        assert world.phase("a") == "Succeeded"


@pytest.mark.parametrize("flags", [(), SHARDS])
async def test_a_request_that_waits_is_not_taken_for_deleted(flags: tuple[str, ...]) -> None:
    world = World(server := Closed(), "--resource-reservation-allocation-timeout=3000", *flags)
    labels = {"pool": "a"}
    world.node("node", **labels)
    async with world.running():
        pod = world.pod("a", group="silent", labels=labels)
        world.ask(pod, "node", group="silent", labels=labels)
        await anyio.sleep(30)
        server.is_closed = True
        await anyio.sleep(BLIND_AFTER_S)
        assert world.caches.requests.is_blind
        assert world.phase("a") != "Failed"
        (made,) = list(world.caches.reservations)
        reservation = server.found(PODS, made["metadata"]["name"], RESERVATIONS)
        metadata = {**reservation["metadata"], "annotations": {GPU_INDEX: "GPU-1"}}
        server.put(PODS, {**reservation, "metadata": metadata})
        await anyio.sleep(30)
        server.is_closed = False
        await anyio.sleep(60)
        assert world.phase("a") == "Succeeded"


async def test_one_that_begins_to_work_meanwhile_works_on_what_was_there() -> None:
    """No change tells of it once the lists are granted again."""
    world = World(server := Closed())
    world.ask(world.pod("a"), "node")
    cache = Cache(server, BIND_REQUESTS)
    worked_on: list[Key] = []

    class Notes:
        async def reconcile(self, key: Key, slot: Slot) -> Result:
            worked_on.append(key)
            return Result()

    async with anyio.create_task_group() as tasks:
        await tasks.start(cache.run)
        await cache.settled()
        server.is_closed = True
        await anyio.sleep(BLIND_AFTER_S)
        assert cache.is_blind
        assert len(cache) == 0
        controller = Controller("notes", Notes(), WorkQueue[Key](Backoff(1.0, 60.0)), max_concurrent=1)
        controller.watch(cache, lambda change: (key_of(change.object),))
        tasks.start_soon(controller.run)
        await anyio.sleep(1)
        server.is_closed = False
        await anyio.sleep(60)
        assert not cache.is_blind
        assert worked_on == [("default", "a")]
        tasks.cancel_scope.cancel()
