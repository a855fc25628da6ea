"""JSON of any depth: what is too deep costs itself only."""

import orjson
import pytest

from controller.runtime.parsing import DEEPEST, TOO_DEEP, depth_of, loads


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


@pytest.mark.parametrize("depth", [1025, 2000, 9990])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_what_is_too_deep_is_left_out_and_its_neighbours_stay(depth: int, opening: str, closing: str) -> None:
    deep = opening * depth + "1" + closing * depth
    text = f'{{"items":[{{"name":"before"}},{{"name":"deep","x":{deep},"y":"]}}\\"["}},{{"name":"after"}}]}}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    items = loads(text.encode())["items"]
    assert [item["name"] for item in items] == ["before", "deep", "after"]
    assert items[1]["y"] == ']}"['
    assert depth_of(items[1]["x"], 10_000) == DEEPEST - 3
    assert deepest(items[1]["x"]) == TOO_DEEP


def deepest(value: object) -> object:
    while isinstance(value, dict | list):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return value


@pytest.mark.parametrize("text", ["", "{", nested(2000)[:-1], '"\\ud800"', "1e400", "<html>" + "[" * 2000])
def test_what_is_no_json_is_none(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(text.encode())


def test_many_that_are_deep_beside_each_other() -> None:
    found = loads(f"[{','.join([nested(1500)] * 50)},7]".encode())
    assert len(found) == 51
    assert found[-1] == 7


def test_depths() -> None:
    values: list[object] = [1, {}, [[]], {"a": [1, {"b": 2}]}]
    assert [depth_of(value, 9) for value in values] == [0, 1, 2, 3]
    assert depth_of(loads(nested(500).encode()), 100) == 101


def test_a_body_as_large_as_the_server_takes() -> None:
    found = loads(f"[{nested(1500)}{',[]' * 500_000}]".encode())
    assert len(found) == 500_001
