"""One process from start to stop."""

from typing import Any

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime.cache import Cache, Key, key_of
from controller.runtime.client import Client, Resource
from controller.runtime.leader import Lease, LeaseLostError, LeaseOptions
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.reconcile import Controller, Result
from controller.runtime.reporting import EventRecorder
from controller.runtime.slots import Slot
from controller.runtime.watching import WatchOptions
from controller.runtime.workqueue import Backoff, WorkQueue
from tests.apiserver.runtime.conftest import Account, Background, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, Hang, Proxy, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")


class Process:
    """A manager with one cache and one controller, and the order in which things happen in it."""

    def __init__(self, client: Client, config_maps: ConfigMaps, **more: Any) -> None:  # noqa: ANN401
        self.log: list[str] = []
        self.work_s = 0.0
        self.stop = anyio.Event()
        required = more.pop("required", True)
        options = WatchOptions(backoff_s=0.1, max_backoff_s=0.3)
        self.cache = Cache(
            client, CONFIG_MAPS, selectors=config_maps.selectors, required=required, options=options
        )
        self.recorder = EventRecorder(client, "test")
        self.lease = Lease(
            client,
            LeaseOptions(
                "test",
                config_maps.namespace,
                more.pop("identity", "me"),
                duration_s=2,
                renew_deadline_s=1,
                retry_s=0.2,
            ),
        )
        controller = Controller("test", self, WorkQueue[Key](Backoff()), max_concurrent=2)
        controller.watch(self.cache, lambda change: [key_of(change.object)])
        if more.pop("leads", False):
            more["lease"] = self.lease
        self.manager = Manager(
            ManagerOptions(
                caches=[self.cache],
                controllers=[controller],
                recorder=self.recorder,
                services=[self],
                **more,
            )
        )

    async def run(self) -> None:
        self.log.append("service begins")
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("service ends")

    async def reconcile(self, key: Key, slot: Slot, /) -> Result:
        self.log.append(f"{key[1]} begins, {len(self.cache)} known")
        try:
            await anyio.sleep(self.work_s)
        except anyio.get_cancelled_exc_class():
            self.log.append(f"{key[1]} is broken off")
            raise
        self.log.append(f"{key[1]} ends")
        return Result()


async def test_caches_are_filled_before_anything_is_worked_on(
    client: Client, config_maps: ConfigMaps, proxy: Proxy, background: Background
) -> None:
    for n in range(3):
        config_maps.create(f"a{n}")
    process = Process(client, config_maps)
    with proxy.rule(Rule(Hang(), method="GET", path="configmaps")) as hung:
        running = background(process.manager.run(process.stop))
        await eventually(lambda: hung.count)
        assert process.manager.ready() == "configmaps: the first list is not complete"
        assert process.log == ["service begins"]
    await eventually(lambda: len(process.log) == 7)
    assert process.manager.ready() is None
    assert all("3 known" in line for line in process.log if "begins," in line)
    process.stop.set()
    with anyio.fail_after(3):
        await running
    assert process.log[-1] == "service ends"


async def test_stop_waits_for_what_is_under_way(
    client: Client, config_maps: ConfigMaps, background: Background
) -> None:
    config_maps.create("a")
    process = Process(client, config_maps)
    process.work_s = 1.0
    running = background(process.manager.run(process.stop))
    await eventually(lambda: len(process.log) == 2)
    process.stop.set()
    config_maps.create("b")
    with anyio.fail_after(3):
        await running
    assert process.log == ["service begins", "a begins, 1 known", "a ends", "service ends"]


async def test_stop_does_not_wait_for_ever(
    client: Client, config_maps: ConfigMaps, background: Background
) -> None:
    config_maps.create("a")
    process = Process(client, config_maps, grace_s=0.3)
    process.work_s = 60.0
    running = background(process.manager.run(process.stop))
    await eventually(lambda: len(process.log) == 2)
    process.stop.set()
    with anyio.fail_after(3):
        await running
    assert process.log[-2:] == ["a is broken off", "service ends"]


async def test_stop_sends_the_events_that_wait_and_gives_back_the_lease(
    client: Client, config_maps: ConfigMaps, background: Background, control_plane: ControlPlane
) -> None:
    process = Process(client, config_maps, leads=True)
    running = background(process.manager.run(process.stop))
    await eventually(process.lease.held)
    regarding = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": config_maps.namespace, "name": "a"}
    for n in range(5):
        process.recorder.event(regarding, "Normal", "Said", f"number {n}")
    process.stop.set()
    with anyio.fail_after(5):
        await running
    where = config_maps.namespace
    assert len(control_plane.request("GET", f"/api/v1/namespaces/{where}/events")["items"]) == 5
    lease = control_plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases/test")
    assert lease["spec"].get("holderIdentity", "") == ""
    assert not process.lease.held()


@pytest.mark.parametrize("leads", [True, False])
async def test_stop_before_it_began_to_work(
    client: Client, config_maps: ConfigMaps, proxy: Proxy, background: Background, leads: bool
) -> None:
    process = Process(client, config_maps, leads=leads)
    with proxy.rule(Rule(Hang(), path="configmaps")):
        running = background(process.manager.run(process.stop))
        await eventually(lambda: proxy.count("GET", "configmaps"))
        process.stop.set()
        with anyio.fail_after(3):
            await running
    assert process.log == ["service begins", "service ends"]


async def test_nothing_is_worked_on_without_the_lease(
    client: Client, config_maps: ConfigMaps, background: Background
) -> None:
    config_maps.create("a")
    first = Process(client, config_maps, leads=True, identity="first")
    background(first.manager.run(first.stop))
    await eventually(lambda: "a ends" in first.log)
    second = Process(client, config_maps, leads=True, identity="second")
    background(second.manager.run(second.stop))
    await eventually(lambda: len(second.cache) == 1)
    assert second.manager.ready() is None, "one that waits for the lease is ready to take over"
    await anyio.sleep(0.5)
    assert second.log == ["service begins"]
    first.stop.set()
    await eventually(lambda: "a ends" in second.log)
    second.stop.set()


async def test_who_loses_the_lease_ends_with_an_error_and_breaks_off_its_work(
    client: Client, config_maps: ConfigMaps, proxy: Proxy
) -> None:
    config_maps.create("a")
    process = Process(client, config_maps, leads=True)
    process.work_s = 60.0

    async def rob() -> None:
        await eventually(lambda: len(process.log) == 2)
        proxy.add(Rule(Answer(503), path="leases"))

    async def robbed() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rob)
            await process.manager.run(process.stop)

    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(6):
        await robbed()
    assert caught.value.split(LeaseLostError)[1] is None, "there is another error beside it"
    assert process.log == ["service begins", "a begins, 1 known", "a is broken off", "service ends"]


async def test_a_kind_that_is_refused_and_not_required_keeps_nobody_from_working(
    connect: Connect, account: Account, config_maps: ConfigMaps, background: Background
) -> None:
    process = Process(await connect(token=account.token()), config_maps, required=False)
    running = background(process.manager.run(process.stop))
    await eventually(lambda: process.manager.ready() is None)
    assert process.cache.problem is not None
    process.stop.set()
    with anyio.fail_after(3):
        await running
