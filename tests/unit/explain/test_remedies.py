"""Every reason has a remedy, and docs/conditions.md is the same table."""

import re

import conditionsgen
import pytest

from controller.explain.remedies import REMEDIES, SECTIONS, SITUATIONS, WORDS, advice_for
from controller.kai.reasons import Reason

WELL = {Reason.RECONCILED, Reason.NOT_APPLICABLE, Reason.ALREADY_BOUND}
ALL = {**REMEDIES, **SITUATIONS}


def test_every_reason_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Reason)
    assert sum(map(len, SECTIONS.values())) == len(Reason), "a reason is in two sections"
    assert not set(SITUATIONS) & set(Reason)


@pytest.mark.parametrize("reason", sorted(ALL))
def test_a_remedy_says_what_to_do(reason: str) -> None:
    remedy = ALL[reason]
    assert remedy.means.endswith(".")
    assert remedy.status in (("",) if reason in SITUATIONS else ("True", "False", "Unknown"))
    assert bool(remedy.steps) == (reason not in WELL)
    for step in remedy.steps:
        assert set(re.findall(r"<([\w-]+)>", step)) <= WORDS


def test_words_are_filled_in_where_they_are_known() -> None:
    words = {"request": "train", "namespace": "team", "node": ""}
    advice = advice_for("Bound", Reason.POD_REPLACED, words)
    assert advice.steps[0].endswith("kubectl delete bindrequest train -n team")
    assert "<node>" in advice_for("Bound", Reason.NODE_GONE, words).steps[0]


def test_a_reason_of_somebody_elses_plugin_has_advice_too() -> None:
    advice = advice_for("DriverCheck", "DriverTooOld", {"binder-namespace": "kai-scheduler"})
    assert (advice.about, advice.reason) == ("DriverCheck", "DriverTooOld")
    assert advice.steps[1].endswith("kubectl logs -n kai-scheduler deployment/binder")


def test_the_page_of_conditions_is_that_of_the_table() -> None:
    assert conditionsgen.PAGE.read_text() == conditionsgen.page(), "run hack/conditions"
    assert conditionsgen.main(["--check"]) == 0


def test_the_page_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ALL:
        (row,) = (line for line in conditionsgen.page().splitlines() if line.startswith(f"| `{name}` |"))
        assert len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) == (4 if name in SITUATIONS else 5)
    assert capsys.readouterr().err == ""
