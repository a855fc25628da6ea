"""Metrics by their Go names, and the endpoints over real HTTP."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import ClientSession
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from controller.runtime.endpoints import Address, Checks, ListenError, Telemetry
from controller.runtime.metrics import Metrics

OFF = "0"
ANY = "127.0.0.1:0"


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, /, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_a_controller_counts_by_its_label() -> None:
    metrics = Metrics()
    pods, others = metrics.controller("pod", 10), metrics.controller("other", 2)
    pods.reconciled("success", 0.12)
    pods.reconciled("error", 3)
    pods.error()
    pods.error(terminal=True)
    pods.panic()
    pods.active(1)
    pods.active(1)
    pods.active(-1)
    others.reconciled("requeue", 0.001)

    prefix = "controller_runtime_"
    assert value(metrics, f"{prefix}reconcile_total", controller="pod", result="success") == 1
    assert value(metrics, f"{prefix}reconcile_total", controller="pod", result="requeue_after") == 0
    assert value(metrics, f"{prefix}reconcile_total", controller="other", result="requeue") == 1
    assert value(metrics, f"{prefix}reconcile_errors_total", controller="pod") == 2
    assert value(metrics, f"{prefix}terminal_reconcile_errors_total", controller="pod") == 1
    assert value(metrics, f"{prefix}reconcile_panics_total", controller="pod") == 1
    assert value(metrics, f"{prefix}reconcile_time_seconds_count", controller="pod") == 2
    assert value(metrics, f"{prefix}reconcile_time_seconds_sum", controller="pod") == pytest.approx(3.12)
    assert value(metrics, f"{prefix}reconcile_time_seconds_bucket", controller="pod", le="0.15") == 1
    assert value(metrics, f"{prefix}max_concurrent_reconciles", controller="pod") == 10
    assert value(metrics, f"{prefix}active_workers", controller="pod") == 1
    assert value(metrics, f"{prefix}active_workers", controller="other") == 0


def test_an_unknown_result_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        Metrics().controller("pod", 1).reconciled("odd", 1)


def test_a_queue_counts_by_its_labels() -> None:
    metrics = Metrics()
    queue = metrics.queue("pod")
    queue.added()
    queue.added()
    queue.depth(2)
    queue.waited(0.5)
    queue.worked(0.25)
    queue.retried()

    labels = {"name": "pod", "controller": "pod"}
    assert value(metrics, "workqueue_depth", **labels, priority="") == 2
    assert value(metrics, "workqueue_adds_total", **labels) == 2
    assert value(metrics, "workqueue_queue_duration_seconds_sum", **labels) == 0.5
    assert value(metrics, "workqueue_work_duration_seconds_sum", **labels) == 0.25
    assert value(metrics, "workqueue_retries_total", **labels) == 1
    assert value(metrics, "workqueue_unfinished_work_seconds", **labels) == 0
    bounds = [
        float(dict(key)["le"])
        for name, key in samples(metrics)
        if name == "workqueue_work_duration_seconds_bucket"
    ]
    assert sorted(bounds)[:2] == [1e-8, 1e-7]


def test_work_under_way_is_computed_when_it_is_read() -> None:
    metrics = Metrics()
    now = [(0.0, 0.0)]
    metrics.queue("pod").track(lambda: now[0])
    now[0] = (7.5, 5.0)
    assert value(metrics, "workqueue_unfinished_work_seconds", name="pod", controller="pod") == 7.5
    assert value(metrics, "workqueue_longest_running_processor_seconds", name="pod", controller="pod") == 5


def test_requests_and_leadership() -> None:
    metrics = Metrics()
    metrics.request("GET", "200", "10.0.0.1:443")
    metrics.request("GET", "200", "10.0.0.1:443")
    metrics.request("POST", "409", "10.0.0.1:443")
    metrics.leader("2ad35f9c", True)
    requests = "rest_client_requests_total"
    assert value(metrics, requests, method="GET", code="200", host="10.0.0.1:443") == 2
    assert value(metrics, requests, method="POST", code="409", host="10.0.0.1:443") == 1
    assert value(metrics, "leader_election_master_status", name="2ad35f9c") == 1
    metrics.leader("2ad35f9c", False)
    assert value(metrics, "leader_election_master_status", name="2ad35f9c") == 0


def test_names_are_those_of_controller_runtime_and_no_others() -> None:
    metrics = Metrics()
    text = metrics.render().decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    # The parser takes the _total off the names of counters.
    assert {name for name in families if not name.startswith("process_")} == {
        "controller_runtime_reconcile",
        "controller_runtime_reconcile_errors",
        "controller_runtime_terminal_reconcile_errors",
        "controller_runtime_reconcile_panics",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_max_concurrent_reconciles",
        "controller_runtime_active_workers",
        "workqueue_depth",
        "workqueue_adds",
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "workqueue_retries",
        "rest_client_requests",
        "leader_election_master_status",
    }
    assert "process_resident_memory_bytes" in families


def test_no_created_series_and_no_global_registry() -> None:
    before = {family.name for family in REGISTRY.collect()}
    first, second = Metrics(), Metrics()
    for metrics in (first, second):
        metrics.controller("pod", 1).reconciled("success", 1)
        metrics.queue("pod").added()
        assert b"_created" not in metrics.render()
    assert {family.name for family in REGISTRY.collect()} == before


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
        assert await served.health("/readyz") == (500, "cache: pods: no list yet")

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
