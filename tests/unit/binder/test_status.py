"""What an attempt means: phase and attempts (B-13, B-32 as corrected), conditions, events, the patch."""

import itertools
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from msgspec.structs import replace

from controller.binder import status as statuses
from controller.binder.patches import bare, json_patch
from controller.binder.status import TEXT_LIMIT, Event, Report, Standing, refused
from controller.kai.outcome import Ending
from controller.kai.reasons import ConditionType, Phase, Reason
from controller.kai.request import BindRequest, BindStatus
from controller.plugins.base import DependencyNotMet, Failed, Outcome, Ready, Skipped
from controller.runtime.client import Object
from controller.runtime.workqueue import Backoff
from tests.jsonpatch import patched

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
NOW_TEXT, LATER_TEXT = "2026-05-01T12:00:00Z", "2026-05-01T12:05:00Z"
BACKOFF = Backoff(1.0, 60.0)
ORDER = ("VolumeBinding", "DynamicResources", "GPUSharing")
NEW = BindStatus()
GONE = Failed(Reason.NODE_GONE, "node n does not exist")
FINAL = Failed(Reason.POD_REPLACED, "pod team/a was replaced", retry=False)
DONE = Ready("pod team/a is on node n")


def request(backoff_limit: int | None = None) -> BindRequest:
    return BindRequest(
        namespace="team",
        name="a",
        uid="u",
        owner_uid="p1",
        pod_name="a",
        node_name="n",
        backoff_limit=backoff_limit,
    )


def attempt(
    verdict: Ready | Failed, outcomes: dict[str, Outcome] | None = None, culprit: str = "Bound"
) -> Ending:
    return Ending(ORDER, outcomes or {}, verdict, culprit)


def told(
    asked: BindRequest,
    generation: int,
    old: BindStatus,
    ending: Ending,
    now: datetime,
    backoff: Backoff = BACKOFF,
) -> Report:
    return statuses.report(asked, Standing(generation, old, asked.backoff_limit), ending, now, backoff)


def waiting(
    generation: int,
    old: BindStatus,
    order: tuple[str, ...],
    waits: dict[str, str],
    outcomes: dict[str, Outcome],
    now: datetime,
) -> Object:
    return statuses.waiting(Standing(generation, old, None), order, waits, outcomes, now)


def fail(
    old: BindStatus = NEW,
    *,
    limit: int | None = None,
    ending: Failed = GONE,
    generation: int = 1,
    now: datetime = NOW,
    backoff: Backoff = BACKOFF,
) -> Report:
    return told(request(limit), generation, old, attempt(ending), now, backoff)


def stored(status: Object) -> BindStatus:
    """The status as it reads once it has been written over JSON."""
    return BindStatus.of({"status": orjson.loads(orjson.dumps(status))})


def failed_for_good(status: BindStatus, limit: int | None) -> bool:
    """The rule of KAI's scheduler (B-13), in its own words."""
    return status.phase == "Failed" and (limit is None or status.failed_attempts >= limit)


def types(status: Object) -> list[str]:
    return [condition["type"] for condition in status["conditions"]]


def condition(status: Object, type_: str) -> Object:
    found: Object = next(item for item in status["conditions"] if item["type"] == type_)
    return found


# Attempts


@pytest.mark.parametrize(("limit", "attempts"), [(None, 1), (0, 1), (1, 1), (3, 3), (-1, 1), (-(2**31), 1)])
def test_a_request_is_tried_until_its_limit(limit: int | None, attempts: int) -> None:
    old, delays = NEW, []
    for number in itertools.count(1):
        report = fail(old, limit=limit)
        old = stored(report.status)
        assert old.phase == "Failed"
        assert old.failed_attempts == number
        if report.result.requeue_after_s is None:
            break
        assert not failed_for_good(old, limit)
        delays.append(report.result.requeue_after_s)
    assert number == attempts
    assert failed_for_good(old, limit)
    assert delays == [1.0, 2.0, 4.0][: attempts - 1]


def test_delays_double_up_to_the_maximum() -> None:
    delays = [
        fail(BindStatus("Failed", failed_attempts=done), limit=100).result.requeue_after_s
        for done in range(9)
    ]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_delays_are_the_settings() -> None:
    old = BindStatus("Failed", failed_attempts=1)
    assert fail(old, limit=9, backoff=Backoff(0.5, 3)).result.requeue_after_s == 1
    assert fail(old, limit=9, backoff=Backoff(0.5, 0.75)).result.requeue_after_s == 0.75


@pytest.mark.parametrize("done", [33, 62, 63, 64, 1023, 1024, 5000, 2**31 - 3])
def test_many_attempts_overflow_nothing(done: int) -> None:
    report = fail(BindStatus("Failed", failed_attempts=done), limit=2**31 - 1)
    assert report.result.requeue_after_s == 60
    assert report.status["failedAttempts"] == done + 1


@pytest.mark.parametrize(("limit", "attempts"), [(None, 1), (0, 1), (1, 1), (3, 3), (-1, 1)])
def test_what_no_attempt_can_mend_has_failed_for_good(limit: int | None, attempts: int) -> None:
    report = fail(limit=limit, ending=FINAL)
    assert report.status["failedAttempts"] == attempts
    assert report.result.requeue_after_s is None
    assert failed_for_good(stored(report.status), limit)


def test_a_limit_that_was_lowered_ends_the_attempts() -> None:
    report = fail(BindStatus("Failed", failed_attempts=4), limit=2)
    assert report.status["failedAttempts"] == 5
    assert report.result.requeue_after_s is None


def test_a_new_spec_starts_anew() -> None:
    old = BindStatus("Failed", "Bound NodeGone: node n does not exist", 3, observed_generation=1)
    report = fail(old, limit=3, generation=2)
    assert report.status["failedAttempts"] == 1
    assert report.status["observedGeneration"] == 2
    assert report.result.requeue_after_s == 1
    assert fail(old, limit=5, generation=1).status["failedAttempts"] == 4


def test_without_an_observed_generation_the_count_goes_on() -> None:
    # The Go binder's CRD prunes it.
    assert fail(BindStatus("Failed", failed_attempts=1), limit=3).status["failedAttempts"] == 2


def test_success_takes_the_reason_away_and_leaves_the_attempts() -> None:
    old = BindStatus("Failed", "Bound NodeGone: …", 2, 1)
    report = told(request(3), 1, old, attempt(DONE), NOW)
    assert report.status["phase"] == Phase.SUCCEEDED
    assert report.status["reason"] is None
    assert "failedAttempts" not in report.status
    assert report.result.requeue_after_s is None
    assert report.request_event is None


# Texts


def test_the_reason_begins_with_the_step_that_failed() -> None:
    ending = Failed("ClaimUnbound", "claim team/data is not bound")
    report = told(
        request(), 1, NEW, attempt(ending, {"VolumeBinding": ending}, "VolumeBinding"), NOW, BACKOFF
    )
    assert report.status["reason"] == "VolumeBinding ClaimUnbound: claim team/data is not bound"
    bound = condition(report.status, "Bound")
    assert bound["message"] == "VolumeBinding: claim team/data is not bound"
    assert bound["reason"] == "ClaimUnbound"
    assert fail().status["reason"] == "Bound NodeGone: node n does not exist"


def test_long_texts_are_cut_between_characters() -> None:
    for lead in range(5):
        for character in ("x", "ä", "€", "🙂"):
            ending = Failed("Long", "x" * lead + character * (TEXT_LIMIT + 1))
            step: dict[str, Outcome] = {"VolumeBinding": ending}
            report = told(request(), 1, NEW, attempt(ending, step, "VolumeBinding"), NOW, BACKOFF)
            assert report.pod_condition is not None
            texts = [report.status["reason"], report.pod_condition["message"]]
            texts += [condition(report.status, type_)["message"] for type_ in ("VolumeBinding", "Bound")]
            for text in texts:
                assert TEXT_LIMIT - 4 < len(text.encode()) <= TEXT_LIMIT
                assert text.endswith(f"{character}…")


def test_texts_are_never_formats() -> None:
    text = "%s {0} %d {name} \\n"
    report = fail(ending=Failed("Odd", text))
    assert report.pod_event is not None
    assert report.pod_event.message.endswith(text)
    assert report.status["reason"].endswith(text)


# The pod


def test_a_pod_is_told_of_success() -> None:
    report = told(request(), 1, NEW, attempt(DONE), NOW)
    text = "Pod bound successfully to node n"
    assert report.pod_condition == {
        "type": "PodBound",
        "status": "True",
        "reason": "Bound",
        "message": text,
    }
    assert report.pod_event == Event("Normal", "Bound", text)


def test_a_pod_is_told_of_failure_even_with_a_retry_to_come() -> None:
    report = fail(limit=3)
    text = "Failed to bind pod team/a to node n: node n does not exist"
    assert report.result.requeue_after_s == 1
    assert report.pod_condition == {
        "type": "PodBound",
        "status": "False",
        "reason": "BindingError",
        "message": text,
    }
    assert report.pod_event == Event("Warning", "BindingError", text)


def test_a_pod_that_is_bound_elsewhere_keeps_its_condition() -> None:
    report = fail(ending=Failed(Reason.ALREADY_BOUND_ELSEWHERE, "on node m", retry=False))
    assert report.pod_condition is None
    assert report.pod_event is not None


def test_another_pod_of_the_same_name_is_told_nothing() -> None:
    report = fail(ending=FINAL)
    assert report.pod_condition is None
    assert report.pod_event is None
    assert report.request_event is not None


def test_a_request_that_is_not_understood_has_no_pod() -> None:
    ending = Failed(Reason.INVALID_REQUEST, "spec.podName is empty", retry=False)
    report = refused("", Standing(1, NEW, None), ending, ORDER, NOW, BACKOFF)
    assert report.pod_condition is None
    assert report.pod_event is None
    assert report.status["phase"] == "Failed"
    assert report.status["failedAttempts"] == 1
    assert report.request_event == Event("Warning", "InvalidRequest", "spec.podName is empty")


def test_a_request_that_is_not_understood_tells_the_pod_that_waits() -> None:
    """B-38"""
    ending = Failed(Reason.INVALID_REQUEST, "spec.selectedNode is empty", retry=False)
    report = refused("team/p", Standing(1, NEW, None), ending, ORDER, NOW, BACKOFF)
    text = "Failed to bind pod team/p: spec.selectedNode is empty"
    assert report.pod_event == Event("Warning", "BindingError", text)
    assert report.pod_condition is not None
    assert (report.pod_condition["status"], report.pod_condition["message"]) == ("False", text)


def test_a_pod_that_got_to_its_node_otherwise_is_told_from_one_that_was_bound() -> None:
    """Later the conditions are all that tells which GPU a request gave its pod (`reservation.evidence`)."""
    done = attempt(DONE, dict.fromkeys(ORDER, Ready("done")))
    found = replace(done, was_found=True)
    reasons = [
        told(request(3), 1, NEW, ending, NOW, BACKOFF).status["conditions"][-1]["reason"]
        for ending in (done, found)
    ]
    assert reasons == ["Reconciled", "AlreadyBound"]


CHANGED = Failed(Reason.REQUEST_CHANGED, "request team/r was changed while it was worked on")


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_a_spec_that_was_changed_meanwhile_has_not_failed(limit: int | None) -> None:
    """B-13: of a request that has failed the scheduler may think that it is over."""
    report = fail(ending=CHANGED, limit=limit)
    assert report.status.keys() == {"conditions", "observedGeneration"}
    assert report.status["conditions"][-1]["reason"] == "RequestChanged"
    assert (report.pod_condition, report.pod_event) == (None, None)
    assert report.request_event == Event("Warning", "RequestChanged", CHANGED.message)
    assert report.result.requeue_after_s is None, "its change has it looked at"
    before = stored(fail(limit=3).status)
    kept = fail(before, ending=CHANGED, limit=3).status
    assert kept.keys() == {"conditions", "observedGeneration"}, "what failed before has failed"
    anew = fail(before, ending=CHANGED, limit=3, generation=2).status
    assert (anew["phase"], anew["reason"], anew["failedAttempts"]) == ("Pending", None, 0)


# Events of the request


def test_a_request_has_one_event_for_each_new_reason() -> None:
    first = fail(limit=9)
    assert first.request_event == Event("Warning", "NodeGone", "node n does not exist")
    second = fail(stored(first.status), limit=9)
    assert second.request_event is None
    other_words = fail(stored(second.status), limit=9, ending=Failed(Reason.NODE_GONE, "still no node n"))
    assert other_words.request_event is None
    third = fail(stored(second.status), limit=9, ending=Failed(Reason.FORBIDDEN, "no"))
    assert third.request_event == Event("Warning", "Forbidden", "no")
    assert fail(stored(third.status), limit=9).request_event is not None


def test_the_same_word_of_another_step_is_news() -> None:
    old = stored(fail(limit=9, ending=Failed(Reason.FORBIDDEN, "no")).status)
    elsewhere = attempt(Failed(Reason.FORBIDDEN, "no"), culprit="VolumeBinding")
    assert told(request(9), 1, old, elsewhere, NOW, BACKOFF).request_event is not None


def test_a_reason_that_begins_like_another_is_news() -> None:
    old = stored(fail(limit=9, ending=Failed("NodeGoneForGood", "x")).status)
    assert fail(old, limit=9).request_event is not None


# Conditions


def test_conditions_come_in_the_order_of_the_steps() -> None:
    outcomes: dict[str, Outcome] = {
        "GPUSharing": Skipped(),
        "VolumeBinding": Ready("bound: data"),
        "DynamicResources": Skipped("no claims"),
    }
    status = told(request(), 4, NEW, attempt(DONE, outcomes), NOW).status
    lines = [(c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"]]
    assert lines == [
        ("VolumeBinding", "True", "Reconciled", "bound: data"),
        ("DynamicResources", "True", "NotApplicable", "no claims"),
        ("GPUSharing", "True", "NotApplicable", "nothing to do for this request"),
        ("Bound", "True", "Reconciled", "pod team/a is on node n"),
    ]
    assert {c["observedGeneration"] for c in status["conditions"]} == {4}
    assert {c["lastTransitionTime"] for c in status["conditions"]} == {NOW_TEXT}


def test_conditions_after_a_step_that_failed() -> None:
    ending = Failed("ClaimUnbound", "claim team/data is not bound")
    outcomes: dict[str, Outcome] = {"VolumeBinding": Ready(), "DynamicResources": ending}
    report = told(request(), 1, NEW, attempt(ending, outcomes, "DynamicResources"), NOW, BACKOFF)
    lines = [(c["type"], c["status"], c["reason"], c["message"]) for c in report.status["conditions"]]
    assert lines == [
        ("VolumeBinding", "True", "Reconciled", "done"),
        ("DynamicResources", "False", "ClaimUnbound", "claim team/data is not bound"),
        ("GPUSharing", "Unknown", "Blocked", "did not run: DynamicResources failed with ClaimUnbound"),
        ("Bound", "False", "ClaimUnbound", "DynamicResources: claim team/data is not bound"),
    ]


def test_a_step_that_failed_although_the_pod_got_to_its_node() -> None:
    """F-62: what the step was for is done; how it had failed is said all the same."""
    ending = Failed("ClaimUnbound", "claim team/data is not bound")
    outcomes: dict[str, Outcome] = {"VolumeBinding": Ready("found"), "DynamicResources": ending}
    report = told(request(), 1, NEW, attempt(DONE, outcomes, "DynamicResources"), NOW)
    lines = [(c["type"], c["status"], c["reason"], c["message"]) for c in report.status["conditions"]]
    text = "had failed when the pod got to its node all the same: claim team/data is not bound"
    assert lines == [
        ("VolumeBinding", "True", "Reconciled", "found"),
        ("DynamicResources", "True", "AlreadyBound", text),
        ("GPUSharing", "True", "AlreadyBound", "did not run: the pod was on its node already"),
        ("Bound", "True", "Reconciled", "pod team/a is on node n"),
    ]


def test_a_failure_that_is_ignored_stays_false_on_a_request_that_succeeded() -> None:
    outcomes: dict[str, Outcome] = {**dict.fromkeys(ORDER, Skipped()), "GPUSharing": GONE}
    report = told(request(), 1, NEW, attempt(DONE, outcomes), NOW)
    assert condition(report.status, "GPUSharing")["status"] == "False"


def test_a_count_that_is_full_overflows_nothing() -> None:
    report = fail(BindStatus("Failed", failed_attempts=2**31 - 1))
    assert report.status["failedAttempts"] == 2**31 - 1


@pytest.mark.parametrize(
    ("done", "limit", "ending", "final"),
    [
        (0, None, GONE, True),
        (0, 0, GONE, True),
        (0, 1, GONE, True),
        (0, 2, GONE, False),
        (1, 2, GONE, True),
        (1, 3, GONE, False),
        (0, 3, FINAL, True),
    ],
)
def test_a_failure_is_final_if_no_attempt_follows(
    done: int, limit: int | None, ending: Failed, final: bool
) -> None:
    """F-17: by this a rollback knows what is worth keeping; it is the rule by which attempts are made."""
    old = BindStatus("Failed", failed_attempts=done)
    assert Standing(1, old, limit).is_final(ending) is final
    assert (fail(old, limit=limit, ending=ending).result.requeue_after_s is None) is final


def test_a_new_spec_has_all_its_attempts_before_it() -> None:
    old = BindStatus("Failed", failed_attempts=1, observed_generation=1)
    assert Standing(1, old, 2).is_final(GONE)
    assert not Standing(2, old, 2).is_final(GONE)


def test_an_unmet_need_is_a_condition() -> None:
    ending = Failed(Reason.DEPENDENCY_NOT_MET, "b needs a", retry=False)
    outcomes: dict[str, Outcome] = {"GPUSharing": DependencyNotMet("b needs a")}
    report = told(request(), 1, NEW, attempt(ending, outcomes, "GPUSharing"), NOW, BACKOFF)
    sharing = condition(report.status, "GPUSharing")
    assert (sharing["status"], sharing["reason"]) == ("False", "DependencyNotMet")
    assert report.status["reason"] == "GPUSharing DependencyNotMet: b needs a"


def test_steps_that_had_no_need_to_run() -> None:
    """F-62: True always is good, or `kubectl wait` for a step of a request that succeeded would hang."""
    report = told(request(), 1, NEW, attempt(DONE), NOW)
    assert {condition(report.status, type_)["reason"] for type_ in ORDER} == {"AlreadyBound"}
    assert {condition(report.status, type_)["status"] for type_ in ORDER} == {"True"}
    assert {condition(fail().status, type_)["reason"] for type_ in ORDER} == {"Blocked"}
    assert "the request failed with NodeGone" in condition(fail().status, ORDER[0])["message"]


def test_a_time_moves_only_when_the_status_does() -> None:
    old = stored(fail(limit=9).status)
    again = fail(old, limit=9, now=LATER, ending=Failed(Reason.FORBIDDEN, "no")).status
    assert {c["lastTransitionTime"] for c in again["conditions"]} == {NOW_TEXT}
    bound = condition(again, "Bound")
    assert (bound["reason"], bound["message"]) == ("Forbidden", "no")

    outcomes: dict[str, Outcome] = dict.fromkeys(ORDER, Skipped())
    done = told(request(9), 1, stored(again), attempt(DONE, outcomes), LATER).status
    assert {c["lastTransitionTime"] for c in done["conditions"]} == {LATER_TEXT}


def test_foreign_conditions_are_kept_and_old_plugins_dropped() -> None:
    foreign = {"type": "example.com/Approved", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    removed = {"type": "OldPlugin", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    for malformed in ({}, {"type": 7}, {"type": None, "status": "True"}, {"status": "x"}):
        old = BindStatus(conditions=(removed, foreign, malformed))
        for status in (
            fail(old).status,
            told(request(), 1, old, attempt(DONE), NOW).status,
            waiting(1, old, ORDER, {"VolumeBinding": "x"}, {}, NOW),
        ):
            assert types(status) == [*ORDER, "Bound", "example.com/Approved"]
            assert status["conditions"][-1] == foreign


def test_a_plugin_may_give_its_condition_a_domain() -> None:
    order = ("example.com/Quota",)
    outcomes: dict[str, Outcome] = {"example.com/Quota": Skipped()}
    first = told(request(9), 1, NEW, Ending(order, outcomes, GONE), NOW, BACKOFF).status
    second = told(request(9), 1, stored(first), Ending(order, outcomes, GONE), LATER, BACKOFF).status
    assert types(second) == ["example.com/Quota", "Bound"]
    assert condition(second, "example.com/Quota")["lastTransitionTime"] == NOW_TEXT


def test_malformed_conditions_of_ours_are_replaced() -> None:
    old = BindStatus(conditions=({"type": "Bound", "status": "False", "lastTransitionTime": 7},))
    assert condition(fail(old).status, "Bound")["lastTransitionTime"] == NOW_TEXT


def test_a_status_has_no_type_twice_and_is_plain_json() -> None:
    endings: tuple[Ready | Failed, ...] = (DONE, GONE, FINAL)
    outcomes: tuple[Outcome, ...] = (Ready(), Skipped(), DependencyNotMet("x"), GONE)
    for ending, first, second in itertools.product(endings, outcomes, outcomes):
        tried = attempt(ending, {"VolumeBinding": first, "GPUSharing": second}, "GPUSharing")
        status = told(request(), 1, NEW, tried, NOW).status
        assert len(types(status)) == len(set(types(status)))
        assert stored(status).conditions == tuple(status["conditions"])
        for item in status["conditions"]:
            assert set(item) == {
                "type",
                "status",
                "reason",
                "message",
                "observedGeneration",
                "lastTransitionTime",
            }
            assert item["reason"]


# Waiting


def test_a_wait_is_shown() -> None:
    outcomes: dict[str, Outcome] = {"VolumeBinding": Ready("bound")}
    status = waiting(2, NEW, ORDER, {"DynamicResources": "claim x"}, outcomes, NOW)
    lines = [(c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"]]
    assert lines == [
        ("VolumeBinding", "True", "Reconciled", "bound"),
        ("DynamicResources", "Unknown", "Waiting", "waits for claim x"),
        ("GPUSharing", "Unknown", "Blocked", "has not run yet: DynamicResources waits"),
        ("Bound", "Unknown", "Waiting", "DynamicResources waits for claim x"),
    ]
    assert status["observedGeneration"] == 2
    assert "phase" not in status


def test_several_waits_are_shown() -> None:
    waits = {"VolumeBinding": "disk", "DynamicResources": "card"}
    status = waiting(1, NEW, ORDER, waits, {}, NOW)
    bound = condition(status, ConditionType.BOUND)
    assert bound["message"] == "VolumeBinding waits for disk; DynamicResources waits for card"
    assert "VolumeBinding, DynamicResources waits" in condition(status, "GPUSharing")["message"]


def test_a_wait_of_the_binding_itself_is_shown() -> None:
    outcomes: dict[str, Outcome] = dict.fromkeys(ORDER, Skipped())
    status = waiting(1, NEW, ORDER, {"Bound": "the API server"}, outcomes, NOW)
    assert types(status) == [*ORDER, "Bound"]
    assert condition(status, "Bound")["message"] == "Bound waits for the API server"


def test_a_wait_does_not_touch_attempts_of_this_spec() -> None:
    old = BindStatus("Failed", "x", 2, observed_generation=1)
    status = waiting(1, old, ORDER, {"VolumeBinding": "x"}, {}, NOW)
    assert set(status) == {"observedGeneration", "conditions"}


def test_a_wait_of_a_new_spec_takes_the_old_ending_away() -> None:
    # Otherwise a restart would read: this spec has failed for good.
    old = BindStatus("Failed", "Bound NodeGone: …", 2, observed_generation=1)
    status = waiting(2, old, ORDER, {"VolumeBinding": "x"}, {}, NOW)
    merged = {"phase": "Failed", "reason": "Bound NodeGone: …", "failedAttempts": 2, **status}
    for limit in (None, 0, 1, 2, 3):
        assert not failed_for_good(stored(merged), limit)
    assert status["failedAttempts"] == 0
    assert status["reason"] is None


# The patch


def item(status: object = ...) -> Object:
    found: Object = {"metadata": {"name": "a", "uid": "u"}, "spec": {}}
    return found if status is ... else {**found, "status": status}


STATUS: Object = {"phase": "Succeeded", "reason": None, "conditions": [{"type": "Bound"}]}


@pytest.mark.parametrize("present", [..., None, [], "text", 7, True])
def test_a_status_that_is_none_is_written_whole(present: object) -> None:
    patch = json_patch(item(present), STATUS)
    assert patched(item(present), patch)["status"] == {
        "phase": "Succeeded",
        "conditions": [{"type": "Bound"}],
    }
    assert patch[1]["op"] == "test"
    with pytest.raises(AssertionError):  # somebody else wrote one meanwhile
        patched(item({"phase": "Odd"}), patch)


@pytest.mark.parametrize("present", [{}, {"phase": "Failed"}, {"reason": "x", "phase": 7}])
def test_fields_are_written_into_a_status_that_is_there(present: Object) -> None:
    patch = json_patch(item({**present, "foreign": 1}), STATUS)
    assert patched(item({**present, "foreign": 1}), patch)["status"] == {
        "phase": "Succeeded",
        "conditions": [{"type": "Bound"}],
        "foreign": 1,
    }


def test_only_what_is_there_is_removed() -> None:
    operations = [(step["op"], step["path"]) for step in json_patch(item({"phase": "Failed"}), STATUS)]
    assert operations == [
        ("test", "/metadata/uid"),
        ("add", "/status/phase"),
        ("add", "/status/conditions"),
    ]
    assert ("remove", "/status/reason") in [
        (step["op"], step["path"]) for step in json_patch(item({"reason": "x"}), STATUS)
    ]


def test_another_request_of_the_same_name_is_not_written() -> None:
    for present in (..., {}, {"phase": "Failed"}):
        patch = json_patch(item(present), STATUS)
        other = item(present)
        other["metadata"]["uid"] = "u2"
        with pytest.raises(AssertionError):
            patched(other, patch)


def test_what_a_schema_refuses_is_told_with_what_the_scheduler_reads() -> None:
    assert bare(fail(limit=3).status) == {
        "phase": "Failed",
        "reason": "Bound NodeGone: node n does not exist",
        "failedAttempts": 1,
    }
    assert bare(told(request(), 1, NEW, attempt(DONE), NOW).status) == {
        "phase": "Succeeded",
        "reason": None,
    }


def test_a_report_written_over_json_reads_back() -> None:
    written = patched(item(), json_patch(item(), fail(limit=3).status))
    status = BindStatus.of(written)
    assert (status.phase, status.failed_attempts, status.observed_generation) == ("Failed", 1, 1)
    done = told(request(3), 1, status, attempt(DONE), NOW).status
    again = BindStatus.of(patched(written, json_patch(written, done)))
    assert (again.phase, again.reason, again.failed_attempts) == ("Succeeded", "", 1)


def test_a_failed_attempt_counts_as_an_error_and_the_last_one_as_terminal() -> None:
    """F-50: the metrics showed no failed binds."""
    first = told(request(2), 1, NEW, attempt(GONE), NOW).result
    last = told(request(2), 1, BindStatus(failed_attempts=1), attempt(GONE), NOW).result
    assert (first.failed, first.requeue_after_s is None) == (True, False)
    assert (last.failed, last.requeue_after_s is None) == (True, True)
    assert not told(request(), 1, NEW, attempt(DONE), NOW).result.failed
