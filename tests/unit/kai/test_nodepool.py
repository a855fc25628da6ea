"""Which objects are in a node pool, and what a binder of it asks the server for."""

import pytest

from controller import setting_types
from controller.kai.names import LEASE_NAME, is_object_name
from controller.kai.nodepool import NODE_POOL_LABEL, WHOLE, NodePool, lease_name_of
from controller.runtime.client import Object

KEY = NODE_POOL_LABEL
A, DEFAULT = NodePool(KEY, "a"), NodePool(KEY)


def labelled(value: str) -> Object:
    return {"metadata": {"name": "x", "labels": {KEY: value}}}


NONE, IN_A, IN_B, EMPTY = {"metadata": {"name": "x"}}, labelled("a"), labelled("b"), labelled("")


def test_the_labels_name_is_one() -> None:
    assert setting_types.NODE_POOL_LABEL == NODE_POOL_LABEL == "kai.scheduler/node-pool"


@pytest.mark.parametrize(
    ("pool", "held"),
    [(WHOLE, [NONE, IN_A, IN_B, EMPTY]), (DEFAULT, [NONE]), (A, [IN_A]), (NodePool(KEY, "b"), [IN_B])],
)
def test_what_a_pool_holds(pool: NodePool, held: list[Object]) -> None:
    assert [item for item in (NONE, IN_A, IN_B, EMPTY) if pool.holds(item)] == held


def test_selectors() -> None:
    assert (WHOLE.selector, DEFAULT.selector, A.selector) == ("", f"!{KEY}", f"{KEY}=a")
    assert (DEFAULT.others_selector, A.others_selector) == (KEY, f"{KEY}!=a")
    assert (WHOLE.labels, DEFAULT.labels, A.labels) == ({}, {}, {KEY: "a"})


def test_without_a_key_a_value_means_nothing() -> None:
    """As to KAI's scheduler."""
    assert NodePool("", "a").is_whole
    assert NodePool("", "a").labels == {}
    assert NodePool("", "a").lease_name == LEASE_NAME


def test_leases() -> None:
    assert WHOLE.lease_name == DEFAULT.lease_name == LEASE_NAME
    assert A.lease_name == "2ad35f9c.kai.scheduler-a"
    values = ["a", "A", "a_b", "a-b", "A-b", "a.b", "a..b", "a.-b", "0", "x" * 63, "X" * 63, "a-.b", "a__b"]
    names = [lease_name_of(value) for value in values]
    assert len({*names}) == len(names)
    assert all(map(is_object_name, names)), names
