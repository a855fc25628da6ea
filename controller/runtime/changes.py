"""The way to wait for an object: until it is right, wrong or gone.

Where a cache follows the object, the cache tells of its changes; where none does, a watch does. Invariants:
an object is judged as it is when the wait begins and after each change; a broken watch is taken up again, so
no change stays unseen while the server is up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
import orjson

from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.client import Client, Object, Resource
from controller.runtime.locks import Signal

_WATCH_S = 60
_IDLE_S = 75.0
_RETRY_S = 0.5

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

    def __init__(self, client: Client, caches: Sequence[Cache] = ()) -> None:
        """Makes it.

        Args:
            client: For what no cache follows.
            caches: What is followed already.
        """
        self._client = client
        self._caches = tuple(caches)

    def is_followed(self, target: Target) -> bool:
        """Whether a cache tells of the object, so that to wait for it costs the server nothing."""
        return self._cache_of(target) is not None

    async def until(self, *awaited: Judged[V]) -> V:
        """Waits until one of the judges says something, and returns that.

        It has no time-out of its own: `anyio.move_on_after` is the caller's.

        Raises:
            errors.ForbiddenError: The server does not let us watch an object that no cache follows. Other
                errors are tried again.
        """
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
        target = judged.target
        cache = self._cache_of(target)
        if cache is None:
            return await _Follower(self._client, target, judged.judge).run()
        signal = Signal()
        with cache.listening((target.namespace, target.name), signal.set):
            while True:
                if cache.has_seen(target.version):
                    verdict = judged.judge(cache.get(target.name, target.namespace))
                    if verdict is not None:
                        return verdict
                await signal.wait()


class _Follower(Generic[V]):
    def __init__(self, client: Client, target: Target, judge: Callable[[Object | None], V | None]) -> None:
        self._client = client
        self._resource = target.resource
        self._judge = judge
        self._version = target.version
        self._verdict: V | None = None
        self._scope = anyio.CancelScope()
        fields = [f"metadata.name={target.name}"]
        if target.namespace:
            fields.append(f"metadata.namespace={target.namespace}")
        self._selector = {"fieldSelector": ",".join(fields)}

    async def run(self) -> V:
        while True:
            try:
                if not self._version:
                    await self._read()
                if self._verdict is None:
                    await self._watch()
            except errors.ForbiddenError:
                raise
            except errors.ApiError:
                self._version = ""  # what was missed meanwhile shows when it is read again
            if self._verdict is not None:
                return self._verdict
            await anyio.sleep(_RETRY_S)

    async def _read(self) -> None:
        # A list of one name: unlike a get it has a version to watch from, even if there is no such object.
        listed = await self._client.list_all(self._resource, self._selector)
        self._verdict = self._judge(listed.items[0] if listed.items else None)
        self._version = listed.version

    async def _watch(self) -> None:
        params = {
            **self._selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        with anyio.CancelScope() as self._scope:
            await self._client.watch(self._resource, params, self._on_line, idle_s=_IDLE_S)

    def _on_line(self, line: bytes) -> None:
        if self._verdict is not None:
            return
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise errors.NoAnswerError(
                f"WATCH {self._resource.plural}", f"a line is no JSON: {error}"
            ) from error
        item: Object = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._verdict = self._judge(item)
            case "DELETED":
                self._verdict = self._judge(None)
            case "ERROR":
                code = int(item.get("code") or 500)
                raise errors.from_status(f"WATCH {self._resource.plural}", code, item, "")
        if self._verdict is not None:
            self._scope.cancel()
            return
        self._version = item["metadata"]["resourceVersion"]
