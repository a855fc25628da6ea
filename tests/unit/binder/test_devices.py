"""Requests that bring devices for claims, and what becomes of the claims."""

import copy
from typing import Any

import anyio
import pytest

from controller.kai.names import BIND_REQUESTS, PODS
from controller.runtime import errors
from controller.runtime.client import Object, Resource
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio

CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")
DEVICE = {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ALLOCATION: Object = {"devices": {"results": [DEVICE]}}
EXTENDED: Object = {
    "allocation": ALLOCATION,
    "deviceRequests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}],
    "containerMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}],
}


class Server(Memory):
    """Serves device claims."""

    async def raw(self, path: str) -> Object:
        return {"versions": [{"version": "v1"}]}


def claim(server: Server, name: str, **status: object) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return server.put(CLAIMS, {"metadata": metadata, "spec": {}, "status": status})


def ask_for_claim(world: World, pod: str, name: str, uid: str = "", **spec: Any) -> Object:  # noqa: ANN401
    """A pod that uses a claim, and a request that brings the device for it."""
    found = world.pod(pod, **({"uid": uid} if uid else {}))
    found["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": name}]
    world.server.put(PODS, found)
    brings = [{"name": "x", "allocation": copy.deepcopy(ALLOCATION)}]
    world.ask(found, "n1", is_new=True, resourceClaimAllocations=brings, **spec)
    return found


def ask_extended(world: World, pod: str) -> None:
    world.ask(world.pod(pod), "n1", is_new=True, extendedResourceClaimAllocation=copy.deepcopy(EXTENDED))


def on_a_node(server: Server, *pods: str) -> list[str]:
    return [name for name in pods if server.found(PODS, name, "default")["spec"].get("nodeName")]


def allocated(server: Server) -> list[str]:
    """The claims that have devices."""
    return [name for _, name in server.keys(CLAIMS) if server.found(CLAIMS, name, "default")["status"]]


@pytest.mark.parametrize("latency_s", [0.0, 0.1])
async def test_one_device_for_the_extended_resources_of_two_pods(latency_s: float) -> None:
    server = Server()
    server.latency_s = latency_s
    world = World(server)
    async with world.running():
        world.node("n1")
        for name in ("p", "q"):
            ask_extended(world, name)
        await anyio.sleep(10)
        (bound,) = on_a_node(server, "p", "q")
        (lost,) = {"p", "q"} - {bound}
        (held,) = allocated(server)
        assert held.startswith(bound)
        reason = server.found(BIND_REQUESTS, lost, "default")["status"]["reason"]
        assert reason.startswith(f"DynamicResources AllocationConflict: claim default/{lost}-extended-")
        assert "cannot get gpu-0 of gpu.example.com (pool n1) on node n1" in reason
        assert f"claim default/{held} has that already, reserved for {bound}" in reason


@pytest.mark.parametrize("latency_s", [0.0, 0.1])
async def test_one_device_for_the_claims_of_two_pods(latency_s: float) -> None:
    server = Server()
    server.latency_s = latency_s
    world = World(server)
    async with world.running():
        world.node("n1")
        for pod, name in (("p", "one"), ("q", "two")):
            claim(server, name)
            ask_for_claim(world, pod, name)
        ask_extended(world, "r")
        await anyio.sleep(10)
        assert len(on_a_node(server, "p", "q", "r")) == 1
        assert len(allocated(server)) == 1


async def test_a_device_that_somebody_elses_claim_has() -> None:
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n1")
        claim(server, "other", allocation=ALLOCATION, reservedFor=[{"name": "o", "uid": "o"}])
        claim(server, "one")
        ask_for_claim(world, "p", "one")
        await anyio.sleep(10)
        assert on_a_node(server, "p") == []
        assert allocated(server) == ["other"]
        assert "finalizers" not in server.found(CLAIMS, "one", "default")["metadata"]


async def test_a_device_goes_from_pod_to_pod() -> None:
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n1")
        for name in ("p", "q"):
            ask_extended(world, name)
            await anyio.sleep(0.5)
            assert on_a_node(server, name) == [name]
            world.end(name)
            (left,) = allocated(server)
            server.remove(CLAIMS, left, "default")


def refused(_: str) -> errors.ApiError:
    return errors.from_status("POST", 422, {"reason": "Invalid"}, "no")


async def test_between_attempts_claims_stay_reserved() -> None:
    server = Server()
    server.refuses = refused
    world = World(server)
    async with world.running():
        world.node("n1")
        claim(server, "one")
        pod = ask_for_claim(world, "p", "one", backoffLimit=3)
        await anyio.sleep(1.5)
        assert server.found(BIND_REQUESTS, "p", "default")["status"]["failedAttempts"] == 2
        user = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        kept = server.found(CLAIMS, "one", "default")
        assert kept["status"] == {"allocation": ALLOCATION, "reservedFor": [user]}
        await anyio.sleep(20)
        assert server.found(BIND_REQUESTS, "p", "default")["status"]["failedAttempts"] == 3
        left = server.found(CLAIMS, "one", "default")
        assert left["status"] == {"allocation": None, "reservedFor": None}
        assert not left["metadata"]["finalizers"]


async def test_devices_of_a_retry_that_nobody_comes_back_to() -> None:
    """Kubernetes frees a claim when it takes its last user off that is gone, and only then."""
    server = Server()
    server.refuses = refused
    world = World(server)
    async with world.running():
        world.node("n1")
        claim(server, "one")
        pod = ask_for_claim(world, "p", "one", backoffLimit=9)
        await anyio.sleep(20)
    world.end("p")  # while no binder runs
    world = World(server)
    async with world.running():
        await anyio.sleep(600)
    status = server.found(CLAIMS, "one", "default")["status"]
    assert [user["uid"] for user in status["reservedFor"]] == [pod["metadata"]["uid"]]
    assert status["allocation"] == ALLOCATION


async def test_devices_of_an_earlier_request_stay_the_pods_when_a_later_one_wants_others() -> None:
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n1")
        user = {"resource": "pods", "name": "p", "uid": "uid-p"}
        left = {
            "allocation": {"devices": {"results": [{**DEVICE, "device": "gpu-7"}]}},
            "reservedFor": [user],
        }
        claim(server, "one", **copy.deepcopy(left))
        ask_for_claim(world, "p", "one", uid="uid-p")
        await anyio.sleep(10)
        reason = server.found(BIND_REQUESTS, "p", "default")["status"]["reason"]
        assert "AllocationConflict: claim default/one has gpu-7" in reason
        assert server.found(CLAIMS, "one", "default")["status"] == left


async def test_pods_share_a_claim_and_its_device() -> None:
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n1")
        claim(server, "one")
        for name in ("p", "q"):
            ask_for_claim(world, name, "one")
        await anyio.sleep(10)
        assert on_a_node(server, "p", "q") == ["p", "q"]


def owned_by(pod: Object) -> list[Object]:
    kept = {key: pod["metadata"][key] for key in ("name", "uid")}
    return [{"apiVersion": "v1", "kind": "Pod", "controller": True, **kept}]


SIZES = pytest.mark.parametrize(
    "fields",
    [
        {},
        {"annotations": {"note": "x" * 200 * 1024}},
        {"labels": {f"label-{number}": "x" * 60 for number in range(200)}},
    ],
    ids=["small", "annotations", "labels"],
)


@SIZES
async def test_a_pod_whose_claim_is_made_later(fields: dict[str, Any]) -> None:
    """Of a large pod the cache does not know how its claims are named."""
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n1")
        pod = world.pod("p", **fields)
        pod["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "t"}]
        server.put(PODS, pod)
        brings = [{"name": "x", "allocation": ALLOCATION}]
        world.ask(pod, "n1", is_new=True, resourceClaimAllocations=brings)
        await anyio.sleep(5)
        server.put(PODS, copy.deepcopy(server.found(PODS, "p", "default")))  # something else of it changes
        await anyio.sleep(5)
        claim(server, "p-x-1")["metadata"]["ownerReferences"] = owned_by(pod)
        made = copy.deepcopy(server.found(PODS, "p", "default"))
        made["status"]["resourceClaimStatuses"] = [{"name": "x", "resourceClaimName": "p-x-1"}]
        server.put(PODS, made)
        await anyio.sleep(5)
        assert on_a_node(server, "p") == ["p"]
        assert server.calls["GET pods"] <= (6 if fields else 0)


@SIZES
async def test_a_pod_that_has_the_name_of_a_former_claim(fields: dict[str, Any]) -> None:
    server = Server()
    world = World(server)
    async with world.running():
        world.node("n2")
        pod = world.pod("p", **fields)
        pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "former", "requestMappings": []}
        server.put(PODS, pod)
        former = claim(server, "former", allocation=ALLOCATION)["metadata"]
        former["ownerReferences"] = owned_by(pod)
        former["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
        world.ask(pod, "n2", is_new=True)
        await anyio.sleep(5)
        assert on_a_node(server, "p") == ["p"]
        assert not server.found(PODS, "p", "default")["status"]["extendedResourceClaimStatus"]
        assert server.keys(CLAIMS) == []
