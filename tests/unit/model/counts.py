"""The counts of states that docs/model.md shows: each is compared with what its test has counted."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/model.md"


def told_in_the_docs(model: str, scenario: str) -> str:
    """The row of a scenario, as `explorer.Explored` writes it."""
    section = PAGE.read_text().partition(f"\n## {model}\n")[2].partition("\n## ")[0]
    row = re.search(rf"^\| {re.escape(scenario)} \| (.+) \|$", section, re.MULTILINE)
    return ", ".join(
        f"{count.strip()} {unit}"
        for count, unit in zip(
            row[1].split("|") if row else (), ("states", "steps", "ends", "deep"), strict=False
        )
    )
