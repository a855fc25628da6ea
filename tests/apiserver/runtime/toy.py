"""On the runtime half alone: copies the data of each ConfigMap labelled `copy-to` to the one of that name."""

from collections.abc import Iterable, Mapping

from controller.runtime import errors
from controller.runtime.cache import Cache, Change, Key, key_of
from controller.runtime.client import Client, Resource
from controller.runtime.manager import Manager, ManagerOptions
from controller.runtime.reconcile import Controller, Result
from controller.runtime.reporting import EventRecorder
from controller.runtime.slots import Slot
from controller.runtime.workqueue import Backoff, WorkQueue

CONFIG_MAPS = Resource("v1", "configmaps")


class Copier:
    """Keeps the copies true."""

    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder) -> None:
        self._client, self._cache, self._recorder = client, cache, recorder

    async def reconcile(self, key: Key, slot: Slot, /) -> Result:
        namespace, name = key
        source = self._cache.get(name, namespace)
        copy_to = source["metadata"].get("labels", {}).get("copy-to") if source is not None else None
        if source is None or copy_to is None:
            return Result()
        body = {"metadata": {"name": copy_to, "labels": {"copy-of": name}}, "data": source.get("data", {})}
        copy = self._cache.get(copy_to, namespace)
        if copy is None:
            try:
                await self._client.create(CONFIG_MAPS, body, namespace)
            except errors.AlreadyExistsError:
                return Result(requeue_after_s=0.1)  # the cache has yet to see it
            regarding = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace, "name": name}
            self._recorder.event(regarding, "Normal", "Copied", f"Copied to {copy_to}")
        elif copy.get("data", {}) != body["data"]:
            await self._client.patch(CONFIG_MAPS, copy_to, {"data": body["data"]}, namespace)
        return Result()


def keys(change: Change) -> Iterable[Key]:
    """A source is worked on for itself, a copy for its source."""
    namespace, name = key_of(change.object)
    return [(namespace, change.object["metadata"].get("labels", {}).get("copy-of", name))]


def build(client: Client, selectors: Mapping[str, str]) -> Manager:
    cache = Cache(client, CONFIG_MAPS, selectors=selectors)
    recorder = EventRecorder(client, "copier")
    queue: WorkQueue[Key] = WorkQueue(Backoff())
    controller = Controller("copier", Copier(client, cache, recorder), queue, max_concurrent=4)
    controller.watch(cache, keys)
    return Manager(ManagerOptions(caches=[cache], controllers=[controller], recorder=recorder))
