"""Writes the table of settings in README.md from the settings themselves.

hack/readme            write it
hack/readme --check    write nothing; exit 1 if it is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from controller.setting_texts import SettingRow, rows

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- settings: written by hack/readme -->", "<!-- settings: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/readme", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    old = README.read_text()
    new = with_table(old)
    if options.check:
        if new != old:
            print("README.md: the table of settings is out of date; run hack/readme", file=sys.stderr)
        return int(new != old)
    README.write_text(new)
    return 0


def with_table(text: str) -> str:
    """The text with the present table between the two markers.

    Raises:
        ValueError: A marker is missing.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks {BEGIN} or {END}")
    return f"{head}{begin}\n{table()}\n{end}{tail}"


def table() -> str:
    """All settings, with a heading row for each group."""
    lines = ["| Flag | Default | Meaning |", "|---|---|---|"]
    for group, members in groupby(rows(), key=lambda row: row.group):
        lines.append(f"| **{group}** | | |")
        lines += [_line(row) for row in members]
    return "\n".join(lines)


def _line(row: SettingRow) -> str:
    default = f"`{row.default}`" if row.default else ""
    return f"| `{row.flag}` | {default} | {_plain(row.description)} |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is; what stands in backticks already does."""
    code_and_prose = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\_*<>|\[\]#])", r"\\\1", part)
        for part in code_and_prose
    )
