"""The explorer finds what is there to be found, by the shortest way, and nothing else."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.unit.model.explorer import Explored, Step, ViolationError, explore


class Jugs(NamedTuple):
    """Two jugs of 3 and 5 litres; the classic asks for 4."""

    small: int = 0
    large: int = 0


class Measuring:
    def __init__(self, *, forbidden: int = 9, wanted: int = 4, faults: tuple[str, ...] = ()) -> None:
        self.forbidden, self.wanted, self.faults = forbidden, wanted, faults

    def first(self) -> list[Jugs]:
        return [Jugs()]

    def steps(self, state: Jugs) -> Iterator[Step[Jugs]]:
        small, large = state.small, state.large
        to_large, to_small = min(small, 5 - large), min(large, 3 - small)
        for name, after in (
            ("fill the small one", Jugs(3, large)),
            ("fill the large one", Jugs(small, 5)),
            ("empty the small one", Jugs(0, large)),
            ("empty the large one", Jugs(small, 0)),
            ("pour into the large one", Jugs(small - to_large, large + to_large)),
            ("pour into the small one", Jugs(small + to_small, large - to_small)),
        ):
            yield Step(name, after, is_fault=name in self.faults)

    def wrong(self, state: Jugs) -> str:
        return f"there are {state.large} litres" if state.large == self.forbidden else ""

    def is_end(self, state: Jugs) -> bool:
        return state.large == self.wanted


def test_all_states_are_found() -> None:
    assert explore(Measuring()) == Explored(states=16, steps=96, ends=2, depth=7)


def test_the_shortest_way_to_what_is_wrong_is_told() -> None:
    with pytest.raises(ViolationError) as caught:
        explore(Measuring(forbidden=4))
    assert str(caught.value).splitlines() == [
        "there are 4 litres",
        "  0. Jugs(small=0, large=0)",
        "  1. fill the large one: large is 5",
        "  2. pour into the small one: small is 3; large is 2",
        "  3. empty the small one: small is 0",
        "  4. pour into the small one: small is 2; large is 0",
        "  5. fill the large one: large is 5",
        "  6. pour into the small one: small is 3; large is 4",
    ]


def test_an_end_that_is_never_reached_is_missed() -> None:
    with pytest.raises(ViolationError, match=r"no end is in reach any more\n  0\. Jugs"):
        explore(Measuring(wanted=7))


def test_an_end_that_only_a_fault_leads_to_does_not_count() -> None:
    with pytest.raises(ViolationError, match="no end is in reach any more"):
        explore(Measuring(faults=("fill the large one", "fill the small one")))


def test_a_step_may_be_wrong_in_itself() -> None:
    class Pouring(Measuring):
        def steps(self, state: Jugs) -> Iterator[Step[Jugs]]:
            yield Step("spill", Jugs(1, 1), wrong="it was spilt")

    with pytest.raises(ViolationError, match=r"it was spilt\n.*\n  1\. spill: small is 1; large is 1"):
        explore(Pouring())
