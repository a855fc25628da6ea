"""Which requests are still to be bound, and how old they are."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.binder.backlog import Backlog
from controller.kai.request import is_over
from controller.runtime.cache import Change
from controller.runtime.client import Object

START = datetime(2026, 1, 1, tzinfo=UTC)


class Time:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def clock(self) -> float:
        return 1000.0 + self.passed_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def backlog(time: Time) -> Backlog:
    return Backlog(time.clock, time.now)


def request(name: str = "a", *, created_s: float = 0.0, limit: int | None = 3, **status: Any) -> Object:  # noqa: ANN401
    """A request, made so many seconds after the start."""
    created = (START + timedelta(seconds=created_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata: Object = {"namespace": "ns", "name": name, "creationTimestamp": created, "generation": 1}
    return {
        "metadata": metadata,
        "spec": {} if limit is None else {"backoffLimit": limit},
        "status": status,
    }


def test_it_counts_what_is_to_be_bound(backlog: Backlog) -> None:
    backlog.note(Change(None, request()))
    backlog.note(Change(None, request("b")))
    assert backlog.count() == (2, 0)
    failed = request(phase="Failed", failedAttempts=1)
    backlog.note(Change(request(), failed))
    backlog.note(Change(failed, failed))
    assert backlog.count() == (1, 1)
    backlog.note(Change(failed, request(phase="Failed", failedAttempts=3)))
    assert backlog.count() == (1, 0), "for good"
    backlog.note(Change(request("b"), request("b", phase="Succeeded")))
    assert backlog.count() == (0, 0)


def test_those_that_come_in_finished_were_never_there(backlog: Backlog) -> None:
    backlog.note(Change(None, request(phase="Succeeded")))
    backlog.note(Change(None, request("b", limit=None, phase="Failed")))
    assert backlog.count() == (0, 0)


def test_a_request_that_is_deleted_is_gone(backlog: Backlog) -> None:
    backlog.note(Change(None, request(phase="Failed", failedAttempts=1)))
    backlog.note(Change(request(), None))
    assert backlog.count() == (0, 0)


def test_an_end_that_is_taken_back_counts_anew(backlog: Backlog) -> None:
    over = request(limit=1, phase="Failed", failedAttempts=1)
    backlog.note(Change(None, over))
    backlog.note(Change(over, request(limit=5, phase="Failed", failedAttempts=1)))
    assert backlog.count() == (0, 1)


def test_what_was_made_while_we_looked_is_dated_exactly(backlog: Backlog, time: Time) -> None:
    time.passed_s = 10.9
    item = request(created_s=10)  # the second is cut off
    backlog.note(Change(None, item))
    time.passed_s = 10.95
    assert backlog.age_s(item) == pytest.approx(0.05)
    time.passed_s = 70.9
    assert backlog.age_s(item) == pytest.approx(60)


def test_what_was_there_before_is_dated_by_the_server(backlog: Backlog, time: Time) -> None:
    time.passed_s = 500.0
    item = request(created_s=100)
    backlog.note(Change(None, item))
    time.passed_s = 510.0
    assert 408 < backlog.age_s(item) <= 410


def test_a_server_whose_clock_is_ahead_makes_no_age_negative(backlog: Backlog, time: Time) -> None:
    item = request(created_s=3600)
    assert backlog.age_s(item) == 0.0
    backlog.note(Change(None, item))
    time.passed_s = 2.0
    assert backlog.age_s(item) == pytest.approx(2.0)


def test_the_queue_is_told_as_before(backlog: Backlog) -> None:
    noting = backlog.noting(lambda change: [("ns", "seen")] if change.new else [])
    assert list(noting(Change(None, request()))) == [("ns", "seen")]
    assert backlog.count() == (1, 0)


PHASES = st.sampled_from(["", "Pending", "Failed", "Succeeded", 7, None])
STATUSES = st.one_of(
    st.fixed_dictionaries({"phase": PHASES, "failedAttempts": st.integers(0, 5)}), st.just("nonsense")
)


@given(st.lists(st.tuples(st.sampled_from("abc"), STATUSES, st.booleans())))
def test_the_numbers_are_those_of_what_was_last_seen(changes: list[tuple[str, Any, bool]]) -> None:
    backlog, last = Backlog(), dict[str, Object]()
    for name, status, deleted in changes:
        old, item = last.get(name), request(name)
        item["status"] = status
        if deleted:
            if old is not None:
                backlog.note(Change(last.pop(name), None))
            continue
        backlog.note(Change(old, item))
        last[name] = item
    left = [item for item in last.values() if not is_over(item)]
    failed = [
        item for item in left if isinstance(item["status"], dict) and item["status"]["phase"] == "Failed"
    ]
    assert backlog.count() == (len(left) - len(failed), len(failed))
