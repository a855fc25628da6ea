"""THE way to wait for an object: until it is right, wrong or gone.

Where a cache follows the object, the cache tells of its changes. Where none does, a watch does (see
`streams.py`): one for all who wait for objects of a kind, or one of the object alone if a cache is of its
kind, since that is a kind of which nobody wants to hear all. Invariants: a judge sees the object as it is
when the wait begins, then each change, in order, never an older state; a wait moves on to a watch when its
cache can no longer tell.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from controller.runtime import errors
from controller.runtime.cache import Cache, Change
from controller.runtime.client import Client, Object, Resource
from controller.runtime.locks import Signal
from controller.runtime.store import Key
from controller.runtime.streams import CATCH_UP_S, STREAM_DEFAULTS, Stream, StreamOptions, StreamWait, Waiter

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Target:
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


@dataclass(frozen=True, slots=True)
class Judged(Generic[V]):
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
        if len(awaited) == 1:
            return await self._until_one(awaited[0])
        verdicts: list[V] = []
        refused: list[errors.ForbiddenError] = []
        async with anyio.create_task_group() as tasks:

            async def wait_for(judged: Judged[V]) -> None:
                try:
                    verdicts.append(await self._until_one(judged))
                except errors.ForbiddenError as error:
                    refused.append(error)  # raised outside, where the task group cannot wrap it
                tasks.cancel_scope.cancel()

            for judged in awaited:
                tasks.start_soon(wait_for, judged)
            if not awaited:
                await anyio.sleep_forever()
        if verdicts:
            return verdicts[0]
        raise refused[0]

    def _cache_of(self, target: Target) -> Cache | None:
        followers = (c for c in self._caches if c.follows(target.resource, target.name, target.namespace))
        return next(followers, None)

    async def _until_one(self, judged: Judged[V]) -> V:
        version = judged.target.version
        while True:
            cache = self._cache_of(judged.target)
            if cache is not None:
                verdict = await _FromCache(cache, judged, version).run()
            else:
                with self._joined(judged.target, version) as waiter:
                    verdict = await StreamWait(waiter, judged.judge).run()
            if verdict is not None:
                return verdict
            version = ""  # what was known is from a source that cannot be trusted any more

    @contextmanager
    def _joined(self, target: Target, version: str) -> Iterator[Waiter]:
        """A place among those who are told by the watch of this object, which is begun if need be."""
        if self._tasks is None:
            raise RuntimeError("Changes.run is not running: nobody would tell")
        is_heavy = any(cache.resource == target.resource for cache in self._caches)
        identity = target.resource, target.key if is_heavy else None
        stream = self._streams.get(identity)
        if stream is None:
            stream = self._streams[identity] = Stream(self._client, *identity, version, self._options)
            self._tasks.start_soon(self._host, identity, stream)
        with stream.joined(target.key, int(version or 0)) as waiter:
            yield waiter

    async def _host(self, identity: tuple[Resource, Key | None], stream: Stream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await stream.deserted()
            del self._streams[identity]  # with no pause in between, or somebody might join it yet
            tasks.cancel_scope.cancel()


class _FromCache(Generic[V]):
    """A wait that a cache tells of."""

    def __init__(self, cache: Cache, judged: Judged[V], version: str) -> None:
        self._cache = cache
        self._target = judged.target
        self._judge = judged.judge
        self._version = version
        self._era = cache.era
        self._changes: deque[Change] = deque()
        self._signal = Signal()

    async def run(self) -> V | None:
        """The verdict; None if the cache can no longer tell."""
        target = self._target
        with self._cache.following(target.key, self._hear, self._version):
            with anyio.move_on_after(CATCH_UP_S):
                while not self._is_caught_up():
                    if not self._follows():
                        return None
                    await self._signal.wait()
            if not self._is_caught_up() or not self._follows():
                return None
            self._changes.clear()  # the present state holds them all
            verdict = self._judge(self._cache.get(target.name, target.namespace))
            while verdict is None:
                await self._signal.wait()
                while self._changes and verdict is None:
                    new = self._changes.popleft().new
                    if new is None and not self._follows():
                        break  # of a part of a kind it may merely be no part any more
                    verdict = self._judge(new)
                if verdict is None and not self._follows():
                    return None
            return verdict

    def _hear(self, change: Change | None) -> None:
        if change is not None:
            self._changes.append(change)
        self._signal.set()

    def _follows(self) -> bool:
        return self._cache.follows(self._target.resource, self._target.name, self._target.namespace)

    def _is_caught_up(self) -> bool:
        target = self._target
        return self._cache.era != self._era or self._cache.has_seen(
            self._version, target.name, target.namespace
        )
