"""The webhook as a process, and callers who wear it out: it stays within the memory of its manifest."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import anyio
import yaml

from tests.certificates import Mount
from tests.cluster import ROOT
from tests.polling import eventually
from tests.webhook import Keys, Webhook

ENDED = (OSError, RuntimeError)
"""What a caller hears whose connection ends; asyncio has the second if that comes within the handshake."""
TRIES = 5
"""Of a caller who does as he should: while the others come in, room is made for them, too."""
CALLERS = 150
"""Of each kind; together more than are let in."""
HEAD = b"POST /mutate--v1-pod HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
LONG_HEAD = HEAD + b"".join(b"x%d: %s\r\n" % (number, b"1" * 4000) for number in range(28))
STALLED = HEAD + b"Content-Length: 600000\r\n\r\n" + b"x" * 599_999
"""All but the last byte; some fifty of them use up what bodies may take together."""
REVIEW = HEAD + b"Content-Length: 1\r\n\r\nx"


async def send(port: int, context: ssl.SSLContext, data: bytes) -> None:
    """Sends this, and stays; a server that does not want it may end it."""
    with suppress(*ENDED):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(data)
        await anyio.sleep_forever()


async def is_answered(port: int, context: ssl.SSLContext) -> bool:
    """Whether a caller who does as he should gets an answer; he may have to come again."""
    with suppress(*ENDED), anyio.move_on_after(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(REVIEW)
        line = await reader.readline()
        writer.close()
        return line.startswith(b"HTTP/1.1 400")
    return False


def peak_mib(pid: int) -> int:
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) // 1024


async def wear_out(webhook: Webhook, context: ssl.SSLContext) -> None:
    """Has it called by all of these, and meanwhile by one who does as he should."""
    async with anyio.create_task_group() as tasks:
        for data in (LONG_HEAD, STALLED):
            for _ in range(CALLERS):
                tasks.start_soon(send, webhook.port, context, data)
        await anyio.sleep(4)
        tries = [await is_answered(webhook.port, context) for _ in range(TRIES)]
        assert any(tries), "it answers others meanwhile"
        await eventually(lambda: webhook.answers("healthz") == 200, within_s=30)
        tasks.cancel_scope.cancel()


def test_callers_who_are_slow_and_send_much_leave_it_within_its_memory(tmp_path: Path) -> None:
    deployment = yaml.safe_load((ROOT / "config/admission/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    mount = Mount(tmp_path / "tls")
    mount.put(Keys.make(tmp_path / "keys").pair)
    flags = ("--binder-metrics-url=",)
    webhook = Webhook(Path("/no/such/file"), tmp_path / "log", flags, {}, mount=mount).start()
    try:
        # By itself: asyncio's side of a TLS connection that ends in the middle may raise where nobody can
        # catch it, which the runner of asynchronous tests takes for a failure of the test.
        asyncio.run(wear_out(webhook, context))
        assert peak_mib(webhook.pid) < int(limit.removesuffix("Mi")) * 3 // 4
        assert webhook.stop() == 0
    finally:
        webhook.kill()
