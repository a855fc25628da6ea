"""A plugin from outside may never come back: the process says so once it keeps all others from their turn."""

import anyio
import pytest

from controller.kai.outcome import Outcome
from controller.plugins.base import BindContext, NoArguments, Plugin
from controller.plugins.registry import PlannedPlugin
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio


class Hangs(Plugin):
    """Waits for ever, and has no limit of its own."""

    name = "hangs"
    condition_type = "Hangs"

    def concerns(self, context: BindContext) -> bool:
        return context.request.pod_name.startswith("hang")

    async def pre_bind(self, context: BindContext) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError


async def test_workers_that_all_hang_are_told() -> None:
    world = World(Memory(), plugins=(PlannedPlugin(Hangs, 1, "Fail", NoArguments(), None),))
    world.node("node")
    async with world.running():
        for number in range(10):
            world.ask(world.pod(f"hang-{number}"), "node")
        await anyio.sleep(2)
        for number in range(10):
            world.end(f"hang-{number}")
        await anyio.sleep(3600)
        assert world.manager.alive() is None, "they keep nobody waiting"
        world.ask(world.pod("a"), "node")
        await anyio.sleep(590)
        assert world.manager.alive() is None, "it may be slow"
        await anyio.sleep(20)
        text = "no worker of bindrequest has come to an end, or to a wait, though keys are ready, for 600 s"
        assert world.manager.alive() == text


@pytest.mark.parametrize("latency_s", [20, 29])
async def test_an_api_server_that_is_slow_is_no_reason_to_end(latency_s: float) -> None:
    """A new process would be no better."""
    world = World(server := Memory())
    world.node("node")
    async with world.running():
        server.latency_s = latency_s
        for number in range(500):
            world.ask(world.pod(f"pod-{number}"), "node")
        for _ in range(60):
            await anyio.sleep(60)
            assert world.manager.alive() is None
