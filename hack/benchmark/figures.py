"""What a scenario found: figures of each round and program, their medians, and ratios within a round.

Made by the scenarios, shown by `report.py`. Invariant: a ratio is taken within one round, in which the
programs ran one after the other on the same machine under the same load, never between medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

OURS = "kai-binder"
PEER = "peer"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured.

    Attributes:
        name: What it is; the same in each round.
        value: In `unit`.
        unit: For people; empty for a bare number.
    """

    name: str
    value: float
    unit: str = ""


@dataclass(slots=True)
class Found:
    """All rounds of one scenario.

    Attributes:
        title: What was done.
        rounds: In order; in each the figures by the name of the program that was measured.
        notes: What a reader has to know beside the figures, e.g. why one is missing.
    """

    title: str
    rounds: list[dict[str, list[Figure]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        """The names of all figures, in the order in which they came."""
        seen = {figure.name: None for each in self.rounds for found in each.values() for figure in found}
        return list(seen)

    def values(self, program: str, name: str) -> list[float]:
        """One figure of one program, round by round."""
        found = (figure for each in self.rounds for figure in each.get(program, ()))
        return [figure.value for figure in found if figure.name == name]

    def unit(self, name: str) -> str:
        """The unit of a figure."""
        found = (figure for each in self.rounds for figures in each.values() for figure in figures)
        return next((figure.unit for figure in found if figure.name == name), "")

    def median(self, program: str, name: str) -> float | None:
        """The middle one of all rounds; None if there is none."""
        values = self.values(program, name)
        return statistics.median(values) if values else None

    def ratio(self, name: str) -> float | None:
        """Ours to the peer's, the middle one of all rounds; None where one of both is missing or zero."""
        ratios = []
        for each in self.rounds:
            ours, peer = (_value(each.get(program, ()), name) for program in (OURS, PEER))
            if ours is not None and peer:
                ratios.append(ours / peer)
        return statistics.median(ratios) if ratios else None


def _value(figures: Sequence[Figure], name: str) -> float | None:
    return next((figure.value for figure in figures if figure.name == name), None)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part of them lies.

    Raises:
        ValueError: There are none.
    """
    if not values:
        raise ValueError("there are no values")
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]
