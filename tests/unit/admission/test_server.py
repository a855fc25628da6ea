"""The webhook's server over real TLS, with a certificate in files."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from aiohttp import ClientConnectorError, ClientSession, TCPConnector
from controlplane.process import free_ports
from loguru import logger

from controller import webhook
from controller.admission.bodies import BUDGET, FREE, MAX_BODY
from controller.admission.certificate import Issued, issue
from controller.admission.measures import Measures
from controller.admission.review import BadReview
from controller.admission.server import Patience, Server
from controller.admission.tls import Certificate, files
from controller.planning import plan
from controller.runtime.endpoints import Address, ListenError
from controller.runtime.metrics import ProcessMetrics
from controller.settings import AdmissionSettings, load_as
from tests.certificates import Mount
from tests.polling import eventually

pytestmark = pytest.mark.anyio
ALLOWED = b'{"response":{"uid":"u","allowed":true}}'
REFUSED = b'{"response":{"uid":"u","allowed":false,"status":{"message":"no"}}}'
JSON = {"Content-Type": "application/json"}
HURRY = Patience(drain=0.2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def made(now: datetime | None = None) -> Issued:
    return issue(["localhost"], now or datetime.now(UTC))


def answer(body: bytes) -> bytes:
    """Does as the body says."""
    match body:
        case b"bad":
            raise BadReview("this is no review")
        case b"fault":
            raise KeyError("a fault")
        case b"refuse":
            return REFUSED
        case _:
            return ALLOWED


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Served:
    """A server, its certificate and its callers."""

    def __init__(
        self, folder: Path, patience: Patience = HURRY, answer: Callable[[bytes], bytes] = answer
    ) -> None:
        self.mount = Mount(folder)
        self.metrics = ProcessMetrics()
        measures = Measures(self.metrics.registry)
        source = files(self.mount.certificate, self.mount.key)
        self.certificate = Certificate(source, observe=measures.certificate, poll_s=0.02)
        answers = {"/mutate": answer, "/validate": answer}
        self.server = Server(Address("127.0.0.1", 0), answers, self.certificate, measures, patience)
        self.stop = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Served"]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.server.run, self.stop)
            yield self
            self.stop.set()

    async def serving(self, issued: Issued) -> None:
        """Shows a certificate, and waits until the server answers."""
        self.mount.put(issued.pair)
        await eventually(lambda: self.server.ready() is None)

    def url(self, path: str = "/mutate") -> str:
        return f"https://localhost:{self.server.port}{path}"

    def count(self, result: str, path: str = "/mutate") -> float | None:
        labels = {"path": path, "result": result}
        return self.metrics.registry.get_sample_value("kai_binder_admission_requests_total", labels)


def caller(issued: Issued, **options: object) -> ClientSession:
    """Somebody who trusts this certificate."""
    context = ssl.create_default_context(cadata=issued.authorities.decode())
    return ClientSession(connector=TCPConnector(ssl=context, **options), headers=JSON)  # type: ignore[arg-type]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path).running() as running:
        yield running


async def test_reviews_are_answered_and_counted(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session:
        for body, expected in ((b"allow", ALLOWED), (b"refuse", REFUSED)):
            async with session.post(served.url(), data=body) as response:
                assert (response.status, await response.read()) == (200, expected)
                assert response.content_type == "application/json"
    assert (served.count("allowed"), served.count("refused"), served.count("bad")) == (1, 1, None)


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "words"),
    [
        ("POST", "/mutate/", b"x", "application/json", 404, "/mutate, /validate"),
        ("POST", "/", b"x", "application/json", 404, "there is no / here"),
        ("GET", "/mutate", None, "application/json", 405, "reviews come by POST"),
        ("PUT", "/validate", b"x", "application/json", 405, "PUT is not allowed"),
        ("POST", "/mutate", b"x", "text/plain", 415, "not text/plain"),
        ("POST", "/mutate", b"bad", "application/json", 400, "this is no review"),
        ("POST", "/mutate", b"x" * (MAX_BODY + 1), "application/json", 413, str(MAX_BODY)),
        ("POST", "/mutate", b"[]," * 110_000, "application/json", 413, "more than 100000 objects and lists"),
        ("POST", "/mutate", b"1," * 410_000, "application/json", 413, "400000 commas"),
    ],
    ids=["slash", "root", "get", "put", "text", "bad", "large", "lists", "numbers"],
)
async def test_what_is_no_review_is_refused_in_words(
    served: Served, method: str, path: str, body: bytes | None, kind: str, status: int, words: str
) -> None:
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session:
        request = session.request(method, served.url(path), data=body, headers={"Content-Type": kind})
        async with request as response:
            text = await response.text()
            assert (response.status, words in text) == (status, True), text
        async with session.post(served.url(), data=b"allow") as response:
            assert response.status == 200
    assert served.count("bad", path if path in ("/mutate", "/validate") else "other") == 1


async def test_a_compressed_body_is_refused(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session:
        request = session.post(served.url(), data=b"allow", headers={"Content-Encoding": "gzip"})
        async with request as response:
            assert (response.status, "Content-Encoding" in await response.text()) == (415, True)


async def test_large_bodies_share_a_budget_and_small_ones_need_none(served: Served) -> None:
    """Those who hold it are slow; who comes for more is told so at once, and is served once they are gone."""
    issued = made()
    await served.serving(issued)
    gate, started = anyio.Event(), 0
    holders = -(-BUDGET // (MAX_BODY - 1 - FREE))

    async def held() -> AsyncIterator[bytes]:
        nonlocal started
        yield b"x" * (MAX_BODY - 1)
        started += 1
        await gate.wait()

    async def hold(session: ClientSession) -> None:
        async with session.post(served.url(), data=held()) as response:
            assert response.status in (200, 503)

    async with caller(issued, limit=0) as session:
        async with anyio.create_task_group() as tasks:
            for _ in range(holders):
                tasks.start_soon(hold, session)
            await eventually(lambda: started == holders and served.count("bad") == 1)
            async with session.post(served.url(), data=b"x" * MAX_BODY) as response:
                assert (response.status, "under way" in await response.text()) == (503, True)
            async with session.post(served.url(), data=b"x" * FREE) as response:
                assert response.status == 200
            gate.set()
        async with session.post(served.url(), data=b"x" * MAX_BODY) as response:
            assert response.status == 200, "all of the budget is free again"


async def test_a_large_review_holds_up_no_small_one(tmp_path: Path) -> None:
    issued, gate = made(), threading.Event()

    def slow(body: bytes) -> bytes:
        if len(body) > FREE:
            assert gate.wait(10)
        return ALLOWED

    async with Served(tmp_path, answer=slow).running() as served:
        await served.serving(issued)
        async with caller(issued) as session, anyio.create_task_group() as tasks:
            statuses: list[int] = []

            async def call(data: bytes) -> None:
                async with session.post(served.url(), data=data) as response:
                    statuses.append(response.status)

            tasks.start_soon(call, b"x" * (FREE + 1))
            for _ in range(5):
                await call(b"x")
            assert statuses == [200] * 5
            gate.set()
        assert statuses == [200] * 6


async def test_as_much_as_is_allowed_is_read(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session, session.post(served.url(), data=b"x" * MAX_BODY) as response:
        assert response.status == 200


async def test_a_fault_of_ours_is_an_answer_and_in_the_log(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    async with caller(issued) as session, session.post(served.url(), data=b"fault") as response:
        assert response.status == 500
        assert "the webhook's" in await response.text()
    logger.remove(sink)
    assert served.count("failed") == 1
    assert "KeyError: 'a fault'" in "".join(lines)


async def test_a_flood_of_what_is_no_review_is_logged_seldom(served: Served, logs: list[str]) -> None:
    """Anybody in the cluster can send it."""
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session:
        for _ in range(40):
            async with session.post(served.url(), data=b"bad") as response:
                assert response.status == 400
    assert sum("A request is no review" in line for line in logs) == 10
    assert served.count("bad") == 40


async def test_fifty_at_a_time_beside_one_that_is_slow(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    gate = anyio.Event()

    async def dribble() -> AsyncIterator[bytes]:
        yield b"a"
        await gate.wait()
        yield b"llow"

    statuses: list[int] = []

    async def call(session: ClientSession, data: object) -> None:
        async with session.post(served.url(), data=data) as response:
            statuses.append(response.status)

    async with caller(issued, limit=0) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(call, session, dribble())
        async with anyio.create_task_group() as others:
            for _ in range(50):
                others.start_soon(call, session, b"allow")
        assert statuses == [200] * 50, "the slow one may be late by then, but holds nobody"
        gate.set()
    assert len(statuses) == 51


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    issued = made()

    async def never() -> AsyncIterator[bytes]:
        yield b"a"
        await anyio.sleep_forever()

    async with Served(tmp_path, Patience(body=0.3, drain=0.2)).running() as served:
        await served.serving(issued)
        async with caller(issued) as session, session.post(served.url(), data=never()) as response:
            assert response.status == 408
            assert "within 0.3 s" in await response.text()


async def test_a_caller_that_leaves_harms_nobody(served: Served) -> None:
    issued = made()
    await served.serving(issued)
    context = ssl.create_default_context(cadata=issued.authorities.decode())
    port = served.server.port
    assert port is not None
    stream = await anyio.connect_tcp("localhost", port, ssl_context=context, tls_standard_compatible=False)
    head = (
        b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nx"
    )
    await stream.send(head)
    await stream.aclose()
    await eventually(lambda: served.count("bad") == 1)
    async with caller(issued) as session, session.post(served.url(), data=b"allow") as response:
        assert response.status == 200


async def test_a_certificate_is_swapped_while_it_serves(served: Served) -> None:
    first, second = made(), made()
    await served.serving(first)
    async with caller(first) as old:
        async with old.post(served.url(), data=b"allow") as response:
            assert response.status == 200
        served.mount.put(second.pair)
        await eventually(lambda: served.certificate.shown.pair == second.pair)
        async with caller(second) as new, new.post(served.url(), data=b"allow") as response:
            assert response.status == 200
        async with old.post(served.url(), data=b"allow") as response:
            assert response.status == 200, "a connection that is open stays"
    async with caller(first) as late:
        with pytest.raises(ClientConnectorError):
            await late.post(served.url(), data=b"allow")


async def test_without_a_certificate_it_waits_and_says_so(served: Served) -> None:
    await eventually(lambda: "cannot be read" in str(served.server.ready()))
    assert served.server.port is None
    assert str(served.mount.certificate) in str(served.server.ready())
    issued = made()
    await served.serving(issued)
    async with caller(issued) as session, session.post(served.url(), data=b"allow") as response:
        assert response.status == 200


async def test_an_expired_certificate_is_shown_and_in_the_metrics(served: Served) -> None:
    issued = made(datetime.now(UTC) - timedelta(days=400))
    await served.serving(issued)
    ends = served.metrics.registry.get_sample_value("kai_binder_admission_certificate_not_after_seconds")
    assert ends is not None
    assert datetime.fromtimestamp(ends, UTC) < datetime.now(UTC) - timedelta(days=30)
    async with caller(issued) as session:
        with pytest.raises(ClientConnectorError, match="expired"):
            await session.post(served.url(), data=b"allow")


async def test_it_ends_in_order(tmp_path: Path) -> None:
    issued = made()
    async with caller(issued) as session:
        async with Served(tmp_path).running() as served:
            await served.serving(issued)
            served.stop.set()
            await eventually(lambda: served.server.ready() == "the webhook is about to end")
            async with session.post(served.url(), data=b"allow") as response:
                assert response.status == 200, "until the API server knows of its end"
                assert response.headers["Connection"] == "close"
        with pytest.raises(ClientConnectorError):
            await session.post(served.url(), data=b"allow")


async def test_it_ends_without_a_certificate_too(tmp_path: Path) -> None:
    with anyio.fail_after(10):
        async with Served(tmp_path).running():
            pass


async def test_an_address_in_use_is_named(tmp_path: Path, served: Served) -> None:
    await served.serving(made())
    other = Served(tmp_path / "other")
    other.mount.put(made().pair)
    address = Address("127.0.0.1", served.server.port or 0)
    measures = Measures(other.metrics.registry.__class__())
    certificate = Certificate(files(other.mount.certificate, other.mount.key))
    server = Server(address, {"/mutate": answer}, certificate, measures)
    with pytest.raises(ExceptionGroup) as caught:
        await server.run(anyio.Event())
    assert caught.group_contains(ListenError, match=str(address))


async def test_a_pod_is_prepared_by_the_whole_webhook(tmp_path: Path) -> None:
    issued, mount, stop = made(), Mount(tmp_path), anyio.Event()
    mount.put(issued.pair)
    port, health = free_ports(2)
    flags = [f"--tls-cert-file={mount.certificate}", f"--tls-private-key-file={mount.key}"]
    flags += [f"--webhook-bind-address=127.0.0.1:{port}", f"--health-probe-bind-address=127.0.0.1:{health}"]
    settings = load_as(AdmissionSettings, [*flags, "--metrics-bind-address=0", "--binder-metrics-url="], {})
    pod = {
        "metadata": {"name": "a", "namespace": "team", "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "cuda"}]},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    asked = {"uid": "u", "operation": "CREATE", "kind": kind, "object": pod, "userInfo": {"username": "me"}}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(webhook.run, settings, plan(settings), stop)
        async with caller(issued) as session:
            url = f"https://localhost:{port}/mutate--v1-pod"
            await eventually(lambda: listens(port))
            async with session.post(url, data=json.dumps(review)) as response:
                answered = await response.json()
            async with session.get(f"http://127.0.0.1:{health}/readyz") as response:
                assert response.status == 200
        tasks.cancel_scope.cancel()
    patch = json.loads(base64.b64decode(answered["response"]["patch"]))
    assert answered["response"]["allowed"]
    assert "runai/shared-gpu-configmap" in json.dumps(patch).replace("~1", "/")
