"""A pipe to a server whose connections can fall silent without a word, as when a NAT entry is lost."""

import asyncio
from types import TracebackType
from typing import Self


class Pipe:
    """Listens on 127.0.0.1 and passes bytes on, both ways; an async context manager."""

    def __init__(self, port: int) -> None:
        """Opens nothing yet; `port` is the server's, on this machine."""
        self._upstream_port = port
        self._open: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open, and pass bytes on."""
        return len(self._open)

    def fall_silent(self) -> None:
        """No connection that is open now carries another byte, and none is closed; new ones work."""
        for flowing in self._open:
            flowing.clear()
        self._open = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        flowing = asyncio.Event()
        flowing.set()
        self._open.add(flowing)
        ways = (self._pass(reader, upstream_writer, flowing), self._pass(upstream_reader, writer, flowing))
        tasks = [asyncio.create_task(way) for way in ways]
        self._tasks |= set(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._open.discard(flowing)
        for end in (writer, upstream_writer):
            end.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        while True:
            data = await reader.read(65536)
            await flowing.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()
