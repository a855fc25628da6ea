"""The last look before a claim is given devices; the clock jumps, the server is one in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import pytest
from trio.testing import MockClock

from controller.kai.outcome import Failed
from controller.plugins.claims.api import ClaimApi
from controller.plugins.claims.holders import LIST_KEPT_S, Holders
from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource
from tests.unit.binder.world import Memory

pytestmark = pytest.mark.anyio

CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")
ROUND_TRIP_S = 0.05


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Server(Memory):
    """Serves device claims; each request takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.latency_s = ROUND_TRIP_S

    async def raw(self, path: str) -> Object:
        return {"versions": [{"version": "v1"}]}

    def claim(self, name: str, allocation: Object | None = None, **metadata: object) -> Object:
        status = {} if allocation is None else {"allocation": allocation}
        whole = {"name": name, "namespace": "team", **metadata}
        return self.put(CLAIMS, {"metadata": whole, "spec": {}, "status": status})


def allocation(*devices: str, **more: object) -> Object:
    results = [
        {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": device, **more}
        for device in devices
    ]
    return {"devices": {"results": results}}


@asynccontextmanager
async def waiting() -> AsyncIterator[None]:
    yield


async def give(holders: Holders, server: Server, claim: Object, wanted: Object) -> Failed | None:
    """Does as an attempt does."""
    async with holders.giving(claim, wanted, "n1", waiting) as failure:
        if failure is None:
            name = claim["metadata"]["name"]
            await server.patch(CLAIMS, name, {"status": {"allocation": wanted}}, "team", subresource="status")
        return failure


def made(server: Server) -> Holders:
    return Holders(ClaimApi(cast(Client, server)))


async def test_a_device_of_another_claim() -> None:
    server = Server()
    server.claim("other", allocation("gpu-0", "gpu-1"))
    failure = await give(made(server), server, server.claim("one"), allocation("gpu-1", "gpu-2"))
    assert failure is not None
    assert (failure.reason, failure.message) == (
        "AllocationConflict",
        "claim team/one cannot get gpu-1 of gpu.example.com (pool n1) on node n1: "
        "claim team/other has that already, reserved for nobody",
    )


async def test_devices_that_nobody_has() -> None:
    server = Server()
    server.claim("other", allocation("gpu-0", pool="n2"))
    server.claim("third", allocation("gpu-0", driver="nic.example.com"))
    server.claim("free")
    assert await give(made(server), server, server.claim("one"), allocation("gpu-0")) is None


async def test_a_claim_in_deletion_has_its_devices_until_they_are_taken_from_it() -> None:
    server = Server()
    holders = made(server)
    going = server.claim("going", allocation("gpu-0"), deletionTimestamp="2026-01-01T00:00:00Z")
    one = server.claim("one")
    failure = await give(holders, server, one, allocation("gpu-0"))
    assert failure is not None
    assert "claim team/going has that already" in failure.message
    server.put(CLAIMS, {**going, "status": {}})
    assert await give(holders, server, one, allocation("gpu-0")) is None


@pytest.mark.parametrize("more", [{"adminAccess": True}, {"shareID": "a671734a-e8e5-11e4-8fde-42010af09327"}])
@pytest.mark.parametrize("whose", ["ours", "theirs"])
async def test_a_device_that_several_may_have(more: dict[str, object], whose: str) -> None:
    server = Server()
    wanted = allocation("gpu-0", **(more if whose == "ours" else {}))
    server.claim("other", allocation("gpu-0", **(more if whose == "theirs" else {})))
    assert await give(made(server), server, server.claim("one"), wanted) is None
    assert server.calls["LIST resourceclaims"] == (0 if whose == "ours" else 1), "nothing to be asked for"


async def test_a_claim_is_not_its_own_rival() -> None:
    """Somebody, perhaps an earlier leader, gave it the very same devices meanwhile."""
    server = Server()
    one = server.claim("one")
    server.claim("one", allocation("gpu-0"), uid=one["metadata"]["uid"])
    assert await give(made(server), server, one, allocation("gpu-0")) is None


async def test_of_two_at_a_time_one_gets_it() -> None:
    server = Server()
    holders, failures = made(server), dict[str, Failed | None]()

    async def attempt(name: str, *devices: str) -> None:
        failures[name] = await give(holders, server, server.claim(name), allocation(*devices))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt, "one", "gpu-0", "gpu-1")
        tasks.start_soon(attempt, "two", "gpu-1", "gpu-0")
        tasks.start_soon(attempt, "three", "gpu-2")
    assert failures["three"] is None
    assert [failure is None for failure in (failures["one"], failures["two"])].count(True) == 1


async def test_who_writes_while_a_list_is_under_way_is_known_though_the_list_does_not_have_it() -> None:
    server = Server()
    holders = made(server)
    await give(holders, server, server.claim("first"), allocation("gpu-9"))
    await anyio.sleep(LIST_KEPT_S - ROUND_TRIP_S / 2)
    one, two = server.claim("one"), server.claim("two")
    listing = anyio.Event()

    async def write() -> None:
        async with holders.giving(one, allocation("gpu-0"), "n1", waiting) as failure:
            assert failure is None
            listing.set()
            await anyio.sleep(LIST_KEPT_S)
            await server.patch(CLAIMS, "one", {"status": {"allocation": allocation("gpu-0")}}, "team")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await listing.wait()
        await anyio.sleep(LIST_KEPT_S)
        assert await give(holders, server, server.claim("third"), allocation("gpu-3")) is None
        failure = await give(holders, server, two, allocation("gpu-0"))
    assert failure is not None
    assert "claim team/one has that already" in failure.message


async def test_a_write_whose_answer_did_not_come_counts() -> None:
    server = Server()
    holders = made(server)
    with suppress(errors.NoAnswerError):
        async with holders.giving(server.claim("one"), allocation("gpu-0"), "n1", waiting):
            server.claim("one", allocation("gpu-0"))
            raise errors.NoAnswerError("PATCH", "broken")
    failure = await give(holders, server, server.claim("two"), allocation("gpu-0"))
    assert failure is not None


async def test_a_device_that_was_freed_a_moment_ago() -> None:
    """The list that attempts share still has it with the other claim."""
    server = Server()
    server.claim("other", allocation("gpu-0"))
    server.claim("gone", allocation("gpu-1"))
    holders = made(server)
    assert await give(holders, server, server.claim("first"), allocation("gpu-7")) is None
    server.claim("other")
    server.remove(CLAIMS, "gone", "team")
    assert await give(holders, server, server.claim("one"), allocation("gpu-0")) is None
    assert await give(holders, server, server.claim("two"), allocation("gpu-1")) is None
    assert server.calls["LIST resourceclaims"] == 1


async def test_many_at_a_time_share_a_list() -> None:
    server = Server()
    holders = made(server)
    async with anyio.create_task_group() as tasks:
        for number in range(64):
            one = server.claim(f"c{number}")
            tasks.start_soon(give, holders, server, one, allocation(f"gpu-{number}"))
    assert (server.calls["LIST resourceclaims"], server.calls["GET resourceclaims"]) == (1, 0)
    await anyio.sleep(2 * LIST_KEPT_S + 1.0)
    for _ in range(2):
        await give(holders, server, server.claim("last"), allocation("gpu-99"))
        await anyio.sleep(2 * LIST_KEPT_S)
    assert len(holders._written) == 1, "what lists have is forgotten"


async def test_a_list_that_takes_long_is_kept_for_longer() -> None:
    server = Server()
    holders = made(server)
    server.latency_s = 0.5
    for number in range(10):
        await give(holders, server, server.claim(f"c{number}"), allocation(f"gpu-{number}"))
    assert server.calls["LIST resourceclaims"] == 1
    failure = await give(holders, server, server.claim("late"), allocation("gpu-0"))
    assert failure is not None, "what was written since is known"
    await anyio.sleep(20)
    await give(holders, server, server.claim("later"), allocation("gpu-99"))
    assert server.calls["LIST resourceclaims"] == 2
