"""A server by script, for virtual time: aiohttp, beneath the client, knows only the real one."""

import json
from collections.abc import Awaitable, Callable, Mapping

import anyio

from controller.runtime import errors
from controller.runtime.client import Client, Object, Resource

THINGS = Resource("v1", "things")


def item(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def line(kind: str, content: Object) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode()


def refusal(code: int) -> errors.StatusError:
    return errors.from_status("WATCH things", code, {}, "no")


class Server(Client):
    """Answers as it is told, and remembers what it was asked and when."""

    def __init__(self) -> None:
        self.version = 100
        self.calls: list[tuple[str, float]] = []
        self.lists: Callable[[], Awaitable[None]] = self._at_once
        self.watches: Callable[[int, Callable[[bytes], None]], Awaitable[None]] = self.quiet
        self.opens = True
        self._began_s = anyio.current_time()

    async def _at_once(self) -> None:
        """Lists take no time."""

    async def quiet(self, version: int, on_line: Callable[[bytes], None]) -> None:
        """A watch on which nothing happens; at its end there is a bookmark, unless it is of the future."""
        await anyio.sleep(20)
        if version <= self.version:
            on_line(line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    def note(self, what: str) -> None:
        self.calls.append((what, round(anyio.current_time() - self._began_s, 1)))

    def count(self, what: str) -> int:
        return sum(call == what for call, _ in self.calls)

    async def list_page(
        self, resource: Resource, params: Mapping[str, str], namespace: str | None = None
    ) -> Object:
        self.note("list one" if params.get("limit") == "1" else "list")
        await self.lists()
        return {"metadata": {"resourceVersion": str(self.version)}, "items": []}

    async def watch(
        self,
        resource: Resource,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_s: float,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.note(f"watch {params['resourceVersion']}")
        if self.opens:
            on_open()
        await self.watches(int(params["resourceVersion"]), on_line)
