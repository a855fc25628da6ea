"""The cache against a real API server, and what it makes of a bad way there."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from controlplane import ControlPlane

from controller.runtime.cache import Cache, Change, Key, key_of
from controller.runtime.client import Client, Object, Resource
from controller.runtime.metrics import Metrics
from controller.runtime.reconcile import Controller, Result
from controller.runtime.slots import Slot
from controller.runtime.watching import WatchOptions
from controller.runtime.workqueue import Backoff, WorkQueue
from tests.apiserver.runtime.conftest import Account, Background, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, CutLine, Delay, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
OPTIONS = WatchOptions(page_size=100, watch_s=20, idle_s=30, backoff_s=0.1, max_backoff_s=0.3, refused_s=0.5)

Start = Callable[..., Awaitable[Cache]]


@pytest.fixture
def start(background: Background, client: Client, config_maps: ConfigMaps) -> Start:
    """Starts a cache of the test's ConfigMaps and waits until it is filled."""

    async def begin(*, client: Client = client, settled: bool = True, **arguments: Any) -> Cache:  # noqa: ANN401
        arguments.setdefault("options", OPTIONS)
        cache = Cache(client, CONFIG_MAPS, selectors=config_maps.selectors, **arguments)
        background(cache.run())
        if settled:
            with anyio.fail_after(10):
                await cache.settled()
        return cache

    return begin


class Changes:
    """The changes that a cache tells of, as (old, new) of `data.k`, by name."""

    def __init__(self, cache: Cache) -> None:
        self.seen: list[tuple[str, str | None, str | None]] = []
        cache.subscribe(self._note)

    def _note(self, change: Change) -> None:
        self.seen.append((change.object["metadata"]["name"], _value(change.old), _value(change.new)))


def _value(item: Object | None) -> str | None:
    return None if item is None else item.get("data", {}).get("k", "")


def names(cache: Cache) -> list[str]:
    return sorted(item["metadata"]["name"] for item in cache)


@asynccontextmanager
async def watch_cut(proxy: Proxy) -> AsyncIterator[None]:
    """Breaks the watch, and lets no new one begin as long as the block lasts."""
    await eventually(lambda: proxy.open_watches)
    with proxy.rule(Rule(Refuse(), method="WATCH")):
        await eventually(lambda: not proxy.open_watches)
        yield


def history_lost(proxy: Proxy) -> Rule:
    """The next watch is told that its version is too old, as the server does: by an event."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
    event = json.dumps({"type": "ERROR", "object": {**status, "message": "too old resource version"}})
    return Rule(Answer(200, event + "\n"), method="WATCH", times=1)


# Filling it.


@pytest.mark.parametrize("number", [0, 1, 99, 100, 101, 250])
async def test_all_pages_are_read(
    start: Start, control_plane: ControlPlane, config_maps: ConfigMaps, proxy: Proxy, number: int
) -> None:
    items = [config_maps.body(f"a{n}", namespace=config_maps.namespace) for n in range(number)]
    if items:
        control_plane.kubectl(
            "create", "-f", "-", input=json.dumps({"kind": "List", "apiVersion": "v1", "items": items})
        )
    cache = await start()
    assert len(cache) == number
    assert names(cache) == sorted(f"a{n}" for n in range(number))
    assert all(call.query["limit"] == "100" for call in proxy.calls if "limit" in call.query)
    assert proxy.count("GET", "configmaps") >= -(-number // 100)


async def test_nothing_is_in_it_before_the_list_is_complete(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    for n in range(3):
        config_maps.create(f"a{n}")
    second_page = Rule(Hang(), method="GET", where=lambda call: "continue" in call.query)
    with proxy.rule(second_page):
        cache = await start(settled=False, options=WatchOptions(page_size=2))
        await eventually(lambda: second_page.count)
        assert len(cache) == 0
        assert not cache.ready
    await eventually(lambda: cache.ready)
    assert len(cache) == 3


async def test_a_list_that_breaks_in_the_middle_begins_anew(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    for n in range(3):
        config_maps.create(f"a{n}")
    second_page = Rule(Answer(410), method="GET", times=1, where=lambda call: "continue" in call.query)
    with proxy.rule(second_page):
        cache = await start(options=WatchOptions(page_size=2, backoff_s=0.1))
    assert names(cache) == ["a0", "a1", "a2"]
    assert second_page.count == 2


async def test_objects_are_trimmed(start: Start, config_maps: ConfigMaps) -> None:
    config_maps.create("a", {"k": "1"})
    assert "managedFields" in config_maps.get("a")["metadata"]
    cache = await start()
    config_maps.create("b")
    await eventually(lambda: len(cache) == 2)
    assert not any("managedFields" in item["metadata"] for item in cache)


async def test_a_trim_of_ones_own(start: Start, config_maps: ConfigMaps) -> None:
    def names_only(item: Object) -> Object:
        metadata = {key: item["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        return {"metadata": metadata}

    config_maps.create("a", {"k": "1"})
    cache = await start(trim=names_only)
    item = cache.get("a", config_maps.namespace)
    assert item is not None
    assert set(item) == {"metadata"}


# Following.


async def test_changes_are_seen_and_told(start: Start, config_maps: ConfigMaps) -> None:
    config_maps.create("a", {"k": "1"})
    cache = await start()
    changes = Changes(cache)
    config_maps.change("a", {"k": "2"})
    config_maps.create("b", {"k": "1"})
    config_maps.delete("a")
    await eventually(lambda: len(changes.seen) == 3)
    assert changes.seen == [("a", "1", "2"), ("b", None, "1"), ("a", "2", None)]
    assert cache.get("a", config_maps.namespace) is None
    assert names(cache) == ["b"]


async def test_the_first_list_is_told_as_changes_too(
    background: Background, client: Client, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "1"})
    cache = Cache(client, CONFIG_MAPS, selectors=config_maps.selectors, options=OPTIONS)
    changes = Changes(cache)
    background(cache.run())
    await cache.settled()
    assert changes.seen == [("a", None, "1")]


async def test_listeners_hear_of_their_object_and_no_other(start: Start, config_maps: ConfigMaps) -> None:
    heard: list[str] = []
    cache = await start()
    with cache.following((config_maps.namespace, "a"), lambda _: heard.append("a")):
        config_maps.create("b")
        config_maps.create("a")
        config_maps.delete("a")
        await eventually(lambda: len(heard) == 2 and len(cache) == 1)
    config_maps.create("a")
    await eventually(lambda: len(cache) == 2)
    assert heard == ["a", "a"]


async def test_an_object_that_no_longer_matches_the_selector_is_gone(
    start: Start, config_maps: ConfigMaps
) -> None:
    config_maps.create("a")
    cache = await start()
    config_maps.change("a", {}, labels={"of": "somebody-else"})
    await eventually(lambda: len(cache) == 0)


async def test_an_index_finds_what_it_lists_and_nothing_else(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "x"})
    config_maps.create("b", {"k": "x,y"})
    cache = await start(indexes={"values": lambda item: item["data"]["k"].split(",")})

    def found(value: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in cache.by_index("values", value))

    assert (found("x"), found("y"), found("z")) == (["a", "b"], ["b"], [])
    config_maps.change("b", {"k": "z"})
    config_maps.create("c", {"k": "y"})
    await eventually(lambda: found("y") == ["c"])
    assert (found("x"), found("z")) == (["a"], ["b"])
    async with watch_cut(proxy):
        config_maps.change("a", {"k": "y"})
        config_maps.delete("b")
        proxy.add(history_lost(proxy))
    await eventually(lambda: found("y") == ["a", "c"])
    assert (found("x"), found("z")) == ([], [])
    config_maps.delete_all()
    await eventually(lambda: len(cache) == 0)
    assert cache._store._indexes["values"] == {}


# The answers to our own writes.


async def test_the_answer_to_a_write_is_seen_at_once(
    start: Start, client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "1"})
    cache = await start()
    changes = Changes(cache)
    with proxy.rule(Rule(Hang(), method="WATCH")):
        answer = await client.patch(CONFIG_MAPS, "a", {"data": {"k": "2"}}, config_maps.namespace)
        cache.observe(answer)
        assert changes.seen == [("a", "1", "2")]
    config_maps.change("a", {"k": "3"})
    await eventually(lambda: len(changes.seen) == 2)
    assert changes.seen[1:] == [("a", "2", "3")], "what the watch brings later is no news"


async def test_an_answer_that_comes_late_does_not_turn_back_time(
    start: Start, client: Client, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "1"})
    cache = await start()
    late = await client.patch(CONFIG_MAPS, "a", {"data": {"k": "2"}}, config_maps.namespace)
    config_maps.change("a", {"k": "3"})
    await eventually(lambda: _value(cache.get("a", config_maps.namespace)) == "3")
    cache.observe(late)
    assert _value(cache.get("a", config_maps.namespace)) == "3"


async def test_an_answer_does_not_bring_back_what_is_deleted(
    start: Start, client: Client, config_maps: ConfigMaps
) -> None:
    config_maps.create("a", {"k": "1"})
    cache = await start()
    late = await client.patch(CONFIG_MAPS, "a", {"data": {"k": "2"}}, config_maps.namespace)
    config_maps.delete("a")
    await eventually(lambda: len(cache) == 0)
    cache.observe(late)
    assert len(cache) == 0
    config_maps.create("a", {"k": "new"})
    await eventually(lambda: len(cache) == 1)
    cache.observe(late)
    assert _value(cache.get("a", config_maps.namespace)) == "new"


async def test_a_list_that_began_before_a_write_does_not_turn_back_time(
    start: Start, client: Client, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    for n in range(3):
        config_maps.create(f"a{n}", {"k": "1"})
    cache = await start(options=WatchOptions(page_size=2, backoff_s=0.05))
    changes = Changes(cache)
    second_page = Rule(Hang(), method="GET", where=lambda call: "continue" in call.query)
    with proxy.rule(second_page):
        async with watch_cut(proxy):
            proxy.add(history_lost(proxy))
        await eventually(lambda: second_page.count)
        cache.observe(await client.patch(CONFIG_MAPS, "a0", {"data": {"k": "2"}}, config_maps.namespace))
    watches = proxy.count("WATCH", "configmaps")
    await eventually(lambda: proxy.count("WATCH", "configmaps") > watches)
    assert _value(cache.get("a0", config_maps.namespace)) == "2"
    config_maps.change("a1", {"k": "2"})
    await eventually(lambda: len(changes.seen) == 2)
    assert changes.seen == [("a0", "1", "2"), ("a1", "1", "2")]


# A bad way to the server.


async def test_a_watch_that_was_cut_goes_on_where_it_was(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    for name in ("stays", "changes", "goes", "comes-again"):
        config_maps.create(name, {"k": "1"})
    cache = await start()
    changes = Changes(cache)
    async with watch_cut(proxy):
        config_maps.change("changes", {"k": "2"})
        config_maps.delete("goes")
        config_maps.delete("comes-again")
        config_maps.create("comes-again", {"k": "new"})
        config_maps.create("comes", {"k": "1"})
    await eventually(lambda: len(changes.seen) == 5)
    assert changes.seen == [
        ("changes", "1", "2"),
        ("goes", "1", None),
        ("comes-again", "1", None),
        ("comes-again", None, "new"),
        ("comes", None, "1"),
    ]
    assert proxy.count("GET", "configmaps") == 1, "no new list is needed"


async def test_when_the_history_is_lost_a_new_list_tells_the_difference(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    for name in ("stays", "changes", "goes", "comes-again"):
        config_maps.create(name, {"k": "1"})
    cache = await start()
    changes = Changes(cache)
    async with watch_cut(proxy):
        config_maps.change("changes", {"k": "2"})
        config_maps.delete("goes")
        config_maps.delete("comes-again")
        config_maps.create("comes-again", {"k": "new"})
        config_maps.create("comes", {"k": "1"})
        proxy.add(history_lost(proxy))
    await eventually(lambda: len(changes.seen) == 5)
    assert sorted(changes.seen, key=str) == sorted(
        [
            ("changes", "1", "2"),
            ("goes", "1", None),
            ("comes-again", "1", None),
            ("comes-again", None, "new"),
            ("comes", None, "1"),
        ],
        key=str,
    )
    again = [change for change in changes.seen if change[0] == "comes-again"]
    assert again == [("comes-again", "1", None), ("comes-again", None, "new")], "first gone, then new"
    assert proxy.count("GET", "configmaps") == 2
    assert names(cache) == ["changes", "comes", "comes-again", "stays"]


async def test_a_refusal_of_the_version_by_status_means_a_new_list_too(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    cache = await start()
    async with watch_cut(proxy):
        config_maps.create("a")
        proxy.add(Rule(Answer(410), method="WATCH", times=1))
    await eventually(lambda: len(cache) == 1)
    assert proxy.count("GET", "configmaps") == 2


async def test_a_mute_watch_is_noticed(start: Start, proxy: Proxy, config_maps: ConfigMaps) -> None:
    cache = await start(options=WatchOptions(watch_s=20, idle_s=1.0, backoff_s=0.1))
    await eventually(lambda: proxy.count("WATCH", "configmaps"))
    with proxy.rule(Rule(Hang(), method="WATCH", times=1)):
        config_maps.create("a")
        await eventually(lambda: len(cache) == 1, within_s=4)


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_a_line_that_was_cut_is_read_again(
    start: Start, proxy: Proxy, config_maps: ConfigMaps, in_good_order: bool
) -> None:
    cache = await start()
    changes = Changes(cache)
    with proxy.rule(Rule(CutLine(in_good_order), method="WATCH", times=1)):
        await eventually(lambda: proxy.count("WATCH", "configmaps"))
        config_maps.create("a", {"k": "1"})
        await eventually(lambda: len(cache) == 1)
    assert changes.seen == [("a", None, "1")]


async def test_garbage_in_a_watch_means_a_new_list(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    cache = await start()
    async with watch_cut(proxy):
        config_maps.create("a")
        proxy.add(Rule(Answer(200, "<html>\n"), method="WATCH", times=1))
    await eventually(lambda: len(cache) == 1)
    assert proxy.count("GET", "configmaps") == 2


async def test_a_server_that_breaks_every_watch_is_not_asked_too_often(start: Start, proxy: Proxy) -> None:
    with proxy.rule(Rule(Refuse(), method="WATCH")):
        await start()
        await anyio.sleep(1.5)
        # aiohttp tries a GET once more by itself, hence twice as many as below.
        assert 3 <= proxy.count("WATCH", "configmaps") <= 30


async def test_watches_that_end_at_once_are_not_taken_up_in_a_hurry(start: Start, proxy: Proxy) -> None:
    with proxy.rule(Rule(Answer(200, ""), method="WATCH")):
        await start()
        await anyio.sleep(1.5)
        assert 3 <= proxy.count("WATCH", "configmaps") <= 15


async def test_a_slow_list_is_a_list(start: Start, proxy: Proxy, config_maps: ConfigMaps) -> None:
    config_maps.create("a")
    with proxy.rule(Rule(Delay(0.5), method="GET")):
        assert len(await start()) == 1


async def test_bookmarks_and_ends_advance_the_version(
    start: Start, control_plane: ControlPlane, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    cache = await start(options=WatchOptions(watch_s=5, idle_s=10))
    first = cache._version
    await eventually(lambda: proxy.count("WATCH", "configmaps"))
    for n in range(5):  # not ours: only bookmarks can tell that the version went on
        control_plane.request("POST", "/api/v1/namespaces/default/configmaps", _foreign(n))
    await eventually(lambda: cache._version >= first + 5, within_s=8)
    assert len(cache) == 0
    assert proxy.count("GET", "configmaps") == 1
    assert all("allowWatchBookmarks" in call.query for call in proxy.calls if call.watches)


async def test_the_server_killed_and_started_again(
    start: Start, control_plane: ControlPlane, config_maps: ConfigMaps, client: Client
) -> None:
    config_maps.create("stays", {"k": "1"})
    config_maps.create("goes", {"k": "1"})
    cache = await start()
    changes = Changes(cache)
    control_plane.kill_apiserver()
    await anyio.sleep(0.5)
    assert cache.ready, "what was true stays in use"
    assert names(cache) == ["goes", "stays"]
    await anyio.to_thread.run_sync(control_plane.start_apiserver)
    config_maps.delete("goes")
    config_maps.create("comes", {"k": "1"})
    await eventually(lambda: names(cache) == ["comes", "stays"], within_s=15)
    assert changes.seen == [("goes", "1", None), ("comes", None, "1")]


async def test_signs_of_life(start: Start, client: Client) -> None:
    assert Cache(client, CONFIG_MAPS).silent_s() == 0
    cache = await start(options=WatchOptions(watch_s=1, idle_s=2, backoff_s=0.1, max_backoff_s=0.3))
    await eventually(lambda: cache.silent_s() > 0.3)
    await eventually(lambda: cache.silent_s() < 0.2)


# Missing rights.


async def test_a_kind_that_is_forbidden_is_settled_and_heals_when_it_is_granted(
    start: Start, connect: Connect, account: Account, config_maps: ConfigMaps, logs: list[str]
) -> None:
    config_maps.create("a")
    client = await connect(token=account.token())
    cache = await start(client=client, required=False)
    assert cache.ready
    assert cache.problem is not None
    assert "forbidden" in cache.problem
    assert len(cache) == 0
    await anyio.sleep(0.5)
    assert len([line for line in logs if line.startswith("ERROR")]) == 1, "said once, not at each try"
    account.grant("configmaps", "list", "watch", cluster_wide=True)
    await eventually(lambda: cache.problem is None)
    assert names(cache) == ["a"]
    assert cache.ready
    config_maps.create("b")
    await eventually(lambda: names(cache) == ["a", "b"])


async def test_a_required_kind_that_is_forbidden_is_settled_and_not_ready(
    start: Start, connect: Connect, account: Account
) -> None:
    cache = await start(client=await connect(token=account.token()), required=True)
    assert cache.problem is not None
    assert not cache.ready


async def test_a_kind_that_may_be_listed_and_not_watched(
    start: Start, connect: Connect, account: Account, config_maps: ConfigMaps
) -> None:
    config_maps.create("a")
    account.grant("configmaps", "list", cluster_wide=True)
    cache = await start(client=await connect(token=account.token()))
    await eventually(lambda: cache.problem is not None and "watch" in cache.problem)
    config_maps.create("b")
    await eventually(lambda: names(cache) == ["a", "b"])


async def test_a_kind_that_does_not_exist(background: Background, client: Client) -> None:
    cache = Cache(client, Resource("example.com/v1", "things"), required=False, options=OPTIONS)
    background(cache.run())
    with anyio.fail_after(5):
        await cache.settled()
    assert cache.problem is not None
    assert cache.ready


def refused(**more: Any) -> Rule:  # noqa: ANN401
    return Rule(Answer(403, {"kind": "Status", "code": 403, "message": "no"}), path="/configmaps$", **more)


async def test_a_refusal_of_a_moment_empties_nothing_and_loses_no_deletion(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-34: it emptied the cache, and what was deleted meanwhile was never told."""
    for name in ("stays", "goes"):
        config_maps.create(name, {"k": "1"})
    cache = await start(options=WatchOptions(backoff_s=0.1, max_backoff_s=0.3, refused_s=30))
    changes = Changes(cache)
    async with watch_cut(proxy):
        refusing = proxy.add(refused())
    config_maps.delete("goes")
    before = proxy.count("WATCH", "/configmaps$")
    await eventually(lambda: proxy.count("WATCH", "/configmaps$") > before + 2)
    assert names(cache) == ["goes", "stays"]
    assert cache.problem is None
    proxy.add(history_lost(proxy))  # it goes on with a new list, which shows no deletions by itself
    proxy.remove(refusing)
    await eventually(lambda: names(cache) == ["stays"])
    assert changes.seen == [("goes", "1", None)]


async def test_a_refusal_that_lasts_hides_all_and_still_loses_no_deletion(
    start: Start, proxy: Proxy, config_maps: ConfigMaps
) -> None:
    """F-34: nobody is told of deletions that no list has shown; those that one shows are told."""
    for name in ("stays", "goes", "changes"):
        config_maps.create(name, {"k": "1"})
    cache = await start(indexes={"k": lambda item: [item["data"]["k"]]})
    changes = Changes(cache)
    heard: list[str] = []
    with cache.following((config_maps.namespace, "stays"), lambda _: heard.append("stays")):
        async with watch_cut(proxy):
            refusing = proxy.add(refused())
        await eventually(lambda: len(cache) == 0)
        assert cache.problem is not None
        assert cache.get("stays", config_maps.namespace) is None
        assert cache.by_index("k", "1") == []
        assert not cache.follows(CONFIG_MAPS, "stays", config_maps.namespace)
        assert heard, "who listens must look elsewhere"
        assert changes.seen == []
        config_maps.delete("goes")
        config_maps.change("changes", {"k": "2"})
        proxy.remove(refusing)
        await eventually(lambda: cache.problem is None)
    assert names(cache) == ["changes", "stays"]
    assert sorted(changes.seen) == [("changes", "1", "2"), ("goes", "1", None)]
    assert len(cache.by_index("k", "1")) == 1


async def test_a_kind_that_is_not_there_is_not_asked_hotly(
    background: Background, client: Client, proxy: Proxy
) -> None:
    """F-47: a 404 was asked every half second, for ever."""
    things = Resource("example.com/v1", "things")
    cache = Cache(client, things, options=WatchOptions(backoff_s=0.2, max_backoff_s=10))
    background(cache.run())
    await anyio.sleep(3)
    assert 2 <= proxy.count("GET", "/things$") <= 6


# What cannot be understood.


async def test_a_poisonous_object_costs_itself_only(
    start: Start, config_maps: ConfigMaps, logs: list[str]
) -> None:
    """F-52: an exception of a trim or an index ended the process, and again after each restart."""

    def trim(item: Object) -> Object:
        if item["data"]["k"] == "poison":
            raise ValueError("cannot be read")
        return item

    def by_length(item: Object) -> list[str]:
        return [str(10 // len(item["data"]["k"]))]

    config_maps.create("a", {"k": "poison"})
    config_maps.create("b", {"k": "1"})
    cache = await start(trim=trim, indexes={"length": by_length})
    changes = Changes(cache)
    assert names(cache) == ["b"]
    config_maps.change("a", {"k": "poison"}, annotations={"again": "1"})
    config_maps.create("c", {"k": ""})
    config_maps.create("d", {"k": "1"})
    await eventually(lambda: names(cache) == ["b", "d"])
    assert len([line for line in logs if "cannot be understood" in line]) == 2, "each is said once"
    config_maps.change("a", {"k": "22"})
    config_maps.change("b", {"k": "poison"})
    await eventually(lambda: names(cache) == ["a", "d"])
    assert changes.seen == [("d", None, "1"), ("a", None, "22"), ("b", "1", None)]
    assert [item["metadata"]["name"] for item in cache.by_index("length", "5")] == ["a"]
    config_maps.delete("b")
    config_maps.delete("c")
    config_maps.create("b", {"k": "1"})
    await eventually(lambda: names(cache) == ["a", "b", "d"])


async def test_a_handler_that_raises_costs_one_change(
    start: Start, config_maps: ConfigMaps, logs: list[str]
) -> None:
    """F-52: it ended the process."""

    def handle(change: Change) -> None:
        if change.object["metadata"]["name"] == "bad":
            raise RuntimeError("a surprise")

    cache = await start()
    cache.subscribe(handle)
    changes = Changes(cache)
    config_maps.create("bad", {"k": "1"})
    config_maps.create("good", {"k": "1"})
    await eventually(lambda: changes.seen == [("bad", None, "1"), ("good", None, "1")])
    assert len([line for line in logs if line.startswith("ERROR A change could not be handled")]) == 1


async def test_a_change_that_cannot_be_mapped_to_keys_costs_its_own_keys(
    start: Start, config_maps: ConfigMaps, logs: list[str], background: Background
) -> None:
    """F-52: said once, counted, and the others are worked on."""

    worked: list[str] = []

    class Reconciler:
        async def reconcile(self, key: Key, slot: Slot, /) -> Result:
            worked.append(key[1])
            return Result()

    def keys(change: Change) -> list[Key]:
        if change.object["metadata"]["name"] == "bad":
            raise KeyError("spec")
        return [key_of(change.object)]

    config_maps.create("bad", {"k": "1"})
    config_maps.create("first")
    cache = await start()
    metrics = Metrics()
    observer = metrics.controller("test", 1)
    queue: WorkQueue[Key] = WorkQueue(Backoff())
    controller = Controller("test", Reconciler(), queue, max_concurrent=1, observer=observer)
    controller.watch(cache, keys)
    running = background(controller.run())
    config_maps.change("bad", {"k": "2"})
    config_maps.create("second")
    await eventually(lambda: worked == ["first", "second"])
    assert len([line for line in logs if "nobody knows what to work on" in line]) == 1
    assert b'controller_runtime_reconcile_panics_total{controller="test"} 2.0' in metrics.render()[0]
    assert b'controller_runtime_reconcile_errors_total{controller="test"} 2.0' in metrics.render()[0]
    controller.stop()
    with anyio.fail_after(3):
        await running


async def test_a_server_that_is_not_ready_yet_refuses_nothing(start: Start, proxy: Proxy) -> None:
    with (
        proxy.rule(Rule(Answer(500, "[-]poststarthook/rbac/bootstrap-roles failed"), path="^/readyz$")),
        proxy.rule(Rule(Answer(403), path="/configmaps$")),
    ):
        cache = await start(settled=False, required=False)
        await anyio.sleep(0.5)
        assert not cache.ready, "the roles are not known yet: this is no refusal"
    await eventually(lambda: cache.problem is None)


def _foreign(number: int) -> Object:
    return {"metadata": {"generateName": f"foreign-{number}-"}}
