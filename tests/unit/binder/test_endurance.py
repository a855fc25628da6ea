"""What a binder holds does not grow with what it has done: thousands of requests, an hour of retries.

Virtual time: an hour takes seconds. That descriptors are given back is for the tests on a real server.
"""

import gc
from collections.abc import Iterator

import anyio
import pytest
from loguru import logger

from controller.runtime import errors
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio

WAVE, WAVES = 20, 4
REMEMBERED = 50
"""Of events and removed pods, so that what is full at its limit is full soon."""
TOLERATED = 1.02


@pytest.fixture(autouse=True)
def remember_little(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    logger.disable("controller")
    monkeypatch.setattr("controller.runtime.reporting._REMEMBERED", REMEMBERED)
    monkeypatch.setattr("controller.reservation.usage._REMEMBERED", REMEMBERED)
    yield
    logger.enable("controller")


def objects() -> int:
    """How many there are that the garbage collector knows."""
    gc.unfreeze()
    gc.collect()
    return len(gc.get_objects())


async def come_and_go(world: World, first: int, waves: int) -> None:
    """Waves of requests, half of them for shared GPUs, that are bound; then pods and requests go."""
    for wave in range(first, first + waves):
        names = [f"w-{wave}-{number}" for number in range(WAVE)]
        for number, name in enumerate(names):
            group = f"g-{wave}-{number // 4}" if number % 2 else ""
            world.ask(world.pod(name, group=group), "node", group=group)
        await anyio.sleep(5)
        assert {world.phase(name) for name in names} == {"Succeeded"}
        for name in names:
            world.end(name)
        await anyio.sleep(60)


async def test_requests_that_come_and_go_leave_nothing() -> None:
    world = World(Memory())
    world.node("node")
    async with world.running():
        await come_and_go(world, 0, WAVES)
        before = objects()
        await come_and_go(world, WAVES, WAVES)
        assert objects() <= TOLERATED * before
        assert [len(cache) for cache in world.caches.all()] == [0, 0, 1, 0]


async def test_an_hour_of_failing_retries_leaves_nothing() -> None:
    """Half of them fail after their GPU was reserved, the others have nothing to take back."""
    world = World(Memory())
    world.node("node")
    world.server.refuses = lambda _: errors.from_status("POST", 403, {"reason": "Forbidden"}, "no")
    names = [f"f-{number}" for number in range(8)]
    async with world.running():
        for number, name in enumerate(names):
            group = f"g-{number}" if number % 2 else ""
            world.ask(world.pod(name, group=group), "node", group=group, backoffLimit=10_000)
        await anyio.sleep(600)
        before, tried = objects(), world.server.calls["POST pods/binding"]
        await anyio.sleep(3600)
        assert world.server.calls["POST pods/binding"] - tried >= 59 * len(names), "an attempt a minute"
        assert objects() <= TOLERATED * before
        assert len(world.caches.reservations) == len(names) / 2
        for name in names:
            world.end(name)
        await anyio.sleep(120)
        assert [len(cache) for cache in world.caches.all()] == [0, 0, 1, 0]
