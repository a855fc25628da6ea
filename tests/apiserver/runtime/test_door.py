"""The way to the API server: how it is found, and that it stays a good one."""

import asyncio.sslproto
import base64
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import anyio
import kr8s.asyncio
import pytest
from controlplane import ControlPlane
from loguru import logger

from controller.runtime import errors
from controller.runtime.calls import Call
from controller.runtime.client import Client, ClientOptions, CredentialsError, Resource
from controller.runtime.door import Door, WrongSessionError
from tests.apiserver.runtime.conftest import ConfigMaps, Connect
from tests.pipe import Pipe
from tests.polling import eventually
from tests.proxy import Answer, Proxy, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
NAMESPACES = Resource("v1", "namespaces", namespaced=False)


@pytest.fixture
async def pipe(control_plane: ControlPlane) -> AsyncIterator[Pipe]:
    """A pipe to the API server."""
    async with Pipe(urlsplit(control_plane.url).port or 0) as made:
        yield made


@pytest.fixture
def piped(pipe: Pipe, control_plane: ControlPlane, tmp_path: Path) -> Path:
    """A kubeconfig that leads through the pipe, by TLS."""
    text = control_plane.admin_kubeconfig.read_text()
    path = tmp_path / "piped.kubeconfig"
    path.write_text(text.replace(control_plane.url, f"https://127.0.0.1:{pipe.port}"))
    return path


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What is logged, with what is bound to it."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message} {extra}")
    yield lines
    logger.remove(sink)


async def _at_once(client: Client, count: int) -> None:
    async with anyio.create_task_group() as requests:
        for _ in range(count):
            requests.start_soon(client.get, NAMESPACES, "default")


# Saying hello.


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(200, "<html>Welcome</html>"), "no JSON"),
        (Answer(200, "[]"), "no API server"),
        (Answer(200, "{}"), "no API server"),
        (Answer(404, "<html>Not here</html>"), "Not here"),
        (Answer(503, "sorry"), "sorry"),
        (Answer(403, "<html>Who are you?</html>"), "Who are you?"),
    ],
    ids=str,
)
async def test_a_strange_answer_is_not_blamed_on_the_credentials(
    connect: Connect, proxy: Proxy, told: list[str], answer: Answer, problem: str
) -> None:
    """F-40"""
    with proxy.rule(Rule(answer, path="^/version", times=1)):
        client = await connect()
    assert any("cannot be used yet" in line and problem in line for line in told)
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_who_may_not_ask_for_the_version_still_gets_in(connect: Connect, proxy: Proxy) -> None:
    """F-40: of the kind"""
    forbidden = {"kind": "Status", "reason": "Forbidden", "message": "no", "code": 403}
    with proxy.rule(Rule(Answer(403, forbidden), path="^/version")):
        client = await connect()
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_hello_goes_by_our_session_and_is_observed(connect: Connect, proxy: Proxy) -> None:
    """F-40"""
    seen: list[tuple[str, str]] = []
    await connect(observe=lambda call, code, host: seen.append((call.method, code)))
    assert seen == [("GET", "200")]
    assert [call.path for call in proxy.calls] == ["/version"]


async def test_a_kr8s_that_goes_its_own_way_is_noticed_at_start(
    proxy: Proxy, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-43"""

    @asynccontextmanager
    async def call_api(*_: object, **__: object) -> AsyncIterator[object]:
        yield SimpleNamespace(status_code=200, content=b'{"gitVersion": "v1.36.0"}', headers={})

    monkeypatch.setattr(kr8s.asyncio.Api, "call_api", call_api)
    with pytest.raises(WrongSessionError, match=kr8s.__version__):
        await Client.connect(ClientOptions(kubeconfig=str(proxy.kubeconfig(control_plane.admin_token))))


# Proxies.


def _leads_to(path: Path, server: str, *, user: dict[str, str] | None = None, **cluster: str) -> str:
    """Writes a kubeconfig."""
    where = {"server": server} | ({**cluster} if cluster else {"insecure-skip-tls-verify": True})
    content = {
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return str(path)


async def test_the_proxy_of_the_environment_is_used_and_named_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """F-33: nothing spoke of a proxy."""
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cr3t@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "10.96.0.0/12")
    with anyio.move_on_after(1):
        options = ClientOptions(kubeconfig=_leads_to(tmp_path / "k", "https://192.0.2.1"))
        await Client.connect(options)
    assert any("127.0.0.1:9" in line and "cannot be used yet" in line for line in told)
    assert not any("s3cr3t" in line for line in told)


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_a_proxy_that_refuses_is_told_its_password_but_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str], scheme: str
) -> None:
    """aiohttp quotes the proxy's whole URL when it answers a CONNECT with anything but 200."""
    heads: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(
            b"HTTP/1.1 407 Proxy Authentication Required\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://user:s3cr3t@127.0.0.1:{port}")
    async with listening:
        with anyio.move_on_after(1):
            options = ClientOptions(kubeconfig=_leads_to(tmp_path / "k", f"{scheme}://192.0.2.1"))
            await Client.connect(options)
    login = base64.b64encode(b"user:s3cr3t").decode()
    assert f"Proxy-Authorization: Basic {login}" in heads[0]
    assert any("407" in line and f"127.0.0.1:{port}" in line for line in told), "".join(told)
    assert not any("s3cr3t" in line or login in line for line in told)


async def test_a_proxy_whose_url_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cr3t@127.0.0.1:port")
    with anyio.fail_after(3), pytest.raises(CredentialsError, match="proxy") as refused:
        await Client.connect(ClientOptions(kubeconfig=_leads_to(tmp_path / "k", "https://192.0.2.1")))
    assert "s3cr3t" not in str(refused.value)


async def test_who_is_excepted_is_not_proxied_from_the_first_request_on(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-33"""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = await connect(deadline_s=3.0)
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_a_proxy_that_we_cannot_speak_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://user:s3cr3t@127.0.0.1:9")
    with pytest.raises(CredentialsError, match="not by socks5"):
        await Client.connect(ClientOptions(kubeconfig=_leads_to(tmp_path / "k", "https://192.0.2.1")))


# Credentials that are renewed.


async def test_a_renewed_token_is_used_without_a_401(
    proxy: Proxy, control_plane: ControlPlane, connect: Connect, tmp_path: Path
) -> None:
    """F-41: the old token was sent until it was refused."""
    token = tmp_path / "token"
    token.write_text(control_plane.token("default", "default"))
    path = _leads_to(tmp_path / "k", proxy.url, user={"tokenFile": "token"})
    client = await connect(kubeconfig=path)
    await client.raw("/version")
    fresh = tmp_path / "fresh"
    fresh.write_text(control_plane.admin_token)
    fresh.rename(token)
    await anyio.sleep(1.1)
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"
    token.unlink()
    await anyio.sleep(1.1)
    await client.get(NAMESPACES, "default")
    assert {call.status for call in proxy.calls} == {200}


async def test_new_certificates_close_the_old_connections_once_nothing_is_under_way(
    pipe: Pipe, tmp_path: Path, control_plane: ControlPlane, config_maps: ConfigMaps
) -> None:
    """F-44: an old session stayed open after each new certificate."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(control_plane.ca_file.read_bytes())
    server, user = f"https://127.0.0.1:{pipe.port}", {"token": control_plane.admin_token}
    door = await Door.make(
        _leads_to(tmp_path / "k", server, user=user, **{"certificate-authority": "ca.crt"}), 10
    )
    client = Client(door, ClientOptions())
    lines: list[bytes] = []
    async with anyio.create_task_group() as watching:
        params = {**config_maps.selectors, "resourceVersion": "0"}
        watching.start_soon(partial(client.watch, CONFIG_MAPS, params, lines.append, idle_s=30))
        await _at_once(client, 5)
        await eventually(lambda: pipe.connections >= 6)
        authority.write_bytes(control_plane.ca_file.read_bytes() + b"\n")
        await door.log_in(since_s=anyio.current_time())
        await client.get(NAMESPACES, "default")
        config_maps.create("a")
        await eventually(lambda: lines)
        watching.cancel_scope.cancel()
    await eventually(lambda: pipe.connections == 1)
    await client.close()
    await eventually(lambda: pipe.connections == 0)


async def test_a_login_that_fails_leaves_what_worked(
    proxy: Proxy, control_plane: ControlPlane, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = proxy.kubeconfig(control_plane.admin_token)
    client = await connect(kubeconfig=path)
    content = json.loads(path.read_text())
    for broken in ({"proxy-url": "socks5://127.0.0.1:9"}, {"server": None}):
        changed = json.loads(json.dumps(content))
        changed["clusters"][0]["cluster"] |= broken
        path.write_text(json.dumps(changed))
        with proxy.rule(Rule(Answer(401), times=2)), pytest.raises(errors.UnauthorizedError):
            await client.get(NAMESPACES, "default")
        assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"
        await anyio.sleep(1.0)


# Connections that fall silent.


async def test_after_a_stream_went_mute_no_old_connection_is_used(
    pipe: Pipe, piped: Path, config_maps: ConfigMaps
) -> None:
    """F-68: each pooled connection was as dead, and cost a request its whole deadline."""
    client = await Client.connect(ClientOptions(kubeconfig=str(piped), deadline_s=20))
    await _at_once(client, 5)
    async with anyio.create_task_group() as watching:
        watching.start_soon(_mute, client, config_maps)
        await anyio.sleep(0.3)  # it has begun, on one of the five
        assert pipe.connections >= 5
        pipe.fall_silent()
    started_s = time.monotonic()
    await _at_once(client, 5)
    assert time.monotonic() - started_s < 2
    await client.close()


async def _mute(client: Client, config_maps: ConfigMaps) -> None:
    params = {**config_maps.selectors, "resourceVersion": "0"}
    with pytest.raises(errors.NoAnswerError, match="not a byte"):
        await client.watch(CONFIG_MAPS, params, lambda line: None, idle_s=1.0)


@pytest.mark.parametrize("ask", ["get", "patch"])
async def test_after_a_request_got_no_answer_no_old_connection_is_used(
    pipe: Pipe, piped: Path, ask: str
) -> None:
    """F-68"""
    client = await Client.connect(ClientOptions(kubeconfig=str(piped), deadline_s=1.5))
    asked: dict[str, Callable[[], Any]] = {
        "get": lambda: client.get(NAMESPACES, "default"),
        "patch": lambda: client.patch(NAMESPACES, "default", {}),
    }
    await _at_once(client, 5)
    pipe.fall_silent()
    with pytest.raises(errors.NoAnswerError):
        await asked[ask]()
    started_s = time.monotonic()
    await _at_once(client, 5)
    assert time.monotonic() - started_s < 1
    await client.close()


async def test_a_watch_that_is_heard_lives_on_when_connections_are_given_up(
    pipe: Pipe, piped: Path, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-68: of the kind"""
    door = await Door.make(str(piped), 10)
    client = Client(door, ClientOptions())
    lines: list[bytes] = []
    async with anyio.create_task_group() as watching:
        params = {**config_maps.selectors, "resourceVersion": "0"}
        watching.start_soon(partial(client.watch, CONFIG_MAPS, params, lines.append, idle_s=30))
        await eventually(lambda: pipe.connections == 1)
        await anyio.sleep(0.2)
        await door.distrust(anyio.current_time())
        await client.get(NAMESPACES, "default")
        config_maps.create("a")
        await eventually(lambda: lines)
        watching.cancel_scope.cancel()
    await client.close()


async def test_a_connection_holds_a_small_buffer_and_carries_large_objects(
    piped: Path, config_maps: ConfigMaps
) -> None:
    """F-45: 256 KiB for each TLS connection."""
    before = set(map(id, _tls()))
    client = await Client.connect(ClientOptions(kubeconfig=str(piped)))
    config_maps.create("a", {"k": "x" * 900_000})
    found = await client.get(CONFIG_MAPS, "a", config_maps.namespace)
    assert len(found["data"]["k"]) == 900_000
    await client.patch(CONFIG_MAPS, "a", {"data": {"k": "y" * 900_000}}, config_maps.namespace)
    sizes = [len(tls._ssl_buffer) for tls in _tls() if id(tls) not in before]
    assert 32 * 1024 in sizes
    await client.close()


def _tls() -> list[Any]:
    return [found for found in gc.get_objects() if isinstance(found, asyncio.sslproto.SSLProtocol)]


async def test_a_path_may_be_part_of_the_server(
    proxy: Proxy, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """As behind a gateway that serves several clusters."""
    path = proxy.kubeconfig(control_plane.admin_token)
    path.write_text(path.read_text().replace(proxy.url, f"{proxy.url}/clusters/a/"))
    door = await Door.make(str(path), 10)
    await door.send(Call("GET", NAMESPACES, name="default"), 5.0)
    assert proxy.calls[-1].path == "/clusters/a/api/v1/namespaces/default"
    await door.aclose()
