"""Reads what the picture is made of, with a user's own rights.

Called by `command.py`, again and again while somebody watches. Invariants: a refusal takes away what it
refuses and nothing else; ConfigMaps are read of pods that are shown, each once, and of none if that would be
more than `MOST_MAPS`; requests are read before pods, so that one that is being worked on is not missed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import anyio
from msgspec import Struct, field

from controller.explain.gpus.model import Sight
from controller.explain.gpus.picture import Maps, Names, Read, concerns_gpus, is_reservation
from controller.explain.gpus.shares import config_maps_of
from controller.explain.reads import Read as Answer
from controller.explain.reads import Reads
from controller.explain.verbs import CannotTellError
from controller.kai.names import BIND_REQUESTS, CONFIG_MAPS, NODES, PODS
from controller.kai.sharing import groups_of_pod
from controller.runtime import errors
from controller.runtime.client import Object, Resource

MOST_MAPS = 200
"""Of so many pods the ConfigMaps are read."""

_AT_A_TIME = 16
_PAGE = 500
_ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Reading(Struct):
    """Reads, and remembers what need not be read again.

    Attributes:
        reads: By what it reads.
        names: How the binder names things.
        node: Only this one; empty means all.
        namespace: Only its pods are shown; empty means those of all.
        own_namespace: Where pods are looked for if those of all namespaces may not be read.
        asked: About how many requests the last reading took.
    """

    reads: Reads
    names: Names
    node: str = ""
    namespace: str = ""
    own_namespace: str = "default"
    asked: int = 0
    _maps: dict[str, Maps] = field(default_factory=dict)

    async def read(self) -> Read:
        """Reads all anew, but for ConfigMaps of pods that were read before.

        Raises:
            CannotTellError: There is no such node, or neither pods nor reservations may be read.
            errors.ApiError: The server does not answer, or does not know us.
        """
        self.reads.missing.clear()
        self.asked = 2
        nodes = await self._nodes()
        requests, all_requests = await self._everywhere(BIND_REQUESTS, {}, trimmed)
        where = f"spec.nodeName={self.node}" if self.node else "spec.nodeName!="
        query = {"fieldSelector": f"{where},{_ALIVE}"}
        pods, all_pods = await self._everywhere(PODS, query, _pod_kept)
        reservations = all_pods
        if not all_pods:
            held = await self.reads.find(PODS, self.names.reservations, params=query, keep=_pod_kept)
            reservations = not held.problem
            pods = (*pods, *held.items)
        if not reservations and not pods:
            raise CannotTellError("; ".join(self.reads.missing))
        pods = tuple({pod["metadata"]["uid"]: pod for pod in pods}.values())
        maps = await self._config_maps(pods)
        sight = Sight(not nodes.problem, all_pods, reservations, all_requests, tuple(self.reads.missing))
        return Read(nodes=nodes.items, pods=pods, requests=requests, maps=maps, sight=sight)

    async def read_requests(self) -> Sequence[Object]:
        """The requests as they are now."""
        return (await self._everywhere(BIND_REQUESTS, {}, trimmed))[0]

    async def _nodes(self) -> Answer:
        if not self.node:
            return await self.reads.find(NODES, keep=node_kept)
        found = await self.reads.get(NODES, self.node)
        if found.is_absent:
            raise CannotTellError(f"there is no node {self.node}")
        return found

    async def _everywhere(
        self, resource: Resource, params: Mapping[str, str], keep: Callable[[Object], Object | None]
    ) -> tuple[tuple[Object, ...], bool]:
        """What there is of a kind, and whether that is all; of one namespace if more is forbidden."""
        seen = 0

        def counted(item: Object) -> Object | None:
            nonlocal seen
            seen += 1
            return keep(item)

        found = await self.reads.find(resource, params=params, keep=counted)
        self.asked += 1 + seen // _PAGE
        if not found.problem.startswith("may not"):
            return found.items, not found.problem
        namespace = self.namespace or self.own_namespace
        found = await self.reads.find(resource, namespace, params=params, keep=keep)
        if not found.problem:
            self.reads.note(f"of {resource.plural}, only those of namespace {namespace} are known")
        return found.items, False

    async def _config_maps(self, pods: Sequence[Object]) -> dict[str, Maps]:
        """What the ConfigMaps of pods with shares hold."""
        wanted = {pod["metadata"]["uid"]: pod for pod in pods if self._has_maps(pod)}
        if len(wanted) > MOST_MAPS:
            self.reads.note(
                f"the ConfigMaps of {len(wanted)} pods were not read, as there are so many: limits are as "
                "the requests say; name a node, or a namespace, to see those in force"
            )
            return {}
        known = {uid: maps for uid, maps in self._maps.items() if uid in wanted}
        by_namespace: dict[str, list[Object]] = defaultdict(list)
        for uid, pod in wanted.items():
            if uid in known:
                continue
            by_namespace[pod["metadata"]["namespace"]].append(pod)
        limiter = anyio.CapacityLimiter(_AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            for first, *others in by_namespace.values():
                tasks.start_soon(self._maps_of_namespace, first, others, known, limiter)
        self._maps = known
        return known

    def _has_maps(self, pod: Object) -> bool:
        if self.namespace not in ("", pod["metadata"]["namespace"]) or is_reservation(pod, self.names):
            return False
        return bool(groups_of_pod(pod)) and bool(config_maps_of(pod))

    async def _maps_of_namespace(
        self, first: Object, others: Sequence[Object], known: dict[str, Maps], limiter: anyio.CapacityLimiter
    ) -> None:
        """Reads those of one namespace; what is forbidden once is not asked for again."""
        if not await self._maps_of(first, known, limiter):
            return
        async with anyio.create_task_group() as tasks:
            for pod in others:
                tasks.start_soon(self._maps_of, pod, known, limiter)

    async def _maps_of(self, pod: Object, known: dict[str, Maps], limiter: anyio.CapacityLimiter) -> bool:
        """Reads those of one pod; false if that cannot be done."""
        maps: dict[str, Mapping[str, str]] = {}
        async with limiter:
            for name in config_maps_of(pod):
                try:
                    answer = await self.reads.get(CONFIG_MAPS, name, pod["metadata"]["namespace"])
                except errors.ApiError as error:
                    self.reads.note(f"could not {error.request}: {error.message}")
                    return False
                self.asked += 1
                if answer.problem:
                    return False
                maps[name] = (answer.one or {}).get("data") or {}
        known[pod["metadata"]["uid"]] = maps
        return True


def trimmed(item: Object) -> Object:
    """An object without what is of no use here."""
    item["metadata"].pop("managedFields", None)
    return item


def _pod_kept(pod: Object) -> Object | None:
    return trimmed(pod) if concerns_gpus(pod) else None


def node_kept(node: Object) -> Object:
    """A node with its labels and what it has to allocate; its images alone may be 10 KB."""
    metadata = {"name": node["metadata"]["name"], "labels": node["metadata"].get("labels") or {}}
    status = node.get("status") or {}
    return {"metadata": metadata, "status": {"allocatable": status.get("allocatable") or {}}}
