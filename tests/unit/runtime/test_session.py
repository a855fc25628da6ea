"""The sockets under the session, what it says of itself, and that it goes nowhere else."""

import asyncio
import os
import re
import socket
import sys

import pytest

from controller.runtime.session import Session, _agent, _socket


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the user time-out")
def test_an_end_that_vanished_is_noticed() -> None:
    """F-44: a dead connection ate two renewals of the lease."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with _socket((family, socket.SOCK_STREAM, 0)) as made:
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


def test_an_audit_log_tells_one_process_from_the_next() -> None:
    found = re.fullmatch(r"kai-binder/[0-9.]+ \((.+); pid (\d+)\)", _agent())
    assert found is not None
    assert found.groups() == (socket.gethostname(), str(os.getpid()))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(method: str, status: int) -> None:
    """A POST went on as a GET, and its answer counted as that to the POST."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
        head = f"HTTP/1.1 {status} Go\r\nLocation: /login\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        session = Session(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", True, None)
        found = await session.send(method, "/api", None, {}, None)
        async with session.stream(method=method, url="/watch", params={"watch": "true"}) as stream:
            assert stream.status_code == status
        await session.aclose()
    assert found.status_code == status
    assert asked == [f"{method} /api HTTP/1.1", f"{method} /watch?watch=true HTTP/1.1"]
