"""Requests of the agent to servers that misbehave in the ways that no real API server can be made to."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from controlplane.pki import Keys, write_keys

from controller.agent.account import ApiServer, NoAnswerError
from tests.authority import issued


@dataclass(slots=True)
class Server:
    """A TLS server on 127.0.0.1 that answers each connection with these bytes, or never.

    Attributes:
        answer: None keeps silent once the request has come.
        asked: The heads of the requests that came.
    """

    port: int
    keys: Keys
    answer: bytes | None
    trickle_s: float
    asked: list[str]


Serve = Callable[..., Server]


def read_request(connection: socket.socket) -> str:
    """A whole request: a connection that is closed with a body unread is reset, and its answer lost."""
    text = connection.recv(65536).decode()
    length = re.search(r"^Content-Length: (\d+)\r$", text, re.MULTILINE)
    while length is not None and len(text.partition("\r\n\r\n")[2]) < int(length[1]):
        text += connection.recv(65536).decode()
    return text


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return write_keys(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def serve(keys: Keys) -> Iterator[Serve]:
    """Starts servers that end with the test."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listeners: list[socket.socket] = []
    over = threading.Event()
    threads: list[threading.Thread] = []

    def attend(listener: socket.socket, server: Server) -> None:
        while not over.is_set():
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            plain.settimeout(10)
            try:
                with context.wrap_socket(plain, server_side=True) as connection:
                    server.asked.append(read_request(connection))
                    if server.answer is None:
                        over.wait(10)
                    elif not server.trickle_s:
                        connection.sendall(server.answer)
                    else:
                        for byte in server.answer:
                            connection.sendall(bytes([byte]))
                            if over.wait(server.trickle_s):
                                break
            except OSError:
                continue

    def start(answer: bytes | None, *, trickle_s: float = 0.0, shown: Path | None = None) -> Server:
        if shown is None:
            context.load_cert_chain(keys.certificate, keys.key)
        else:
            context.load_cert_chain(shown)
        listener = socket.create_server(("127.0.0.1", 0))
        server = Server(listener.getsockname()[1], keys, answer, trickle_s, [])
        listeners.append(listener)
        threads.append(threading.Thread(target=attend, args=(listener, server), daemon=True))
        threads[-1].start()
        return server

    yield start
    over.set()
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


@pytest.fixture
def account(tmp_path: Path, keys: Keys) -> Path:
    (tmp_path / "token").write_text("a-token\n")
    (tmp_path / "ca.crt").write_bytes(keys.ca.read_bytes())
    return tmp_path


def http(status: str, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", *headers, "", body]
    return "\r\n".join(lines).encode()


def refusal(server: Server, account: Path, *, deadline_s: float = 10.0) -> str:
    with pytest.raises(NoAnswerError) as raised:
        ApiServer("127.0.0.1", server.port, account, deadline_s=deadline_s).send("GET", "/x")
    return str(raised.value)


def test_an_authority_that_another_one_signed(serve: Serve, account: Path, tmp_path: Path) -> None:
    """Go trusts what it is told to trust; OpenSSL wanted to see a root: the server could not be reached."""
    pair = issued(account / "ca.crt")
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    server = serve(http("200 OK", "{}"), shown=tmp_path / "server.pem")
    assert ApiServer("127.0.0.1", server.port, account).send("GET", "/x").status == 200


def test_a_request_and_its_answer(serve: Serve, account: Path) -> None:
    server = serve(http("200 OK", '{"metadata": {}}'))
    answer = ApiServer("127.0.0.1", server.port, account).send("GET", "/x")
    assert (answer.status, answer.body, answer.retry_after_s) == (200, {"metadata": {}}, 0.0)
    (head,) = server.asked
    assert head.startswith("GET /x HTTP/1.1\r\n")
    assert "Authorization: Bearer a-token\r\n" in head
    assert "as=PartialObjectMetadata" in head


def test_a_patch(serve: Serve, account: Path) -> None:
    server = serve(http("200 OK", "{}"))
    ApiServer("127.0.0.1", server.port, account).send("PATCH", "/x", {"a": 1})
    assert "Content-Type: application/merge-patch+json\r\n" in server.asked[0]


def test_the_token_is_read_for_each_request(serve: Serve, account: Path) -> None:
    server = serve(http("200 OK", "{}"))
    api = ApiServer("127.0.0.1", server.port, account)
    api.send("GET", "/x")
    (account / "token").write_text("a-new-token")
    api.send("GET", "/x")
    assert "Bearer a-new-token\r\n" in server.asked[1]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("", 0.0), ("-1", 0.0), ("soon", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("1.5", 0.0)],
)
def test_the_wish_of_a_server(serve: Serve, account: Path, header: str, seconds: float) -> None:
    server = serve(http("429 Too Many Requests", "{}", f"Retry-After: {header}"))
    answer = ApiServer("127.0.0.1", server.port, account).send("GET", "/x")
    assert (answer.status, answer.retry_after_s) == (429, seconds)
    assert answer.message == "it answered 429"


@pytest.mark.parametrize(
    "answer",
    [
        http("200 OK", "<html>"),
        http("502 Bad Gateway", ""),
        http("200 OK", "[]"),
        http("200 OK", "{")[:-1],
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"",
    ],
    ids=["a page", "nothing", "a list", "cut short", "another protocol", "shorter than said", "closed"],
)
def test_what_is_no_answer(serve: Serve, account: Path, answer: bytes) -> None:
    assert refusal(serve(answer), account)


@pytest.mark.parametrize(("answer", "trickle_s"), [(None, 0.0), (http("200 OK", "{}" + " " * 500), 0.05)])
def test_a_deadline_holds_for_the_whole(
    serve: Serve, account: Path, answer: bytes | None, trickle_s: float
) -> None:
    server = serve(answer, trickle_s=trickle_s)
    assert refusal(server, account, deadline_s=0.4) == "no answer within 0.4 s"


def test_nobody_there(account: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoAnswerError, match="refused"):
        ApiServer("127.0.0.1", port, account).send("GET", "/x")


def test_a_server_that_others_vouch_for(serve: Serve, account: Path, tmp_path: Path) -> None:
    stranger = write_keys(tmp_path / "other")
    (account / "ca.crt").write_bytes(stranger.ca.read_bytes())
    server = serve(http("200 OK", "{}"))
    assert "certificate verify failed" in refusal(server, account)
    assert server.asked == [], "no token is sent to it"
