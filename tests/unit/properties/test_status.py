"""A status as it is worked out and written, over whatever stood there before."""

from datetime import UTC, datetime, timedelta

import orjson
from hypothesis import given
from hypothesis import strategies as st

from controller.binder import status as statuses
from controller.binder.patches import json_patch, refreshed
from controller.binder.status import Standing
from controller.kai.outcome import DependencyNotMet, Ending, Failed, Ready, Skipped
from controller.kai.request import BindRequest, BindStatus, backoff_limit_of
from controller.runtime.client import Object
from controller.runtime.reporting import cut, merge_condition
from controller.runtime.texts import visible
from controller.runtime.workqueue import Backoff
from tests.jsonpatch import applied
from tests.unit.properties.profile import examples

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
ORDER = ("VolumeBinding", "GPUSharing")
OURS = (*ORDER, "Bound")

TEXTS = st.text(max_size=12)
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), TEXTS)
CONDITIONS = st.fixed_dictionaries(
    {"type": st.sampled_from((*OURS, "example.com/Ready", "example.com/Other", "Stale"))},
    optional={
        "status": st.one_of(st.sampled_from(("True", "False", "Unknown")), ANYTHING),
        "reason": TEXTS,
        "message": TEXTS,
        "lastTransitionTime": st.one_of(st.just("2026-01-01T00:00:00Z"), ANYTHING),
    },
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.one_of(st.sampled_from(("Pending", "Failed", "Succeeded")), ANYTHING),
        "failedAttempts": st.one_of(st.integers(-3, 2**31 - 1), ANYTHING),
        "observedGeneration": st.one_of(st.integers(1, 3), ANYTHING),
        "reason": ANYTHING,
        "conditions": st.one_of(st.lists(CONDITIONS, max_size=6), ANYTHING),
        "theirs": ANYTHING,
    },
)
FAILURES = st.builds(Failed, st.sampled_from(("NodeGone", "PodReplaced")), TEXTS, retry=st.booleans())
OUTCOMES = st.one_of(
    st.builds(Ready, TEXTS), st.builds(Skipped, TEXTS), st.builds(DependencyNotMet, TEXTS), FAILURES
)
ENDINGS = st.builds(
    Ending,
    st.just(ORDER),
    st.dictionaries(st.sampled_from(ORDER), OUTCOMES),
    st.one_of(st.builds(Ready, TEXTS), FAILURES),
    st.sampled_from(OURS),
)
LIMITS = st.one_of(st.none(), st.integers(-2, 5))


def item_of(status: object, limit: int | None, generation: int = 2) -> Object:
    spec: Object = {"podName": "a", "selectedNode": "n", "backoffLimit": limit}
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": status}


def written(item: Object, ending: Ending, now: datetime) -> Object:
    """The request once this attempt is told, as the server has it."""
    standing = Standing.of(item, item)
    told = statuses.report(BindRequest.parse(item), standing, ending, now, Backoff())
    after = applied(item, json_patch(item, orjson.loads(orjson.dumps(told.status))))
    assert after is not None, "a patch of what was just read is taken"
    return after


@examples
@given(STATUSES, LIMITS, ENDINGS)
def test_what_is_written(before: Object, limit: int | None, ending: Ending) -> None:
    item = item_of(before, limit)
    status = written(item, ending, NOW)["status"]
    types = [condition["type"] for condition in status["conditions"]]
    foreign = [c for c in BindStatus.of(item).conditions if "/" in str(c.get("type"))]
    assert types[: len(OURS)] == list(OURS)
    assert status["conditions"][len(OURS) :] == foreign, "the conditions of others stay as they are"
    assert status["observedGeneration"] == 2
    assert status.get("theirs") == before.get("theirs"), "a field of others was lost"
    assert all(c["lastTransitionTime"] for c in status["conditions"][: len(OURS)])
    if isinstance(ending.verdict, Ready):
        assert status["phase"] == "Succeeded"
        assert "reason" not in status
    else:
        known = BindStatus.of(item)
        current = known.observed_generation in (None, 2)
        assert status["phase"] == "Failed"
        assert status["failedAttempts"] >= (known.failed_attempts if current else 1)
        over = limit is None or status["failedAttempts"] >= limit
        assert over or ending.verdict.retry, "the scheduler would wait for attempts that will not come"


@examples
@given(STATUSES, ENDINGS)
def test_the_same_again_changes_only_the_count(before: Object, ending: Ending) -> None:
    once = written(item_of(before, 9), ending, NOW)
    twice = written(once, ending, LATER)
    assert twice["status"]["conditions"] == once["status"]["conditions"]
    assert {**twice["status"], "failedAttempts": 0} == {**once["status"], "failedAttempts": 0}


@examples
@given(st.lists(CONDITIONS, max_size=5), st.sampled_from(OURS), st.sampled_from(("True", "False", "Unknown")))
def test_a_transition_has_its_time_and_nothing_else_has(
    before: list[Object], type_: str, status: str
) -> None:
    condition: Object = {"type": type_, "status": status, "reason": "R", "message": "m"}
    once = merge_condition(before, condition, NOW)
    assert {**once, "lastTransitionTime": None} == {**condition, "lastTransitionTime": None}
    assert merge_condition([once], condition, LATER) == once
    other = {**condition, "status": "True" if status != "True" else "False"}
    assert merge_condition([once], other, LATER)["lastTransitionTime"] == "2026-05-01T12:05:00Z"
    held = next((c for c in before if c["type"] == type_ and c.get("status") == status), None)
    if held is None:
        assert once["lastTransitionTime"] == "2026-05-01T12:00:00Z"


@examples
@given(STATUSES, STATUSES, ENDINGS)
def test_a_status_never_gets_into_another_request_nor_loses_what_others_wrote(
    before: Object, now: Object, ending: Ending
) -> None:
    item, present = item_of(before, 3), item_of(now, 3)
    standing = Standing.of(item, item)
    told = statuses.report(BindRequest.parse(item), standing, ending, NOW, Backoff()).status
    status = orjson.loads(orjson.dumps(told))
    replaced = {**present, "metadata": {**present["metadata"], "uid": "another"}}
    assert applied(replaced, json_patch(item, status)) is None
    again = refreshed(status, ORDER, present)
    after = applied(present, json_patch(present, again))
    assert after is not None
    foreign = [c for c in BindStatus.of(present).conditions if "/" in str(c.get("type"))]
    assert after["status"]["conditions"][len(OURS) :] == foreign


@examples
@given(st.integers(-5, 5), LIMITS, FAILURES, st.integers(1, 3), st.sampled_from(("", "Failed", "Pending")))
def test_the_count_never_goes_down_but_for_a_new_spec(
    attempts: int, limit: int | None, failure: Failed, generation: int, phase: str
) -> None:
    status = {"phase": phase, "failedAttempts": attempts, "observedGeneration": 2}
    item = item_of(status, limit, generation)
    standing = Standing.of(item, item)
    after = standing.attempts_after(failure)
    assert after >= (max(0, attempts) + 1 if generation == 2 else 1)
    assert standing.is_final(failure) == (limit is None or after >= limit)
    if not failure.retry:
        assert standing.is_final(failure)
    assert backoff_limit_of(item) == limit


@examples
@given(st.text(), st.integers(3, 40))
def test_a_text_that_is_cut_fits_and_begins_alike(text: str, limit: int) -> None:
    short, whole = cut(text, limit), visible(text)
    assert len(short.encode()) <= limit
    assert short.isprintable()
    if len(whole.encode()) <= limit:
        assert short == whole
    else:
        assert short.endswith("…")
        assert whole.startswith(short[:-1])
