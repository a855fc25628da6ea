"""The test equipment's client keeps its connection, and makes a new one when the server has closed it."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from controlplane.client import Client, RequestError
from controlplane.pki import write_keys


class Server:
    """Answers with the number of the connection; /close ends it without a word, /missing is not there.

    Attributes:
        codes: What it answers with first.
    """

    def __init__(self, folder: Path) -> None:
        self.keys = write_keys(folder)
        self.connections = 0
        self.codes: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_GET(self) -> None:
                body = b'{"connection": %d}' % outer.connections
                code = outer.codes.pop(0) if outer.codes else 404 if self.path == "/missing" else 200
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = self.path == "/close"

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.keys.certificate, self.keys.key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.client = Client(f"https://127.0.0.1:{self._http.server_port}", self.keys.ca, "token")
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.stop()


def test_a_connection_is_used_again(server: Server) -> None:
    answers = [server.client.request("GET", "/") for _ in range(3)]
    assert answers == [{"connection": 1}] * 3


def test_an_error_leaves_the_connection_usable(server: Server) -> None:
    with pytest.raises(RequestError) as caught:
        server.client.request("GET", "/missing")
    assert caught.value.status == 404
    assert server.client.request("GET", "/") == {"connection": 1}


def test_it_waits_when_told_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.client.RETRY_S", 0.0)
    server.codes = [429, 429]
    assert server.client.request("GET", "/") == {"connection": 1}
    assert server.codes == []


def test_a_connection_that_was_closed_is_replaced(server: Server) -> None:
    server.client.request("GET", "/close")
    assert server.client.request("GET", "/") == {"connection": 2}


def test_each_thread_has_its_own(server: Server) -> None:
    server.client.request("GET", "/")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(server.client.request("GET", "/")))
    thread.start()
    thread.join(10)
    assert found == [{"connection": 2}]


def test_a_server_that_is_gone_is_an_error(server: Server, tmp_path: Path) -> None:
    server.client.request("GET", "/close")
    server.stop()
    with pytest.raises(OSError, match="GET /"):
        server.client.request("GET", "/")
