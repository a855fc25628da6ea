"""The door of every request: kr8s' `Api.call_api`, with a session of ours under it (`session.py`).

Called by `sending.py`. With `credentials.py` the only module that knows kr8s. Requests for objects, which are
nearly all, go by the session at once: what kr8s puts around one takes a tenth of its CPU, and all that it
would add is put in here (docs/performance.md). The door keeps itself in
repair: new credentials go into use without breaking what is under way, a renewed token is read when its file
changes, and connections that were open while one of them fell silent are not used again.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import anyio
import kr8s
from loguru import logger

from controller.runtime.calls import Call, Resource
from controller.runtime.credentials import Credentials, CredentialsError, Login
from controller.runtime.session import Response, Session

_RELOGIN_INTERVAL_S = 1.0
_READYZ = Call("GET", Resource("", ""), path="/readyz")
_BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_ROLES = ("rbac/bootstrap-roles", "informer-sync")
"""Checks of a server's readiness without which it may not know its roles."""


class WrongSessionError(RuntimeError):
    """kr8s sent a request by a session of its own: this version of it is not one that we know."""


class Door:
    """The way to one API server with one source of credentials."""

    def __init__(self, credentials: Credentials, login: Login) -> None:
        """Opens no connection yet.

        Args:
            credentials: Where new ones are loaded.
            login: The first ones.
        """
        self._credentials = credentials
        self._login = login
        self._lock = anyio.Lock()
        self._last_login_s = float("-inf")
        self._retired: list[Session] = []
        self._token = login.token
        self._session = _session(login)
        self._session.token = login.token
        login.api._session = self._session  # type: ignore[assignment]

    @classmethod
    async def make(cls, kubeconfig: str, limit_s: float, context: str = "") -> "Door":
        """Loads the credentials, within `limit_s` seconds; `kubeconfig` and `context` as in `Credentials`.

        Raises:
            CredentialsError: No usable ones were found.
        """
        credentials = Credentials(kubeconfig, context=context)
        with anyio.move_on_after(limit_s):
            return cls(credentials, await credentials.load())
        raise CredentialsError(f"the credentials were not there within {limit_s:g} s")

    @property
    def host(self) -> str:
        """The server's address, as in the kubeconfig, without the scheme and what is secret."""
        return self._login.server.partition("://")[2].rpartition("@")[2]

    @property
    def namespace(self) -> str:
        """The namespace that the context of the kubeconfig, or the pod's account, is in."""
        return self._login.namespace

    @property
    def proxy(self) -> str | None:
        """Host and port of the proxy before the server, if there is one; never its password."""
        return urlsplit(self._session.proxy).netloc.rpartition("@")[2] if self._session.proxy else None

    async def aclose(self) -> None:
        """Closes the connections. Requests under way break."""
        for session in (*self._retired, self._session):
            await session.aclose()

    async def send(self, call: Call, told_s: float) -> Response:
        """Sends a request and reads the whole answer, whatever its status.

        Args:
            call: The request.
            told_s: Seconds after which the server is to drop it.
        """
        if not call.path:
            return await self._send(call, told_s)
        async with self._open(call, {**call.params, "timeout": f"{told_s:.3g}s"}) as response:
            if not isinstance(response, Response):
                raise WrongSessionError(
                    f"kr8s {kr8s.__version__} does not send by the session that it was given"
                )
            return response

    def stream(self, call: Call) -> AbstractAsyncContextManager[Response]:
        """Sends a request whose answer is read as it comes, for as long as the block lasts."""
        return self._open(call, call.params, stream=True)

    async def ready(self, told_s: float) -> bool:
        """Whether the server knows its roles; one that just started does not, and forbids everything.

        Other checks of its readiness, and those of a proxy before it, say nothing about that.
        """
        answer = await self.send(_READYZ, told_s)
        if answer.status_code < 500:
            return True
        failed = [
            line for line in answer.content.decode(errors="replace").splitlines() if line.startswith("[-]")
        ]
        return bool(failed) and not any(name in line for line in failed for name in _ROLES)

    async def log_in(self, *, since_s: float) -> None:
        """Loads the credentials again, unless that was done since `since_s` or a moment ago."""
        async with self._lock:
            if self._last_login_s > min(since_s, monotonic() - _RELOGIN_INTERVAL_S):
                return
            logger.info("The API server no longer accepts the credentials: loading them again")
            try:
                login = await self._credentials.load()
                same = _way(login) == _way(self._login)
                session = self._session if same else _session(login)
                self._token = login.token
                await self._use(login, session)
            except CredentialsError as error:
                logger.bind(error=str(error)).error("The credentials could not be loaded")
            finally:
                self._last_login_s = monotonic()

    async def distrust(self, since_s: float) -> None:
        """Uses no connection again that was open at `since_s`, when one of them was silent already."""
        if self._session.made_s <= since_s:
            await self._use(self._login, _session(self._login))

    async def _send(self, call: Call, told_s: float) -> Response:
        self._renew_token()
        headers = {"content-type": call.content_type} if call.content is not None else {}
        if call.is_brief:
            headers["Accept"] = _BRIEF
        query = f"timeout={told_s:.3g}s"
        if call.params:
            query = f"{urlencode(call.params)}&{query}"
        sni = self._login.api.auth.tls_server_name
        return await self._session.send(
            call.method,
            f"{call.location}?{query}",
            call.content,
            headers,
            sni,
            is_page="limit" in call.params,
        )

    def _renew_token(self) -> None:
        token_file = self._login.token_file
        if token_file is not None and (token := token_file.changed()):
            self._token = self._session.token = token

    def _open(
        self,
        call: Call,
        params: Mapping[str, str],
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[Response]:
        self._renew_token()
        arguments: dict[str, Any] = {}
        if call.content is not None:
            arguments = {"content": call.content, "headers": {"content-type": call.content_type}}
        opened: Any = self._login.api.call_api(
            method=call.method,
            version=call.resource.version,
            # kr8s always adds a slash, which some paths do not allow: it goes into an empty query.
            base=f"{call.path}?" if call.path else "",
            namespace=call.namespace and quote(call.namespace, safe=""),
            url=call.url,
            raise_for_status=False,
            stream=stream,
            params=params,
            **arguments,
        )
        return opened  # type: ignore[no-any-return]

    async def _use(self, login: Login, session: Session) -> None:
        """Sends by these from now on; an old session is closed once nothing is under way on it."""
        old, self._login, self._session = self._session, login, session
        session.token = self._token
        login.api._session = session  # type: ignore[assignment]
        if old is not session:
            self._retired = [known for known in (*self._retired, old) if not known.is_closed]
            await old.retire()


def _session(login: Login) -> Session:
    return Session(login.server, login.tls, login.proxy)


def _way(login: Login) -> tuple[object, ...]:
    """What connections are made of; a token is not, it travels with each request."""
    return (login.server, login.proxy, login.certificate, login.api.auth.tls_server_name)
