"""Ends that nobody means: a read that failed says nothing, and others' words are not ours."""

import copy

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, PODS
from controller.kai.outcome import Failed, Outcome
from controller.plugins.base import BindContext, NoArguments, Plugin
from controller.plugins.registry import PlannedPlugin
from controller.runtime import errors
from controller.runtime.client import Object, Resource
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio


class Stumbling(Memory):
    """A server whose etcd changes its leader: some reads of pods fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        if resource == PODS and self.fails:
            self.fails -= 1
            raise errors.from_status("GET pod", 500, {}, "etcdserver: leader changed")
        return await super().get(resource, name, namespace, subresource=subresource)


async def test_a_pod_that_was_bound_before_a_crash_is_bound_though_a_read_failed() -> None:
    world = World(server := Stumbling())
    world.node("node")
    pod = world.pod("a", node="node", annotations={"example.com/large": "x" * 140_000})
    world.ask(pod, "node", is_new=True)
    server.fails = 1
    async with world.running():
        await anyio.sleep(60)
        assert world.phase("a") == "Succeeded"


UNDONE: list[str] = []


class Late(Plugin):
    """Fails, and meanwhile the pod gets to its node by a Binding whose answer was lost."""

    name = "late"
    condition_type = "Late"
    server: Stumbling

    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext) -> Outcome:
        pod = copy.deepcopy(self.server.found(PODS, "a", "default"))
        pod["spec"]["nodeName"] = "node"
        self.server.put(PODS, pod)
        self.server.fails = 1
        return Failed("NoLicence", "none is left")

    async def rollback(self, context: BindContext) -> None:
        UNDONE.append(context.request.pod_name)


async def test_nothing_is_undone_while_it_is_not_known_where_the_pod_is() -> None:
    UNDONE.clear()
    Late.server = server = Stumbling()
    world = World(server, plugins=(PlannedPlugin(Late, 1, "Fail", NoArguments(), None),))
    world.node("node")
    async with world.running():
        world.ask(world.pod("a"), "node")
        await anyio.sleep(60)
        assert not UNDONE
        assert world.phase("a") == "Succeeded"


class Withdraws(Plugin):
    """Fails with a word of the binder's own."""

    name = "withdraws"
    condition_type = "Withdraws"
    reason = ""

    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext) -> Outcome:
        return Failed(self.reason, "the licence server says so")


@pytest.mark.parametrize(
    "reason", ["RequestChanged", "RequestDeleted", "PodReplaced", "AlreadyBound", "AlreadyBoundElsewhere"]
)
async def test_a_word_of_ours_from_outside_is_a_failure_like_any_other(reason: str) -> None:
    Withdraws.reason = reason
    world = World(server := Memory(), plugins=(PlannedPlugin(Withdraws, 1, "Fail", NoArguments(), None),))
    world.node("node")
    async with world.running():
        world.ask(world.pod("a"), "node", backoffLimit=3)
        await anyio.sleep(600)
        status = server.found(BIND_REQUESTS, "a", "default")["status"]
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
        (told,) = [item for item in status["conditions"] if item["type"] == "Withdraws"]
        assert told["reason"] == "InternalError"
        text = f"plugin withdraws failed with {reason}, which only the binder may say"
        assert told["message"] == f"{text}: the licence server says so"
        assert server.found(PODS, "a", "default")["status"]["conditions"], "the pod is told"


class Pruning(Memory):
    """A server with KAI's own CRD, whose status has neither conditions nor observedGeneration."""

    def put(self, resource: Resource, item: Object) -> Object:
        if resource == BIND_REQUESTS and isinstance(item.get("status"), dict):
            for name in ("conditions", "observedGeneration"):
                item["status"].pop(name, None)
        return super().put(resource, item)


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_mended_spec_is_tried_under_kais_own_crd(limit: int | None) -> None:
    world = World(server := Pruning())
    world.node("node")
    async with world.running():
        world.ask(world.pod("a"), "nodde", backoffLimit=limit)
        await anyio.sleep(5)
        assert world.phase("a") == "Failed"
        for node, phase in (("nodde", "Failed"), ("node", "Succeeded")):
            item = copy.deepcopy(server.found(BIND_REQUESTS, "a", "default"))
            item["spec"]["selectedNode"] = node
            item["metadata"]["generation"] = item["metadata"].get("generation", 1) + 1
            server.put(BIND_REQUESTS, item)
            await anyio.sleep(120)
            assert world.phase("a") == phase
        assert server.found(BIND_REQUESTS, "a", "default")["status"]["failedAttempts"] <= 1
