"""The requests of a run, each with the end that it should have, made as users and scheduler make them.

Invariant: what a request is to end with stands on the request itself, so that the auditor finds it in the
history; and whatever is made survives lost answers, since making it again is no harm.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from tests.chaos.history import Object
from tests.chaos.plan import Ask
from tests.chaos.rules.words import (
    BOUND,
    DELETED,
    EXPECTED,
    LIMITED,
    annotations_of,
    is_live,
    is_over,
    node_of,
    owner_uid,
    spec_of,
    status_of,
)
from tests.chaos.world import CARD_MIB, NODES, TEAM, World
from tests.claims import GPU, allocation, brings, extended, uses
from tests.limits import IN_MAP
from tests.objects import bind_request, pod
from tests.provisioner import PROVISIONER
from tests.sharing import PodOptions, shared_pod
from tests.volumes import CLASSES, LOCAL, VOLUMES, host_affinity

USERS_OF_A_GROUP = 3
READY_WITHIN_S = 40.0
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
WAITING_CLASS = {"volumeBindingMode": "WaitForFirstConsumer"}
HALF = str(CARD_MIB // 2)


class Workload:
    """Makes what a plan asks for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._makers: Mapping[str, Callable[[Ask], None]] = {
            "cpu": lambda ask: self._bind(ask, pod(ask.name), {}),
            "whole-gpu": lambda ask: self._bind(ask, pod(ask.name), {"receivedGPU": {"count": 1}}),
            "share": lambda ask: self._share(ask, limit=f"{HALF}m"),
            "share-of-memory": lambda ask: self._share(ask, "0.27", limit="4096m", memory="4096"),
            "share-of-two": lambda ask: self._share(ask, limit=f"{HALF}m", devices="2"),
            "nvfractions": self._nvfractions,
            "volume-static": lambda ask: self._with_volume(ask, "local"),
            "volume-made": lambda ask: self._with_volume(ask, "made"),
            "volume-bound": lambda ask: self._with_volume(ask, "local", bound=True),
            "claim": self._claim,
            "claim-extended": self._extended,
            "everything": self._everything,
            "bad-node": lambda ask: self._bad(ask, pod(ask.name), "NodeGone", selectedNode="no-such-node"),
            "bad-pod": lambda ask: self._ask(ask, None, {}, "PodNotFound"),
            "bad-portion": lambda ask: self._share(ask, "2.00", expected="InvalidPortion"),
            "bad-memory": self._too_much_memory,
            "bad-claim": self._no_claim,
            "bad-volume": lambda ask: self._bad(ask, pod(ask.name, claims=("nowhere",)), "ClaimNotFound"),
            "bad-gate": self._gated,
            "bad-request": lambda ask: self._bad(ask, pod(ask.name), "InvalidRequest", selectedNode=""),
            "broken": lambda ask: self._bad(ask, pod(ask.name), DELETED, receivedResourceType="Fraction"),
        }

    def prepare(self) -> None:
        """Makes what belongs to all requests."""
        for name, provisioner in (("local", LOCAL), ("made", PROVISIONER)):
            body = {"metadata": {"name": name}, "provisioner": provisioner, **WAITING_CLASS}
            self._world.create(CLASSES, body)

    def make(self, ask: Ask) -> None:
        """Makes a pod, what it needs, and its request."""
        self._makers[ask.kind](ask)

    def ask_again(self) -> int:
        """Plays the scheduler once: replaces requests of pods that wait although they should not.

        Returns:
            How many were made.
        """
        world, made = self._world, 0
        state = world.state()
        nodes = {item["metadata"]["name"] for item in world.list("/api/v1/nodes")}
        pods = {pod["metadata"]["uid"]: pod for pod in state.of("pods")}
        for found in state.of("bindrequests"):
            waiting = pods.get(owner_uid(found))
            failed = status_of(found).get("phase") == "Failed" and is_over(found)
            if not failed or annotations_of(found).get(EXPECTED) != BOUND or waiting is None:
                continue
            if is_live(waiting) and not node_of(waiting) and spec_of(found)["selectedNode"] in nodes:
                world.send("DELETE", f"{world.path('bindrequests')}/{found['metadata']['name']}")
                kept = {key: found["metadata"][key] for key in ("name", "ownerReferences", "annotations")}
                body = {key: found[key] for key in ("apiVersion", "kind", "spec")}
                made += world.create(world.path("bindrequests"), {**body, "metadata": kept}) is not None
        return made

    def _node(self, number: int) -> str:
        return NODES[number % len(NODES)]

    def _bind(self, ask: Ask, body: Object, spec: Object, expected: str = BOUND) -> None:
        """A pod and a request for it, on a node that its dice chooses unless the spec says so."""
        made = self._world.create(self._world.path("pods"), body)
        if made is not None:
            self._ask(ask, made, spec, expected)

    def _bad(self, ask: Ask, body: Object, expected: str, **spec: object) -> None:
        self._bind(ask, body, spec, expected)

    def _ask(self, ask: Ask, owner: Object | None, spec: Object, expected: str) -> None:
        whole = {
            "podName": ask.name,
            "selectedNode": self._node(ask.dice),
            "receivedResourceType": "Regular",
            **({} if ask.backoff_limit is None else {"backoffLimit": ask.backoff_limit}),
            **spec,
        }
        body = bind_request(ask.name, whole, owner)
        body["metadata"]["annotations"] = {EXPECTED: expected}
        self._world.create(self._world.path("bindrequests"), body)

    def _groups(self, ask: Ask) -> tuple[Sequence[str], str]:
        """The GPU groups of a request, which a few of its kind share, and their node."""
        number = ask.number // USERS_OF_A_GROUP
        count = 2 if ask.kind == "share-of-two" else 1
        return [f"{ask.kind}-{number}-{index}" for index in range(count)], self._node(number)

    def _share(
        self,
        ask: Ask,
        portion: str = "0.50",
        *,
        limit: str = "",
        expected: str = BOUND,
        body: Object | None = None,
        spec: Object | None = None,
        **options: str,
    ) -> None:
        """A pod with a share of GPUs whose container takes the limit from its map, and its request."""
        groups, node = self._groups(ask)
        given = PodOptions(in_map=IN_MAP, annotations={LIMITED: limit} if limit else {}, **options)  # type: ignore[typeddict-item]
        whole = {
            "selectedNode": node,
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": len(groups), "portion": portion},
            "selectedGPUGroups": groups,
            **(spec or {}),
        }
        body = shared_pod(ask.name, **given) if body is None else body
        self._bind(ask, body, whole, expected)

    def _nvfractions(self, ask: Ask) -> None:
        groups, _ = self._groups(ask)
        entries = [{"id": group, "computeSharingMode": "time-slicing"} for group in groups]
        self._share(ask, limit=f"{HALF}m", spec={"selectedFractionalGpuGroups": entries})

    def _too_much_memory(self, ask: Ask) -> None:
        self._share(ask, expected="MemoryExceedsCard|MemoryExceedsGrant", memory=str(CARD_MIB * 2))

    def _with_volume(self, ask: Ask, class_name: str, *, bound: bool = False) -> None:
        node = self._node(ask.dice)
        self._volume(ask.name, class_name, node, bound=bound)
        self._bind(ask, pod(ask.name, claims=(ask.name,)), {"selectedNode": node})

    def _volume(self, name: str, class_name: str, node: str, *, bound: bool = False) -> None:
        """A claim, and a volume for it unless one is to be made."""
        world = self._world
        fields = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
        if class_name == "local":
            spec = {
                **fields,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"/mnt/{name}"},
                "nodeAffinity": host_affinity(node),
            }
            world.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
            self._wait_for_phase(f"{VOLUMES}/{name}", "Available", "Bound")
        spec = {**fields, "resources": {"requests": {"storage": "1Gi"}}}
        if bound:
            spec["volumeName"] = name
        path = world.path("persistentvolumeclaims")
        world.create(path, {"metadata": {"name": name}, "spec": spec})
        if bound:
            self._wait_for_phase(f"{path}/{name}", "Bound")

    def _wait_for_phase(self, path: str, *phases: str) -> None:
        """Waits until the volume controller has done its part."""
        until_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until_s:
            found = self._world.send("GET", path)
            if found is None or status_of(found).get("phase") in phases:
                return
            time.sleep(0.2)

    def _claim(self, ask: Ask) -> None:
        """Two pods use one claim; each request brings the same devices."""
        number = ask.number // 2
        node, name = self._node(number), f"card-{number}"
        self._make_claim(name)
        body = pod(ask.name, resourceClaims=uses(card=name))
        devices = brings("card", allocation(node, f"gpu-{number}"))
        self._bind(ask, body, {"selectedNode": node, "resourceClaimAllocations": devices})

    def _make_claim(self, name: str) -> None:
        exactly = {"deviceClassName": "gpu.example.com"}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        self._world.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})

    def _extended(self, ask: Ask) -> None:
        node = self._node(ask.dice)
        devices = extended(node, f"extended-{ask.number}")
        spec = {"selectedNode": node, "extendedResourceClaimAllocation": devices}
        self._bind(ask, pod(ask.name, limits={GPU: "1"}), spec)

    def _no_claim(self, ask: Ask) -> None:
        body = pod(ask.name, resourceClaims=uses(card="nowhere"))
        devices = brings("card", allocation(self._node(ask.dice)))
        self._bad(ask, body, "ClaimNotFound", resourceClaimAllocations=devices)

    def _gated(self, ask: Ask) -> None:
        self._bad(ask, pod(ask.name, schedulingGates=[{"name": "example.com/hold"}]), "PodGated")

    def _everything(self, ask: Ask) -> None:
        """Two volumes, a claim and a share of a GPU."""
        _, node = self._groups(ask)
        name = ask.name
        for kind in ("local", "made"):
            self._volume(f"{name}-{kind}", kind, node)
        self._make_claim(f"{name}-card")
        limit = f"{HALF}m"
        body = shared_pod(name, in_map=IN_MAP, annotations={LIMITED: limit})
        body["spec"]["volumes"] = [
            {"name": kind, "persistentVolumeClaim": {"claimName": f"{name}-{kind}"}}
            for kind in ("local", "made")
        ]
        body["spec"]["resourceClaims"] = uses(card=f"{name}-card")
        devices = brings("card", allocation(node, f"of-{name}"))
        self._share(ask, limit=limit, body=body, spec={"resourceClaimAllocations": devices})


def ends_of(requests: Sequence[Object]) -> str:
    """How many have ended how, for people."""
    phases = [str(status_of(item).get("phase") or "new") if is_over(item) else "open" for item in requests]
    return ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases)))
