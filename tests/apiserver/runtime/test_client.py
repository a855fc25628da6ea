"""The client against a real API server, through a proxy that makes the way there a bad one."""

import asyncio
import base64
import json
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime import errors
from controller.runtime.client import Client, ClientOptions, Object, Patch, Resource
from tests.apiserver.runtime.conftest import Account, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, CutLine, Delay, DropAnswer, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
NAMESPACES = Resource("v1", "namespaces", namespaced=False)
REQUESTS = Resource("scheduling.run.ai/v1alpha2", "bindrequests")


# What it can do.


async def test_an_object_is_created_read_changed_and_deleted(client: Client, config_maps: ConfigMaps) -> None:
    where = config_maps.namespace
    created = await client.create(CONFIG_MAPS, config_maps.body("a", {"k": "1"}), where)
    assert (await client.get(CONFIG_MAPS, "a", where))["data"] == {"k": "1"}
    replaced = await client.update(CONFIG_MAPS, {**created, "data": {"k": "2"}}, where)
    assert replaced["data"] == {"k": "2"}
    patched = await client.patch(CONFIG_MAPS, "a", {"data": {"l": "3"}}, where)
    assert patched["data"] == {"k": "2", "l": "3"}
    change = [{"op": "replace", "path": "/data/k", "value": "4"}]
    assert (await client.patch(CONFIG_MAPS, "a", change, where, how=Patch.JSON))["data"]["k"] == "4"
    await client.delete(CONFIG_MAPS, "a", where, uid=created["metadata"]["uid"])
    with pytest.raises(errors.NotFoundError):
        await client.get(CONFIG_MAPS, "a", where)


async def test_a_subresource_is_posted_to_and_patched(
    client: Client, control_plane: ControlPlane, namespace: str
) -> None:
    pods = Resource("v1", "pods")
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    await client.create(pods, binding, namespace, name="p", subresource="binding")
    status = {"status": {"message": "hello"}}
    patched = await client.patch(pods, "p", status, namespace, subresource="status", how=Patch.STRATEGIC)
    assert (patched["spec"]["nodeName"], patched["status"]["message"]) == ("n", "hello")


async def test_paths_without_a_kind_are_read(client: Client) -> None:
    assert (await client.raw("/version"))["major"] == "1"


async def test_host_is_the_one_of_the_kubeconfig(client: Client, proxy: Proxy) -> None:
    assert client.host == f"127.0.0.1:{proxy.port}"


async def test_tls_with_the_authority_of_the_kubeconfig(control_plane: ControlPlane) -> None:
    client = await Client.connect(ClientOptions(kubeconfig=str(control_plane.admin_kubeconfig)))
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"
    await client.close()


async def test_two_clients_of_one_kubeconfig_do_not_share_a_session(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, config_maps: ConfigMaps
) -> None:
    path = proxy.kubeconfig(control_plane.admin_token)
    first = await connect(kubeconfig=path)
    lines: list[bytes] = []
    async with anyio.create_task_group() as watching:
        watching.start_soon(_watch, first, {**config_maps.selectors, "resourceVersion": "0"}, lines)
        await eventually(lambda: proxy.count("WATCH", "configmaps"))
        second = await connect(kubeconfig=path)
        await second.get(NAMESPACES, "default")
        await second.close()
        config_maps.create("a")
        await eventually(lambda: lines)
        watching.cancel_scope.cancel()


async def test_each_answer_is_observed(connect: Connect, proxy: Proxy) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    client = await connect(observe=lambda call, code, host: seen.update([(call.method, code)]))
    await client.get(NAMESPACES, "default")
    with pytest.raises(errors.NotFoundError):
        await client.get(NAMESPACES, "nowhere")
    with proxy.rule(Rule(Refuse())), pytest.raises(errors.NoAnswerError):
        await client.patch(NAMESPACES, "default", {})
    answers = {("GET", "200"): 2, ("GET", "404"): 1, ("PATCH", "<error>"): 1}
    assert seen == answers, "the first of them is the server's version"


# How the server says no.


async def test_404_for_an_object_and_for_a_kind(client: Client, namespace: str) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        await client.get(CONFIG_MAPS, "missing", namespace)
    assert caught.value.reason == "NotFound"
    assert caught.value.body["details"]["name"] == "missing"
    assert caught.value.request == f"GET configmaps {namespace}/missing"
    with pytest.raises(errors.NotFoundError):
        await client.get(Resource("example.com/v1", "things"), "a", namespace)


async def test_409_for_a_version_that_is_no_longer_the_latest(
    client: Client, config_maps: ConfigMaps
) -> None:
    old = config_maps.create("a")
    config_maps.change("a", {"k": "1"})
    with pytest.raises(errors.ConflictError) as caught:
        await client.update(CONFIG_MAPS, old, config_maps.namespace)
    assert type(caught.value) is errors.ConflictError
    assert not caught.value.unclear


async def test_409_for_a_name_that_is_taken(client: Client, config_maps: ConfigMaps) -> None:
    config_maps.create("a")
    with pytest.raises(errors.AlreadyExistsError):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)


async def test_422_and_400(client: Client, config_maps: ConfigMaps) -> None:
    with pytest.raises(errors.InvalidError) as caught:
        await client.create(CONFIG_MAPS, config_maps.body("Not A Name"), config_maps.namespace)
    assert caught.value.body["details"]["causes"][0]["field"] == "metadata.name"
    with pytest.raises(errors.BadRequestError):
        await client.create(CONFIG_MAPS, {"kind": "Pod", "apiVersion": "v1"}, config_maps.namespace)


async def test_410_once_the_history_is_compacted(
    client: Client, control_plane: ControlPlane, config_maps: ConfigMaps
) -> None:
    """The API server answers from its own memory as long as it can, hence the restart."""
    for n in range(3):
        config_maps.create(f"a{n}")
    page = await client.list_page(CONFIG_MAPS, {**config_maps.selectors, "limit": "1"})
    _compact(control_plane, int(page["metadata"]["resourceVersion"]))
    control_plane.kill_apiserver()
    with pytest.raises(errors.NoAnswerError):
        await client.get(NAMESPACES, "default")
    await anyio.to_thread.run_sync(control_plane.start_apiserver)

    ancient = _page_token(5, page["items"][0])
    with pytest.raises(errors.GoneError):
        await client.list_page(CONFIG_MAPS, {"limit": "1", "continue": ancient})
    lines: list[bytes] = []
    try:
        await client.watch(CONFIG_MAPS, {"resourceVersion": "5"}, lines.append, idle_s=5)
    except errors.GoneError:
        return
    assert b'"code":410' in lines[0]


async def test_403_is_asked_once_more_and_never_as_somebody_else(
    connect: Connect, proxy: Proxy, account: Account, namespace: str
) -> None:
    client = await connect(token=account.token())
    with pytest.raises(errors.ForbiddenError) as caught:
        await client.patch(CONFIG_MAPS, "a", {"data": {}}, namespace)
    assert "somebody" in caught.value.message
    assert not caught.value.transient
    assert proxy.count("PATCH", "configmaps/a") == 2, "the first may be that of a server that just started"


async def test_403_of_a_server_that_is_not_ready_is_no_answer(
    connect: Connect, proxy: Proxy, account: Account, namespace: str
) -> None:
    client = await connect(token=account.token())
    with proxy.rule(Rule(Answer(500, "not yet"), path="^/readyz")), pytest.raises(errors.NoAnswerError):
        await client.get(CONFIG_MAPS, "a", namespace)


@pytest.mark.parametrize(
    ("status", "transient"), [(500, False), (502, False), (503, True), (504, True), (418, False)]
)
async def test_answers_that_are_no_status(client: Client, proxy: Proxy, status: int, transient: bool) -> None:
    with proxy.rule(Rule(Answer(status, "<html>sorry"))), pytest.raises(errors.StatusError) as caught:
        await client.get(NAMESPACES, "default")
    assert (caught.value.code, caught.value.transient) == (status, transient)
    assert caught.value.unclear == (status >= 500)
    assert caught.value.message == "<html>sorry"


async def test_success_that_is_no_json_is_no_answer(client: Client, proxy: Proxy) -> None:
    with proxy.rule(Rule(Answer(200, "<html>hello"))), pytest.raises(errors.NoAnswerError):
        await client.get(NAMESPACES, "default")


# When it says nothing.


async def test_a_request_that_gets_no_answer_ends_at_its_deadline(connect: Connect, proxy: Proxy) -> None:
    client = await connect(deadline_s=1.0)
    started_s = time.monotonic()
    with proxy.rule(Rule(Hang())), pytest.raises(errors.NoAnswerError, match="within 1 s") as caught:
        await client.get(NAMESPACES, "default")
    assert 0.9 < time.monotonic() - started_s < 2.0
    assert caught.value.unclear
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_the_server_is_told_the_deadline(connect: Connect, proxy: Proxy) -> None:
    client = await connect(deadline_s=7.0)
    await client.get(NAMESPACES, "default")
    assert proxy.calls[-1].query["timeout"] == "6s"


async def test_a_write_whose_answer_is_lost_is_unclear(
    client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    where = config_maps.namespace
    with proxy.rule(Rule(DropAnswer(), method="POST")), pytest.raises(errors.NoAnswerError) as caught:
        await client.create(CONFIG_MAPS, config_maps.body("a"), where)
    assert caught.value.unclear
    assert config_maps.get("a")["metadata"]["name"] == "a"
    assert proxy.count("POST", "configmaps") == 1, "a write must not be sent twice behind the caller's back"


async def test_a_slow_answer_within_the_deadline_is_an_answer(client: Client, proxy: Proxy) -> None:
    with proxy.rule(Rule(Delay(0.3))):
        assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_a_server_that_is_down(control_plane: ControlPlane, connect: Connect, tmp_path: Path) -> None:
    with Proxy(control_plane.url, control_plane.ca_file, tmp_path) as other:
        client = await connect(kubeconfig=other.kubeconfig(control_plane.admin_token))
    with pytest.raises(errors.NoAnswerError):
        await client.get(NAMESPACES, "default")


async def test_many_requests_without_an_answer_do_not_keep_others_waiting(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    client = await connect(deadline_s=20.0)
    async with anyio.create_task_group() as hanging:
        with proxy.rule(Rule(Hang(), path="configmaps")) as hung:
            for n in range(150):
                hanging.start_soon(client.list_page, CONFIG_MAPS, {"limit": "1", "n": str(n)})
            await eventually(lambda: hung.count == 150)
            with anyio.fail_after(3):
                await client.get(NAMESPACES, "default")
        hanging.cancel_scope.cancel()


async def test_cancellation_passes_and_leaves_a_usable_client(client: Client, proxy: Proxy) -> None:
    with proxy.rule(Rule(Hang())):
        with anyio.move_on_after(0.2) as scope:
            await client.get(NAMESPACES, "default")
        assert scope.cancelled_caught
    await client.get(NAMESPACES, "default")


GARBAGE = {
    "no http": b"SSH-2.0-hello\r\n\r\n",
    "no header": b"HTTP/1.1 200 OK\r\n:::\0\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}",
    "too long a header": b"HTTP/1.1 200 OK\r\na: " + b"x" * 20_000 + b"\r\n\r\n",
    "too short a body": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}",
    "no chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    "nothing": b"",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_something_that_is_no_api_server_gives_no_answer(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, garbage: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        hello = b'HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{"gitVersion":"v1.36.0"}'
        writer.write(hello if b"/version" in head else garbage)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        path = proxy.kubeconfig("token")
        path.write_text(path.read_text().replace(str(proxy.port), str(server.sockets[0].getsockname()[1])))
        client = await connect(kubeconfig=path, deadline_s=3.0)
        with pytest.raises(errors.NoAnswerError):
            await client.get(NAMESPACES, "default")
        with pytest.raises(errors.NoAnswerError):
            await _watch(client, {}, [], idle_s=3.0)


async def test_the_message_says_what_really_happened(client: Client, proxy: Proxy) -> None:
    with proxy.rule(Rule(Refuse())), pytest.raises(errors.NoAnswerError, match=r"(?i)disconnected|reset"):
        await client.get(NAMESPACES, "default")


# Credentials that end.


def _rotate(proxy: Proxy, path: Path, old: str, new: str, *, times: int | None = None) -> Rule:
    """The server forgets the old token, and the kubeconfig has the new one."""
    proxy.kubeconfig(new, path=path)
    return Rule(Answer(401), token=old, times=times)


async def test_401_for_20_requests_at_once_is_one_new_login(
    connect: Connect, proxy: Proxy, account: Account, namespace: str, logs: list[str]
) -> None:
    account.grant("configmaps", "list", "get", cluster_wide=True)
    old, new = account.token(), account.token(bound_secret="b")
    path = proxy.kubeconfig(old)
    client = await connect(kubeconfig=path)
    with proxy.rule(_rotate(proxy, path, old, new)) as refused:
        async with anyio.create_task_group() as requests:
            for _ in range(20):
                requests.start_soon(client.list_page, CONFIG_MAPS, {"limit": "1"})
        assert refused.count == 20
        await client.list_page(CONFIG_MAPS, {"limit": "1"})
        assert refused.count == 20, "the old token was used again"
    assert sum("loading them again" in line for line in logs) == 1


async def test_401_that_comes_late_is_no_reason_for_a_second_login(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, logs: list[str]
) -> None:
    path = proxy.kubeconfig("old-token-1")
    with proxy.rule(Rule(Answer(200, {"gitVersion": "v1.36.0"}), path="^/version")):
        client = await connect(kubeconfig=path)
    proxy.kubeconfig(control_plane.admin_token, path=path)
    async with anyio.create_task_group() as requests:
        with proxy.rule(Rule(Hang(), times=1)) as hung:
            requests.start_soon(client.get, NAMESPACES, "kube-system")
            await eventually(lambda: hung.count == 1)
            await client.get(NAMESPACES, "default")
            await anyio.sleep(1.2)
    assert sum("loading them again" in line for line in logs) == 1


async def test_401_with_credentials_that_stay_wrong_is_raised(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane
) -> None:
    client = await connect()
    with proxy.rule(Rule(Answer(401))) as refused, pytest.raises(errors.UnauthorizedError):
        await client.get(NAMESPACES, "default")
    assert refused.count == 2
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_401_while_the_kubeconfig_is_gone_is_raised_and_heals(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane
) -> None:
    path = proxy.kubeconfig(control_plane.admin_token)
    client = await connect(kubeconfig=path)
    for broken in ("", "{"):
        path.write_text(broken)
        with proxy.rule(Rule(Answer(401))), pytest.raises(errors.UnauthorizedError):
            await client.get(NAMESPACES, "default")
        await anyio.sleep(1.0)
    path.unlink()
    with proxy.rule(Rule(Answer(401))), pytest.raises(errors.UnauthorizedError):
        await client.get(NAMESPACES, "default")
    await anyio.sleep(1.0)
    proxy.kubeconfig(control_plane.admin_token, path=path)
    with proxy.rule(Rule(Answer(401), times=1)):
        assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


async def test_a_new_login_does_not_break_a_watch(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, config_maps: ConfigMaps
) -> None:
    client = await connect()
    lines: list[bytes] = []
    async with anyio.create_task_group() as watching:
        params = {**config_maps.selectors, "resourceVersion": "0"}
        watching.start_soon(_watch, client, params, lines)
        await eventually(lambda: proxy.count("WATCH", "configmaps"))
        with proxy.rule(Rule(Answer(401), method="GET", times=1)):
            await client.get(NAMESPACES, "default")
        config_maps.create("a")
        await eventually(lambda: lines)
        watching.cancel_scope.cancel()
    assert proxy.count("WATCH", "configmaps") == 1


async def test_a_token_that_the_server_really_no_longer_accepts(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, account: Account, namespace: str
) -> None:
    account.grant("configmaps", "list", "get", cluster_wide=True)
    path = proxy.kubeconfig(account.token(bound_secret="old"))
    client = await connect(kubeconfig=path)
    await client.list_page(CONFIG_MAPS, {"limit": "1"})
    control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}/secrets/old")
    proxy.kubeconfig(account.token(), path=path)
    with anyio.fail_after(20):
        while not any(call.status == 401 for call in proxy.calls):
            await client.list_page(CONFIG_MAPS, {"limit": "1"})
            await anyio.sleep(0.25)  # the server remembers its last verdict on a token for ten seconds
    assert [call.status for call in proxy.calls if call.status == 401] == [401]


async def test_connect_wants_a_kubeconfig_that_makes_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        await Client.connect(ClientOptions(kubeconfig=str(tmp_path / "missing")))
    for number, broken in enumerate(
        ["", "{", '{"clusters": []}', "null", "[]", "apiVersion: v1\nkind: Config"]
    ):
        path = tmp_path / str(number)
        path.write_text(broken)
        with pytest.raises(ValueError), anyio.fail_after(3):  # noqa: PT011 -- any text will do
            await Client.connect(ClientOptions(kubeconfig=str(path)))


async def test_connect_waits_for_a_server_that_is_not_up_yet(connect: Connect, proxy: Proxy) -> None:
    with proxy.rule(Rule(Refuse(), times=1)):
        client = await connect()
    assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"


# When there is too much of it.


async def test_429_is_waited_for_as_long_as_the_server_asks(client: Client, proxy: Proxy) -> None:
    started_s = time.monotonic()
    with proxy.rule(Rule(Answer(429, headers={"retry-after": "1"}), times=2)) as refused:
        assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"
    assert refused.count == 3
    assert 1.9 < time.monotonic() - started_s < 3.5


async def test_429_until_the_deadline_is_raised(connect: Connect, proxy: Proxy) -> None:
    client = await connect(deadline_s=1.5)
    with (
        proxy.rule(Rule(Answer(429, headers={"retry-after": "60"}))) as refused,
        pytest.raises(errors.TooManyRequestsError) as caught,
        anyio.fail_after(3),
    ):
        await client.get(NAMESPACES, "default")
    assert caught.value.retry_after_s == 60
    assert refused.count == 1


async def test_requests_keep_to_the_rate(connect: Connect, proxy: Proxy) -> None:
    client = await connect(qps=20.0, burst=5)
    started_s = time.monotonic()
    async with anyio.create_task_group() as requests:
        for _ in range(25):
            requests.start_soon(client.get, NAMESPACES, "default")
    assert 0.9 < time.monotonic() - started_s < 2.5
    sent = [call.time_s - started_s for call in proxy.calls[-25:]]
    assert sum(time_s < 0.3 for time_s in sent) <= 5 + 0.3 * 20 + 1


# Writes with a condition.


async def test_delete_of_another_uid_is_refused(client: Client, config_maps: ConfigMaps) -> None:
    config_maps.create("a")
    with pytest.raises(errors.ConflictError):
        await client.delete(CONFIG_MAPS, "a", config_maps.namespace, uid="no-such-uid")
    assert config_maps.get("a")["metadata"]["name"] == "a"


async def test_a_fenced_client_reads_and_does_not_write(
    client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    client.fence(lambda: 0.0)
    where = config_maps.namespace
    await client.list_page(CONFIG_MAPS, config_maps.selectors)
    with pytest.raises(errors.FencedError):
        await client.create(CONFIG_MAPS, config_maps.body("a"), where)
    assert proxy.count("POST", "configmaps") == 0
    await client.for_lease(5.0).create(CONFIG_MAPS, config_maps.body("a"), where)
    client.fence(lambda: 15.0)
    await client.patch(CONFIG_MAPS, "a", {"data": {"k": "1"}}, where)


@pytest.fixture
def recreated(control_plane: ControlPlane, namespace: str) -> tuple[str, Object]:
    """A custom resource that was deleted and created again: the first one's uid, and the second one."""
    path = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{namespace}/bindrequests"
    body = {
        "apiVersion": REQUESTS.version,
        "kind": "BindRequest",
        "metadata": {"name": "a"},
        "spec": {"podName": "p", "selectedNode": "n"},
    }
    first = control_plane.request("POST", path, body)
    control_plane.request("DELETE", f"{path}/a")
    return first["metadata"]["uid"], control_plane.request("POST", path, body)


async def test_a_merge_patch_of_a_custom_status_ignores_the_uid(
    client: Client, recreated: tuple[str, Object], namespace: str
) -> None:
    """Not what one wishes: the next tests show what to do instead."""
    delta = {"metadata": {"uid": recreated[0]}, "status": {"phase": "Failed"}}
    patched = await client.patch(REQUESTS, "a", delta, namespace, subresource="status")
    assert patched["metadata"]["uid"] == recreated[1]["metadata"]["uid"]
    assert patched["status"]["phase"] == "Failed"


async def test_a_merge_patch_with_another_version_is_refused(
    client: Client, recreated: tuple[str, Object], namespace: str
) -> None:
    delta = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Failed"}}
    with pytest.raises(errors.ConflictError):
        await client.patch(REQUESTS, "a", delta, namespace, subresource="status")


async def test_a_json_patch_can_test_the_uid(
    client: Client, recreated: tuple[str, Object], namespace: str
) -> None:
    old, new = recreated[0], recreated[1]["metadata"]["uid"]

    def operations(uid: str) -> list[Object]:
        return [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": {"phase": "Failed"}},
        ]

    where: dict[str, Any] = {"namespace": namespace, "subresource": "status", "how": Patch.JSON}
    with pytest.raises(errors.InvalidError):
        await client.patch(REQUESTS, "a", operations(old), **where)
    assert (await client.patch(REQUESTS, "a", operations(new), **where))["status"]["phase"] == "Failed"


# Watches.


async def _watch(client: Client, params: dict[str, str], lines: list[bytes], idle_s: float = 10.0) -> None:
    await client.watch(CONFIG_MAPS, params, lines.append, idle_s=idle_s)


async def test_a_watch_gives_whole_lines_and_ends_when_the_server_ends_it(
    client: Client, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "x" * 100_000})  # more than one chunk
    config_maps.create("b")
    lines: list[bytes] = []
    params = {**config_maps.selectors, "resourceVersion": "0", "timeoutSeconds": "1"}
    with anyio.fail_after(5):
        await _watch(client, params, lines)
    assert len(lines) == 2
    assert all(line.startswith(b"{") and line.endswith(b"}") for line in lines)


async def test_a_mute_watch_is_given_up(client: Client, proxy: Proxy, config_maps: ConfigMaps) -> None:
    started_s = time.monotonic()
    with proxy.rule(Rule(Hang(), method="WATCH", skip=1)), pytest.raises(errors.NoAnswerError):
        await _watch(client, {**config_maps.selectors, "resourceVersion": "0"}, [], idle_s=0.5)
    assert time.monotonic() - started_s < 2


async def test_a_watch_that_gets_no_answer_ends_at_the_deadline(connect: Connect, proxy: Proxy) -> None:
    client = await connect(deadline_s=1.0)
    with (
        proxy.rule(Rule(Hang(), method="WATCH")),
        pytest.raises(errors.NoAnswerError, match="within"),
        anyio.fail_after(3),
    ):
        await _watch(client, {}, [], idle_s=60)


async def test_a_watch_outlives_the_deadline_of_requests(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    client = await connect(deadline_s=1.0)
    lines: list[bytes] = []
    async with anyio.create_task_group() as watching:
        watching.start_soon(_watch, client, {**config_maps.selectors, "resourceVersion": "0"}, lines)
        await anyio.sleep(1.5)
        config_maps.create("a")
        await eventually(lambda: lines)
        watching.cancel_scope.cancel()


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_half_a_line_is_never_given_on(
    client: Client, proxy: Proxy, config_maps: ConfigMaps, in_good_order: bool
) -> None:
    config_maps.create("a")
    lines: list[bytes] = []
    with proxy.rule(Rule(CutLine(in_good_order), method="WATCH")):
        try:
            await _watch(client, {**config_maps.selectors, "resourceVersion": "0"}, lines)
        except errors.NoAnswerError:
            assert not in_good_order
        else:
            assert in_good_order
    assert lines == []


def _page_token(version: int, last: Object) -> str:
    """A `continue` as the server makes it."""
    metadata = last["metadata"]
    start = f"/{metadata['namespace']}/{metadata['name']}\0"
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start}).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _compact(plane: ControlPlane, revision: int) -> None:
    """Has etcd forget what was before this revision, which the API server does every five minutes."""
    body = json.dumps({"revision": str(revision), "physical": True}).encode()
    url = f"{plane.etcd_url}/v3/kv/compaction"
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10):  # noqa: S310
        pass


async def test_a_brief_answer_is_the_metadata_of_what_was_written(
    client: Client, config_maps: ConfigMaps
) -> None:
    body = config_maps.body("brief", {"a": "1"})
    made = await client.create(CONFIG_MAPS, body, config_maps.namespace, is_brief=True)
    changed = await client.patch(
        CONFIG_MAPS, "brief", {"data": {"a": "2"}}, config_maps.namespace, is_brief=True
    )
    whole = await client.get(CONFIG_MAPS, "brief", config_maps.namespace)
    assert {made["kind"], changed["kind"]} == {"PartialObjectMetadata"}
    assert made["metadata"]["uid"] == changed["metadata"]["uid"] == whole["metadata"]["uid"]
    assert "data" not in made
    assert "data" not in changed
    assert whole["data"] == {"a": "2"}
    assert changed["metadata"]["resourceVersion"] == whole["metadata"]["resourceVersion"]
