"""Following one object on a real API server, through a proxy that cuts the way there."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from controlplane import ControlPlane

from controller.runtime import errors
from controller.runtime.cache import Cache
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Client, Object, Resource
from controller.runtime.streams import StreamOptions
from controller.runtime.watching import WatchOptions
from tests.apiserver.runtime.conftest import Account, Background, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, Call, CutLine, Hang, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
OPTIONS = StreamOptions(
    watch=WatchOptions(backoff_s=0.1, max_backoff_s=0.3, refused_s=0.5), refused_s=0.5, linger_s=0.5
)


EXPIRED = {"kind": "Status", "reason": "Expired", "code": 410}


class Following:
    """A follower in the background: ends at `k: end`, or when the object is gone if it is to."""

    def __init__(self, *, end_if_gone: bool = False) -> None:
        self.seen: list[str | None] = []
        self.ended = anyio.Event()
        self._end_if_gone = end_if_gone

    def judge(self, item: Object | None) -> str | None:
        value = item["data"]["k"] if item is not None else None
        self.seen.append(value)
        if value == "end" or (value is None and self._end_if_gone):
            return value or "gone"
        return None

    async def run(self, changes: Changes, target: Target) -> None:
        await changes.until(Judged(target, self.judge))
        self.ended.set()


Begin = Callable[[Following, Target], None]


@pytest.fixture
async def changes(client: Client, background: Background) -> Changes:
    made = Changes(client, (), OPTIONS)
    background(made.run())
    await anyio.lowlevel.checkpoint()
    return made


@pytest.fixture
async def begin(changes: Changes) -> AsyncIterator[Begin]:
    async with anyio.create_task_group() as tasks:

        def run(following: Following, target: Target) -> None:
            tasks.start_soon(following.run, changes, target)

        yield run
        tasks.cancel_scope.cancel()


@pytest.fixture
def target(config_maps: ConfigMaps) -> Target:
    return Target(CONFIG_MAPS, "a", config_maps.namespace)


async def test_each_change_is_judged_until_there_is_a_verdict(
    config_maps: ConfigMaps, target: Target, begin: Begin
) -> None:
    config_maps.create("a", {"k": "1"})
    config_maps.create("b", {"k": "end"})
    following = Following()
    begin(following, target)
    await eventually(lambda: following.seen == ["1"])
    config_maps.change("a", {"k": "2"})
    await eventually(lambda: following.seen == ["1", "2"])
    config_maps.change("a", {"k": "end"})
    await eventually(following.ended.is_set)
    assert following.seen == ["1", "2", "end"]


async def test_an_object_that_is_not_there_yet_is_waited_for_and_its_end_is_seen(
    config_maps: ConfigMaps, target: Target, begin: Begin
) -> None:
    following = Following()
    begin(following, target)
    await eventually(lambda: following.seen == [None])
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: following.seen == [None, "1"])
    config_maps.delete("a")
    await eventually(lambda: following.seen == [None, "1", None])


async def test_what_is_known_is_not_read_again(
    config_maps: ConfigMaps, target: Target, begin: Begin, proxy: Proxy
) -> None:
    made = config_maps.create("a", {"k": "1"})
    config_maps.delete("a")
    following = Following(end_if_gone=True)
    begin(following, Target(CONFIG_MAPS, "a", target.namespace, made["metadata"]["resourceVersion"]))
    await eventually(following.ended.is_set)
    assert proxy.count("GET", "/configmaps") == 0


@pytest.mark.parametrize(
    "action",
    [
        CutLine(),
        CutLine(in_good_order=True),
        Refuse(),
        Answer(500, "broken"),
        Answer(410, EXPIRED),
        Answer(200, "no json\n"),
        Answer(200, '{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}\n'),
    ],
    ids=str,
)
async def test_a_broken_watch_is_taken_up_again(
    config_maps: ConfigMaps,
    target: Target,
    begin: Begin,
    proxy: Proxy,
    action: CutLine | Refuse | Answer,
) -> None:
    config_maps.create("a", {"k": "1"})
    rule = proxy.add(Rule(action, method="WATCH", path="/configmaps", times=2))
    following = Following()
    begin(following, target)
    await eventually(lambda: rule.count >= 1)
    config_maps.change("a", {"k": "2"})
    await eventually(lambda: rule.count >= 2)
    config_maps.change("a", {"k": "end"})
    await eventually(following.ended.is_set)


async def test_a_kind_that_may_not_be_read_ends_it(
    connect: Connect, account: Account, background: Background, target: Target
) -> None:
    changes = Changes(await connect(token=account.token()), (), OPTIONS)
    background(changes.run())
    await anyio.lowlevel.checkpoint()
    began_s = anyio.current_time()
    with pytest.raises(errors.ForbiddenError), anyio.fail_after(10):
        await changes.until(Judged(target, lambda item: None))
    assert anyio.current_time() - began_s >= OPTIONS.refused_s


# One watch for all who wait.


async def test_all_who_wait_for_a_kind_share_one_watch(
    config_maps: ConfigMaps, changes: Changes, begin: Begin, proxy: Proxy, target: Target
) -> None:
    """F-45: each wait was a connection or more; 150 of them passed the memory limit."""
    all_of_them = [Following() for _ in range(40)]
    for number, following in enumerate(all_of_them):
        config_maps.create(f"a{number}", {"k": "1"})
        begin(following, Target(CONFIG_MAPS, f"a{number}", target.namespace))
    await eventually(lambda: all(following.seen == ["1"] for following in all_of_them))
    assert len(proxy.open_watches) == 1
    assert proxy.count("WATCH", "/configmaps") == 1
    for number in range(40):
        config_maps.change(f"a{number}", {"k": "end"})
    await eventually(lambda: all(following.ended.is_set() for following in all_of_them))
    await eventually(lambda: not proxy.open_watches)
    assert proxy.count("WATCH", "/configmaps") == 1
    late = Following()
    begin(late, Target(CONFIG_MAPS, "a0", target.namespace))
    await eventually(late.ended.is_set)


async def test_a_watch_goes_on_for_those_who_come_soon_after(
    config_maps: ConfigMaps, target: Target, begin: Begin, proxy: Proxy
) -> None:
    """F-45."""
    for number in range(3):
        name = f"a{number}"
        made = config_maps.create(name, {"k": "1"})
        following = Following()
        begin(following, Target(CONFIG_MAPS, name, target.namespace, made["metadata"]["resourceVersion"]))
        config_maps.change(name, {"k": "end"})
        await eventually(following.ended.is_set)
    assert proxy.count("WATCH", "/configmaps") == 1
    assert proxy.count("GET", "/configmaps") == 0


async def test_a_deletion_while_the_history_is_lost_is_seen(
    config_maps: ConfigMaps, target: Target, begin: Begin, proxy: Proxy
) -> None:
    """F-46: a new list shows who is there; who is not is gone."""
    config_maps.create("a", {"k": "1"})
    config_maps.create("b", {"k": "1"})
    gone, anew = Following(end_if_gone=True), Following()
    begin(gone, target)
    begin(anew, Target(CONFIG_MAPS, "b", target.namespace))
    await eventually(lambda: gone.seen == anew.seen == ["1"] and proxy.open_watches)
    with proxy.rule(Rule(Refuse(), method="WATCH")):
        await eventually(lambda: not proxy.open_watches)
        config_maps.delete("a")
        config_maps.delete("b")
        config_maps.create("b", {"k": "end"})
        proxy.add(Rule(Answer(410, EXPIRED), method="WATCH", times=1))
    await eventually(gone.ended.is_set)
    await eventually(anew.ended.is_set)
    assert gone.seen == ["1", None]


async def test_who_comes_with_an_older_version_than_the_watch_is_at_reads(
    config_maps: ConfigMaps, target: Target, begin: Begin
) -> None:
    """F-46: what the watch told before he came is not told again."""
    made = config_maps.create("a", {"k": "1"})
    other = Following()
    begin(other, Target(CONFIG_MAPS, "b", target.namespace))
    await eventually(lambda: other.seen == [None])
    config_maps.change("a", {"k": "end"})
    config_maps.create("b", {"k": "1"})
    await eventually(lambda: other.seen == [None, "1"])
    following = Following()
    begin(following, Target(CONFIG_MAPS, "a", target.namespace, made["metadata"]["resourceVersion"]))
    await eventually(following.ended.is_set)
    assert following.seen == ["end"]


async def test_older_states_are_not_shown(config_maps: ConfigMaps, target: Target, begin: Begin) -> None:
    """F-46: the watch may lag behind what whoever waits has written, or read."""
    first = config_maps.create("a", {"k": "1"})
    config_maps.change("a", {"k": "2"})
    known = config_maps.change("a", {"k": "3"})
    early, late = Following(), Following()
    begin(early, Target(CONFIG_MAPS, "a", target.namespace, first["metadata"]["resourceVersion"]))
    begin(late, Target(CONFIG_MAPS, "a", target.namespace, known["metadata"]["resourceVersion"]))
    await eventually(lambda: early.seen == ["2", "3"])
    config_maps.change("a", {"k": "end"})
    await eventually(late.ended.is_set)
    assert late.seen == ["end"]


async def test_a_refusal_of_a_moment_ends_no_wait(
    background: Background, client: Client, config_maps: ConfigMaps, proxy: Proxy, target: Target
) -> None:
    """F-46: ForbiddenError is for a refusal that has lasted."""
    config_maps.create("a", {"k": "1"})
    changes = Changes(client, (), StreamOptions(watch=OPTIONS.watch, refused_s=30))
    background(changes.run())
    await anyio.lowlevel.checkpoint()
    following = Following()
    no = {"kind": "Status", "code": 403, "message": "no"}
    refusing = proxy.add(Rule(Answer(403, no), path="/configmaps"))
    running = background(following.run(changes, target))
    await eventually(lambda: refusing.count >= 3)
    proxy.remove(refusing)
    await eventually(lambda: following.seen == ["1"] and proxy.open_watches)
    refusing = proxy.add(Rule(Answer(403, no), path="/configmaps"))
    with proxy.rule(Rule(Refuse(), method="WATCH", where=lambda call: refusing.count == 0)):
        await eventually(lambda: not proxy.open_watches or refusing.count)
    config_maps.change("a", {"k": "end"})
    proxy.remove(refusing)
    with anyio.fail_after(10):
        await running


async def test_a_kind_that_is_not_there_is_not_asked_hotly(
    changes: Changes, client: Client, proxy: Proxy
) -> None:
    """F-47: it was asked every half second, for ever."""
    seen: list[Object | None] = []
    things = Resource("example.com/v1", "things")
    with anyio.move_on_after(3):
        await changes.until(Judged(Target(things, "a", "default"), seen.append))
    assert seen == [], "that there is no such kind does not say that the object is gone"
    assert proxy.count("", "/things") <= 20


async def test_a_wait_needs_someone_to_tell(client: Client, target: Target) -> None:
    with pytest.raises(RuntimeError, match="not running"):
        await Changes(client).until(Judged(target, lambda item: None))


# Where a cache follows.


class Cached:
    """A cache of the test's namespace, and changes that go by it."""

    def __init__(self, client: Client, config_maps: ConfigMaps, **arguments: Any) -> None:  # noqa: ANN401
        arguments.setdefault("namespace", config_maps.namespace)
        options = WatchOptions(watch_s=5, backoff_s=0.1, max_backoff_s=0.3, refused_s=0.5)
        self.cache = Cache(client, CONFIG_MAPS, options=options, **arguments)
        self.changes = Changes(client, (self.cache,), OPTIONS)

    def holds(self, target: Target) -> bool:
        return self.cache.get(target.name, target.namespace) is not None

    async def start(self, background: Background) -> None:
        background(self.cache.run())
        background(self.changes.run())
        with anyio.fail_after(10):
            await self.cache.settled()


@pytest.fixture
async def cached(client: Client, config_maps: ConfigMaps, background: Background) -> Cached:
    made = Cached(client, config_maps)
    await made.start(background)
    return made


async def test_where_a_cache_follows_nothing_is_asked(
    cached: Cached, config_maps: ConfigMaps, target: Target, background: Background, proxy: Proxy
) -> None:
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: cached.holds(target))
    await eventually(lambda: len(proxy.open_watches) == 1)
    before = len(proxy.calls)
    following = Following()
    running = background(following.run(cached.changes, target))
    await eventually(lambda: following.seen == ["1"])
    config_maps.delete("a")
    config_maps.create("a", {"k": "end"})
    with anyio.fail_after(5):
        await running
    assert following.seen == ["1", None, "end"], "each change, in order"
    assert [call for call in proxy.calls[before:] if not call.watches] == []


async def test_a_version_that_is_passed_without_a_change_of_the_object(
    cached: Cached,
    config_maps: ConfigMaps,
    target: Target,
    background: Background,
    control_plane: ControlPlane,
) -> None:
    """F-46: whoever waited for the cache to reach it was told at the object's next change only."""
    config_maps.create("a", {"k": "end"})
    await eventually(lambda: cached.holds(target))
    foreign = control_plane.request(
        "POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "foreign-"}}
    )
    following = Following()
    later = Target(CONFIG_MAPS, "a", target.namespace, foreign["metadata"]["resourceVersion"])
    running = background(following.run(cached.changes, later))
    await anyio.sleep(0.2)
    assert following.seen == [], "the cache is not that far"
    with anyio.fail_after(8):  # a bookmark tells it
        await running


async def test_a_version_that_is_passed_by_a_new_list(
    cached: Cached, config_maps: ConfigMaps, target: Target, background: Background, proxy: Proxy
) -> None:
    """F-46."""
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: cached.holds(target) and proxy.open_watches)
    with proxy.rule(Rule(Refuse(), method="WATCH")):
        await eventually(lambda: not proxy.open_watches)
        known = config_maps.change("a", {"k": "end"})
        following = Following()
        version = known["metadata"]["resourceVersion"]
        running = background(
            following.run(cached.changes, Target(CONFIG_MAPS, "a", target.namespace, version))
        )
        await anyio.sleep(0.2)
        assert following.seen == []
        proxy.add(Rule(Answer(410, EXPIRED), method="WATCH", times=1))
    with anyio.fail_after(5):
        await running
    assert following.seen == ["end"]


async def test_the_answer_to_a_write_reaches_a_version_too(
    cached: Cached, config_maps: ConfigMaps, target: Target, client: Client, proxy: Proxy
) -> None:
    """F-46: the cache may hold what its watch has not told yet."""
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: cached.holds(target))
    with proxy.rule(Rule(Hang(), method="WATCH")):
        answer = await client.patch(CONFIG_MAPS, "a", {"data": {"k": "end"}}, config_maps.namespace)
        cached.cache.observe(answer)
        version = answer["metadata"]["resourceVersion"]
        judged = Judged(Target(CONFIG_MAPS, "a", target.namespace, version), Following().judge)
        with anyio.fail_after(2):
            assert await cached.changes.until(judged) == "end"


async def test_a_wait_moves_on_to_a_watch_when_its_cache_is_refused(
    cached: Cached, config_maps: ConfigMaps, target: Target, background: Background, proxy: Proxy
) -> None:
    """F-34, F-46: who waits on a cache that can tell no more waited in vain."""
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: cached.holds(target) and proxy.open_watches)
    following = Following(end_if_gone=True)
    running = background(following.run(cached.changes, target))
    await eventually(lambda: following.seen == ["1"])
    no = {"kind": "Status", "code": 403, "message": "no"}

    def is_of_the_cache(call: Call) -> bool:
        return call.query.get("fieldSelector") == f"metadata.namespace={target.namespace}"

    with proxy.rule(Rule(Refuse(), method="WATCH")):
        await eventually(lambda: not proxy.open_watches)
        proxy.add(Rule(Answer(403, no), path="/configmaps$", where=is_of_the_cache))
    await eventually(lambda: cached.cache.problem is not None)
    await eventually(lambda: proxy.open_watches)
    (watch,) = proxy.open_watches
    assert "metadata.name=a" in watch.query["fieldSelector"], "of a kind that is cached, only the one"
    config_maps.change("a", {"k": "2"})
    await eventually(lambda: following.seen[-1] == "2")
    config_maps.delete("a")
    with anyio.fail_after(5):
        await running
    assert None not in following.seen[:-1], "nobody said that it was gone before it was"


async def test_what_a_part_of_a_kind_does_not_hold_is_followed_by_its_name(
    client: Client, config_maps: ConfigMaps, target: Target, background: Background, proxy: Proxy
) -> None:
    """F-45, F-46: a watch of all pods, for one that the cache does not hold, would be heavy."""
    made = Cached(client, config_maps, namespace="", selectors={"labelSelector": "none=such"})
    await made.start(background)
    config_maps.create("a", {"k": "1"})
    following = Following(end_if_gone=True)
    running = background(following.run(made.changes, target))
    await eventually(lambda: following.seen == ["1"])
    await eventually(lambda: len(proxy.open_watches) == 2)
    selectors = {call.query.get("fieldSelector", "") for call in proxy.open_watches}
    assert f"metadata.name=a,metadata.namespace={target.namespace}" in selectors
    config_maps.delete("a")
    with anyio.fail_after(5):
        await running


async def test_who_leaves_a_part_of_a_kind_is_not_gone(
    client: Client, config_maps: ConfigMaps, target: Target, background: Background
) -> None:
    """F-46: the watch of a part tells of both in the same words."""
    made = Cached(client, config_maps, namespace="", selectors=config_maps.selectors)
    await made.start(background)
    config_maps.create("a", {"k": "1"})
    await eventually(lambda: made.holds(target))
    following = Following(end_if_gone=True)
    running = background(following.run(made.changes, target))
    await eventually(lambda: following.seen == ["1"])
    config_maps.change("a", {"k": "2"}, labels={"of": "somebody-else"})
    await eventually(lambda: following.seen == ["1", "2"])
    config_maps.delete("a")
    with anyio.fail_after(5):
        await running
    assert following.seen == ["1", "2", None]


async def test_the_first_of_several_objects_ends_it(
    cached: Cached, config_maps: ConfigMaps, target: Target
) -> None:
    config_maps.create("a", {"k": "1"})
    config_maps.create("b", {"k": "1"})
    other = Target(CONFIG_MAPS, "b", target.namespace)

    async def later() -> None:
        await anyio.sleep(0.3)
        config_maps.change("b", {"k": "end"})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later)
        with anyio.fail_after(5):
            verdict = await cached.changes.until(
                Judged(target, Following().judge), Judged(other, Following().judge)
            )
    assert verdict == "end"
