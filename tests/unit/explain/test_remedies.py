"""Every reason has a remedy, and docs/conditions.md is the same table."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import conditionsgen
import pytest

import controller
from controller.explain.remedies import REMEDIES, SECTIONS, SITUATIONS, WORDS, Final, advice_for, is_final
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


def retried() -> dict[str, set[bool]]:
    """Whether the failures with a reason are tried again, wherever the binder makes one."""
    found: dict[str, set[bool]] = defaultdict(set)
    for path in Path(controller.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Failed" and node.args:
                final = any(
                    word.arg == "retry" and not getattr(word.value, "value", True) for word in node.keywords
                )
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "Reason":
                        found[Reason[part.attr]].add(not final)
    return found


def test_what_is_said_to_be_final_is_so_in_the_code() -> None:
    found = retried()
    assert len(found) > 40
    expected = {
        reason: Final.NEVER if retry == {True} else Final.ALWAYS if retry == {False} else Final.AT_TIMES
        for reason, retry in found.items()
    }
    assert {reason: REMEDIES[reason].final for reason in found} == expected
    others = {reason for reason in REMEDIES if REMEDIES[reason].final is not Final.NEVER} - set(found)
    assert others == set(), "no failure of theirs is in the code"
    assert is_final(Reason.INVALID_PORTION)
    assert not is_final(Reason.POD_NOT_FOUND)
    assert not is_final("DriverTooOld")


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
