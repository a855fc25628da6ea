"""A small client of the API server for tests and tools: JSON in, JSON out, with a token.

Called by ``ControlPlane``. It is no model for a controller: it blocks. Each thread keeps one connection:
tests ask often, and a new connection with TLS costs both sides more than a request.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controlplane.process import ControlPlaneError

REQUEST_TIMEOUT_S = 30.0
RETRY_S = 0.2
JSON = "application/json"


class RequestError(ControlPlaneError):
    """The API server answered with an error.

    Attributes:
        status: The HTTP status code.
        body: The answer: the parsed ``Status`` object, or the text where it is no JSON.
    """

    def __init__(self, method: str, path: str, status: int, body: dict[str, Any] | str) -> None:
        message = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{method} {path}: {status}: {message}")
        self.status = status
        self.body = body


class Client:
    """Sends requests to one API server.

    Args:
        url: Its address.
        ca_file: The certificate of its authority.
        token: Whose requests these are.
    """

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._address = urlsplit(url).netloc
        self._token = token
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._of_thread = threading.local()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """Sends JSON and returns the parsed answer, see ``ControlPlane.request``."""
        data = None if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads(self.send(method, path, data, content_type) or b"{}")
        return answer

    def send(self, method: str, path: str, data: bytes | None = None, content_type: str = JSON) -> bytes:
        """Sends bytes and returns those of the answer; sends again while told to wait (429).

        The server says so of custom resources for a moment after its start.

        Raises:
            RequestError: The API server answered with an error.
            OSError: It cannot be reached.
        """
        deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                return self._send(method, path, data, content_type)
            except RequestError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline_s:
                    raise
                time.sleep(RETRY_S)

    def _send(self, method: str, path: str, data: bytes | None, content_type: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        kept = getattr(self._of_thread, "connection", None)
        while True:
            connection = kept or self._connect()
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._of_thread.connection = None
                if kept is None or isinstance(error, TimeoutError):
                    raise ConnectionError(f"{method} {path}: {error!r}") from error
                kept = None  # the server may have closed it, or may be another one by now
                continue
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise RequestError(method, path, answer.status, parsed(body.decode(errors="replace")))
            return body

    def _connect(self) -> http.client.HTTPSConnection:
        """A new connection for this thread. No proxy, whatever the environment says: this is our own host."""
        connection = http.client.HTTPSConnection(
            self._address, timeout=REQUEST_TIMEOUT_S, context=self._context
        )
        self._of_thread.connection = connection
        return connection

    def exists(self, path: str) -> bool:
        """Tells whether there is an object at a path."""
        try:
            self.send("GET", path)
        except RequestError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def is_ready(self) -> bool:
        """Tells whether the API server says that it is ready."""
        try:
            self.send("GET", "/readyz")
        except (OSError, RequestError):
            return False
        return True


def answers(url: str) -> bool:
    """Tells whether something without TLS answers a GET with success."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=1):
            return True
    except OSError:
        return False


def parsed(text: str) -> dict[str, Any] | str:
    """Parses a JSON object; any other text stays as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
