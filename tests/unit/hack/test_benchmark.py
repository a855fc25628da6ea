"""What hack/bench makes of its figures: medians, ratios within a round, goals, and the picture."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmark.figures import OURS, PEER, Figure, Found, quantile
from benchmark.growth import CURVES, SIZES
from benchmark.plot import curves
from benchmark.report import GOALS, document, goals_table, read, table
from benchmark.scenarios import SCENARIOS

ROOT = Path(__file__).parents[3]


def found(*rounds: tuple[float, float | None]) -> Found:
    """Rounds of one figure: ours, and the peer's if there is one."""
    made = Found("a title")
    for ours, peer in rounds:
        one = {OURS: [Figure("binds/s", ours)]}
        if peer is not None:
            one[PEER] = [Figure("binds/s", peer)]
        made.rounds.append(one)
    return made


def test_a_ratio_is_taken_within_its_round() -> None:
    # Between the medians it would be 1: a machine that was slow for one round must not hide what differs.
    rounds = found((10.0, 5.0), (100.0, 50.0), (20.0, 100.0))
    assert rounds.ratio("binds/s") == 2.0
    assert (rounds.median(OURS, "binds/s"), rounds.median(PEER, "binds/s")) == (20.0, 50.0)


def test_without_a_peer_there_is_no_ratio() -> None:
    rounds = found((10.0, None), (12.0, 6.0), (8.0, 0.0))
    assert rounds.ratio("binds/s") == 2.0
    assert found((10.0, None)).ratio("binds/s") is None
    assert rounds.ratio("another") is None


@pytest.mark.parametrize(("part", "value"), [(0.0, 1.0), (0.5, 51.0), (0.99, 100.0), (1.0, 100.0)])
def test_quantiles(part: float, value: float) -> None:
    assert quantile([float(number) for number in range(100, 0, -1)], part) == value


def test_the_table_shows_both_and_their_ratio() -> None:
    lines = table("burst", found((160.0, 100.0))).splitlines()
    assert lines[-1].split() == ["binds/s", "160.00", "100.00", "1.60", "x"]
    alone = table("burst", found((160.0, None))).splitlines()
    assert alone[-1].split() == ["binds/s", "160.00"]


def test_goals_are_judged_by_their_own_sense() -> None:
    text = goals_table({"burst": found((170.0, 100.0))})
    assert "burst: binds/s" in text
    assert ">= 1.6 x" in text
    assert text.splitlines()[-1].endswith("1.70 x  reached")
    assert goals_table({"burst": found((150.0, 100.0))}).endswith("1.50 x  not reached")
    fewer = Found("", [{OURS: [Figure("requests per bind", 4.5)]}])
    assert goals_table({"burst": fewer}).splitlines()[-1].endswith("4.50  not reached")


def test_a_goal_that_needs_a_peer_is_left_out_without_one() -> None:
    assert len(goals_table({"burst": found((170.0, None))}).strip().splitlines()) == 1


def test_every_goal_belongs_to_a_scenario() -> None:
    assert {goal.scenario for goal in GOALS} <= SCENARIOS.keys()


def test_the_document_has_every_round() -> None:
    rounds = found((10.0, 5.0), (30.0, 10.0))
    each = document({"burst": rounds}, "1.36")["scenarios"]["burst"]
    assert read({"scenarios": {"burst": each}}) == {"burst": rounds}
    assert [one[OURS]["binds/s"]["value"] for one in each["rounds"]] == [10.0, 30.0]
    assert each["ratios"] == {"binds/s": 2.5}


def test_the_picture_has_a_curve_for_each_figure_and_program() -> None:
    rounds: dict[str, list[Figure]] = {
        program: [Figure(f"{size:,} pods: {name}", factor * size, "MiB") for name in CURVES for size in SIZES]
        for program, factor in ((OURS, 1.0), (PEER, 2.0))
    }
    picture = ET.fromstring(curves(Found("", [rounds])))  # noqa: S314 -- our own
    lines = [item for item in picture.iter() if item.tag.endswith("polyline")]
    assert len(lines) == 2 * len(CURVES)
    heights = [[float(point.split(",")[1]) for point in line.attrib["points"].split()] for line in lines[:2]]
    # Larger is higher up, which SVG counts from above; and what is twice as large is higher than the other.
    assert all(list(each) == sorted(each, reverse=True) for each in heights)
    assert heights[0][-1] > heights[1][-1]


def test_the_run_in_the_docs_is_what_was_measured() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    run = read(json.loads((ROOT / "docs/performance.json").read_text()))
    for name, each in run.items():
        assert table(name, each).strip() in text
    assert goals_table(run).strip() in text


def test_every_goal_is_in_the_docs() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    for goal in GOALS:
        assert f"| {goal.scenario}: {goal.name} |" in text
