"""Following one object on a real API server, through a proxy that cuts the way there."""

from collections.abc import AsyncIterator, Callable

import anyio
import anyio.lowlevel
import pytest

from controller.runtime import errors
from controller.runtime.changes import Changes, Judged, Target
from controller.runtime.client import Client, Object, Resource
from controller.runtime.streams import StreamOptions
from controller.runtime.watching import WatchOptions
from tests.apiserver.runtime.conftest import Account, Background, ConfigMaps, Connect
from tests.polling import eventually
from tests.proxy import Answer, CutLine, Proxy, Refuse, Rule

pytestmark = pytest.mark.anyio

CONFIG_MAPS = Resource("v1", "configmaps")
OPTIONS = StreamOptions(
    watch=WatchOptions(backoff_s=0.1, max_backoff_s=0.3, refused_s=0.5), refused_s=0.5, linger_s=0.5
)


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
        Answer(410, {"kind": "Status", "reason": "Expired", "code": 410}),
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
