"""What kr8s sends through: aiohttp, at a quarter of the CPU that kr8s' own httpx takes for a request.

kr8s asks little of its session: `request`, `stream`, `is_closed` and `aclose`. Called by `client.py` only.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

_KEEP_ALIVE_S = 60.0


class CertificateError(Exception):
    """The server's certificate is not one that we trust.

    Not an `ssl.SSLError`: on those kr8s would make a session of its own.
    """


class Response:
    """An answer; its body is there at once, or read by `chunks` if it is a stream.

    Attributes:
        status_code: HTTP status.
        headers: Of the answer; names in any case.
        content: The body, empty for a stream until `aread`.
    """

    __slots__ = ("_answer", "content", "headers", "status_code")

    def __init__(self, answer: aiohttp.ClientResponse, content: bytes) -> None:
        self.status_code = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.content = content
        self._answer = answer

    @property
    def is_error(self) -> bool:
        """Whether the status says that something is wrong."""
        return self.status_code >= 400

    async def aread(self) -> bytes:
        """The whole body."""
        if not self.content:
            self.content = await self._answer.read()
        return self.content

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        return aiter(self._answer.content.iter_any())


class Session:
    """Connections to one server with one TLS context.

    Attributes:
        token: The bearer token of the next requests, or None.
        is_closed: As kr8s asks.
    """

    def __init__(self, server: str, context: ssl.SSLContext | bool, proxy: str | None) -> None:
        """Opens no connection yet.

        Args:
            server: URL, perhaps with a path.
            context: For https; True for the system's trust.
            proxy: URL of the proxy that the kubeconfig names; None: as the environment says.
        """
        self.token: str | None = None
        self.is_closed = False
        self._server = server.rstrip("/")
        self._proxy = proxy or _proxy_of_environment(self._server)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "kai-binder", "Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None),  # each request has a deadline of its own
        )

    async def aclose(self) -> None:
        """Closes the connections; requests under way break."""
        self.is_closed = True
        await self._http.close()

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
        sent = self._send(method, url, params, content, headers, extensions)
        try:
            async with sent as answer:
                return Response(answer, await answer.read())
        except aiohttp.ClientConnectorCertificateError as error:
            raise CertificateError(str(error)) from error

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
        try:
            async with self._send(method, url, params, None, None, extensions) as answer:
                yield Response(answer, b"")
        except aiohttp.ClientConnectorCertificateError as error:
            raise CertificateError(str(error)) from error

    def _send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        content: bytes | None,
        headers: Mapping[str, str] | None,
        extensions: Mapping[str, str] | None,
    ) -> "aiohttp.client._RequestContextManager":
        sent = dict(headers or {})
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        separator = "&" if "?" in url else "?"
        return self._http.request(
            method,
            URL(f"{self._server}{url}{separator}{urlencode(params)}", encoded=True),
            data=content,
            headers=sent,
            proxy=self._proxy,
            server_hostname=(extensions or {}).get("sni_hostname"),
        )


def _proxy_of_environment(server: str) -> str | None:
    parts = urlsplit(server)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)
