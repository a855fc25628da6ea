"""A proxy between a controller and the API server that misbehaves on request.

The controller speaks plain HTTP to it (`kubeconfig` says so), and it speaks TLS to the server. It runs in a
thread of its own, so that it works the same for code under test in this process and in another. Invariant: it
listens on 127.0.0.1 only, and at the end of its `with` block all ends that it started, hung requests too.
"""

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

HANG_LIMIT_S = 120.0
_NOT_FORWARDED = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers by itself; a metav1.Status unless there is a body."""

    status: int
    body: str | Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delay:
    """Waits before it forwards."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """Forwards, and breaks the connection instead of passing the answer on."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Sends no byte more, neither way, and keeps the connection open; goes on when the rule is removed."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Breaks the connection without forwarding; open watches that match are broken too."""


@dataclass(frozen=True, slots=True)
class CutLine:
    """Ends a watch in the middle of the next line: in good order, or by breaking the connection."""

    in_good_order: bool = False


Action = Answer | Delay | DropAnswer | Hang | Refuse | CutLine


@dataclass(slots=True, eq=False)
class Call:
    """One request that came in; `status` is 0 while, or if, no answer was passed on."""

    time_s: float
    method: str
    path: str
    query: Mapping[str, str]
    token: str
    status: int = 0

    @property
    def watches(self) -> bool:
        return self.query.get("watch") in ("true", "1")

    def __str__(self) -> str:
        return f"{'WATCH' if self.watches else self.method} {self.path} -> {self.status}"


class Rule:
    """An action and the requests that it is for; those that match are counted in the order they came."""

    def __init__(
        self,
        action: Action,
        *,
        method: str = "",
        path: str = "",
        token: str = "",
        skip: int = 0,
        times: int | None = None,
        where: Callable[[Call], bool] = lambda call: True,
    ) -> None:
        """Says which requests it is for; what is left empty matches all.

        Args:
            action: What happens to them.
            method: An HTTP verb, or WATCH; GET means no watches.
            path: A regular expression that matches somewhere in the path.
            token: The bearer token.
            skip: So many requests that match pass untouched first.
            times: And so many then feel the action; None for all.
            where: Any further condition.
        """
        self.action = action
        self._method = method
        self._path = re.compile(path)
        self._token = token
        self._chosen = range(skip, skip + (1 << 30 if times is None else times))
        self._where = where
        self._verdicts: dict[Call, bool] = {}

    @property
    def count(self) -> int:
        """Requests that matched so far, those that were skipped included."""
        return len(self._verdicts)

    def applies(self, call: Call) -> bool:
        if call not in self._verdicts:
            if not self._matches(call):
                return False
            self._verdicts[call] = len(self._verdicts) in self._chosen
        return self._verdicts[call]

    def _matches(self, call: Call) -> bool:
        return (
            self._method in ("", "WATCH" if call.watches else call.method)
            and self._token in ("", call.token)
            and self._path.search(call.path) is not None
            and self._where(call)
        )


class Proxy:
    """The proxy; a context manager that starts and stops it."""

    def __init__(self, upstream_url: str, ca_file: Path, directory: Path) -> None:
        """Prepares it.

        Args:
            upstream_url: Of the API server.
            ca_file: The certificate that vouches for the server.
            directory: Where kubeconfigs are written.
        """
        self._upstream_url = upstream_url
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._directory = directory
        self._kubeconfigs = 0
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: list[Call] = []
        self._open_watches: set[Call] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._changed = asyncio.Event()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, token: str, *, path: Path | None = None, namespace: str = "default") -> Path:
        """Writes a kubeconfig that leads here: a new one, or anew to `path`."""
        if path is None:
            self._kubeconfigs += 1
            path = self._directory / f"proxy-{self._kubeconfigs}.kubeconfig"
        # There is no TLS to verify; saying so spares kr8s the loading of all the world's authorities, 0.1 s.
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        context = {"cluster": "proxy", "user": "user", "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "proxy", "context": context}],
            "current-context": "proxy",
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(content))
        fresh.rename(path)
        return path

    @property
    def calls(self) -> list[Call]:
        """What came in so far."""
        with self._lock:
            return list(self._calls)

    @property
    def open_watches(self) -> list[Call]:
        """Watches that are being passed on now."""
        with self._lock:
            return list(self._open_watches)

    def count(self, method: str, path: str) -> int:
        """Requests so far; arguments as in `Rule`."""
        wanted = Rule(Refuse(), method=method, path=path)
        return sum(wanted.applies(call) for call in self.calls)

    def add(self, rule: Rule) -> Rule:
        """Puts a rule in force; the first one that applies to a request wins."""
        with self._lock:
            self._rules.append(rule)
        self._loop.call_soon_threadsafe(self._wake)
        return rule

    def remove(self, rule: Rule) -> None:
        """Takes a rule out of force, if it is in."""
        with self._lock, suppress(ValueError):
            self._rules.remove(rule)
        self._loop.call_soon_threadsafe(self._wake)

    @contextmanager
    def rule(self, rule: Rule) -> Iterator[Rule]:
        """Has a rule in force for the length of the block."""
        self.add(rule)
        try:
            yield rule
        finally:
            self.remove(rule)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=20)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _start(self) -> None:
        self._upstream = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
        )
        self._server = web.Server(self._serve, handler_cancellation=True, access_log=None)
        # Not 0: aiohttp takes that for no limit at all.
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._upstream.close()
        await asyncio.sleep(0.01)  # what was cancelled ends

    def _action(self, call: Call) -> Action | None:
        with self._lock:
            return next((rule.action for rule in self._rules if rule.applies(call)), None)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        call = Call(time.monotonic(), request.method, request.path, dict(request.query), token)
        with self._lock:
            self._calls.append(call)
        body = await request.read()
        try:
            async with asyncio.timeout(HANG_LIMIT_S):
                while isinstance(action := self._action(call), Hang):
                    await self._changed.wait()
        except TimeoutError:
            action = Refuse()
        match action:
            case Answer():
                call.status = action.status
                return _answer(action)
            case Refuse():
                return _broken(request)
            case Delay():
                await asyncio.sleep(min(action.seconds, HANG_LIMIT_S))
        try:
            return await self._forward(call, request, body)
        except aiohttp.ClientError:
            return _broken(request)

    async def _forward(self, call: Call, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        async with self._upstream.request(
            request.method,
            self._upstream_url + request.raw_path,
            headers=_forwarded(request.headers),
            data=body or None,
            allow_redirects=False,
        ) as answer:
            headers = _forwarded(answer.headers)
            if call.watches and answer.status == 200:
                response = web.StreamResponse(status=answer.status, headers=headers)
                await response.prepare(request)
                call.status = answer.status
                with self._lock:
                    self._open_watches.add(call)
                try:
                    return await self._follow(call, request, answer, response)
                finally:
                    with self._lock:
                        self._open_watches.discard(call)
            content = await answer.read()
            if isinstance(self._action(call), DropAnswer):
                return _broken(request)
            call.status = answer.status
            return web.Response(status=answer.status, headers=headers, body=content)

    async def _follow(
        self,
        call: Call,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        response: web.StreamResponse,
    ) -> web.StreamResponse:
        """Passes a watch on, chunk by chunk, as the rules of each moment say."""
        chunk = asyncio.ensure_future(answer.content.readany())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while True:
                if changed.done():
                    changed = asyncio.ensure_future(self._changed.wait())
                if isinstance(self._action(call), Hang):
                    await asyncio.wait({changed}, timeout=HANG_LIMIT_S)
                else:
                    await asyncio.wait({changed, chunk}, return_when=asyncio.FIRST_COMPLETED)
                action = self._action(call)
                if isinstance(action, Refuse):
                    return _broken(request)
                if isinstance(action, Hang) or not chunk.done():
                    continue
                data = chunk.result()
                if not data:
                    return response
                if isinstance(action, CutLine):
                    await response.write(data[: len(data) // 2].rstrip(b"\n"))
                    return response if action.in_good_order else _broken(request)
                await response.write(data)
                chunk = asyncio.ensure_future(answer.content.readany())
        finally:
            chunk.cancel()
            changed.cancel()


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_FORWARDED}


def _answer(action: Answer) -> web.Response:
    body = action.body
    if body is None:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": action.status}
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json", **action.headers}
    return web.Response(status=action.status, text=text, headers=headers)


def _broken(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()  # goes nowhere
