"""Shards side by side in virtual time, while requests, pods and nodes change their pools at any moment.

Whatever is moved when: each pod gets to its node once and has its GPU, no attempt fails, and no GPU of a pod
that lives is released. The moments are drawn at random, the same ones in each run.
"""

import random
from typing import Any

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, NODES, PODS
from controller.runtime.client import Object
from tests.unit.binder.world import RESERVATIONS, Memory, World

pytestmark = pytest.mark.anyio

POOLS = ("a", "b", "")
LABEL = "pool"
MEMBERS = 18


def node_of(item: Object) -> object:
    return (item.get("spec") or {}).get("nodeName")


class Judge(Memory):
    """The server, which notes what must not be: a second Binding, and a GPU that is released under a pod."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[str] = []
        self.wrong: list[str] = []

    def put(self, resource: Any, item: Object) -> Object:  # noqa: ANN401
        key = item["metadata"].get("namespace", ""), item["metadata"]["name"]
        before = self._kinds.get(resource, {}).get(key)
        if before is not None and node_of(item) and not node_of(before):
            self.bound.append(item["metadata"]["name"])
        return super().put(resource, item)

    def remove(self, resource: Any, name: str, namespace: str = "") -> None:  # noqa: ANN401
        if namespace == RESERVATIONS:
            group = self.found(resource, name, namespace)["metadata"]["labels"]["runai-gpu-group"]
            for pod in self._kinds[PODS].values():
                labels = pod["metadata"].get("labels") or {}
                if pod["metadata"]["namespace"] == "default" and labels.get("runai-gpu-group") == group:
                    self.wrong.append(f"{group} was released, and {pod['metadata']['name']} uses it")
        super().remove(resource, name, namespace)


def flags(pool: str) -> tuple[str, str]:
    return f"--nodepool-label-key={LABEL}", f"--partition-label-value={pool}"


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_and_nobodys_gpu_is_released(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- the same ones in each run
    server = Judge()
    server.latency_s = 0.02
    worlds = [World(server, *flags(pool)) for pool in POOLS]
    world = worlds[0]
    for number in range(3):
        world.node(f"node-{number}", **labels_of(chance.choice(POOLS)))
    async with worlds[0].running(), worlds[1].running(), worlds[2].running():
        await anyio.sleep(5)
        names = [f"p-{number}" for number in range(MEMBERS)]
        for number, name in enumerate(names):
            group = f"g-{number % 6}" if number % 3 else ""
            pool = chance.choice(POOLS)
            made = world.pod(name, group=group, labels=labels_of(chance.choice(POOLS)))
            world.ask(made, f"node-{number % 6 % 3}", group=group, labels=labels_of(pool), backoffLimit=1)
            await anyio.sleep(chance.choice((0, 0, 0.01, 0.05)))
            for _ in range(chance.randrange(3)):
                move(world, chance, names[: number + 1])
        for _ in range(20):
            await anyio.sleep(chance.uniform(0, 0.1))
            move(world, chance, names)
        await anyio.sleep(60)
        statuses = {name: server.found(BIND_REQUESTS, name, "default").get("status") for name in names}
        reasons = {name: (status or {}).get("reason") for name, status in statuses.items()}
        assert {name: reasons[name] for name in names if world.phase(name) != "Succeeded"} == {}
        assert sorted(server.bound) == sorted(names)
        assert server.wrong == []
        for name in names:
            world.end(name)
        await anyio.sleep(120)
        assert [pod["metadata"]["name"] for pod in worlds[1].caches.reservations] == []


def labels_of(pool: str) -> dict[str, str]:
    return {LABEL: pool} if pool else {}


def move(world: World, chance: random.Random, names: list[str]) -> None:
    """Gives something to another pool."""
    pool = chance.choice(POOLS) or None
    match chance.randrange(4):
        case 0:
            world.label(NODES, f"node-{chance.randrange(3)}", "", **{LABEL: pool})
        case 1:
            world.label(PODS, chance.choice(names), "default", **{LABEL: pool})
        case _:
            world.label(BIND_REQUESTS, chance.choice(names), "default", **{LABEL: pool})
