"""Attempts to bind a pod, in every order of what can happen; and mutants of the code, which are caught."""

from collections.abc import Iterable
from datetime import datetime

import pytest
from msgspec.structs import replace

from controller.binder import status as statuses
from controller.binder.patches import json_patch
from controller.binder.status import Report, Standing
from controller.kai.outcome import Ending, Failed, Ready
from controller.kai.pods import judge_pod
from controller.kai.request import BindRequest
from controller.runtime.cache import Change, Key, key_of
from controller.runtime.client import Object
from controller.runtime.reconcile import Result
from controller.runtime.workqueue import Backoff
from tests.unit.model.attempts import Attempts, Budget, Rules
from tests.unit.model.counts import told_in_the_docs
from tests.unit.model.explorer import ViolationError, explore

NOTHING = Budget(requests=1, crashes=0, standbys=0, pods=0, edits=0, withdrawals=0, lost=0, away=0)
SCENARIOS = {
    "pods replaced, requests withdrawn": (
        None,
        NOTHING._replace(requests=2, crashes=1, pods=1, withdrawals=1, lost=1),
    ),
    "the spec mended": (2, NOTHING._replace(crashes=1, edits=1, lost=1, away=1)),
    "a standby takes over": (2, NOTHING._replace(standbys=1, edits=1, lost=1)),
    "a standby takes over, the pod replaced": (2, NOTHING._replace(requests=2, standbys=1, pods=1)),
    "three attempts": (3, NOTHING._replace(crashes=1, standbys=1, lost=2)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_that_can_happen_to_an_attempt(name: str) -> None:
    limit, left = SCENARIOS[name]
    assert str(explore(Attempts(limit, left))) == told_in_the_docs("Attempts", name)


def counted_twice(
    request: BindRequest, standing: Standing, ending: Ending, now: datetime, backoff: Backoff
) -> Report:
    told = statuses.report(request, standing, ending, now, backoff)
    attempts = told.status.get("failedAttempts")
    return told if attempts is None else replace(told, status={**told.status, "failedAttempts": attempts + 1})


def last_words_are_counted_as_any(
    request: BindRequest, standing: Standing, ending: Ending, now: datetime, backoff: Backoff
) -> Report:
    told = statuses.report(request, standing, ending, now, backoff)
    if isinstance(ending.verdict, Failed):
        attempts = standing.attempts_after(replace(ending.verdict, retry=True))
        return replace(told, status={**told.status, "failedAttempts": attempts})
    return told


def a_retry_reads_as_bound(
    request: BindRequest, standing: Standing, ending: Ending, now: datetime, backoff: Backoff
) -> Report:
    """D-1 of the Go binder."""
    again = standing.status.phase == "Failed" and isinstance(ending.verdict, Failed)
    return statuses.report(
        request, standing, replace(ending, verdict=Ready()) if again else ending, now, backoff
    )


def every_change_wakes(change: Change) -> Iterable[Key]:
    return (key_of(change.object),)


def no_retry_is_due(
    request: BindRequest, standing: Standing, ending: Ending, now: datetime, backoff: Backoff
) -> Report:
    return replace(statuses.report(request, standing, ending, now, backoff), result=Result())


def status_for_whoever_has_the_name(item: Object, status: Object) -> list[Object]:
    return [op for op in json_patch(item, status) if op["op"] != "test"]


def whoever_has_the_name(request: BindRequest, pod: Object, _: str | None) -> Ready | Failed | None:
    return judge_pod(request, pod, None)


REPLACED, MENDED, STANDBY, *_ = SCENARIOS
MUTANTS: dict[str, tuple[Rules, str, str]] = {
    "an attempt counts twice": (Rules(report=counted_twice), MENDED, "an attempt was counted"),
    "a last word does not fill up to the limit": (
        Rules(report=last_words_are_counted_as_any),
        MENDED,
        "no end is in reach",
    ),
    "a retry reads as bound": (Rules(report=a_retry_reads_as_bound), MENDED, "says that the pod is bound"),
    "its own writes wake it": (Rules(keys=every_change_wakes), MENDED, "cut a back-off short"),
    "no retry is due": (Rules(report=no_retry_is_due), MENDED, "no end is in reach"),
    "what is over is taken up": (Rules(over=lambda _: False), STANDBY, "an attempt was counted"),
    "the status goes to whoever has the name": (
        Rules(patch=status_for_whoever_has_the_name),
        REPLACED,
        "another request or spec",
    ),
    "the Binding goes to whoever has the name": (
        Rules(binds_by_uid=False),
        REPLACED,
        "another pod was bound",
    ),
    "the pod may be any of its name": (Rules(judge=whoever_has_the_name), REPLACED, "another pod was bound"),
    "a lost answer is a failure": (Rules(open=lambda _: False), REPLACED, "the pod is on its node, and its"),
    "no live look after an election": (
        Rules(looks_after_election=False),
        STANDBY,
        "the pod is on its node, and its",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    rules, scenario, rule = MUTANTS[name]
    limit, left = SCENARIOS[scenario]
    with pytest.raises(ViolationError, match=rule) as caught:
        explore(Attempts(limit, left, rules))
    assert "  1. the scheduler asks" in str(caught.value), "a trace begins at the beginning"
