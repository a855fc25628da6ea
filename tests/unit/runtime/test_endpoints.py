"""The endpoints over real HTTP."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import ClientSession

from controller.runtime.endpoints import Address, Checks, ListenError, Telemetry
from controller.runtime.metrics import Metrics

OFF = "0"
ANY = "127.0.0.1:0"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", Address("", 8080)),
        ("localhost:80", Address("localhost", 80)),
        ("[::1]:80", Address("::1", 80)),
        ("0", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert Address.parse(text) == address
    assert address is None or str(address) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":", "a:b", ":65536", "::1:80", "[::1]", "a b:80", "http://a:80", ":80\n"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="must be an address such as"):
        Address.parse(text)


class Served:
    """A telemetry that runs, and a browser."""

    def __init__(self, telemetry: Telemetry, session: ClientSession) -> None:
        self.telemetry = telemetry
        self._session = session

    async def metrics(self, path: str) -> tuple[int, str]:
        return await self._get(self.telemetry.metrics_port, path)

    async def health(self, path: str) -> tuple[int, str]:
        return await self._get(self.telemetry.health_port, path)

    async def _get(self, port: int | None, path: str) -> tuple[int, str]:
        async with self._session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text()


@asynccontextmanager
async def serving(
    metrics: str = ANY, health: str = ANY, live: Checks | None = None, ready: Checks | None = None
) -> AsyncIterator[Served]:
    telemetry = Telemetry(Metrics(), metrics, health, live or {}, ready or {})
    async with ClientSession() as session, anyio.create_task_group() as tasks:
        await tasks.start(telemetry.run)
        yield Served(telemetry, session)
        tasks.cancel_scope.cancel()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_metrics_over_http() -> None:
    async with serving() as served:
        url = f"http://127.0.0.1:{served.telemetry.metrics_port}/metrics"
        async with ClientSession() as session, session.get(url) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "process_cpu_seconds_total" in await response.text()
        assert (await served.health("/metrics"))[0] == 404
        assert (await served.metrics("/healthz"))[0] == 404


@pytest.mark.anyio
async def test_health_follows_its_checks() -> None:
    wrong: dict[str, str | None] = {"watch": None, "queue": None, "cache": "pods: no list yet"}
    live = {"watch": lambda: wrong["watch"], "queue": lambda: wrong["queue"]}
    ready = {"cache": lambda: wrong["cache"]}
    async with serving(live=live, ready=ready) as served:
        assert await served.health("/healthz") == (200, "ok")
        assert await served.health("/healthz?verbose") == (
            200,
            "[+]watch ok\n[+]queue ok\nhealthz check passed\n",
        )
        assert await served.health("/readyz") == (503, "cache: pods: no list yet"), "F-51"

        wrong |= {"watch": "pods: silent for 90 s", "cache": None}
        assert await served.health("/readyz") == (200, "ok")
        assert await served.health("/healthz") == (500, "watch: pods: silent for 90 s")
        assert await served.health("/healthz?verbose") == (
            500,
            "[-]watch failed: pods: silent for 90 s\n[+]queue ok\nhealthz check failed\n",
        )
        wrong["queue"] = "stuck"
        assert await served.health("/healthz") == (500, "watch: pods: silent for 90 s\nqueue: stuck\n")


@pytest.mark.anyio
async def test_a_check_that_raises_does_not_read_as_healthy() -> None:
    def broken() -> str | None:
        raise RuntimeError("boom")

    async with serving(live={"broken": broken}) as served:
        assert (await served.health("/healthz"))[0] == 500


@pytest.mark.anyio
async def test_each_can_be_off() -> None:
    async with serving(metrics=OFF) as served:
        assert served.telemetry.metrics_port is None
        assert (await served.health("/healthz"))[0] == 200
    async with serving(health=OFF) as served:
        assert served.telemetry.health_port is None
        assert (await served.metrics("/metrics"))[0] == 200
    async with serving(metrics=OFF, health=OFF) as served:
        assert served.telemetry.metrics_port is served.telemetry.health_port is None


@pytest.mark.anyio
async def test_all_interfaces() -> None:
    async with serving(metrics=":0", health=OFF) as served:
        port = served.telemetry.metrics_port
        assert (await served.metrics("/metrics"))[0] == 200
    async with serving(metrics=f":{port}", health=OFF) as served:
        assert served.telemetry.metrics_port == port
        assert (await served.metrics("/metrics"))[0] == 200


@pytest.mark.anyio
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("host", ["[::]", ""])
async def test_all_interfaces_are_those_of_both_ip_families(host: str) -> None:
    """F-55: as in Go, where `[::]:8080` is reached by 127.0.0.1 too, as a kubelet may ask."""
    async with serving(metrics=f"{host}:0", health=OFF) as served:
        port = served.telemetry.metrics_port
        assert (await served.metrics("/metrics"))[0] == 200
        async with ClientSession() as session, session.get(f"http://[::1]:{port}/metrics") as response:
            assert response.status == 200


@pytest.mark.anyio
@pytest.mark.parametrize("purpose", ["metrics", "health"])
async def test_a_port_in_use_is_named(purpose: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        addresses = (address, ANY) if purpose == "metrics" else (ANY, address)
        with pytest.raises(ListenError, match=f"cannot listen on {address} for {purpose}: .*in use"):
            await Telemetry(Metrics(), *addresses, {}, {}).run()


@pytest.mark.anyio
async def test_the_ports_are_free_again_after_the_end() -> None:
    async with serving() as served:
        port = served.telemetry.metrics_port
        await served.metrics("/metrics")
    async with serving(metrics=f"127.0.0.1:{port}") as served:
        assert (await served.metrics("/metrics"))[0] == 200


@pytest.mark.parametrize(
    ("metrics", "health"),
    [(":8080", ":8080"), ("127.0.0.1:80", ":80"), ("[::1]:80", "[::1]:80"), ("0.0.0.0:80", "10.0.0.1:80")],
)
def test_one_address_for_both_is_refused(metrics: str, health: str) -> None:
    with pytest.raises(ValueError, match="need two addresses"):
        Telemetry(Metrics(), metrics, health, {}, {})
