"""The one door to the API server, and the only module that knows kr8s.

Dictionaries go in and come out. Every request has a deadline, which the server is told as well, so that a
write that we gave up on is not carried out afterwards. kr8s loads the credentials and is the way out; its
session is ours (`session.py`), since httpx costs four times as much CPU.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import httpx
import kr8s
import kr8s.asyncio
import orjson
from loguru import logger

from controller.runtime import errors
from controller.runtime.ratelimit import TokenBucket
from controller.runtime.session import CertificateError, Response, Session

Object = dict[str, Any]
"""A Kubernetes object as the API server writes it. What comes from a cache is read-only."""

_BROKEN = (httpx.HTTPError, kr8s.APITimeoutError, aiohttp.ClientError, CertificateError)
"""How the ways to the server break: the first request of kr8s goes by httpx, all others by aiohttp."""
_RELOGIN_INTERVAL_S = 1.0
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, as the API server's paths name it.

    Attributes:
        version: Group and version, e.g. `v1` or `coordination.k8s.io/v1`.
        plural: E.g. `pods`.
        namespaced: Whether its objects live in namespaces.
    """

    version: str
    plural: str
    namespaced: bool = True


class Patch(StrEnum):
    """How a patch is to be applied."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How to reach the API server and how hard to press it.

    Attributes:
        kubeconfig: Path; empty means KUBECONFIG, the pod's service account, or ~/.kube/config, in this order.
        qps: Requests a second, on average; not positive means no limit.
        burst: Requests that may go out at once.
        deadline_s: Seconds after which a request has failed.
        observe: Called for each answer with method, HTTP status (`<error>` if there was none) and host.
    """

    kubeconfig: str = ""
    qps: float = 50.0
    burst: int = 300
    deadline_s: float = 30.0
    observe: Callable[[str, str, str], None] | None = None


class CredentialsError(ValueError):
    """There are no credentials, or they cannot be read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list.

    Attributes:
        items: What was kept of its objects.
        version: The resourceVersion to watch from.
    """

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, ready to be sent."""

    method: str
    resource: Resource
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    path: str = ""

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def url(self) -> str:
        parts = (self.resource.plural, quote(self.name, safe=""), self.subresource)
        return "/".join(part for part in parts if part)

    def __str__(self) -> str:
        if self.path:
            return f"{self.method} {self.path}"
        kind = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        target = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.method} {kind} {target}".rstrip()


class Client:
    """Requests to one API server with one set of credentials.

    All methods raise `errors.ApiError`: a subclass of `StatusError` if the server said no, `NoAnswerError`
    if it did not answer within the deadline.
    """

    def __init__(self, api: kr8s.asyncio.Api, options: ClientOptions) -> None:
        self._api = api
        self._options = options
        self._bucket = TokenBucket(options.qps, options.burst)
        self._login_lock = anyio.Lock()
        self._last_login_s = float("-inf")
        self._sessions: list[Session] = []
        self._certificate: tuple[bytes, ...] | None = None
        self._host = str(api.auth.server).partition("://")[2]
        self._may_write: Callable[[], bool] | None = None

    @classmethod
    async def connect(cls, options: ClientOptions) -> "Client":
        """Loads the credentials and says hello to the server, until it answers.

        Raises:
            CredentialsError: No usable credentials were found, or the kubeconfig is broken.
        """
        if options.kubeconfig and not await anyio.Path(options.kubeconfig).is_file():
            raise CredentialsError(f"kubeconfig {options.kubeconfig} does not exist")
        delay_s = 0.5
        while True:
            try:
                with anyio.fail_after(options.deadline_s), warnings.catch_warnings():
                    # kr8s warns of each Kubernetes that is newer than itself; what we use is stable API.
                    warnings.simplefilter("ignore")
                    # Not kr8s.asyncio.api: clients of one kubeconfig would share, and break, a session.
                    api = await kr8s.asyncio.Api(kubeconfig=options.kubeconfig or None, bypass_factory=True)
                break
            except (*_BROKEN, kr8s.ServerError, TimeoutError) as error:
                logger.bind(error=_sentence(error)).warning("The API server cannot be used yet")
                await anyio.sleep(delay_s)
                delay_s = min(delay_s * 2, 10.0)
            except Exception as error:
                # kr8s trips over a broken file in many ways: TypeError, IndexError, errors of YAML, ...
                raise CredentialsError(f"the credentials cannot be loaded: {_sentence(error)}") from error
        client = cls(api, options)
        await client._use_credentials()
        return client

    async def close(self) -> None:
        """Closes the connections. Requests under way break."""
        for session in self._sessions:
            await session.aclose()

    @property
    def host(self) -> str:
        """The server's address, as in the kubeconfig, without the scheme."""
        return self._host

    def fence(self, may_write: Callable[[], bool]) -> None:
        """From now on asks `may_write` before each write; on False the write is refused, unsent."""
        self._may_write = may_write

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str = "",
        urgent: bool = False,
    ) -> Object:
        """Reads one object, live; `urgent` as in `update`."""
        return await self._request(_Call("GET", resource, namespace, name, subresource), urgent=urgent)

    async def list_page(self, resource: Resource, params: Mapping[str, str]) -> Object:
        """Reads one page of a list over all namespaces; `params` are the API's own query parameters."""
        return await self._request(_Call("GET", resource, params=params))

    async def list_all(
        self,
        resource: Resource,
        params: Mapping[str, str] | None = None,
        *,
        keep: Callable[[Object], Object | None] = lambda item: item,
        page_size: int = 500,
        on_page: Callable[[], None] = lambda: None,
    ) -> "Listed":
        """Lists a kind over all namespaces, page by page.

        Args:
            resource: The kind.
            params: The API's own query parameters, such as `labelSelector`.
            keep: What is to be kept of each object, or None; so that a page can be forgotten once it is read.
            page_size: Objects in one answer.
            on_page: Called for each page.
        """
        while True:
            wanted = {**(params or {}), "limit": str(page_size)}
            kept: list[Object] = []
            try:
                while True:
                    page = await self.list_page(resource, wanted)
                    on_page()
                    kept += (found for item in page.get("items") or () if (found := keep(item)) is not None)
                    token = page["metadata"].get("continue")
                    if not token:
                        return Listed(kept, page["metadata"]["resourceVersion"])
                    wanted["continue"] = token
            except errors.GoneError:
                if "continue" not in wanted:
                    raise  # else the rest of this list is compacted away: only a new one helps

    async def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        name: str = "",
        subresource: str = "",
        urgent: bool = False,
    ) -> Object:
        """Creates an object, or with `name` and `subresource` posts to that, e.g. `binding`.

        Args:
            resource: The kind.
            body: The object.
            namespace: Its namespace.
            name: Only with `subresource`: the object that it belongs to.
            subresource: Where to post to.
            urgent: As in `update`.
        """
        call = _Call("POST", resource, namespace, name, subresource, content=orjson.dumps(body))
        return await self._request(call, urgent=urgent)

    async def update(
        self, resource: Resource, body: Object, namespace: str | None = None, *, urgent: bool = False
    ) -> Object:
        """Replaces an object; the resourceVersion in `body` must still be the server's.

        Args:
            resource: The kind.
            body: The whole object.
            namespace: Its namespace.
            urgent: Ahead of the rate limit, and even without the lease: only for the lease itself.
        """
        call = _Call("PUT", resource, namespace, body["metadata"]["name"], content=orjson.dumps(body))
        return await self._request(call, urgent=urgent)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        namespace: str | None = None,
        *,
        subresource: str = "",
        how: Patch = Patch.MERGE,
    ) -> Object:
        """Changes part of an object and returns the whole."""
        call = _Call(
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            content=orjson.dumps(body),
            content_type=how.value,
        )
        return await self._request(call)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str,
        grace_period_s: int | None = None,
    ) -> None:
        """Deletes the object with this uid; another one under the same name stays (409)."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        await self._request(_Call("DELETE", resource, namespace, name, content=orjson.dumps(body)))

    async def raw(self, path: str) -> Object:
        """Reads a path that belongs to no kind, e.g. `/version`."""
        return await self._request(_Call("GET", Resource("", ""), path=path))

    async def watch(
        self,
        resource: Resource,
        params: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        idle_s: float,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        """Follows a watch until the server ends it.

        Args:
            resource: The kind.
            params: Query parameters; `watch` is added.
            on_line: Gets each whole line; a line cut short by the end of the stream is dropped.
            idle_s: Seconds without a byte after which the stream counts as dead.
            on_open: Called once the server has granted it.

        Raises:
            errors.NoAnswerError: The stream broke, or was silent for `idle_s`.
            errors.StatusError: The server refused the watch.
        """
        call = _Call("GET", resource, params={**params, "watch": "true"})
        async with AsyncExitStack() as stack:
            response = await self._answer(call, stack, stream=True)
            on_open()
            rest = b""
            chunks = response.chunks()
            while True:
                try:
                    with anyio.fail_after(idle_s):
                        chunk = await anext(chunks, None)
                except (*_BROKEN, TimeoutError) as error:
                    raise errors.NoAnswerError(str(call), _sentence(error)) from error
                if chunk is None:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    on_line(line)

    async def _request(self, call: _Call, *, urgent: bool = False) -> Object:
        wait_s = 0.0 if urgent else self._bucket.reserve()
        if wait_s > 0:
            await anyio.sleep(wait_s)
        async with AsyncExitStack() as stack:
            response = await self._answer(call, stack, urgent=urgent)
            try:
                answer: Object = orjson.loads(response.content)
            except orjson.JSONDecodeError as error:
                raise errors.NoAnswerError(str(call), f"the answer is no JSON: {error}") from error
            return answer

    async def _answer(
        self, call: _Call, stack: AsyncExitStack, *, stream: bool = False, urgent: bool = False
    ) -> Response:
        """Sends until there is an answer: once more after a new login, again when told to wait."""
        refused: errors.StatusError | None = None
        trusted_anew = False
        try:
            with anyio.fail_after(self._options.deadline_s):
                while True:
                    if call.writes and not urgent and self._may_write is not None and not self._may_write():
                        text = "this process does not hold the leader's lease"
                        raise errors.FencedError(str(call), text)
                    sent_s = anyio.current_time()
                    try:
                        response = await stack.enter_async_context(self._send(call, stream=stream))
                    except CertificateError:
                        if trusted_anew:
                            raise
                        trusted_anew = True  # the authority may have been changed, and its file with it
                        await self._log_in(since_s=sent_s)
                        continue
                    self._observe(call.method, str(response.status_code))
                    if response.status_code < 400:
                        return response
                    previous, refused = refused, await _error(call, response)
                    match refused:
                        case errors.UnauthorizedError() if previous is None:
                            await self._log_in(since_s=sent_s)
                        case errors.TooManyRequestsError():
                            await anyio.sleep(refused.retry_after_s or _RETRY_AFTER_S)
                        case errors.ForbiddenError() if not await self._ready():
                            # While it starts, the server knows no roles yet and forbids everything.
                            raise errors.NoAnswerError(str(call), f"not ready yet: {refused.message}")
                        case _:
                            raise refused
        except TimeoutError as error:
            if isinstance(refused, errors.TooManyRequestsError):
                raise refused from error
            self._observe(call.method, "<error>")
            text = f"no answer within {self._options.deadline_s:g} s"
            raise errors.NoAnswerError(str(call), text) from error
        except _BROKEN as error:
            self._observe(call.method, "<error>")
            raise errors.NoAnswerError(str(call), _sentence(error)) from error

    def _send(self, call: _Call, *, stream: bool) -> AbstractAsyncContextManager[Response]:
        arguments: dict[str, Any] = {"params": dict(call.params)}
        if not stream:
            # Told to the server too, so that it drops a write which we have given up.
            arguments["params"]["timeout"] = f"{max(1, int(self._options.deadline_s) - 1)}s"
        if call.content is not None:
            arguments["content"] = call.content
            arguments["headers"] = {"content-type": call.content_type}
        sent: Any = self._api.call_api(
            method=call.method,
            version=call.resource.version,
            # kr8s always adds a slash, which some paths do not allow: it goes into an empty query.
            base=f"{call.path}?" if call.path else "",
            namespace=call.namespace,
            url=call.url,
            raise_for_status=False,
            stream=stream,
            **arguments,
        )
        opened: AbstractAsyncContextManager[Response] = sent
        return opened

    async def _ready(self) -> bool:
        """Whether the server says of itself that it is ready; asked only when it forbids something."""
        try:
            async with self._send(_Call("GET", Resource("", ""), path="/readyz"), stream=False) as response:
                return response.status_code == 200
        except _BROKEN:
            return False

    async def _log_in(self, *, since_s: float) -> None:
        """Loads the credentials again, unless that was done since `since_s` or a moment ago."""
        async with self._login_lock:
            if self._last_login_s > min(since_s, anyio.current_time() - _RELOGIN_INTERVAL_S):
                return
            logger.info("The API server no longer accepts the credentials: loading them again")
            try:
                await self._api.auth.reauthenticate()
                await self._use_credentials()
            except Exception as error:  # noqa: BLE001 -- kr8s trips over a broken file in many ways
                logger.bind(error=_sentence(error)).error("The credentials could not be loaded")
            finally:
                self._last_login_s = anyio.current_time()

    async def _use_credentials(self) -> None:
        """Puts the loaded credentials to use without breaking a request that is under way.

        A new token goes into the session's headers. Only a new client certificate needs a new session; the
        old one keeps serving its streams and is closed at the end.
        """
        auth = self._api.auth
        files = [auth.client_cert_file, auth.client_key_file, auth.server_ca_file]
        certificate = tuple([await anyio.Path(file).read_bytes() for file in files if file])
        if certificate != self._certificate:
            self._certificate = certificate
            context = await auth.ssl_context()  # type: ignore[no-untyped-call]
            session = Session(str(auth.server), context, auth.proxy)
            previous = self._api._session
            self._api._session = session  # type: ignore[assignment]
            if not self._sessions and previous is not None:
                await previous.aclose()
            self._sessions.append(session)
        if auth.token:
            self._sessions[-1].token = auth.token

    def _observe(self, method: str, code: str) -> None:
        if self._options.observe is not None:
            self._options.observe(method, code, self.host)


async def _error(call: _Call, response: Response) -> errors.StatusError:
    """Reads an answer of 400 or more."""
    text = (await response.aread()).decode(errors="replace")
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        body = None
    header = response.headers.get("retry-after", "")
    return errors.from_status(
        str(call),
        response.status_code,
        body if isinstance(body, dict) else {},
        text,
        float(header) if header.isdecimal() else None,
    )


def _sentence(error: BaseException) -> str:
    # kr8s and httpx call much a time-out that is none; aiohttp, beneath, says what it was.
    while isinstance(error, kr8s.APITimeoutError | httpx.TransportError) and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".removesuffix(": ")
