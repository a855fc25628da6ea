"""docs/chaos.md says what there is."""

import re
from pathlib import Path

from tests.chaos.auditor import RULES, judge, told
from tests.chaos.plan import LANES
from tests.chaos.rules.words import RESERVATIONS
from tests.chaos.story import SECOND, clean

PAGE = (Path(__file__).parents[2] / "docs/chaos.md").read_text()


def first_column(heading: str) -> list[str]:
    """What a table of a chapter is about, row by row."""
    chapter = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w-]+)`", chapter, re.MULTILINE)


def test_every_rule_is_explained() -> None:
    assert first_column("What must hold") == [rule.__name__ for rule in RULES]


def test_every_fault_is_explained() -> None:
    assert sorted(first_column("What happens")) == sorted(fault for lane in LANES.values() for fault in lane)


def test_every_fault_was_measured() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .+ \| \d+\.\d s \| \d+\.\d s \|$", PAGE, re.MULTILINE)
    assert rows == first_column("What happens")


def test_the_violation_that_is_shown_looks_like_that() -> None:
    story = clean()
    story.delete(SECOND, ("pods", RESERVATIONS, "reservation-g"))
    story.reserve(SECOND, "g", "n1", "GPU-1", "again")
    lines = told(judge(story.history, story.state)[0], story.history).splitlines()
    shown = PAGE.partition("```text\n")[2].partition("```")[0].splitlines()
    assert len(shown) > 2
    assert set(shown) <= set(lines), lines
