"""A local copy of one kind, kept true by a list and a watch (what client-go calls an informer).

Callers read objects without asking the server and subscribe to changes. Invariants: the store is swapped
whole once a list is complete, so half a list is never the truth; an object never goes back to an older
version; a stream that has gone mute is noticed within `CacheOptions.idle_s`, which therefore is the longest
that a change can stay unseen while the server is up.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import loguru
import orjson
from anyio.abc import TaskStatus
from loguru import logger

from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

Key = tuple[str, str]
"""Namespace (empty for kinds without one) and name."""

_SHORT_WATCH_S = 1.0
"""A watch that the server ended sooner is taken up again with a delay, so as not to run hot."""

Indexer = Callable[[Object], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object; `old` is None for a new one, `new` is None for a deleted one."""

    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """The object as last seen."""
        seen = self.new if self.new is not None else self.old
        assert seen is not None  # noqa: S101 -- one of the two is always given
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How a cache talks to the server.

    Attributes:
        page_size: Objects in one answer to a list.
        watch_s: The server is asked to end each watch after about this time, with a bookmark.
        idle_s: Seconds without a byte after which a watch is taken for dead; more than `watch_s`.
        backoff_s: First delay after a failure; it doubles.
        max_backoff_s: The longest delay.
    """

    page_size: int = 500
    watch_s: float = 20.0
    idle_s: float = 30.0
    backoff_s: float = 0.5
    max_backoff_s: float = 15.0


def key_of(item: Object) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def without_managed_fields(item: Object) -> Object:
    """The trim that every cache wants at least: who wrote which field is of no use here."""
    item["metadata"].pop("managedFields", None)
    return item


class Cache:
    """The objects of one kind, perhaps only those that match `selectors`."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        name: str = "",
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        trim: Callable[[Object], Object] = without_managed_fields,
        indexes: Mapping[str, Indexer] | None = None,
        required: bool = True,
        options: CacheOptions = CacheOptions(),
    ) -> None:
        """Makes an empty cache; `run` fills it.

        Args:
            client: Where to list and watch.
            resource: The kind.
            name: For people, if the kind's is not enough.
            namespace: Only objects of this namespace; empty means all.
            selectors: `labelSelector` and `fieldSelector`, as query parameters.
            trim: Takes what nobody reads off each object before it is stored.
            indexes: By name, a function from an object to the values it is to be found under.
            required: Whether the process is of no use without it, even if the server refuses the kind.
            options: Page size and times.
        """
        self.resource = resource
        self.name = name or resource.plural
        self.required = required
        self.problem: str | None = "the first list is not complete"
        self._client = client
        self._namespace = namespace
        self._is_part = bool(selectors)
        self._selectors = dict(selectors or {})
        if namespace:
            self._selectors["fieldSelector"] = f"metadata.namespace={namespace}"
        self._trim = trim
        self._indexers = dict(indexes or {})
        self._options = options
        self._objects: dict[Key, Object] = {}
        self._indexes = self._index(())
        self._handlers: list[Callable[[Change], None]] = []
        self._listeners: defaultdict[Key, list[Callable[[], None]]] = defaultdict(list)
        self._version = ""
        self._heartbeat_s = float("inf")
        self._settled = anyio.Event()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def get(self, name: str, namespace: str = "") -> Object | None:
        """The object as last seen, or None; it may exist all the same, if the cache lags."""
        return self._objects.get((namespace, name))

    def by_index(self, index: str, value: str) -> list[Object]:
        """The objects that the index of this name lists under a value."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def follows(self, resource: Resource, name: str, namespace: str = "") -> bool:
        """Whether this cache would tell of each change of this object."""
        if resource != self.resource or self.problem is not None or self._namespace not in ("", namespace):
            return False
        return not self._is_part or (namespace, name) in self._objects

    def has_seen(self, version: str) -> bool:
        """Whether the cache is at least as new as this resourceVersion; empty is older than all."""
        return not version or (bool(self._version) and int(self._version) >= int(version))

    def subscribe(self, handler: Callable[[Change], None]) -> None:
        """Calls `handler` for each change from now on; it must not block and not raise."""
        self._handlers.append(handler)

    @contextmanager
    def listening(self, key: Key, tell: Callable[[], None]) -> Iterator[None]:
        """Calls `tell` at each change of one object for as long as the block lasts."""
        self._listeners[key].append(tell)
        try:
            yield
        finally:
            self._listeners[key].remove(tell)
            if not self._listeners[key]:
                del self._listeners[key]

    @property
    def ready(self) -> bool:
        """Whether there is nothing to wait for: the list is complete, or refused and not required."""
        return self.problem is None or (self._settled.is_set() and not self.required)

    async def settled(self) -> None:
        """Waits for the first list, or for the server's refusal to give one (`problem` says which)."""
        await self._settled.wait()

    def silent_s(self) -> float:
        """Seconds since the task that fills the cache last gave a sign of life; 0 before it runs."""
        return max(0.0, anyio.current_time() - self._heartbeat_s)

    def observe(self, item: Object) -> None:
        """Takes in the server's answer to our own write, which may be ahead of the watch.

        An object that the cache does not hold is ignored: it may be deleted already. The cache trims and
        keeps `item`, which is read-only from here on.
        """
        held = self._objects.get(key_of(item))
        if held is not None and _uid(held) == _uid(item):
            self._store(item)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Fills and follows for ever; a failure is logged and tried again."""
        task_status.started()
        delay_s = self._options.backoff_s
        while True:
            self._heartbeat_s = anyio.current_time()
            before = self._version
            try:
                if not self._version:
                    await self._list()
                started_s = anyio.current_time()
                await self._watch()
                if anyio.current_time() - started_s > _SHORT_WATCH_S:
                    delay_s = self._options.backoff_s
                    continue
            except errors.GoneError:
                # Someone compacted the history, or the server restarted: only a new list helps.
                self._version = ""
            except (errors.ForbiddenError, errors.NotFoundError) as error:
                self._refuse(error)
            except errors.ApiError as error:
                self._log(error).warning("A watch broke and is taken up again")
            if self._version != before:
                delay_s = self._options.backoff_s
            await anyio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret, just spread
            delay_s = min(delay_s * 2, self._options.max_backoff_s)

    def _log(self, error: errors.ApiError) -> "loguru.Logger":
        return logger.bind(kind=self.name, error=error.message)

    def _refuse(self, error: errors.StatusError) -> None:
        """The server will not give us this kind: go on without it, and keep asking."""
        if self.problem != error.message:
            self._log(error).error(
                "The API server refuses to list a kind; objects are read one by one instead"
            )
        self.problem = error.message
        self._version = ""
        # What is not followed is not known. Nobody is told of deletions: nothing has been deleted.
        self._objects, self._indexes = {}, self._index(())
        self._settled.set()

    async def _list(self) -> None:
        listed = await self._client.list_all(
            self.resource,
            self._selectors,
            keep=self._trim,
            page_size=self._options.page_size,
            on_page=self._beat,
        )
        self._swap({key_of(item): item for item in listed.items})
        self._version = listed.version
        self.problem = None
        self._settled.set()

    def _beat(self) -> None:
        self._heartbeat_s = anyio.current_time()

    def _swap(self, objects: dict[Key, Object]) -> None:
        for key, item in objects.items():
            held = self._objects.get(key)
            if held is not None and _uid(held) == _uid(item) and _number(held) > _number(item):
                objects[key] = held  # the answer to a write of ours was faster than the list
        previous, self._objects = self._objects, objects
        self._indexes = self._index(objects.values())
        for key, item in objects.items():
            old = previous.pop(key, None)
            if old is not None and _uid(old) != _uid(item):
                self._notify(Change(old, None))
                old = None
            if old is None or old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                self._notify(Change(old, item))
        for old in previous.values():
            self._notify(Change(old, None))

    async def _watch(self) -> None:
        # Spread, so that the watches of many processes do not end in step.
        watch_s = self._options.watch_s * random.uniform(0.8, 1.0)  # noqa: S311
        params = {
            **self._selectors,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
        }
        await self._client.watch(self.resource, params, self._on_line, idle_s=self._options.idle_s)

    def _on_line(self, line: bytes) -> None:
        self._heartbeat_s = anyio.current_time()
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            self._version = ""
            raise errors.NoAnswerError(
                f"WATCH {self.resource.plural}", f"a line is no JSON: {error}"
            ) from error
        item = event["object"]
        if event["type"] == "ERROR":
            code = int(item.get("code") or 500)
            raise errors.from_status(f"WATCH {self.resource.plural}", code, item, "")
        self._version = item["metadata"]["resourceVersion"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._store(item)
            case "DELETED":
                self._remove(item)

    def _store(self, item: Object) -> None:
        key = key_of(item)
        old = self._objects.get(key)
        if old is not None and _uid(old) != _uid(item):
            self._remove(old)
            old = None
        if old is not None and _number(item) <= _number(old):
            return
        trimmed = self._trim(item)
        self._objects[key] = trimmed
        self._unindex(key, old)
        for name, indexer in self._indexers.items():
            for value in indexer(trimmed):
                self._indexes[name][value].add(key)
        self._notify(Change(old, trimmed))

    def _remove(self, item: Object) -> None:
        key = key_of(item)
        old = self._objects.get(key)
        if old is None or _uid(old) != _uid(item):
            return
        del self._objects[key]
        self._unindex(key, old)
        self._notify(Change(old, None))

    def _index(self, objects: Iterable[Object]) -> dict[str, defaultdict[str, set[Key]]]:
        indexes: dict[str, defaultdict[str, set[Key]]] = {name: defaultdict(set) for name in self._indexers}
        for item in objects:
            for name, indexer in self._indexers.items():
                for value in indexer(item):
                    indexes[name][value].add(key_of(item))
        return indexes

    def _unindex(self, key: Key, old: Object | None) -> None:
        if old is None:
            return
        for name, indexer in self._indexers.items():
            for value in indexer(old):
                keys = self._indexes[name][value]
                keys.discard(key)
                if not keys:
                    del self._indexes[name][value]

    def _notify(self, change: Change) -> None:
        for handler in self._handlers:
            handler(change)
        for tell in tuple(self._listeners.get(key_of(change.object), ())):
            tell()


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _number(item: Object) -> int:
    """The resourceVersion as a number: comparable by Kubernetes' own rule since v1.35, in practice always."""
    return int(item["metadata"]["resourceVersion"])
