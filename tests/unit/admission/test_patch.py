"""A patch says what changed, and no more."""

import pytest

from controller.admission.patch import patch_of
from controller.runtime.client import Object
from tests.jsonpatch import patched


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({}, {"a/b~c": 1}, [{"op": "add", "path": "/a~1b~0c", "value": 1}]),
        ({"a": None}, {"a": {"b": 1}}, [{"op": "replace", "path": "/a", "value": {"b": 1}}]),
        ({"a": 1, "b": 2}, {"b": 2}, [{"op": "remove", "path": "/a"}]),
        ({"a": [1]}, {"a": [1, 2, 3]}, [
            {"op": "add", "path": "/a/-", "value": 2}, {"op": "add", "path": "/a/-", "value": 3}]),
        ({"a": [1, 2]}, {"a": [3]}, [{"op": "replace", "path": "/a", "value": [3]}]),
        ({"a": [{"b": 1}, {"c": 2}]}, {"a": [{"b": 1}, {"c": 3}]}, [
            {"op": "replace", "path": "/a/1/c", "value": 3}]),
        ({"a": [{"v": "x"}]}, {"a": [{"from": {}}]}, [
            {"op": "remove", "path": "/a/0/v"}, {"op": "add", "path": "/a/0/from", "value": {}}]),
        ({"a": {}}, {"a": []}, [{"op": "replace", "path": "/a", "value": []}]),
    ],
)  # fmt: skip
def test_the_operations(old: Object, new: Object, ops: list[Object]) -> None:
    assert patch_of(old, new) == ops
    assert patched(old, ops) == new


def test_what_is_the_same_is_not_looked_into() -> None:
    """However deep it is."""
    deep: Object = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert patch_of({"same": deep, "b": 1}, {"same": deep, "b": 2}) == [
        {"op": "replace", "path": "/b", "value": 2}
    ]
    while deep:  # taken apart by hand, since its end would be as deep
        deep = deep["a"]
