"""How requests are sent, and when again."""

import itertools
import time
from collections.abc import Awaitable, Callable

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime import errors
from controller.runtime.client import Client, Resource
from tests.apiserver.runtime.conftest import Account, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
NAMESPACES = Resource("v1", "namespaces", namespaced=False)
PODS = Resource("v1", "pods")
QUOTAS = Resource("v1", "resourcequotas")
QUOTA_CONFLICT = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified',
    "reason": "Conflict",
    "details": {"name": "q", "kind": "resourcequotas"},
    "code": 409,
}


# What the server and we know of the time that is left.


def _told_s(proxy: Proxy, method: str) -> list[float]:
    return [float(call.query["timeout"].removesuffix("s")) for call in proxy.calls if call.method == method]


async def test_a_refusal_without_a_body_is_one(client: Client, proxy: Proxy, config_maps: ConfigMaps) -> None:
    """F-35, of the kind: what stands before the server may say no more than 429; it read as no answer."""
    where = config_maps.namespace
    with proxy.rule(Rule(Answer(429, "", {"retry-after": "0"}), method="POST", times=1)) as refused:
        await client.create(CONFIG_MAPS, config_maps.body("a"), where)
    assert refused.count == 2
    with proxy.rule(Rule(Answer(404, ""), method="GET")), pytest.raises(errors.NotFoundError):
        await client.get(CONFIG_MAPS, "a", where)
    with proxy.rule(Rule(Answer(410, ""), method="WATCH")), pytest.raises(errors.GoneError):
        await client.watch(CONFIG_MAPS, {"resourceVersion": "1"}, lambda _: None, idle_s=1.0)


async def test_a_redirect_leads_nowhere(client: Client, proxy: Proxy, config_maps: ConfigMaps) -> None:
    """A write went on as a read of another place, whose answer counted as that to the write."""
    where = config_maps.namespace
    elsewhere = Rule(Answer(302, "", {"location": "/version"}), path=where)
    with proxy.rule(elsewhere), pytest.raises(errors.NoAnswerError, match="redirects") as caught:
        await client.create(CONFIG_MAPS, config_maps.body("a"), where)
    assert caught.value.unclear
    with proxy.rule(elsewhere), pytest.raises(errors.NoAnswerError, match="redirects"):
        await client.get(CONFIG_MAPS, "a", where)
    moved = Rule(Answer(307, "", {"location": "/version"}), method="WATCH")
    with proxy.rule(moved), pytest.raises(errors.NoAnswerError, match="redirects"):
        await client.watch(CONFIG_MAPS, {"resourceVersion": "1"}, lambda _: None, idle_s=1.0)


async def test_a_429_and_then_silence_is_unclear(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-35: it was reported as not carried out, though the last write was sent."""
    client = await connect(deadline_s=2.5)
    with (
        proxy.rule(Rule(Answer(429, headers={"retry-after": "1"}), method="POST", times=1)),
        proxy.rule(Rule(Hang(), method="POST")) as hung,
        pytest.raises(errors.NoAnswerError) as caught,
    ):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert hung.count == 1
    assert caught.value.unclear


async def test_each_sending_tells_what_is_left(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-36: each told the whole deadline again."""
    client = await connect(deadline_s=8.0)
    with proxy.rule(Rule(Answer(429, headers={"retry-after": "1"}), method="POST", times=2)):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert _told_s(proxy, "POST") == pytest.approx([7.0, 6.0, 5.0], abs=0.3)


async def test_a_write_lasts_no_longer_than_the_lease(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-36: 30 s were told, and waited for, when the lease had 2 s left."""
    client = await connect(deadline_s=30.0)
    client.fence(lambda: 2.0)
    started_s = time.monotonic()
    with proxy.rule(Rule(Hang(), method="POST")), pytest.raises(errors.NoAnswerError, match="within 2 s"):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert 1.9 < time.monotonic() - started_s < 3.0
    assert _told_s(proxy, "POST") == pytest.approx([1.5], abs=0.01)
    await client.get(NAMESPACES, "default")
    assert _told_s(proxy, "GET")[-1] == pytest.approx(29.0, abs=0.2), "a read needs no lease"


async def test_a_write_that_waited_asks_for_the_lease_again(
    client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-36: of the kind"""
    left_s = iter([10.0, 0.0])
    client.fence(lambda: next(left_s))
    with (
        proxy.rule(Rule(Answer(429), method="POST")) as refused,
        pytest.raises(errors.FencedError),
    ):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert refused.count == 1


async def test_no_write_is_sent_twice_unasked(client: Client, proxy: Proxy, config_maps: ConfigMaps) -> None:
    """F-36: of the kind; aiohttp sends a PUT or DELETE again, with the old time, when a connection breaks."""
    made = config_maps.create("a")
    uid = made["metadata"]["uid"]
    where = config_maps.namespace
    writes: dict[str, Callable[[], Awaitable[object]]] = {
        "POST": lambda: client.create(CONFIG_MAPS, config_maps.body("b"), where),
        "PUT": lambda: client.update(CONFIG_MAPS, made, where),
        "PATCH": lambda: client.patch(CONFIG_MAPS, "a", {}, where),
        "DELETE": lambda: client.delete(CONFIG_MAPS, "a", where, uid=uid),
    }
    for method, write in writes.items():
        await client.get(NAMESPACES, "default")  # leaves a connection to be used again
        with proxy.rule(Rule(Refuse(), method=method)) as broken, pytest.raises(errors.NoAnswerError):
            await write()
        assert (method, broken.count) == (method, 1)


async def test_a_read_is_sent_again_once_when_its_connection_breaks(client: Client, proxy: Proxy) -> None:
    with proxy.rule(Rule(Refuse(), times=1)):
        assert (await client.get(NAMESPACES, "default"))["kind"] == "Namespace"
    with proxy.rule(Rule(Refuse())) as broken, pytest.raises(errors.NoAnswerError):
        await client.get(NAMESPACES, "default")
    assert broken.count == 2


# What a refusal means.

UNRELATED = "[+]ping ok\n[-]poststarthook/some-hook failed: reason withheld\nreadyz check failed\n"
INFORMERS = "[-]informer-sync failed: reason withheld\nreadyz check failed\n"
ROLES = "[+]ping ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\nreadyz check failed\n"


@pytest.mark.parametrize(
    "readyz",
    [
        Answer(401),
        Answer(403),
        Answer(404),
        Answer(200, "<html>"),
        Answer(500, UNRELATED),
        Answer(503, UNRELATED),
    ],
    ids=str,
)
async def test_403_is_told_whatever_else_is_not_ready(
    connect: Connect, proxy: Proxy, account: Account, namespace: str, readyz: Answer
) -> None:
    """F-37: it was hidden for ever where /readyz is not 200 for other reasons."""
    client = await connect(token=account.token())
    with proxy.rule(Rule(readyz, path="^/readyz")) as asked, pytest.raises(errors.ForbiddenError):
        await client.get(CONFIG_MAPS, "a", namespace)
    assert asked.count == 1


@pytest.mark.parametrize(
    "readyz", [Answer(500, ROLES), Answer(500, INFORMERS), Answer(502, "sorry"), Hang(), Refuse()], ids=str
)
async def test_403_of_a_server_that_starts_is_no_answer(
    connect: Connect, proxy: Proxy, account: Account, namespace: str, readyz: Answer | Hang | Refuse
) -> None:
    client = await connect(token=account.token(), deadline_s=1.5)
    with proxy.rule(Rule(readyz, path="^/readyz")), pytest.raises(errors.NoAnswerError, match="not ready"):
        await client.get(CONFIG_MAPS, "a", namespace)


NO_ROLE = 'configmaps is forbidden: User "system:serviceaccount:a:b" cannot get resource "configmaps"'
NOT_READY = 'configmaps "a" is forbidden: not yet ready to handle request'


@pytest.mark.parametrize("text", [NO_ROLE, NOT_READY], ids=["no role", "not ready"])
@pytest.mark.parametrize("method", ["GET", "POST", "WATCH"])
async def test_403_just_before_the_server_was_ready_is_asked_again(
    client: Client, proxy: Proxy, config_maps: ConfigMaps, method: str, text: str
) -> None:
    """It was taken for a real one if the server knew its roles a moment later, when it was asked."""
    where = config_maps.namespace
    lines: list[bytes] = []
    forbidden = Answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": text})
    with proxy.rule(Rule(forbidden, method=method, path="/configmaps", times=1)) as asked:
        if method == "WATCH":
            config_maps.create("a")
            selectors = {**config_maps.selectors, "resourceVersion": "0", "timeoutSeconds": "1"}
            await client.watch(CONFIG_MAPS, selectors, lines.append, idle_s=10)
            assert lines
        elif method == "POST":
            await client.create(CONFIG_MAPS, config_maps.body("a"), where)
            assert config_maps.get("a")["metadata"]["name"] == "a"
        else:
            await client.list_page(CONFIG_MAPS, config_maps.selectors)
    assert asked.count == 2


@pytest.mark.parametrize("text", ["exceeded quota: q", 'violates PodSecurity "restricted:latest"', ""])
async def test_403_that_no_starting_server_gives_is_told_at_once(
    client: Client, proxy: Proxy, config_maps: ConfigMaps, text: str
) -> None:
    """Such a write would be looked at by all webhooks again."""
    forbidden = Answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": text})
    with proxy.rule(Rule(forbidden, method="POST")) as asked, pytest.raises(errors.ForbiddenError):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert asked.count == 1


async def test_a_quota_that_is_being_changed_means_again(
    client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-23: reservation pods, ConfigMaps and claims failed for good."""
    with proxy.rule(Rule(Answer(409, QUOTA_CONFLICT), method="POST", times=4)) as refused:
        made = await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert made["metadata"]["name"] == "a"
    assert refused.count == 5


async def test_a_quota_that_is_always_being_changed_ends_at_the_deadline(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-23"""
    client = await connect(deadline_s=2.0)
    started_s = time.monotonic()
    with (
        proxy.rule(Rule(Answer(409, QUOTA_CONFLICT), method="POST")) as refused,
        pytest.raises(errors.QuotaConflictError) as caught,
    ):
        await client.create(CONFIG_MAPS, config_maps.body("a"), config_maps.namespace)
    assert time.monotonic() - started_s < 2.5
    assert 4 <= refused.count < 12, "not as fast as it can"
    assert caught.value.transient


async def test_a_real_quota_in_use(
    connect: Connect, proxy: Proxy, control_plane: ControlPlane, config_maps: ConfigMaps
) -> None:
    """F-23: 11 of 24 pods failed on a real server."""
    client = await connect()
    where = config_maps.namespace
    hard = {"spec": {"hard": {"count/configmaps": "10000"}}}
    quotas = f"/api/v1/namespaces/{where}/resourcequotas"
    control_plane.request("POST", quotas, {"metadata": {"name": "q"}, **hard})
    await eventually(lambda: "used" in control_plane.request("GET", f"{quotas}/q").get("status", {}))

    async def keep_changing_it() -> None:
        for number in itertools.count():
            delta = {"metadata": {"annotations": {"n": str(number)}}}
            await client.patch(QUOTAS, "q", delta, where)

    def refused() -> int:
        return sum(call.method == "POST" and call.status == 409 for call in proxy.calls)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as others:
            for _ in range(3):
                others.start_soon(keep_changing_it)
            for number in itertools.count():
                await client.create(CONFIG_MAPS, config_maps.body(f"a{number}"), where)
                if refused() >= 1:
                    break
            others.cancel_scope.cancel()


# What may not be in a path.

IMPOSSIBLE = ["", ".", "..", "a/b", "/", "../../nodes/n", "a%2Fb", "x" * 254, "a\nb", "a\0b"]


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=lambda name: repr(name[:10]))
async def test_a_name_that_no_object_can_have_is_never_sent(
    client: Client, proxy: Proxy, config_maps: ConfigMaps, name: str
) -> None:
    """F-1, of the kind: a slash names a sub-resource, nothing names the whole collection."""
    config_maps.create("a")
    where = config_maps.namespace
    before = len(proxy.calls)
    body = {"metadata": {"name": name}}
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: client.get(CONFIG_MAPS, name, where),
        lambda: client.patch(CONFIG_MAPS, name, {}, where),
        lambda: client.update(CONFIG_MAPS, body, where),
        lambda: client.delete(CONFIG_MAPS, name, where, uid="u"),
        lambda: client.create(PODS, body, where, name=name, subresource="binding"),
        lambda: client.get(CONFIG_MAPS, "a", name),
        lambda: client.create(CONFIG_MAPS, config_maps.body("b"), name),
        lambda: client.delete(CONFIG_MAPS, "a", name, uid="u"),
    ]
    for request in requests:
        with pytest.raises(errors.NotFoundError, match="can have the name"):
            await request()
    assert len(proxy.calls) == before
    assert config_maps.get("a")["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    "name", ["x" * 253, "Größe", "名前", "a b", "a?b=c", "a#b", "a;b", "a\\b", "...", "a..b"]
)
async def test_any_other_name_is_just_not_found(client: Client, config_maps: ConfigMaps, name: str) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        await client.get(CONFIG_MAPS, name, config_maps.namespace)
    assert caught.value.body["details"] == {"name": name, "kind": "configmaps"}


@pytest.mark.parametrize("ending", ["?x=", "#", ";x"])
async def test_a_namespace_stays_one_whatever_is_in_it(
    client: Client, config_maps: ConfigMaps, ending: str
) -> None:
    """F-1, of the kind: what follows a question mark was no part of the path any more."""
    config_maps.create("a")
    with pytest.raises(errors.NotFoundError) as caught:
        await client.get(CONFIG_MAPS, "a", config_maps.namespace + ending)
    assert caught.value.body["details"] == {"name": "a", "kind": "configmaps"}


# The rate limit.


async def test_each_kind_has_a_rate_of_its_own(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-63: binds, events and the lists and watches of caches queued behind each other."""
    client = await connect(qps=1.0, burst=3)
    config_maps.create("a")
    where = config_maps.namespace
    async with anyio.create_task_group() as binds:
        for _ in range(20):
            binds.start_soon(client.get, CONFIG_MAPS, "a", where)
        await eventually(lambda: proxy.count("GET", "configmaps/a") == 3)
        with anyio.fail_after(0.9):
            await client.list_page(CONFIG_MAPS, config_maps.selectors)
            await client.get(NAMESPACES, "default")
            await client.raw("/version")
        binds.cancel_scope.cancel()


async def test_watches_do_not_wait_for_their_turn(
    connect: Connect, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-63"""
    client = await connect(qps=0.1, burst=1)
    await client.list_page(CONFIG_MAPS, config_maps.selectors)
    lines: list[bytes] = []
    config_maps.create("a")

    async def watch() -> None:
        params = {**config_maps.selectors, "resourceVersion": "0"}
        await client.watch(CONFIG_MAPS, params, lines.append, idle_s=10)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(watch)
        with anyio.fail_after(3):
            await eventually(lambda: len(lines) == 3)
        tasks.cancel_scope.cancel()


async def test_the_wait_for_the_rate_counts_in_the_deadline(connect: Connect, proxy: Proxy) -> None:
    """F-48: it was outside of it, and those who had gone away were waited for."""
    client = await connect(qps=2.0, burst=1, deadline_s=1.2)
    unsent: list[errors.ApiError] = []

    async def ask() -> None:
        try:
            await client.get(NAMESPACES, "default")
        except errors.NotSentError as error:
            unsent.append(error)

    started_s = time.monotonic()
    async with anyio.create_task_group() as requests:
        for _ in range(20):
            requests.start_soon(ask)
    assert time.monotonic() - started_s < 1.5
    assert len(unsent) == 17
    assert proxy.count("GET", "namespaces/default") == 3
    assert all(error.transient and not error.unclear for error in unsent)
    with anyio.fail_after(1):
        await client.get(NAMESPACES, "default")
