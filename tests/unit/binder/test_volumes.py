"""Volumes of pods that share a GPU: they are looked at before the GPU is reserved, and after it."""

import copy
from collections.abc import Callable

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, GPU_INDEX, PODS, VOLUME_CLAIMS, VOLUMES
from controller.runtime.client import Object
from tests.unit.binder.world import RESERVATIONS, Memory, World

pytestmark = pytest.mark.anyio

ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}


def ask(world: World, group: str) -> None:
    """A request for a share of a GPU, for a pod with a claim that is bound."""
    server = world.server
    world.node("n1", **{"kubernetes.io/hostname": "n1"})
    server.put(VOLUMES, {"metadata": {"name": "v"}, "spec": {}, "status": {"phase": "Bound"}})
    server.put(VOLUME_CLAIMS, claim("Bound"))
    pod = world.pod("p", group=group)
    pod["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    server.put(PODS, pod)
    world.ask(pod, "n1", group=group, is_new=True)


def claim(phase: str, **metadata: object) -> Object:
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    whole = {"name": "data", "namespace": "default", "annotations": bound, **metadata}
    return {"metadata": whole, "spec": {"volumeName": "v"}, "status": {"phase": phase}}


def name_device(server: Memory) -> None:
    """What the agent in the one reservation pod does."""
    ((namespace, name),) = [key for key in server.keys(PODS) if key[0] == RESERVATIONS]
    found = copy.deepcopy(server.found(PODS, name, namespace))
    found["metadata"].setdefault("annotations", {})[GPU_INDEX] = "GPU-1"
    server.put(PODS, found)


def delete(server: Memory) -> None:
    server.remove(VOLUME_CLAIMS, "data", "default")


def begin_deletion(server: Memory) -> None:
    server.put(VOLUME_CLAIMS, claim("Bound", deletionTimestamp="2026-01-01T00:00:00Z"))


def lose(server: Memory) -> None:
    server.put(VOLUME_CLAIMS, claim("Lost"))


def move(server: Memory) -> None:
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [ELSEWHERE]}]}}
    server.put(VOLUMES, {"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}, "status": {}})


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (delete, "ClaimNotFound"),
        (begin_deletion, "ClaimTerminating"),
        (lose, "ClaimUnbound"),
        (move, "VolumeUnreachable"),
    ],
)
async def test_what_happens_to_a_claim_while_a_gpu_is_reserved(
    happens: Callable[[Memory], None], reason: str
) -> None:
    server = Memory()
    world = World(server)
    async with world.running():
        ask(world, "silent-1")
        await anyio.sleep(20)
        happens(server)
        name_device(server)
        await anyio.sleep(20)
        assert "nodeName" not in server.found(PODS, "p", "default")["spec"]
        told = server.found(BIND_REQUESTS, "p", "default")["status"]["reason"]
        assert told.startswith(f"VolumeBinding {reason}: ")


@pytest.mark.parametrize(("group", "looks"), [("quick", 1), ("silent-1", 2)])
async def test_only_who_waited_for_a_gpu_looks_twice(group: str, looks: int) -> None:
    server = Memory()
    world = World(server)
    async with world.running():
        ask(world, group)
        await anyio.sleep(20)
        if looks > 1:
            name_device(server)
            await anyio.sleep(20)
        assert server.found(PODS, "p", "default")["spec"]["nodeName"] == "n1"
        reads = (server.calls["GET persistentvolumeclaims"], server.calls["GET persistentvolumes"])
        assert reads == (looks, looks)
