"""The end of an attempt's time in the midst of a write; the clock jumps, so that nothing is waited for."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from controller.kai.names import PODS
from controller.kai.request import BindRequest
from controller.plugins.base import BindContext
from controller.plugins.claims.api import ClaimApi, Turns
from controller.plugins.claims.attempt import ClaimBinding, Tools
from controller.plugins.claims.extended import ExtendedClaims
from controller.plugins.claims.holders import Holders
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object, Resource
from tests.unit.binder.world import Memory

pytestmark = pytest.mark.anyio

TIME_S = 120.0
CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")
DEVICE = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [DEVICE]}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Slow(Memory):
    """A server where the time of an attempt ends during the first write, which is done all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    async def raw(self, path: str) -> Object:
        return {"versions": [{"version": "v1"}]}

    async def create(self, *args: Any, **more: Any) -> Object:  # noqa: ANN401
        await self._end()
        return await super().create(*args, **more)

    async def patch(self, *args: Any, **more: Any) -> Object:  # noqa: ANN401
        await self._end()
        return await super().patch(*args, **more)

    async def _end(self) -> None:
        if self.ended:
            return
        self.ended, loop = True, asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + 2 * TIME_S  # type: ignore[method-assign]
        for _ in range(5):
            await checkpoint()


async def end_during_a_write(server: Slow, pod: Object, **request: Any) -> ClaimBinding:  # noqa: ANN401
    server.put(PODS, pod)
    wish = BindRequest(
        namespace="team",
        name="p",
        uid="2",
        owner_uid=pod["metadata"]["uid"],
        pod_name="p",
        node_name="node-1",
        resource_type="Regular",
        **request,
    )

    def waiting(_what: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    node: Object = {"metadata": {"name": "node-1"}}
    changes = Changes(server)
    context = BindContext(request=wish, pod=pod, node=node, waiting=waiting, changes=changes)
    api = ClaimApi(cast(Client, server))
    binding = ClaimBinding(Tools(server, api, ExtendedClaims(server, api), Turns(), Holders(api)), context)
    binding.time.deadline = anyio.current_time() + TIME_S
    with binding.time:
        await binding.run()
    assert binding.time.cancelled_caught
    return binding


def pod_with(**spec: object) -> Object:
    metadata = {"name": "p", "namespace": "team", "uid": "1"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


async def test_once_the_time_is_over_no_write_is_sent_that_could_land_after_the_rollback() -> None:
    server = Slow()
    claim: Object = {"metadata": {"name": "one", "namespace": "team"}, "spec": {}, "status": {}}
    server.put(CLAIMS, claim)
    pod = pod_with(resourceClaims=[{"name": "x", "resourceClaimName": "one"}])
    await end_during_a_write(server, pod, claim_allocations=({"name": "x", "allocation": ALLOCATION},))
    assert server.calls["PATCH resourceclaims"] == 1
    assert server.calls["PATCH resourceclaims/status"] == 0
    assert server.found(CLAIMS, "one", "team")["metadata"]["finalizers"]


async def test_a_claim_that_is_being_made_is_there_before_the_rollback() -> None:
    server = Slow()
    wanted = {
        "allocation": ALLOCATION,
        "deviceRequests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1}}],
        "containerMappings": [],
    }
    await end_during_a_write(server, pod_with(containers=[]), extended_claim=wanted)
    assert server.calls["POST resourceclaims"] == 1
    assert [name for _, name in server._kinds[CLAIMS]], "it would be made after all was taken back"
    assert server.calls["PATCH resourceclaims/status"] == 0
