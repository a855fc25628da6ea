"""Requests that fail again and again, or wait for others, hold up nobody: fresh ones take as long as without.

Virtual time, in which each request to the server takes 20 ms and work on the CPU none.
"""

from typing import Any

import anyio
import pytest

from controller.kai.names import PODS
from controller.runtime import errors
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio

FAILING, WAITING, FRESH = 50, 20, 350
INTERVAL_S = 0.2
LATENCY_S = 0.02


async def times_s(*, failing: int, waiting: int) -> list[float]:
    """Seconds from each fresh request to its pod's node, in order of their length."""
    world = World(Memory(), "--resource-reservation-allocation-timeout=600")
    world.server.latency_s = LATENCY_S
    world.server.refuses = lambda name: (
        errors.from_status("POST", 403, {"reason": "Forbidden"}, "no") if name.startswith("fails") else None
    )
    world.node("node")
    made: dict[str, float] = {}
    bound: dict[str, float] = {}
    put = world.server.put

    def note(resource: Any, item: Any) -> Any:  # noqa: ANN401
        if resource == PODS and item["spec"].get("nodeName"):
            bound.setdefault(item["metadata"]["name"], anyio.current_time())
        return put(resource, item)

    world.server.put = note  # type: ignore[method-assign]
    async with world.running():
        for number in range(failing):
            world.ask(world.pod(f"fails-{number}"), "node", backoffLimit=10_000)
        for number in range(waiting):
            group = f"silent-{number}"
            world.ask(world.pod(f"waits-{number}", group=group), "node", group=group)
        for number in range(FRESH):
            name = f"fresh-{number}"
            pod = world.pod(name)
            made[name] = anyio.current_time()
            world.ask(pod, "node")
            await anyio.sleep(INTERVAL_S)
        await anyio.sleep(1)
        tried = world.server.calls["POST pods/binding"] - FRESH
        assert tried >= 6 * failing
        assert all(world.phase(f"waits-{number}") != "Failed" for number in range(waiting))
    return sorted(bound[name] - since_s for name, since_s in made.items())


async def test_fresh_requests_beside_failing_and_waiting_ones() -> None:
    alone = await times_s(failing=0, waiting=0)
    beside = await times_s(failing=FAILING, waiting=WAITING)
    assert len(alone) == len(beside) == FRESH
    rank = FRESH * 99 // 100
    assert beside[rank] <= 1.2 * alone[rank], (beside[rank], alone[rank])
    # At the very start all are new, and alike.
    assert beside[-1] <= 20 * alone[-1]
