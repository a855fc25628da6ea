"""THE way to wait for an object: until it is right, wrong or gone.

Where a cache follows the object, the cache tells of its changes. Where none does, a watch does (see
`streams.py`): one for all who wait for objects of a kind, or one of the object alone if a cache is of its
kind, since that is a kind of which nobody wants to hear all. Invariants: a judge sees the object as it is
when the wait begins, then each change, in order, never an older state; a wait moves on to a watch when its
cache can no longer tell.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from controller.runtime import errors
from controller.runtime.cache import Cache, Change
from controller.runtime.client import Client, Object, Resource
from controller.runtime.locks import Signal
from controller.runtime.store import Key
from controller.runtime.streams import CATCH_UP_S, STREAM_DEFAULTS, Stream, StreamOptions, StreamWait, Waiter

V = TypeVar("V")


class Target(Struct, frozen=True):
    """An object to wait for.

    Attributes:
        resource: Its kind.
        name: Its name.
        namespace: Its namespace; empty if it has none.
        version: The resourceVersion up to which the judge knows it, e.g. of the answer to a write: no older
            state is shown, nor that it was not there yet. Empty has it read first.
    """

    resource: Resource
    name: str
    namespace: str = ""
    version: str = ""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


class Judged(Struct, Generic[V], frozen=True):
    """An object to wait for, and when the wait is over.

    Attributes:
        target: The object.
        judge: Gets each state of the object, or None where there is none; returns None to wait on, anything
            else to end the wait. No I/O.
    """

    target: Target
    judge: Callable[[Object | None], V | None]


class Changes:
    """Tells of the changes of single objects, to as many as wait."""

    def __init__(
        self, client: Client, caches: Sequence[Cache] = (), options: StreamOptions = STREAM_DEFAULTS
    ) -> None:
        """Makes it; nobody can wait before it runs.

        Args:
            client: For what no cache follows.
            caches: What is followed already.
            options: Times.
        """
        self._client = client
        self._caches = tuple(caches)
        self._options = options
        self._streams: dict[tuple[Resource, Key | None], Stream] = {}
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Holds the shared watches, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    def is_followed(self, target: Target) -> bool:
        """Whether a cache tells of the object, so that to wait for it costs the server nothing."""
        return self._cache_of(target) is not None

    async def until(self, *awaited: Judged[V]) -> V:
        """Waits until one of the judges says something, and returns that.

        It has no time-out of its own: `anyio.move_on_after` is the caller's.

        Raises:
            errors.ForbiddenError: The server does not let us see an object that no cache follows, and has
                not for some seconds. Other errors are tried again.
        """
        followed = [(cache, item) for item in awaited if (cache := self._cache_of(item.target)) is not None]
        others = [item for item in awaited if not self.is_followed(item.target)]
        if followed and not others:
            signal = Signal()
            waits = [_CacheWait(cache, item, signal) for cache, item in followed]
            verdict = await _first(waits, signal)
            if verdict is not None:
                return verdict
            late = [wait.rest() for wait in waits if wait.is_late]
            rest = [wait.rest() for wait in waits if not wait.is_late]
            return await (self._until_first(rest, late) if late else self.until(*rest))
        if len(others) == 1 and not followed:
            return await self._until_told(others[0])
        return await self._until_first([item for _, item in followed], others)

    async def _until_first(self, followed: Sequence[Judged[V]], others: Sequence[Judged[V]]) -> V:
        """The first verdict on objects of which caches tell, and on others."""
        verdicts: list[V] = []
        refused: list[errors.ForbiddenError] = []
        async with anyio.create_task_group() as tasks:

            async def wait_for(wait: Callable[[], Awaitable[V]]) -> None:
                try:
                    verdicts.append(await wait())
                except errors.ForbiddenError as error:
                    refused.append(error)  # raised outside, where the task group cannot wrap it
                tasks.cancel_scope.cancel()

            if followed:
                tasks.start_soon(wait_for, partial(self.until, *followed))
            for judged in others:
                tasks.start_soon(wait_for, partial(self._until_told, judged))
            if not followed and not others:
                await anyio.sleep_forever()
        if verdicts:
            return verdicts[0]
        raise refused[0]

    def _cache_of(self, target: Target) -> Cache | None:
        followers = (c for c in self._caches if c.follows(target.resource, target.name, target.namespace))
        return next(followers, None)

    async def _until_told(self, judged: Judged[V]) -> V:
        """The verdict on an object of which no cache tells."""
        with self._joined(judged.target) as waiter:
            return await StreamWait(waiter, judged.judge).run()

    @contextmanager
    def _joined(self, target: Target) -> Iterator[Waiter]:
        """A place among those who are told by the watch of this object, which is begun if need be."""
        if self._tasks is None:
            raise RuntimeError("Changes.run is not running: nobody would tell")
        is_heavy = any(cache.resource == target.resource for cache in self._caches)
        identity = target.resource, target.key if is_heavy else None
        stream = self._streams.get(identity)
        if stream is None:
            stream = self._streams[identity] = Stream(self._client, *identity, target.version, self._options)
            self._tasks.start_soon(self._host, identity, stream)
        with stream.joined(target.key, int(target.version or 0)) as waiter:
            yield waiter

    async def _host(self, identity: tuple[Resource, Key | None], stream: Stream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await stream.deserted()
            del self._streams[identity]  # with no pause in between, or somebody might join it yet
            tasks.cancel_scope.cancel()


class _CacheWait(Generic[V]):
    """A wait for one object that a cache tells of."""

    __slots__ = ("_cache", "_changes", "_era", "_judged", "_signal", "has_begun", "has_ended", "is_late")

    def __init__(self, cache: Cache, judged: Judged[V], signal: Signal) -> None:
        self.has_begun = False
        """Whether the cache has reached the version from which the object is awaited."""
        self.has_ended = False
        """Whether the cache can no longer tell."""
        self.is_late = False
        """Whether the cache has not reached that version for so long that a watch must do."""
        self._cache = cache
        self._judged = judged
        self._signal = signal
        self._era = cache.era
        self._changes: list[Change] = []

    def rest(self) -> Judged[V]:
        """What is still awaited: as before, or from the present on if the cache can no longer tell."""
        judged = self._judged
        if not self.has_ended and not self.is_late:
            return judged
        return Judged(replace(judged.target, version=""), judged.judge)

    def following(self) -> AbstractContextManager[None]:
        """The block in which the cache tells."""
        return self._cache.following(self._judged.target.key, self._hear, self._judged.target.version)

    def look(self) -> V | None:
        """The verdict on what the cache has told since the last look."""
        target, judge = self._judged.target, self._judged.judge
        if not self.has_begun:
            self._changes = []  # the present state holds them all
            self.has_begun = self._is_caught_up()
            self.has_ended = not self._follows()
            if self.has_ended or not self.has_begun:
                return None
            return judge(self._cache.get(target.name, target.namespace))
        changes, self._changes = self._changes, []
        for change in changes:
            if change.new is None and not self._follows():
                break  # of a part of a kind it may merely be no part any more
            verdict = judge(change.new)
            if verdict is not None:
                return verdict
        self.has_ended = not self._follows()
        return None

    def _hear(self, change: Change | None) -> None:
        if change is not None:
            self._changes.append(change)
        self._signal.set()

    def _follows(self) -> bool:
        target = self._judged.target
        return self._cache.follows(target.resource, target.name, target.namespace)

    def _is_caught_up(self) -> bool:
        target, cache = self._judged.target, self._cache
        return cache.era != self._era or cache.has_seen(target.version, target.name, target.namespace)


async def _first(waits: Sequence[_CacheWait[V]], signal: Signal) -> V | None:
    """The first verdict; None once a cache can no longer tell. One task for all: many wait at a time."""
    with ExitStack() as stack:
        for wait in waits:
            stack.enter_context(wait.following())
        while True:
            for wait in waits:
                verdict = wait.look()
                if verdict is not None:
                    return verdict
            if any(wait.has_ended for wait in waits):
                return None
            if all(wait.has_begun for wait in waits):
                await signal.wait()
                continue
            with anyio.move_on_after(CATCH_UP_S) as scope:
                await signal.wait()
            if scope.cancelled_caught:
                for wait in waits:
                    wait.is_late = not wait.has_begun
                return None
