"""How figures are shown: a table for people, JSON for programs, and how they stand to the goals."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.figures import OURS, PEER, Figure, Found

WIDTH = 52


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure is to reach.

    Attributes:
        scenario: Where it is measured.
        name: The figure.
        limit: The value, or the ratio to the peer's, that is still good.
        is_ratio: Whether it is a ratio.
        is_least: Whether more is better.
    """

    scenario: str
    name: str
    limit: float
    is_ratio: bool = False
    is_least: bool = False


GOALS = (
    Goal("burst", "requests per bind", 4.0),
    Goal("shared", "requests per bind", 7.5),
    Goal("claims", "requests per bind", 4.5),
    Goal("burst", "binds/s", 1.6, is_ratio=True, is_least=True),
    Goal("shared", "binds/s", 2.0, is_ratio=True, is_least=True),
    Goal("latency", "assigned after, p50", 0.6, is_ratio=True),
    Goal("latency", "assigned after, p99", 0.6, is_ratio=True),
    Goal("burst", "CPU per bind, start included", 1.0, is_ratio=True),
    Goal("shared", "CPU per bind, start included", 1.0, is_ratio=True),
    Goal("burst", "peak memory", 0.9, is_ratio=True),
    Goal("burst", "start to first bind", 1.0, is_ratio=True),
    Goal("scale", "10,000 pods: peak memory", 0.35, is_ratio=True),
    Goal("scale", "10,000 pods: start to first bind", 0.35, is_ratio=True),
    Goal("waiting", "rate left beside those that wait", 0.95, is_least=True),
    Goal("waits", "memory of each that waits", 40.0),
    Goal("volumes", "one attempt: memory at its peak, more than before", 5.0),
    Goal("failing", "p99 beside, to p99 alone", 1.2),
)
"""What this project has set itself."""


def table(name: str, found: Found) -> str:
    """The figures of one scenario: the middle of all rounds, and ratios if there is a peer."""
    has_peer = any(PEER in each for each in found.rounds)
    rounds = f"{len(found.rounds)} rounds" if len(found.rounds) > 1 else "1 round"
    lines = [f"\n{name}: {found.title} ({rounds})"]
    if has_peer:
        lines.append(f"  {'':<{WIDTH}}{OURS:>12}{PEER:>12}{'ratio':>10}")
    for figure in found.names():
        unit = found.unit(figure)
        line = f"  {figure + (f', {unit}' if unit else ''):<{WIDTH}}{_number(found.median(OURS, figure))}"
        if has_peer:
            ratio = found.ratio(figure)
            line += _number(found.median(PEER, figure)) + (f"{ratio:8.2f} x" if ratio is not None else "")
        lines.append(line.rstrip())
    return "\n".join([*lines, *(f"  note: {note}" for note in found.notes)])


def goals_table(found: Mapping[str, Found]) -> str:
    """How the figures stand to the goals; those that need a peer are left out where there was none."""
    lines = [f"\n{'goal':<62}{'limit':>12}{'found':>12}"]
    for goal in GOALS:
        if goal.scenario not in found:
            continue
        each = found[goal.scenario]
        value = each.ratio(goal.name) if goal.is_ratio else each.median(OURS, goal.name)
        if value is None:
            continue
        unit = " x" if goal.is_ratio else f" {each.unit(goal.name)}".rstrip()
        limit = f"{'>=' if goal.is_least else '<='} {goal.limit:g}{unit}"
        is_met = value >= goal.limit if goal.is_least else value <= goal.limit
        shown = f"{value:.2f}{unit}"
        verdict = "reached" if is_met else "not reached"
        lines.append(f"{f'{goal.scenario}: {goal.name}':<62}{limit:>12}{shown:>12}  {verdict}")
    return "\n".join(lines)


def document(found: Mapping[str, Found], kubernetes: str) -> dict[str, Any]:
    """All figures of all rounds, for programs."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "kubernetes": kubernetes,
        "scenarios": {
            name: {
                "title": each.title,
                "rounds": [
                    {
                        program: {
                            figure.name: {"value": figure.value, "unit": figure.unit} for figure in figures
                        }
                        for program, figures in one.items()
                    }
                    for one in each.rounds
                ],
                "ratios": {figure: each.ratio(figure) for figure in each.names()},
                "notes": each.notes,
            }
            for name, each in found.items()
        },
    }


def read(document: Mapping[str, Any]) -> dict[str, Found]:
    """What was found, from its document."""
    return {
        name: Found(
            each["title"],
            [
                {
                    program: [Figure(key, item["value"], item["unit"]) for key, item in figures.items()]
                    for program, figures in one.items()
                }
                for one in each["rounds"]
            ],
            each["notes"],
        )
        for name, each in document["scenarios"].items()
    }


def _number(value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:12.2f}"
