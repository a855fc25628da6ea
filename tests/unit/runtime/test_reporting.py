"""Conditions and texts: what is pure in reporting."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from controller.runtime.reporting import cut, merge_condition, reference, rfc3339

NOW = datetime(2026, 5, 17, 12, 0, 0, 999_999, tzinfo=UTC)
NOW_TEXT = "2026-05-17T12:00:00Z"
BEFORE = "2026-05-01T00:00:00Z"


def condition(status: str = "True", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "Ready", "status": status, "reason": "R", "message": "M", **more}


def test_a_time_is_written_in_utc_and_whole_seconds() -> None:
    assert rfc3339(NOW) == NOW_TEXT
    assert rfc3339(NOW.astimezone(timezone(timedelta(hours=-9, minutes=-30)))) == NOW_TEXT


def test_a_new_condition_is_dated() -> None:
    assert merge_condition([], condition(), NOW) == condition(lastTransitionTime=NOW_TEXT)


def test_the_date_stays_while_the_status_does() -> None:
    old = condition(reason="Old", lastTransitionTime=BEFORE)
    assert merge_condition([old], condition(), NOW) == condition(lastTransitionTime=BEFORE)


def test_the_date_moves_with_the_status() -> None:
    old = condition("False", lastTransitionTime=BEFORE)
    assert merge_condition([old], condition(), NOW)["lastTransitionTime"] == NOW_TEXT


def test_conditions_of_other_types_do_not_matter() -> None:
    old = condition(type="Other", lastTransitionTime=BEFORE)
    assert merge_condition([old], condition(), NOW)["lastTransitionTime"] == NOW_TEXT


def test_nothing_is_changed_in_place() -> None:
    old, new = condition(lastTransitionTime=BEFORE), condition()
    merge_condition([old], new, NOW)
    assert new == condition()
    assert old == condition(lastTransitionTime=BEFORE)


def test_what_else_belongs_to_a_condition_is_kept() -> None:
    assert merge_condition([], condition(observedGeneration=7), NOW)["observedGeneration"] == 7


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"type": "Ready"},
        {"type": "Ready", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": None},
        {"type": "Ready", "status": "True", "lastTransitionTime": 7},
        {"type": ["Ready"], "status": {}},
        None,
        "Ready",
        7,
        [],
    ],
)
def test_malformed_conditions_are_as_good_as_none(malformed: Any) -> None:  # noqa: ANN401
    merged = merge_condition([malformed], condition(), NOW)
    assert merged == condition(lastTransitionTime=NOW_TEXT)


def test_short_texts_are_left_alone() -> None:
    assert cut("", 10) == ""
    assert cut("0123456789", 10) == "0123456789"
    assert cut("äöü", 6) == "äöü"


def test_long_texts_end_in_an_ellipsis_within_the_limit() -> None:
    assert cut("0123456789x", 10) == "0123456…"


@pytest.mark.parametrize("limit", range(8, 24))
@pytest.mark.parametrize("character", ["ä", "€", "🙂"])
def test_no_character_is_cut_in_half(character: str, limit: int) -> None:
    text = cut("x" + character * 20, limit)
    assert len(text.encode()) <= limit
    assert len(text.encode()) > limit - 4, "no more is cut than must be"
    assert text.endswith("…")
    assert set(text[1:-1]) <= {character}


def test_what_cannot_be_encoded_does_not_stop_a_report() -> None:
    """Lone surrogates come from file names and from broken JSON."""
    assert "file" in cut("file \udc80", 1024)
    cut("file \udc80", 1024).encode()
    cut("\udc80" * 2000, 1024).encode()


def test_a_reference_says_what_is_known_of_an_object() -> None:
    pod = {"metadata": {"name": "a", "namespace": "team", "uid": "u1", "labels": {"b": "c"}}, "spec": {}}
    assert reference(pod, "v1", "Pod") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "a",
        "uid": "u1",
    }


def test_a_reference_to_an_object_without_namespace_or_uid_has_none() -> None:
    assert reference({"metadata": {"name": "n"}}, "v1", "Node") == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
    }
