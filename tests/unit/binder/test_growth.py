"""What a bind and a release cost does not depend on how much else there is: neither requests nor looks.

Counted, not timed: each look at another object than those that a bind is about, and each request.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import anyio
import pytest

import controller
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio
FEW, MANY = 10, 500
"""Nodes, groups and reservations; of pods and requests three times as many."""
BINDS = 5
HERE = str(Path(controller.__file__).parent)


class Watched(dict[str, Any]):
    """An object that counts how often it is looked at."""

    looks: ClassVar[Counter[str]] = Counter()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        Watched.looks[name] += 1
        return super().__getitem__(name)


@contextmanager
def counted_steps() -> Iterator[Counter[str]]:
    """Counts calls of the binder's own functions; each round of a generator is one."""
    steps: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HERE):
            steps[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)


def fill(world: World, count: int) -> None:
    """So many nodes, groups with two users each, pods without a GPU; their requests have succeeded."""
    for number in range(count):
        node, group = f"node-{number}", f"group-{number}"
        world.node(node)
        world.reservation(f"reservation-{number}", node, group)
        for name, of in ((f"a-{number}", group), (f"b-{number}", group), (f"c-{number}", "")):
            world.ask(world.pod(name, node=node, group=of), node, group=of)


def watch(world: World) -> None:
    """Has each object in the caches count."""
    for cache in world.caches.all():
        objects = cache._store.objects
        objects.update({key: Watched(item) for key, item in objects.items()})
    Watched.looks.clear()


@dataclass(frozen=True)
class Cost:
    """Requests by kind, looks at objects that were there before, and calls of functions."""

    requests: Counter[str]
    looks: int
    steps: Counter[str]


async def cost(count: int) -> Cost:
    """Of some binds and releases among so many others."""
    world = World(Memory())
    fill(world, count)
    async with world.running():
        await anyio.sleep(60)
        watch(world)
        world.server.calls.clear()
        with counted_steps() as steps:
            for number in range(BINDS):
                for name, group in (("plain", ""), ("new", f"new-{number}"), ("old", f"group-{number}")):
                    world.ask(world.pod(f"{name}-{number}", group=group), f"node-{number}", group=group)
                await anyio.sleep(1)
            phases = {world.phase(f"{name}-{n}") for name in ("plain", "new", "old") for n in range(BINDS)}
            for number in range(BINDS):
                world.end(f"new-{number}")
                for user in ("a", "b", "old"):
                    world.finish(f"{user}-{number}")
                await anyio.sleep(1)
        assert phases == {"Succeeded"}
        assert len(world.caches.reservations) == count - BINDS
        return Cost(Counter(world.server.calls), sum(Watched.looks.values()), steps)


async def test_a_bind_and_a_release_cost_the_same_among_few_and_many() -> None:
    few, many = [await cost(count) for count in (FEW, MANY)]
    assert many.requests == few.requests
    assert many.requests["POST pods/binding"] == 3 * BINDS
    # The order of tasks is anyone's: some more, but less than one pass over what there is more of.
    assert 0 < many.looks < few.looks + (MANY - FEW) / 2
    more = {name: (few.steps[name], calls) for name, calls in many.steps.items() if calls > few.steps[name]}
    assert sum(many.steps.values()) < sum(few.steps.values()) + 3 * (MANY - FEW), more
    assert sum(few.steps.values()) > 1000
