"""A GPU group in every order of what can happen; and mutants of the code, each of which is caught."""

import pytest

from tests.unit.model.counts import told_in_the_docs
from tests.unit.model.explorer import ViolationError, explore
from tests.unit.model.groups import Groups, Left, Rules

SCENARIOS = {
    "one pod, whatever may happen": (1, Left(crashes=1, thefts=1, deletions=1)),
    "two pods": (2, Left()),
    "two pods, the binder killed": (2, Left(crashes=1)),
    "two pods, the reservation deleted by somebody": (2, Left(thefts=1)),
}
MUTANTS: dict[str, tuple[Rules, str]] = {
    "released without a live look": (
        Rules(needed_live=lambda _seen, _server: False),
        "a GPU was released that a pod uses",
    ),
    "a bind under way protects nothing": (Rules(protects_use=False), "made and removed by turns"),
    "nobody looks when the last bind leaves": (
        Rules(looks_when_left=False),
        "a GPU stays reserved for nobody",
    ),
    "another GPU for users of a lost one": (
        Rules(lost=lambda _number, _seen, _relied: None),
        "another GPU while one is in use",
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_that_can_happen_to_a_group(name: str) -> None:
    pods, left = SCENARIOS[name]
    assert str(explore(Groups(pods, left))) == told_in_the_docs("Groups", name)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    rules, rule = MUTANTS[name]
    with pytest.raises(ViolationError, match=rule) as caught:
        _explore_all(rules)
    assert "  1. the scheduler asks for p0: server.requests is" in str(caught.value)


def _explore_all(rules: Rules) -> None:
    for pods, left in (SCENARIOS["one pod, whatever may happen"], (2, Left(thefts=1))):
        explore(Groups(pods, left, rules))
