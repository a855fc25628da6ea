"""A whole binder in virtual time, against a server in memory: what would take an hour, or 10,000 objects.

aiohttp, beneath the real client, knows only the real clock. The server stores and tells as Kubernetes does,
so far as the binder can tell: lists by selectors, watches, versions, Bindings, JSON patches. It judges
nothing:
what a real one refuses is for the tests on a real one.
"""

import copy
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import orjson

from controller import app
from controller.binder.metrics import BinderMetrics
from controller.binder.work import Caches
from controller.kai.names import BIND_REQUESTS, GPU_INDEX, NODES, PODS
from controller.plugins.registry import PlannedPlugin
from controller.runtime import errors
from controller.runtime.cache import Key, key_of
from controller.runtime.client import Client, Object, Patch, Resource
from controller.runtime.manager import Manager
from controller.settings import load
from tests.jsonpatch import PatchError, patched

RESERVATIONS = "kai-resource-reservation"
WATCH_S = 20.0


def _absent(what: str) -> errors.StatusError:
    return errors.from_status(what, 404, {"details": {"name": what}}, "not found")


def _at(item: Object, path: str) -> str:
    value: Any = item
    for part in path.split("."):
        value = (value or {}).get(part)
    return str(value or "")


def _is_chosen(item: Object, params: Mapping[str, str]) -> bool:
    """Whether an object matches the selectors; of sets only those of one value are known here."""
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    fields = [term for term in params.get("fieldSelector", "").split(",") if term]
    for term in filter(None, params.get("labelSelector", "").split(",")):
        name, has_set, value = term.partition(" in ")
        if has_set:
            fits = labels.get(name) == value.strip("()")
        elif "!=" in term:
            fits = labels.get(term.partition("!=")[0]) != term.partition("!=")[2]
        elif "=" in term:
            fits = labels.get(term.partition("=")[0]) == term.partition("=")[2]
        else:
            fits = (term.lstrip("!") in labels) != term.startswith("!")
        if not fits:
            return False
    return all(_at(item, path) == value for path, _, value in (term.partition("=") for term in fields))


class Memory(Client):
    """The server.

    Attributes:
        calls: How often it was asked what, by method and kind; watches do not count.
        refuses: Called for each Binding; what it returns is raised.
        latency_s: Seconds that each request takes.
        silent: Reservations of groups that begin so name no device.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refuses: Callable[[str], errors.ApiError | None] = lambda _: None
        self.latency_s = 0.0
        self.silent = "silent"
        self._kinds: dict[Resource, dict[Key, Object]] = {}
        self._version = 1
        self._watches: dict[int, tuple[Resource, Mapping[str, str], list[bytes], anyio.Event]] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def found(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """An object as it is."""
        return self._kinds[resource][namespace, name]

    def keys(self, resource: Resource) -> list[tuple[str, str]]:
        """Namespace and name of all objects of a kind."""
        return list(self._kinds.get(resource, {}))

    def put(self, resource: Resource, item: Object) -> Object:
        """Stores an object, new or changed, and tells those who watch. Reservations name a device at once."""
        self._number += 1
        self._version += 1
        metadata = item["metadata"]
        metadata.setdefault("uid", f"uid-{self._number}")
        metadata["resourceVersion"] = str(self._version)
        if resource == BIND_REQUESTS:
            metadata.setdefault("generation", 1)
        group = (metadata.get("labels") or {}).get("runai-gpu-group", "")
        if metadata.get("namespace") == RESERVATIONS and not group.startswith(self.silent):
            metadata.setdefault("annotations", {}).setdefault(GPU_INDEX, f"GPU-{metadata['name']}")
        key, kind = key_of(item), self._kinds.setdefault(resource, {})
        self._tell(resource, "MODIFIED" if key in kind else "ADDED", item)
        kind[key] = item
        return item

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Deletes an object."""
        item = self._kinds[resource][namespace, name]
        self._version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self._version)}
        self._tell(resource, "DELETED", {**item, "metadata": metadata})
        del self._kinds[resource][namespace, name]

    def _tell(self, resource: Resource, kind: str, item: Object) -> None:
        before = self._kinds.get(resource, {}).get(key_of(item))
        for watched, params, lines, news in self._watches.values():
            if watched != resource:
                continue
            was, fits = before is not None and _is_chosen(before, params), _is_chosen(item, params)
            if was or fits:  # one that leaves the selectors, or comes, is deleted or added for who has them
                told = kind if was and fits else "ADDED" if fits and kind != "DELETED" else "DELETED"
                lines.append(orjson.dumps({"type": told, "object": item}))
                news.set()

    def _count(self, method: str, resource: Resource, subresource: str = "") -> None:
        self.calls[f"{method} {resource.plural}{'/' if subresource else ''}{subresource}"] += 1

    async def raw(self, path: str) -> Object:
        raise _absent(path)

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        self._count("GET", resource, subresource)
        await anyio.sleep(self.latency_s)
        item = self._kinds.get(resource, {}).get((namespace or "", name))
        if item is None:
            raise _absent(f"{resource.plural} {namespace}/{name}")
        return copy.deepcopy(item)

    async def list_page(
        self, resource: Resource, params: Mapping[str, str], namespace: str | None = None
    ) -> Object:
        self._count("LIST", resource)
        await anyio.sleep(self.latency_s)
        kept = {name: text for name, text in params.items() if name.endswith("Selector")}
        items = [item for item in self._kinds.get(resource, {}).values() if _is_chosen(item, kept)]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": copy.deepcopy(items)}

    async def watch(
        self,
        resource: Resource,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_s: float,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._number += 1
        number, lines = self._number, list[bytes]()
        kept = {name: text for name, text in params.items() if name.endswith("Selector")}
        on_open()
        with anyio.move_on_after(WATCH_S):
            try:
                while True:
                    news = anyio.Event()
                    self._watches[number] = (resource, kept, lines, news)
                    while lines:
                        on_line(lines.pop(0))
                    await news.wait()
            finally:
                del self._watches[number]
        bookmark = {"metadata": {"resourceVersion": str(self._version)}}
        on_line(orjson.dumps({"type": "BOOKMARK", "object": bookmark}))

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
        self._count("POST", resource, subresource)
        await anyio.sleep(self.latency_s)
        if subresource:
            refused = self.refuses(name)
            if refused is not None:
                raise refused
            pod = copy.deepcopy(self.found(resource, name, namespace or ""))
            if pod["spec"].get("nodeName"):
                raise errors.from_status("POST", 409, {"reason": "Conflict"}, "already assigned")
            pod["spec"]["nodeName"] = body["target"]["name"]
            for part in ("labels", "annotations"):
                pod["metadata"][part] = {**pod["metadata"].get(part, {}), **body["metadata"].get(part, {})}
            return self.put(resource, pod)
        item: Object = orjson.loads(orjson.dumps(body))
        item["metadata"]["namespace"] = namespace or ""
        if resource.plural == "events":
            return item  # nobody here reads them
        if key_of(item) in self._kinds.get(resource, {}):
            raise errors.from_status("POST", 409, {"reason": "AlreadyExists"}, "already exists")
        return copy.deepcopy(self.put(resource, item))

    async def update(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        self._count("PUT", resource)
        await anyio.sleep(self.latency_s)
        return copy.deepcopy(self.put(resource, orjson.loads(orjson.dumps(body))))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        namespace: str | None = None,
        *,
        subresource: str = "",
        how: Patch = Patch.MERGE,
        is_brief: bool = False,
    ) -> Object:
        self._count("PATCH", resource, subresource)
        await anyio.sleep(self.latency_s)
        if resource.plural == "events":
            return {}
        if (namespace or "", name) not in self._kinds.get(resource, {}):
            raise _absent(f"{resource.plural} {namespace}/{name}")
        item = copy.deepcopy(self.found(resource, name, namespace or ""))
        if how is Patch.JSON:
            assert isinstance(body, list)
            try:
                item = patched(item, body)
            except PatchError as error:
                raise errors.from_status(f"patch {name}", 422, {}, str(error)) from error
        else:
            assert isinstance(body, dict)
            for part, delta in body.items():
                inner = item.setdefault(part, {})
                for name_of_field, value in delta.items():
                    both = isinstance(value, dict) and isinstance(inner.get(name_of_field), dict)
                    inner[name_of_field] = {**inner[name_of_field], **value} if both else value
        return copy.deepcopy(self.put(resource, item))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str,
        version: str = "",
        grace_period_s: int | None = None,
    ) -> None:
        self._count("DELETE", resource)
        await anyio.sleep(self.latency_s)
        item = self._kinds.get(resource, {}).get((namespace or "", name))
        if item is None:
            raise _absent(name)
        if item["metadata"]["uid"] != uid or version not in ("", item["metadata"]["resourceVersion"]):
            raise errors.from_status("DELETE", 409, {"reason": "Conflict"}, "another one, or changed")
        self.remove(resource, name, namespace or "")


class World:
    """The server, and the binder on it.

    Attributes:
        server: The server.
        manager: Of the binder.
        caches: What the binder knows.
        metrics: What it shows.
    """

    def __init__(self, server: Memory, *flags: str, plugins: tuple[PlannedPlugin, ...] = ()) -> None:
        settings = load(["--resource-reservation-pod-image=example.com/agent:v1", *flags], {})
        self.server = server
        plugins = (*app.prepare(settings, []), *plugins)
        self.metrics = BinderMetrics(plugins)
        self.manager: Manager = app._manager(settings, plugins, server, self.metrics)
        caches = {cache.name: cache for cache in self.manager._options.caches}
        self.caches = Caches(
            requests=caches["bindrequests"],
            pods=caches["pods"],
            nodes=caches["nodes"],
            reservations=caches["reservations"],
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The binder runs for the block."""
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.manager.run, stop)
            await anyio.sleep(1.0)
            yield
            stop.set()

    def node(self, name: str, **labels: str) -> None:
        self.server.put(NODES, {"metadata": {"name": name, "labels": labels}})

    def pod(self, name: str, *, node: str = "", group: str = "", **fields: Any) -> Object:  # noqa: ANN401
        """A pod, with a share of a GPU if there is a group; on a node if there is one."""
        shares = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": f"{name}-shared-gpu"} if group else {}
        metadata: Object = {"name": name, "namespace": "default", "annotations": shares, **fields}
        if group and node:
            metadata["labels"] = {"runai-gpu-group": group}
        spec: Object = {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "x"}]}
        spec |= {"nodeName": node} if node else {}
        status = {"phase": "Running" if node else "Pending"}
        return self.server.put(PODS, {"metadata": metadata, "spec": spec, "status": status})

    def ask(
        self,
        pod: Object,
        node: str,
        *,
        group: str = "",
        labels: Mapping[str, str] | None = None,
        is_new: bool = False,
        **spec: Any,  # noqa: ANN401
    ) -> Object:
        """The scheduler's request for a pod; of one on its node it has succeeded, unless it is new."""
        name = pod["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
        metadata: Object = {"name": name, "namespace": "default", "ownerReferences": [owner]}
        metadata["labels"] = {"selected-node": node, **(labels or {})}
        whole: Object = {"podName": name, "selectedNode": node, "receivedResourceType": "Regular"}
        if group:
            gpu = {"count": 1, "portion": "0.50"}
            whole |= {"receivedResourceType": "Fraction", "receivedGPU": gpu, "selectedGPUGroups": [group]}
        item: Object = {"metadata": metadata, "spec": {**whole, **spec}}
        if pod["spec"].get("nodeName") and not is_new:
            item["status"] = {"phase": "Succeeded", "observedGeneration": 1, "conditions": []}
        return self.server.put(BIND_REQUESTS, item)

    def reservation(self, name: str, node: str, group: str, **more: str) -> None:
        metadata = {"name": name, "namespace": RESERVATIONS, "labels": {"runai-gpu-group": group}, **more}
        spec = {"nodeName": node, "containers": []}
        self.server.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})

    def label(self, resource: Resource, name: str, namespace: str, **labels: str | None) -> None:
        """Changes labels; None takes one off."""
        item = copy.deepcopy(self.server.found(resource, name, namespace))
        after = {**(item["metadata"].get("labels") or {}), **labels}
        item["metadata"]["labels"] = {key: value for key, value in after.items() if value is not None}
        self.server.put(resource, item)

    def phase(self, name: str) -> str:
        """Of a request."""
        return _at(self.server.found(BIND_REQUESTS, name, "default"), "status.phase")

    def finish(self, name: str) -> None:
        """A pod's containers have ended."""
        pod = self.server.found(PODS, name, "default")
        self.server.put(PODS, {**pod, "metadata": {**pod["metadata"]}, "status": {"phase": "Succeeded"}})

    def end(self, name: str) -> None:
        """Pod and request go, as when the pod was deleted."""
        self.server.remove(PODS, name, "default")
        self.server.remove(BIND_REQUESTS, name, "default")
