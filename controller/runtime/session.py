"""What kr8s sends through: aiohttp, at a quarter of the CPU that kr8s' own httpx takes for a request.

kr8s asks little of its session: `request`, `stream`, `is_closed` and `aclose`. Made by `door.py` only.
"""

import base64
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import monotonic
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import anyio
from yarl import URL

from controller.runtime.kubeconfig import CredentialsError
from controller.runtime.proxies import proxy_for

_KEEP_ALIVE_S = 60.0
_UNACKNOWLEDGED_S = 5.0
_TLS_BUFFER = 32 * 1024
MOST_OF_A_PAGE = 8 * 1024 * 1024
"""Bytes. Objects are anybody's: 500 of them, the usual page, may have 750 MB, and none is dropped by a list.
500 pods as they usually are have 4 MB."""
_NO_LIMIT = aiohttp.ClientTimeout(total=None)


def _agent() -> str:
    """Who sends, in the audit log: one process can be told from the next. Field managers end at the slash."""
    return f"kai-binder/{version('kai-binder')} ({socket.gethostname()}; pid {os.getpid()})"


class CertificateError(Exception):
    """The server's certificate is not one that we trust.

    Not an `ssl.SSLError`: on those kr8s would make a session of its own.
    """


class OversizedError(Exception):
    """A page of a list is larger than `MOST_OF_A_PAGE`."""


class Response:
    """An answer; its body is there at once, or read by `chunks` if it is a stream.

    Attributes:
        status_code: HTTP status.
        headers: Of the answer; names in any case.
        content: The body, empty for a stream until `aread`.
    """

    __slots__ = ("_answer", "_is_read", "content", "headers", "status_code")

    def __init__(self, answer: aiohttp.ClientResponse, content: bytes | None) -> None:
        self.status_code = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.content = content or b""
        self._is_read = content is not None
        self._answer = answer

    @property
    def is_error(self) -> bool:
        """Whether the status says that something is wrong."""
        return self.status_code >= 400

    async def aread(self) -> bytes:
        """The whole body."""
        if not self._is_read:  # an empty body is one, too: there is nothing more to be had
            self.content, self._is_read = await self._answer.read(), True
        return self.content

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        return aiter(self._answer.content.iter_any())


class Session:
    """Connections to one server with one TLS context.

    Attributes:
        token: The bearer token of the next requests, or None.
        is_closed: As kr8s asks.
        proxy: URL of the proxy that it goes by, without user and password, or None.
        made_s: When it was made, by the monotonic clock.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | bool, proxy: str | None) -> None:
        """Opens no connection yet.

        Args:
            server: URL, perhaps with a path.
            tls: For https; True for the system's trust.
            proxy: URL of the proxy that the kubeconfig names; None: as the environment says.

        Raises:
            CredentialsError: The proxy is of a kind that we cannot speak to, or its URL is none.
        """
        self.token: str | None = None
        self.is_closed = False
        self.made_s = monotonic()
        self._server = server.rstrip("/")
        found = proxy or proxy_for(self._server, os.environ)
        if found is not None and urlsplit(found).scheme not in ("http", "https"):
            raise CredentialsError(f"a proxy is reached by http or https, not by {urlsplit(found).scheme}")
        # Apart from the URL, which aiohttp quotes in its errors.
        self.proxy: str | None = None
        self._proxy_login: dict[str, str] = {}
        if found is not None:
            self.proxy, self._proxy_login = _without_login(found)
        self._under_way = 0
        self._retired = False
        self._http = aiohttp.ClientSession(
            connector=_Connector(ssl=tls, limit=0, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": _agent(), "Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=_NO_LIMIT,  # each request has a deadline of its own
        )
        # aiohttp would send a PUT or DELETE again, unasked, when an old connection turns out to be closed.
        self._http._retry_connection = False

    async def aclose(self) -> None:
        """Closes the connections; requests under way break."""
        self.is_closed = True
        await self._http.close()

    async def retire(self) -> None:
        """Closes it once nothing is under way any more; kr8s must not send by it from here on."""
        self._retired = True
        await self._close_if_done()

    async def request(
        self,
        *,
        method: str,
        url: str,
        params: Mapping[str, str],
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        extensions: Mapping[str, str] | None = None,
    ) -> Response:
        """Sends a request and reads the answer; the names are httpx's."""
        return await self.send(method, _with(params, url), content, headers or {}, _sni(extensions))

    async def send(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str],
        sni: str | None,
        *,
        is_page: bool = False,
    ) -> Response:
        """Sends a request and reads the answer.

        Args:
            method: The HTTP verb.
            url: Path and query, encoded.
            content: The body.
            headers: Beside those of all requests, or instead of them.
            sni: The name that the server's certificate is to be for, if not that of the URL.
            is_page: Whether a page of a list is asked for, which may be had in smaller parts.

        Raises:
            CertificateError: It is for another one, or nobody whom we trust says so.
            OversizedError: A page is too large.
        """
        self._under_way += 1
        try:
            async with self._send(method, url, content, headers, sni) as answer:
                return Response(answer, await (_page(answer) if is_page else answer.read()))
        except aiohttp.ClientConnectorCertificateError as error:
            raise CertificateError(str(error)) from error
        finally:
            self._under_way -= 1
            if self._retired:
                await self._close_if_done()

    @asynccontextmanager
    async def stream(
        self,
        *,
        method: str,
        url: str,
        params: Mapping[str, str],
        extensions: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """Sends a request whose answer is read as it comes."""
        self._under_way += 1
        try:
            async with self._send(method, _with(params, url), None, {}, _sni(extensions)) as answer:
                yield Response(answer, None)
        except aiohttp.ClientConnectorCertificateError as error:
            raise CertificateError(str(error)) from error
        finally:
            self._under_way -= 1
            if self._retired:
                await self._close_if_done()

    async def _close_if_done(self) -> None:
        if not self._under_way and not self.is_closed:
            with anyio.CancelScope(shield=True):  # nothing to wait for: what is idle is cut off
                await self.aclose()

    def _send(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str],
        sni: str | None,
    ) -> "aiohttp.client._RequestContextManager":
        sent = dict(headers)
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        tunnels = self._server.startswith("https:")
        if not tunnels:
            sent |= self._proxy_login
        return self._http.request(
            method,
            URL(f"{self._server}{url}", encoded=True),
            data=content,
            headers=sent,
            allow_redirects=False,  # a POST would go on as a GET, and the answer to that count as its own
            proxy=self.proxy,
            proxy_headers=self._proxy_login if tunnels else None,
            server_hostname=sni,
        )


def _with(params: Mapping[str, str], url: str) -> str:
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}{urlencode(params)}"


def _sni(extensions: Mapping[str, str] | None) -> str | None:
    """The name that the server's certificate is to be for, as httpx is told."""
    return (extensions or {}).get("sni_hostname")


async def _page(answer: aiohttp.ClientResponse) -> bytes:
    """Reads a page of a list; what is too large is not read to its end, and its connection is closed."""
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MOST_OF_A_PAGE:
            raise OversizedError(f"a page of a list is larger than {MOST_OF_A_PAGE} bytes")
    return b"".join(parts)


def _without_login(proxy: str) -> tuple[str, dict[str, str]]:
    """The URL of a proxy, and as headers the user and password that stood in it."""
    try:
        url = URL(proxy)
        bare = str(url.with_user(None))
    except ValueError:
        raise CredentialsError("the URL of the proxy cannot be understood") from None
    if url.user is None:
        return bare, {}
    login = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return bare, {"Proxy-Authorization": f"Basic {login}"}


class _Connector(aiohttp.TCPConnector):
    """Connections that hold a TLS buffer of 32 KiB instead of 256: a watch costs a quarter of the memory."""

    async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- aiohttp's own
        protocol = await super()._create_connection(*args, **kwargs)
        tls: Any = getattr(protocol.transport, "_ssl_protocol", None)
        if hasattr(tls, "_ssl_buffer_view"):
            tls.max_size = _TLS_BUFFER
            tls._ssl_buffer = bytearray(_TLS_BUFFER)
            tls._ssl_buffer_view = memoryview(tls._ssl_buffer)
        return protocol


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket on which an end that vanished without a word is noticed."""
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_UNACKNOWLEDGED_S * 1000))
    return made
