"""What an attempt left for a pod is taken back though another pod has its name, and the cache lags."""

from collections.abc import Iterator

import anyio
import pytest

from controller.kai.names import PODS
from controller.kai.outcome import Outcome, Ready
from controller.plugins.base import BindContext, NoArguments, Plugin
from controller.plugins.registry import PlannedPlugin
from controller.runtime import errors
from controller.runtime.client import Object, Resource
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio

ENDED: list[tuple[str, bool]] = []


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    ENDED.clear()


class Notes(Plugin):
    """Notes of which pods, by uid, something is taken back, and whether all of it."""

    name = "notes"
    condition_type = "Notes"

    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext) -> Outcome:
        return Ready()

    async def rollback(self, context: BindContext) -> None:
        ENDED.append((context.pod["metadata"]["uid"], context.final))


class Lagging(Memory):
    """A server that may tell nothing of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.lags = False

    def _tell(self, resource: Resource, kind: str, item: Object) -> None:
        if not self.lags or resource != PODS:
            super()._tell(resource, kind, item)


@pytest.mark.parametrize("code", [403, 500])
async def test_what_is_owed_to_a_former_pod_is_not_forgotten(code: int) -> None:
    """After failed attempts and interrupted ones. A large pod is read live; the request names no uid."""
    notes = PlannedPlugin(Notes, 1, "Fail", NoArguments(), None)
    world = World(server := Lagging(), plugins=(notes,))
    server.refuses = lambda _: errors.from_status("POST", code, {}, "no")
    world.node("node")
    large = {"example.com/large": "x" * 140_000}
    async with world.running():
        former = world.pod("a", uid="former", annotations=large)
        request = world.ask(former, "node", backoffLimit=10_000)
        request["metadata"]["ownerReferences"] = []
        await anyio.sleep(3)
        assert ("former", True) not in ENDED
        server.lags = True
        server.remove(PODS, "a", "default")
        world.pod("a", uid="present", annotations=large)
        tried = server.calls["POST pods/binding"]
        await anyio.sleep(15)
        assert server.calls["POST pods/binding"] > tried + 1
        assert ENDED.count(("former", True)) == 1
        assert ("present", True) not in ENDED
