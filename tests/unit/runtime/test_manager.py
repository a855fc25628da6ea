"""What a process says of its health, in virtual time; the server is a script."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from controller.runtime import errors
from controller.runtime.cache import Cache, Key, key_of
from controller.runtime.client import Object, Resource
from controller.runtime.leader import Lease, LeaseOptions
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.reconcile import Controller, Result
from controller.runtime.reporting import EventRecorder
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff, WorkQueue
from tests.unit.runtime.server import THINGS, Server

pytestmark = pytest.mark.anyio


class Leases(Server):
    """A server that has a Lease, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: Object | None = None

    def for_lease(self, deadline_s: float) -> "Leases":
        return self

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        if self.lease is None:
            raise errors.from_status("GET leases", 404, {}, "no such lease")
        return self.lease

    async def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        name: str = "",
        subresource: str = "",
        is_brief: bool = False,
    ) -> Object:
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": "7"}}
        return self.lease

    async def update(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": "7"}}
        return self.lease


@dataclass
class Process:
    """One process, and what a test may do to it."""

    server: Leases = field(default_factory=Leases)
    stop: anyio.Event = field(default_factory=anyio.Event)
    asleep_s: float = 0.0

    def __post_init__(self) -> None:
        self.cache = Cache(self.server, THINGS)
        self.queue: WorkQueue[Key] = WorkQueue(Backoff())
        self.controller = Controller("test", self, self.queue, max_concurrent=1)
        self.controller.watch(self.cache, lambda change: [key_of(change.object)])
        self.lease = Lease(
            self.server,
            LeaseOptions("test", "default", "me"),
            clock=lambda: anyio.current_time() + self.asleep_s,
        )
        self.manager = Manager(
            ManagerOptions(
                caches=[self.cache],
                controllers=[self.controller],
                recorder=EventRecorder(self.server, "test"),
                lease=self.lease,
            )
        )

    async def reconcile(self, key: Key, slot: Slot, /) -> Result:
        return Result()


@asynccontextmanager
async def running(process: Process) -> AsyncIterator[Process]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.manager.run, process.stop)
        await anyio.sleep(5)
        yield process
        process.stop.set()


async def test_a_process_that_is_well_says_so() -> None:
    async with running(Process()) as process:
        await anyio.sleep(600)
        assert process.manager.ready() is None
        assert process.manager.alive() is None


async def test_watches_that_have_been_broken_for_half_a_minute_make_it_not_ready() -> None:
    """F-51: with the API server away for long no probe said so."""
    async with running(Process()) as process:
        server, quiet = process.server, process.server.watches

        async def broken(version: int, on_line: Callable[[bytes], None]) -> None:
            raise errors.NoAnswerError("WATCH things", "connection refused")

        server.opens, server.watches = False, broken
        await anyio.sleep(40)  # the watch under way ends after 20
        assert process.manager.ready() is None, "it may be a restart"
        await anyio.sleep(20)
        problem = process.manager.ready()
        assert problem is not None
        assert problem.startswith("things: no changes have been seen for ")
        assert problem.endswith("connection refused")
        assert process.manager.alive() is None, "a new process would be no better"
        server.opens, server.watches = True, quiet
        await anyio.sleep(16)
        assert process.manager.ready() is None


async def test_a_lease_that_is_not_renewed_while_it_leads() -> None:
    """F-51: it read healthy."""
    async with running(Process()) as process:
        assert process.lease.held()
        assert process.manager.works()
        process.asleep_s = 60  # as a suspended machine: time went on, and nobody renewed it
        assert process.manager.alive() == "this process leads, but its lease has not been renewed in time"
        assert not process.manager.works(), "another may"
        process.asleep_s = 0


def let_another_lead(process: Process) -> None:
    """A leader that is gone, whose lease runs out after 15 s."""
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "a while ago"}
    process.server.lease = {"metadata": {"name": "test", "resourceVersion": "7"}, "spec": spec}


async def test_a_cache_has_caught_up_once_it_has_seen_its_own_kind_at_the_takeover() -> None:
    """Leases may be in another etcd: their versions, here 7, say nothing of those of others, here 100."""
    process = Process()
    let_another_lead(process)
    async with running(process):
        process.server.version = 120  # the watch, which ends after 20 s, does not tell before
        await anyio.sleep(12)
        assert process.manager.works()
        assert not process.cache.has_caught_up()
        await anyio.sleep(5)
        assert process.cache.has_caught_up()
        assert process.server.count("list one") == 1


async def test_nothing_has_caught_up_while_the_server_does_not_say_how_far_it_is() -> None:
    process = Process()
    let_another_lead(process)
    async with running(process):

        async def away() -> None:
            raise errors.NoAnswerError("LIST things", "connection refused")

        process.server.lists, at_once = away, process.server.lists
        await anyio.sleep(30)
        assert process.manager.works(), "the takeover does not wait for it"
        assert not process.cache.has_caught_up()
        process.server.lists = at_once
        await anyio.sleep(16)
        assert process.cache.has_caught_up()


async def test_a_queue_from_which_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-51: it read healthy."""
    async with running(Process()) as process:
        # As if the loop had lost its wake-up.
        monkeypatch.setattr(process.queue, "_wake", lambda: None)
        process.queue.add(("default", "a"))
        await anyio.sleep(100)
        assert process.manager.alive() is None
        await anyio.sleep(30)
        problem = process.manager.alive()
        assert problem is not None
        assert "nothing is taken from the queue of test, though workers are free" in problem
        monkeypatch.undo()
        process.queue.add(("default", "b"))
        await anyio.sleep(1)
        assert process.manager.alive() is None


async def test_an_event_loop_that_is_behind() -> None:
    """F-51: only the watches were looked at."""
    process = Process()
    assert process.manager.alive() is None, "before it runs"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.manager.run, process.stop)
        await anyio.sleep(5)
        # Its tasks get no turn: what else runs is not theirs.
        tasks.cancel_scope.cancel()
    await anyio.sleep(45)
    problem = process.manager.alive()
    assert problem is not None
    assert re.match(r"the event loop is 4[5-7] s behind", problem)
