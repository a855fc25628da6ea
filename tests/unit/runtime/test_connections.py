"""What callers may have of a server, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from aiohttp import ClientSession, web
from anyio.abc import SocketStream

from controller.runtime.connections import Limits
from controller.runtime.endpoints import Address, listening
from tests.polling import eventually

pytestmark = pytest.mark.anyio
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"
LONG = Limits(connections=3, head_s=60, idle_s=60)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """Answers at once, or at /slow when the gate opens."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.begun = 0
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.begun += 1
        if request.path == "/slow":
            await self.gate.wait()
        return web.Response(text="answered")

    @asynccontextmanager
    async def serving(self, limits: Limits) -> AsyncIterator["Site"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        address = Address("127.0.0.1", 0)
        async with listening("a test", address, app, end_s=0.1, limits=limits) as self.port:
            yield self

    async def call(self) -> SocketStream:
        return await anyio.connect_tcp("127.0.0.1", self.port)

    async def works(self) -> bool:
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/") as response:
            return response.status == 200


async def is_closed(stream: SocketStream) -> bool:
    """Reads on until the other side has closed it."""
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["nothing", "half a head"])
async def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async with Site().serving(Limits(head_s=0.2)) as site, await site.call() as stream:
        if sent:
            await stream.send(sent)
        with anyio.fail_after(5):
            assert await is_closed(stream)
        assert site.begun == 0


async def test_an_idle_connection_is_kept_for_a_while_and_a_later_head_is_not_waited_for() -> None:
    async with Site().serving(Limits(head_s=0.2, idle_s=60)) as site, await site.call() as stream:
        for _ in range(2):
            await stream.send(HEAD + b"\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await anyio.sleep(0.5)  # longer than a head may take
        await stream.send(HEAD)
        with anyio.fail_after(5):
            assert await is_closed(stream)
        assert site.begun == 2
    async with Site().serving(Limits(head_s=0.2, idle_s=0.3)) as site, await site.call() as stream:
        await stream.send(HEAD + b"\r\n")
        with anyio.fail_after(5):
            assert await is_closed(stream), "but not for ever"


async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with Site().serving(Limits(head_s=0.2, idle_s=0.2)) as site, await site.call() as stream:
        await stream.send(HEAD.replace(b"/ ", b"/slow ") + b"\r\n")
        await anyio.sleep(0.6)
        site.gate.set()
        assert (await stream.receive()).startswith(b"HTTP/1.1 200")


async def test_who_asks_nothing_makes_room() -> None:
    async with Site().serving(LONG) as site, AsyncExitStack() as stack:
        used = await stack.enter_async_context(await site.call())
        await used.send(HEAD + b"\r\n")
        assert (await used.receive()).startswith(b"HTTP/1.1 200")
        first, second = [await stack.enter_async_context(await site.call()) for _ in range(2)]
        with anyio.fail_after(5):
            assert await site.works()
            assert await is_closed(first), "that has waited for the longest time"
            await used.send(HEAD + b"\r\n")
            assert (await used.receive()).startswith(b"HTTP/1.1 200"), "who has asked before is kept"
            assert await site.works()
        with anyio.move_on_after(0.2) as waited:
            await is_closed(second)
        assert waited.cancelled_caught


async def test_who_is_answered_is_never_closed_for_others() -> None:
    async with Site().serving(LONG) as site, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(await site.call()) for _ in range(3)]
        for stream in busy:
            await stream.send(HEAD.replace(b"/ ", b"/slow ") + b"\r\n")
        await eventually(lambda: site.begun == 3)
        with anyio.fail_after(5):
            assert await is_closed(await stack.enter_async_context(await site.call()))
        site.gate.set()
        for stream in busy:
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        assert await site.works()


async def test_nobody_asks_again_before_there_is_an_answer() -> None:
    async with Site().serving(LONG) as site, await site.call() as stream:
        await stream.send(HEAD.replace(b"/ ", b"/slow ") + b"\r\n")
        await eventually(lambda: site.begun == 1)
        await stream.send(HEAD + b"\r\n")
        with anyio.fail_after(5):
            assert await is_closed(stream)
        assert await site.works()


async def test_a_head_has_its_size() -> None:
    many = b"".join(b"x%d: 1\r\n" % number for number in range(40))
    long = b"x: " + b"1" * 5000 + b"\r\n"
    async with Site().serving(LONG) as site:
        for lines in (many, long):
            async with await site.call() as stream:
                await stream.send(HEAD + lines + b"\r\n")
                assert b" 400 " in await stream.receive()
        assert site.begun == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\x1b[31m: b\r\n\r\n",
    ],
    ids=range(5),
)
async def test_a_flood_of_what_is_no_http_is_one_record_without_a_trace(
    sent: bytes, logs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with Site().serving(Limits()) as site:
        for _ in range(30):
            async with await site.call() as stream:
                await stream.send(sent)
                with anyio.fail_after(5):
                    assert await is_closed(stream)
        assert await site.works()
        assert site.begun == 1
    assert [record.getMessage() for record in caplog.records] == []
    assert len(logs) <= 1, "the first is said, unless it is a client that speaks TLS"
    assert all("A request is no HTTP" in line and "unsaid" in line for line in logs)
