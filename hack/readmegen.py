"""Writes the tables of settings in README.md, and the texts of --help, from the settings themselves.

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

from controller.command import HELP
from controller.setting_texts import SettingRow, help_text, rows
from controller.settings import VERBS, AdmissionSettings, Settings

README = Path(__file__).resolve().parent.parent / "README.md"
END = "<!-- settings: end -->"


def begin(verb: str) -> str:
    """The marker before the table of a verb."""
    return f"<!-- settings of {verb}: written by hack/readme -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the tables and texts; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/readme", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    wanted = {README: with_tables(README.read_text()), **help_texts()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path.name}: what is said of settings is out of date; run hack/readme", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path])
    return 0


def help_texts() -> dict[Path, str]:
    """What --help prints, by the file that the command takes it from."""
    return {HELP / f"{verb.verb}.txt": help_text(verb) for verb in VERBS}


def with_tables(text: str) -> str:
    """The text with the present tables, each between its markers.

    Raises:
        ValueError: A marker is missing.
    """
    for verb, lines in tables().items():
        head, marker, rest = text.partition(begin(verb))
        _, end, tail = rest.partition(END)
        if not marker or not end:
            raise ValueError(f"README.md lacks {begin(verb)} or {END} behind it")
        text = f"{head}{marker}\n{lines}\n{end}{tail}"
    return text


def tables() -> dict[str, str]:
    """The settings by verb: all of the binder, and what the webhook has beside those that both have."""
    binder = rows(Settings)
    shared = {row.flag for row in binder}
    own = [row for row in rows(AdmissionSettings) if row.flag not in shared]
    return {Settings.verb: table(binder), AdmissionSettings.verb: table(own)}


def table(listed: Sequence[SettingRow]) -> str:
    """A line for each setting, with a heading row for each group."""
    lines = ["| Flag | Default | Meaning |", "|---|---|---|"]
    for group, members in groupby(listed, key=lambda row: row.group):
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
