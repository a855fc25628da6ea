"""Data that is derived is what it is derived from, changed as is written down."""

import json
from typing import Any

from tests import kai018


def at(item: Any, path: str) -> Any:  # noqa: ANN401
    """What stands at a path of keys and indexes."""
    for key in path.split("."):
        item = item[int(key) if key.isdecimal() else key]
    return item


def test_the_requests_of_v018_are_derived_from_those_recorded() -> None:
    assert kai018.FILE.read_text() == kai018.text(), "run python -m tests.kai018"


def test_no_request_of_v018_meets_a_recorded_one() -> None:
    recorded, derived = (json.loads(file.read_text())["items"] for file in (kai018.RECORDED, kai018.FILE))
    assert len(recorded) == len(derived) == 17
    for path in ("metadata.name", "metadata.uid", "metadata.ownerReferences.0.uid", "spec.podName"):
        values = {at(item, path) for item in (*recorded, *derived)}
        assert len(values) == 34, path
    groups = [
        {group for item in items for group in item["spec"].get("selectedGPUGroups", ())}
        for items in (recorded, derived)
    ]
    assert [len(found) for found in groups] == [4, 4]
    assert groups[0].isdisjoint(groups[1])


def test_both_fields_of_v018_name_the_same_groups() -> None:
    for item in json.loads(kai018.FILE.read_text())["items"]:
        bare = item["spec"].get("selectedGPUGroups", [])
        assert [entry["id"] for entry in item["spec"].get("selectedFractionalGpuGroups", [])] == bare
