"""What is counted of attempts, and that labels stay few whatever comes."""

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.binder.backlog import Backlog
from controller.binder.census import Census, Sources
from controller.binder.measures import OTHER, UNDO, AttemptClock, Measures, verb_of
from controller.kai.outcome import Failed, Ready, Skipped
from controller.kai.reasons import Reason
from controller.reservation.ledger import Ledger
from controller.runtime import errors
from controller.runtime.calls import Call, Resource

PODS = Resource("v1", "pods")


class Case:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.measures = Measures(self.registry, ("GPUReserved", "VolumeBinding"))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kai_binder_{name}", labels)

    def series(self) -> int:
        return sum(len(family.samples) for family in self.registry.collect())


@pytest.fixture
def case() -> Iterator[Case]:
    yield Case()  # noqa: PT022 -- one for each test


def test_a_failure_is_there_before_it_happens(case: Case) -> None:
    """Else the first would be no increase for Prometheus."""
    for reason in (Reason.NODE_GONE, Reason.INTERNAL_ERROR, OTHER):
        assert case.value("binds_total", result="failed", reason=reason) == 0
        assert case.value("bind_attempts_total", result="failed", reason=reason) == 0
    assert case.value("step_failures_total", step="VolumeBinding") == 0
    assert case.value("binds_total", result="failed", reason=Reason.WAITING) is None, "that is no failure"


def test_an_attempt_that_is_followed_by_another_is_no_end(case: Case) -> None:
    case.measures.failed("VolumeBinding", Reason.CLAIM_UNBOUND, final=False)
    case.measures.failed("VolumeBinding", Reason.CLAIM_UNBOUND, final=True)
    assert case.value("bind_attempts_total", result="failed", reason="ClaimUnbound") == 2
    assert case.value("binds_total", result="failed", reason="ClaimUnbound") == 1
    assert case.value("step_failures_total", step="VolumeBinding") == 2


@pytest.mark.parametrize("reason", [Reason.REQUEST_DELETED, Reason.REQUEST_CHANGED])
def test_a_request_that_was_withdrawn_has_not_failed(case: Case, reason: Reason) -> None:
    case.measures.failed("Bound", reason, final=True)
    assert case.value("bind_attempts_total", result="withdrawn", reason=reason) == 1
    assert case.value("binds_total", result="failed", reason=reason) == 0
    assert case.value("step_failures_total", step="Bound") == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.NotSentError("r", "t"), "NotSent"),
        (errors.FencedError("r", "t"), "NotSent"),
        (errors.NoAnswerError("r", "t"), "NoAnswer"),
        (errors.ServerError("r", "t", code=500, reason=""), "ServerError"),
        (errors.TooManyRequestsError("r", "t", code=429, reason=""), "TooManyRequests"),
        (errors.NotFoundError("r", "t", code=404, reason=""), "Other"),
    ],
)
def test_an_interruption_counts_for_nothing_else(case: Case, error: errors.ApiError, reason: str) -> None:
    case.measures.interrupted(error)
    assert case.value("bind_attempts_total", result="interrupted", reason=reason) == 1
    assert case.value("binds_total", result="failed", reason="ServerError") == 0


@settings(deadline=None)  # on a busy machine one run takes any time
@given(st.lists(st.tuples(st.text(), st.text(), st.booleans()), max_size=50))
def test_whatever_a_plugin_says_there_are_no_more_series(failures: list[tuple[str, str, bool]]) -> None:
    case = Case()
    before = case.series()
    for step, reason, final in failures:
        case.measures.failed(step, reason, final=final)
        case.measures.took(step, 1.0)
    assert case.series() == before
    attempts = [
        sample.value
        for family in case.registry.collect()
        for sample in family.samples
        if sample.name == "kai_binder_bind_attempts_total"
    ]
    assert sum(attempts) == len(failures)


def test_requests_by_verb_kind_and_code(case: Case) -> None:
    request = case.measures.request
    request(Call("GET", PODS, "ns", "a"), "200")
    request(Call("GET", PODS), "200")
    request(Call("GET", PODS, params={"watch": "true"}), "200")
    request(Call("POST", PODS, "ns", "a", "binding"), "201")
    request(Call("PATCH", PODS, "ns", "a", "status"), "409")
    request(Call("GET", Resource("", ""), path="/version"), "<error>")
    for labels in (
        {"verb": "get", "resource": "pods", "code": "200"},
        {"verb": "list", "resource": "pods", "code": "200"},
        {"verb": "watch", "resource": "pods", "code": "200"},
        {"verb": "create", "resource": "pods/binding", "code": "201"},
        {"verb": "patch", "resource": "pods/status", "code": "409"},
        {"verb": "get", "resource": "other", "code": "<error>"},
    ):
        assert case.value("api_requests_total", **labels) == 1, labels
    assert [verb_of(Call(method, PODS, None, "a")) for method in ("PUT", "DELETE", "HEAD")] == [
        *("update", "delete", "other")
    ]


def test_kinds_beyond_a_hundred_are_others(case: Case) -> None:
    for number in range(300):
        case.measures.request(Call("GET", Resource("v1", f"kind{number}"), None, "a"), "200")
    case.measures.request(Call("GET", Resource("v1", "kind7"), None, "a"), "200")
    assert case.value("api_requests_total", verb="get", resource="kind7", code="200") == 2
    assert case.value("api_requests_total", verb="get", resource="other", code="200") == 200


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_of_an_attempt_is_in_its_steps(case: Case) -> None:
    now = Clock()
    attempt = AttemptClock(case.measures, now)
    now.now_s += 7  # before the first step
    for step, seconds in (
        ("VolumeBinding", 0.5),
        ("GPUReserved", 2.0),
        ("VolumeBinding", 0.25),
        ("Bound", 0.1),
        (UNDO, 1.0),
    ):
        attempt.enter(step)
        now.now_s += seconds
        attempt.enter(step)  # once more says nothing new
    attempt.stop({"VolumeBinding": Ready(), "GPUReserved": Failed(Reason.FORBIDDEN, "no")})
    sums = {
        step: case.value("step_duration_seconds_sum", step=step)
        for step in ("VolumeBinding", "GPUReserved", "Bound", UNDO)
    }
    assert sums == pytest.approx({"VolumeBinding": 0.75, "GPUReserved": 2.0, "Bound": 0.1, UNDO: 1.0})
    assert case.value("step_duration_seconds_count", step="VolumeBinding") == 1, "once for each attempt"


def test_a_step_with_nothing_to_do_took_no_time(case: Case) -> None:
    attempt = AttemptClock(case.measures)
    attempt.enter("VolumeBinding")
    attempt.stop({"VolumeBinding": Skipped()})
    assert case.value("step_duration_seconds_count", step="VolumeBinding") == 0


def test_waits_are_known_while_they_last(case: Case) -> None:
    now = Clock()
    first, second = AttemptClock(case.measures, now), AttemptClock(case.measures, now)
    first.enter("GPUReserved")
    with first.waiting():
        now.now_s += 5
        with suppress(ValueError), second.waiting():
            assert sorted(case.measures.waits.values()) == [("Bound", 105.0), ("GPUReserved", 100.0)]
            raise ValueError("a wait that ends in vain")
        assert list(case.measures.waits.values()) == [("GPUReserved", 100.0)]
    assert case.measures.waits == {}


def test_a_wait_of_a_step_that_nobody_announced_is_counted_as_another(case: Case) -> None:
    """A plugin from outside may set its condition type for each instance."""
    census = Census()
    ledger = cast(Ledger, Uncounted())
    census.sources = Sources(leads=lambda: True, backlog=Backlog(), measures=case.measures, ledger=ledger)
    case.registry.register(census)
    attempt = AttemptClock(case.measures)
    for step in ("GPUReserved", "Unannounced"):
        attempt.enter(step)
        with attempt.waiting():
            assert case.value("waiting_requests", step=step if step == "GPUReserved" else "Bound") == 1
            assert case.value("waiting_requests", step="Unannounced") is None


class Uncounted:
    """A ledger that knows nothing yet."""

    def sums(self) -> None:
        return None
