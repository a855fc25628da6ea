"""A local copy of one kind, kept true by a watcher (what client-go calls an informer, kube-rs a reflector).

Callers read objects without asking the server and subscribe to changes. Invariants: the store is swapped
whole once a list is complete, so half a list is never the truth; an object never goes back to an older
version, unless the server itself has; nobody is told of a deletion that the server has not shown; an object
that cannot be read costs itself only.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import anyio
from anyio.abc import TaskStatus
from loguru import logger

from controller.runtime import errors
from controller.runtime.client import Client, Listed, Object, Resource
from controller.runtime.listeners import Change, Listener, Listeners
from controller.runtime.store import (
    Indexer,
    Key,
    Store,
    key_of,
    uid_of,
    version_of,
    without_managed_fields,
)
from controller.runtime.watchevents import Advanced, Changed, Deleted, Event, Refused, State
from controller.runtime.watching import DEFAULTS, Pauses, Watcher, WatchOptions
from controller.runtime.workqueue import Backoff

__all__ = ["Cache", "Change", "Key", "key_of"]


class Cache:
    """The objects of one kind, perhaps only those that match `selectors`.

    Attributes:
        resource: The kind.
        name: For people.
        required: Whether the process is of no use without it.
        problem: Why it does not follow its kind; None if it does.
        era: How often the server's versions have gone back, after a restore of etcd.
    """

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
        options: WatchOptions = DEFAULTS,
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
        only = {"fieldSelector": f"metadata.namespace={namespace}"} if namespace else {}
        self._selectors = {**(selectors or {}), **only}
        self._options = options
        watcher = partial(Watcher, client, resource, self._on_event, options=options)
        self._watcher = watcher(selectors=self._selectors, snapshot=self._list)
        self._store = Store(self.name, trim, indexes or {})
        self._hidden: dict[Key, Object] | None = None
        self._handlers: list[Callable[[Change], None]] = []
        self._listeners = Listeners()
        self._version = self.era = 0
        self._goal: int | None = 0
        self._settled = anyio.Event()

    def __len__(self) -> int:
        return len(self._store.objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._store.objects.values()))

    def get(self, name: str, namespace: str = "") -> Object | None:
        """The object as last seen, or None; it may exist all the same, if the cache lags."""
        return self._store.objects.get((namespace, name))

    def by_index(self, index: str, value: str) -> list[Object]:
        """The objects that the index of this name lists under a value."""
        return self._store.by_index(index, value)

    def follows(self, resource: Resource, name: str, namespace: str = "") -> bool:
        """Whether this cache would tell of each change of this object."""
        if resource != self.resource or self.problem is not None or self._namespace not in ("", namespace):
            return False
        key = (namespace, name)
        if self._is_part:
            return key in self._store.objects
        return key not in self._store.unreadable

    def has_seen(self, version: str, name: str = "", namespace: str = "") -> bool:
        """Whether the cache, or what it holds of one object, is at least as new as this resourceVersion.

        Args:
            version: Empty is older than all.
            name: Of the object, if one is meant: the answer to our own write may be ahead of all else.
            namespace: Of the object.
        """
        if not version or self._version >= int(version):
            return True
        held = self.get(name, namespace)
        return held is not None and version_of(held) >= int(version)

    def has_caught_up(self, name: str = "", namespace: str = "") -> bool:
        """Whether it, or what it holds of one object, is as new as the server was when `catch_up` began.

        Arguments as in `has_seen`. False while that is not known; True if `catch_up` was never called.
        """
        return self._goal is not None and self.has_seen(str(self._goal), name, namespace)

    async def catch_up(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sets the goal of `has_caught_up`: the server's version as of now, asked for until it is told.

        It is asked of this very kind: the API server may keep each in an etcd, with versions, of its own.
        """
        self._goal = None
        task_status.started()
        problem: str | None = None
        pauses = Pauses(Backoff(self._options.backoff_s, self._options.max_backoff_s))
        while self._goal is None:
            try:
                self._goal = await self._watcher.server_version()
            except errors.ApiError as error:
                if problem is None:
                    problem = error.message
                    log = logger.bind(kind=self.name, error=problem)
                    log.warning("It is not known how far the API server is: objects are read one by one")
                await pauses.wait()

    def subscribe(self, handler: Callable[[Change], None]) -> None:
        """Calls `handler` for each change from now on; it must not block and had better not raise."""
        self._handlers.append(handler)

    @contextmanager
    def following(self, key: Key, tell: Listener, version: str = "") -> Iterator[None]:
        """Tells of one object for as long as the block lasts.

        Args:
            key: The object.
            tell: Gets its changes, and None when the cache can no longer follow it, when versions have gone
                back, and when `version` is reached.
            version: The resourceVersion that the caller waits for.
        """
        with self._listeners.place(key, tell, int(version or 0)):
            yield

    @property
    def ready(self) -> bool:
        """Whether there is nothing to wait for: the list is complete, or refused and not required."""
        return self.problem is None or (self._settled.is_set() and not self.required)

    @property
    def is_blind(self) -> bool:
        """Whether it holds nothing because the server refuses to list the kind: none is known to be gone."""
        return self._hidden is not None

    def last_known(self) -> list[Object]:
        """The objects; those before the refusal while it is blind, of which no change may tell later."""
        return list((self._store.objects if self._hidden is None else self._hidden).values())

    async def settled(self) -> None:
        """Waits for the first list, or for the server's refusal to give one (`problem` says which)."""
        await self._settled.wait()

    def silent_s(self) -> float:
        """Seconds since the task that fills the cache last gave a sign of life; 0 before it runs."""
        return self._watcher.silent_s()

    def broken_s(self) -> float:
        """Seconds for which changes could not be seen; 0 while all is well, or if the kind is refused."""
        return 0.0 if self._watcher.is_refused else self._watcher.broken_s()

    @property
    def break_text(self) -> str:
        """What broke last."""
        return self._watcher.problem

    def observe(self, item: Object) -> None:
        """Takes in the server's answer to our own write, which may be ahead of the watch.

        An object that the cache does not hold is ignored: it may be deleted already. The cache trims and
        keeps `item`, which is read-only from here on.
        """
        held = self._store.objects.get(key_of(item))
        if held is not None and uid_of(held) == uid_of(item):
            self._put(item)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Fills and follows for ever; a failure is logged and tried again."""
        task_status.started()
        await self._watcher.run()

    async def _list(self) -> Listed:
        return await self._client.list_all(
            self.resource,
            self._selectors,
            keep=self._store.trimmed,
            page_size=self._options.page_size,
            on_page=self._watcher.beat,
        )

    def _on_event(self, event: Event) -> None:
        match event:
            case Listed(items, version):
                self._swap(items, int(version))
            case Changed(item):
                self._put(item)
                self._advance(version_of(item))
            case Deleted(item):
                self._remove(item)
                self._advance(version_of(item))
            case Advanced(version):
                self._advance(int(version))
            case Refused():
                self._refuse(event)

    def _advance(self, version: int) -> None:
        self.problem = None  # only a watch that was granted tells of this
        self._version = max(self._version, version)
        self._listeners.reached(self._version)

    def _refuse(self, refused: Refused) -> None:
        """Goes on with what is known; once the refusal has lasted, without: objects are read one by one."""
        is_new = not self._settled.is_set()
        if not is_new and refused.lasted_s < self._options.refused_s:
            return
        if self.problem != refused.error.message:
            logger.bind(kind=self.name, error=refused.error.message).error(
                "The API server refuses to list a kind; objects are read one by one instead"
            )
        self.problem = refused.error.message
        if refused.state is State.LIST and self._hidden is None:
            # What is not followed is not known. Kept for comparison: nobody is told of deletions that
            # no list has shown, and each of those that one shows is told.
            self._hidden = self._store.swap({})
        self._settled.set()
        self._listeners.look_again()

    def _swap(self, items: list[Object], version: int) -> None:
        objects = {key_of(item): item for item in items}
        if version < self._version:
            logger.bind(kind=self.name, version=version, before=self._version).warning(
                "The API server's versions have gone back: it was restored, and what it says counts"
            )
            self.era += 1
        else:
            for key, held in self._store.objects.items():
                item = objects.get(key)
                # The answer to a write of ours was faster than the list.
                if item is not None and uid_of(held) == uid_of(item) and version_of(held) > version:
                    objects[key] = held
        is_older, self._version = version < self._version, version
        if not self._watcher.is_refused:
            self.problem = None
        shown = self._store.swap(objects)
        previous, self._hidden = (shown if self._hidden is None else self._hidden), None
        self._tell_difference(previous, objects)
        self._settled.set()
        self._listeners.reached(self._version)
        if is_older:
            self._listeners.look_again()

    def _tell_difference(self, previous: dict[Key, Object], objects: Mapping[Key, Object]) -> None:
        for key, item in objects.items():
            old = previous.pop(key, None)
            if old is not None and uid_of(old) != uid_of(item):
                self._notify(Change(old, None))
                old = None
            if old is None or version_of(old) != version_of(item):
                self._notify(Change(old, item))
        for old in previous.values():
            self._notify(Change(old, None))

    def _put(self, item: Object) -> None:
        key = key_of(item)
        old = self._store.objects.get(key)
        if old is not None and uid_of(old) != uid_of(item):
            self._remove(old)
            old = None
        if old is not None and version_of(item) <= version_of(old):
            return
        new = self._store.put(key, item)
        if new is not None:
            self._notify(Change(old, new))
        elif old is not None:
            # Unreadable now: what was known of it is no longer true. That it was deleted is not said to
            # those who wait for it, who look elsewhere.
            self._tell_handlers(Change(old, None))
            self._listeners.tell(key, None)

    def _remove(self, item: Object) -> None:
        key = key_of(item)
        old = self._store.objects.get(key)
        if old is None or uid_of(old) != uid_of(item):
            self._store.unreadable.discard(key)
            return
        self._store.pop(key)
        self._notify(Change(old, None))

    def _notify(self, change: Change) -> None:
        self._tell_handlers(change)
        self._listeners.tell(key_of(change.object), change)

    def _tell_handlers(self, change: Change) -> None:
        for handler in self._handlers:
            try:
                handler(change)
            except Exception:  # noqa: BLE001 -- one object must not take the others with it
                logger.bind(kind=self.name, object="/".join(key_of(change.object))).exception(
                    "A change could not be handled"
                )
