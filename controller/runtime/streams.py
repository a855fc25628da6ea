"""Watches that are shared by all who wait for an object that no cache follows.

Used by `changes.py` only. Invariants: each who waits is told of what happened to his object after the version
up to which he knows it; what a broken or renewed watch may have missed, a deletion above all, he reads, live.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import anyio
from msgspec import Struct, field

from controller.runtime import errors
from controller.runtime.client import Client, Listed, Object, Resource
from controller.runtime.locks import Signal
from controller.runtime.store import Key, key_of, version_of
from controller.runtime.watchevents import Advanced, Changed, Deleted, Event, Refused
from controller.runtime.watching import DEFAULTS, Pauses, Watcher, WatchOptions
from controller.runtime.workqueue import Backoff

V = TypeVar("V")

_READERS = 8

CATCH_UP_S = 60.0
"""Whoever tells should reach the version from which an object is awaited sooner; else it is read, live."""


class StreamOptions(Struct, frozen=True, kw_only=True):
    """Times.

    Attributes:
        watch: Of the watches.
        refused_s: Seconds that the server must have refused before whoever waits is told.
        linger_s: Seconds for which a watch goes on when nobody waits, for those who come next.
    """

    watch: WatchOptions = DEFAULTS
    refused_s: float = 5.0
    linger_s: float = 5.0


STREAM_DEFAULTS = StreamOptions()


class Waiter(Struct, eq=False):
    """What a stream says to one who waits.

    Attributes:
        stream: Who says it.
        key: The object.
        known: The version up to which the object is known.
        states: The object as it changed since, and whether it is there.
        unread: Whether changes may have been missed, so that the object must be read.
    """

    stream: "Stream"
    key: Key
    known: int
    unread: bool
    states: list[tuple[Object, bool]] = field(default_factory=list)
    signal: Signal = field(default_factory=Signal)


class Stream:
    """One watch, and those who wait for objects that it tells of."""

    def __init__(
        self, client: Client, resource: Resource, only: Key | None, version: str, options: StreamOptions
    ) -> None:
        """Makes it; it has to `run`.

        Args:
            client: Where to ask.
            resource: The kind.
            only: The one object to be followed; None for all of the kind.
            version: The resourceVersion to begin after; empty for from now on.
            options: Times.
        """
        self.client = client
        self.resource = resource
        self.options = options
        selector = _selector(only) if only is not None else {}
        self._watcher = Watcher(
            client, resource, self._on_event, selectors=selector, snapshot=self._begin, options=options.watch
        )
        self.refusal: Refused | None = None
        self.position: int | None = int(version) if version else None
        """The version up to which all is told; None before it is known where to begin."""
        self.reading = anyio.Semaphore(_READERS)
        """After a break all who wait read; each at a time is a connection."""
        self._waiters: dict[Key, list[Waiter]] = {}
        self._changed = anyio.Event()

    @contextmanager
    def joined(self, key: Key, version: int) -> Iterator[Waiter]:
        """A place among those who are told of an object, from this version on; 0 for from now on."""
        is_ahead = self.position is None or version < self.position
        waiter = Waiter(self, key, version, unread=is_ahead)
        self._waiters.setdefault(key, []).append(waiter)
        self._changed.set()
        try:
            yield waiter
        finally:
            self._waiters[key].remove(waiter)
            if not self._waiters[key]:
                del self._waiters[key]
            self._changed.set()

    async def run(self) -> None:
        """Follows, until cancelled."""
        await self._watcher.run(str(self.position or ""))

    async def deserted(self) -> None:
        """Waits until nobody has waited for some seconds."""
        while True:
            while self._waiters:
                self._changed = anyio.Event()
                await self._changed.wait()
            with anyio.move_on_after(self.options.linger_s):
                while not self._waiters:
                    self._changed = anyio.Event()
                    await self._changed.wait()
            if not self._waiters:
                return

    async def _begin(self) -> Listed:
        # Not a list of all: each of those who wait reads what concerns him.
        return Listed([], str(await self._watcher.server_version()))

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Refused):
            self.refusal = None
        match event:
            case Listed(_, version):
                self.position = int(version)
                self._tell_all(unread=True)
            case Changed(item) | Deleted(item):
                self.position = version_of(item)
                for waiter in self._waiters.get(key_of(item), ()):
                    waiter.states.append((item, isinstance(event, Changed)))
                    waiter.signal.set()
            case Advanced(version):
                self.position = int(version)
            case Refused():
                self.refusal = event
                self._tell_all()

    def _tell_all(self, *, unread: bool = False) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.unread = waiter.unread or unread
                waiter.signal.set()


class StreamWait(Generic[V]):
    """A wait that a stream tells of."""

    def __init__(self, waiter: Waiter, judge: Callable[[Object | None], V | None]) -> None:
        """Begins it.

        Args:
            waiter: His place.
            judge: As in `changes.Judged`.
        """
        self._waiter = waiter
        self._judge = judge
        options = waiter.stream.options
        self._pauses = Pauses(Backoff(options.watch.backoff_s, options.watch.max_backoff_s))

    async def run(self) -> V:
        """The verdict.

        Raises:
            errors.ForbiddenError: It has lasted.
        """
        waiter, stream = self._waiter, self._waiter.stream
        refused_s: float | None = None
        while True:
            if waiter.unread and stream.position is not None:
                try:
                    async with stream.reading:
                        verdict = await self._read()
                    refused_s = None
                except errors.ApiError as error:
                    waiter.unread = True
                    if isinstance(error, errors.ForbiddenError):
                        refused_s = refused_s if refused_s is not None else anyio.current_time()
                        self._give_up(error, anyio.current_time() - refused_s)
                    await self._pauses.wait()
                    continue
            else:
                verdict = self._judge_what_came()
            if verdict is not None:
                return verdict
            if stream.refusal is not None:
                self._give_up(stream.refusal.error, stream.refusal.lasted_s)
            if not waiter.unread or stream.position is None:
                await self._news()

    async def _news(self) -> None:
        """Waits to be told; whoever is told nothing because the watch is far behind has the object read."""
        waiter = self._waiter
        is_behind = waiter.stream.position is not None and waiter.stream.position < waiter.known
        with anyio.move_on_after(CATCH_UP_S if is_behind else float("inf")) as scope:
            await waiter.signal.wait()
        if scope.cancelled_caught:
            position = waiter.stream.position
            waiter.unread = position is not None and position < waiter.known

    def _give_up(self, error: errors.StatusError, lasted_s: float) -> None:
        if isinstance(error, errors.ForbiddenError) and lasted_s >= self._waiter.stream.options.refused_s:
            raise error.with_traceback(None)  # many raise it: each would make its trace longer

    def _judge_what_came(self) -> V | None:
        waiter = self._waiter
        states, waiter.states = waiter.states, []
        for item, is_there in states:
            if version_of(item) > waiter.known:
                waiter.known = version_of(item)
                verdict = self._judge(item if is_there else None)
                if verdict is not None:
                    return verdict
        return None

    async def _read(self) -> V | None:
        waiter, stream, (namespace, name) = self._waiter, self._waiter.stream, self._waiter.key
        waiter.unread = False
        try:
            item: Object | None = await stream.client.get(stream.resource, name, namespace or None)
            version = version_of(item) if item is not None else 0
        except errors.NotFoundError:
            # Unlike a get, a list of one name has a version even if there is no such object: what happened
            # to an earlier one of its name is not told any more. And it fails where there is no such kind.
            listed = await stream.client.list_all(stream.resource, _selector(waiter.key))
            item = listed.items[0] if listed.items else None
            version = int(listed.version)
        waiter.known = version
        self._pauses.reset()
        return self._judge(item)


def _selector(key: Key) -> dict[str, str]:
    namespace, name = key
    fields = [f"metadata.name={name}"]
    if namespace:
        fields.append(f"metadata.namespace={namespace}")
    return {"fieldSelector": ",".join(fields)}
