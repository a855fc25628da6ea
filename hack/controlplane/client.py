"""A small client of the API server for tests and tools: JSON in, JSON out, with a token.

Called by ``ControlPlane``. It is no model for a controller: one connection per request, and it blocks.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from controlplane.process import ControlPlaneError

REQUEST_TIMEOUT_S = 30.0
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
        self._url = url
        self._token = token
        context = ssl.create_default_context(cafile=str(ca_file))
        # No proxy: the environment may name one, and this host's own loopback is not behind it.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

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
        """Sends bytes and returns those of the answer.

        Raises:
            RequestError: The API server answered with an error.
            OSError: It cannot be reached.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise RequestError(method, path, error.code, parsed(text)) from None

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
