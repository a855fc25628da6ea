"""Which requests are looked for, live, before something on a node is released."""

import pytest

from controller.kai.names import NODES
from controller.kai.nodepool import NodePool
from controller.reservation.shard import Shard
from controller.runtime.cache import Cache
from tests.unit.binder.world import Memory, World

pytestmark = pytest.mark.anyio

LONG = "n" * 64
"""The name of a node that no label can have as its value."""


async def test_a_node_whose_name_is_no_label_value_hides_no_request_without_the_label() -> None:
    world = World(server := Memory())
    for name, labels in (("other", {"pool": "b"}), ("own", {"pool": "a"}), ("labelled", {"pool": "b"})):
        request = world.ask(world.pod(name), LONG, labels=labels)
        if name != "labelled":
            del request["metadata"]["labels"]["selected-node"]
    shard = Shard(server, NodePool("pool", "a"), Cache(server, NODES))
    assert [item["metadata"]["name"] for item in await shard.requests_on([LONG])] == ["other"]
    assert server.calls["LIST bindrequests"] == 1
