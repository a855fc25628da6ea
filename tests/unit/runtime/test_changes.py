"""Waits on caches and on shared watches, in virtual time; the server is a script."""

import tracemalloc
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Object, Resource
from tests.unit.runtime.server import THINGS, Server, item

pytestmark = pytest.mark.anyio


class Objects(Server):
    """A server that is asked for single objects as well."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Object] = {}
        self.reading = 0
        self.most_reading = 0

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        self.note(f"get {name}")
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        await anyio.sleep(0.1)
        self.reading -= 1
        if name not in self.objects:
            raise errors.from_status(f"GET things {name}", 404, {}, "no such thing")
        return self.objects[name]


async def test_a_cache_that_does_not_reach_a_version_is_not_waited_for_for_ever() -> None:
    """F-46: after a restore of etcd a version that is known from before may never come."""
    server = Objects()
    server.objects["a"] = item("a", 90)
    cache = Cache(server, THINGS)
    changes = Changes(server, (cache,))
    began_s = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.run)
        tasks.start_soon(changes.run)
        await cache.settled()
        seen: list[Object | None] = []

        def judge(found: Object | None) -> bool | None:
            seen.append(found)
            return True if found is not None else None

        assert await changes.until(
            Judged(Target(THINGS, "a", version="100000"), judge),
            Judged(Target(THINGS, "b"), lambda _: None),
        )
        tasks.cancel_scope.cancel()
    assert seen == [server.objects["a"]], "what the cache holds is older than what was asked for"
    assert 60 <= anyio.current_time() - began_s < 62


async def test_a_watch_that_does_not_reach_a_version_is_not_waited_for_for_ever() -> None:
    """F-46: likewise."""
    server = Objects()
    server.objects["a"] = item("a", 90)
    server.objects["b"] = item("b", 80)
    changes = Changes(server)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.run)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(changes.until, Judged(Target(THINGS, "b"), lambda _: None))
        await anyio.sleep(1)
        began_s = anyio.current_time()
        assert await changes.until(Judged(Target(THINGS, "a", version="100000"), lambda found: found))
        assert 60 <= anyio.current_time() - began_s < 62
        tasks.cancel_scope.cancel()


async def test_those_who_must_all_read_do_so_by_few_connections() -> None:
    """F-45: after a break all who wait read at once."""
    server = Objects()
    server.objects = {f"a{number}": item(f"a{number}", number + 1) for number in range(100)}
    changes = Changes(server)
    ended: list[str] = []

    async def wait(name: str) -> None:
        found = await changes.until(Judged(Target(THINGS, name), lambda found: found))
        ended.append(found["metadata"]["name"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.run)
        await anyio.lowlevel.checkpoint()
        for name in server.objects:
            tasks.start_soon(wait, name)
        await anyio.sleep(30)
        tasks.cancel_scope.cancel()
    assert sorted(ended) == sorted(server.objects)
    assert server.most_reading <= 8
    assert sum(call.startswith("watch") for call, _ in server.calls) == 1


async def test_reads_that_fail_are_tried_again_with_delays() -> None:
    """F-47: it was every half second, for ever."""
    server = Objects()

    async def broken() -> None:
        raise errors.NoAnswerError("GET things", "refused")

    changes = Changes(server)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.run)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(changes.until, Judged(Target(THINGS, "a"), lambda found: found))
        await anyio.sleep(1)
        server.lists = broken
        server.calls.clear()
        tasks.start_soon(changes.until, Judged(Target(THINGS, "b"), lambda found: found))
        await anyio.sleep(120)
        assert 5 <= server.count("get b") <= 20
        tasks.cancel_scope.cancel()


async def test_a_wait_is_small() -> None:
    """F-45: 40 KiB for each pod that waits, with the three waits that guard it; most of it is not ours."""
    number = 300
    server = Objects()
    others = [Resource("v1", plural) for plural in ("pods", "nodes", "requests")]
    caches = [Cache(server, resource) for resource in others]
    changes = Changes(server, caches)
    async with anyio.create_task_group() as tasks:
        for cache in caches:
            tasks.start_soon(cache.run)
        tasks.start_soon(changes.run)
        for cache in caches:
            await cache.settled()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for count in range(number):
            tasks.start_soon(
                changes.until, Judged(Target(THINGS, f"a{count}", version="100"), lambda _: None)
            )
            guarded: list[Judged[bool]] = [
                Judged(Target(resource, f"a{count}"), lambda _: None) for resource in others
            ]
            tasks.start_soon(partial(changes.until, *guarded))
        await anyio.sleep(5)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        tasks.cancel_scope.cancel()
    assert (after - before) / number < 25 * 1024
    assert server.count("watch 100") == 4, "one for each kind"
