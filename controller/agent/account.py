"""The API server as the pod's service account reaches it: one request at a time, each with a deadline.

Called by `OwnPod`. The project's own client is left out on purpose: with aiohttp and kr8s it takes 70 MiB,
which would be held on every node for every shared GPU, for two requests. What it knows beyond this (proxies,
kubeconfigs, rate limits, watches) has no use in a pod.

Invariants: token and authority are read anew for each request, as the kubelet replaces them; none of the
token gets into a text.
"""

import base64
import json
import signal
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

Object = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MERGE = "application/merge-patch+json"
# Metadata is all that is looked at; the rest of a pod would only take memory.
_ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class AccountError(Exception):
    """This process is in no pod, or its pod has no service account; the text says what is missing."""


class NoAnswerError(Exception):
    """The API server did not answer, or something else did; the text says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said.

    Attributes:
        status: HTTP status code.
        body: The object, or a metav1.Status.
        retry_after_s: Seconds that it asks to wait; 0 if it does not.
    """

    status: int
    body: Object
    retry_after_s: float

    @property
    def message(self) -> str:
        """The server's own words, of a refusal."""
        return str(self.body.get("message") or f"it answered {self.status}")


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a token says of who has it; empty where it does not say.

    Attributes:
        user: As the API server calls it, `system:serviceaccount:<namespace>:<name>`.
        pod_uid: Of the pod that the kubelet asked for the token for.
    """

    user: str = ""
    pod_uid: str = ""

    @classmethod
    def of(cls, token: str) -> Self:
        """Reads the claims; the API server checks them, here they only tell what it will think."""
        try:
            payload = token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            bound = claims.get("kubernetes.io", {}).get("pod", {})
            return cls(user=str(claims.get("sub", "")), pod_uid=str(bound.get("uid", "")))
        except (IndexError, ValueError, AttributeError):
            return cls()  # a token of another kind


class ApiServer:
    """The way to the API server."""

    def __init__(self, host: str, port: int, account: Path, *, deadline_s: float = 10.0) -> None:
        """Sends nothing yet.

        Args:
            host: Its name or address.
            port: Its port.
            account: The directory with `token` and `ca.crt`.
            deadline_s: Seconds for each request.
        """
        self._host, self._port, self._account = host, port, account
        self._deadline_s = deadline_s

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], account: Path) -> Self:
        """The one whose address the kubelet wrote into the environment.

        Raises:
            AccountError: It is not there.
        """
        host, port = (environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port.isascii() or not port.isdecimal():
            raise AccountError(
                f"KUBERNETES_SERVICE_HOST is {host!r} and KUBERNETES_SERVICE_PORT is {port!r}, but they must "
                "be the address of the API server: this program runs in a pod"
            )
        return cls(host, int(port), account)

    def bearer(self) -> Bearer:
        """Who the API server takes us for.

        Raises:
            AccountError: There is no token.
        """
        return Bearer.of(self._token())

    def send(self, method: str, path: str, body: Object | None = None) -> Answer:
        """Sends one request, in the main thread.

        Args:
            method: GET, or PATCH for a merge patch.
            path: Of the object.
            body: What to send.

        Raises:
            AccountError: The files of the account are not there.
            NoAnswerError: There was no answer within the deadline, or none of an API server.
        """
        headers = {"Accept": _ACCEPT, "Authorization": f"Bearer {self._token()}"}
        if body is not None:
            headers["Content-Type"] = _MERGE
        content = None if body is None else json.dumps(body).encode()
        connection = HTTPSConnection(self._host, self._port, timeout=self._deadline_s, context=self._trust())
        try:
            with _deadline(self._deadline_s):
                connection.request(method, path, content, headers)
                return _answer(connection.getresponse())
        except (OSError, HTTPException) as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _token(self) -> str:
        token = self._read("token").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise AccountError(f"{self._account / 'token'} holds no token")
        return token

    def _trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # As in Go: who is trusted need be no root, it may be an authority that another one signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=self._read("ca.crt"))
        except ssl.SSLError as error:
            raise AccountError(f"{self._account / 'ca.crt'} holds no certificate: {error}") from error
        return context

    def _read(self, name: str) -> str:
        path = self._account / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise AccountError(
                f"{path} cannot be read ({error.strerror}): the pod needs its service account's token; check "
                "automountServiceAccountToken of the service account"
            ) from error


def _answer(response: HTTPResponse) -> Answer:
    try:
        body = json.loads(response.read())
    except ValueError as error:
        raise NoAnswerError(f"what answers is no API server (status {response.status})") from error
    if not isinstance(body, dict):
        raise NoAnswerError(f"what answers is no API server (status {response.status})")
    wait = response.headers.get("Retry-After", "")
    return Answer(response.status, body, float(wait) if wait.isascii() and wait.isdecimal() else 0.0)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Ends the block when the time is over; a socket's own time-out begins anew at each byte.

    Raises:
        TimeoutError: It was.
    """

    def over(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"no answer within {seconds:g} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
