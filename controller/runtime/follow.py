"""Follows one object by a watch of its own, for as long as somebody waits for it to change.

For kinds that nobody needs a cache of: a watch of one name costs the server next to nothing and no part of
the rate limit, while asking again and again would. Invariant: a broken watch is taken up again, so no
change stays unseen while the server is up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
import orjson

from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

_WATCH_S = 60
_IDLE_S = 75.0
_RETRY_S = 0.5

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Target:
    """The object to follow.

    Attributes:
        resource: Its kind.
        name: Its name.
        namespace: Its namespace; empty if it has none.
        version: A resourceVersion up to which the judge knows it; empty has it read first.
    """

    resource: Resource
    name: str
    namespace: str = ""
    version: str = ""


async def follow(client: Client, target: Target, judge: Callable[[Object | None], V | None]) -> V:
    """Shows each state of an object to `judge`, until that returns something.

    Args:
        client: For the requests.
        target: The object.
        judge: Gets the object, or None where there is none; returns None to go on.

    Raises:
        errors.ForbiddenError: The server does not let us watch it. Other errors are tried again.
    """
    return await _Follower(client, target, judge).run()


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
        page = await self._client.list_page(self._resource, self._selector)
        items = page.get("items") or ()
        self._verdict = self._judge(items[0] if items else None)
        self._version = page["metadata"]["resourceVersion"]

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
