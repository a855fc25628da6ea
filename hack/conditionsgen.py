"""Writes docs/conditions.md from the table of remedies that `kai-binder explain` goes by.

hack/conditions            write it
hack/conditions --check    write nothing; exit 1 if it is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from controller.explain.remedies import SECTIONS, SITUATIONS, Remedy, filled

PAGE = Path(__file__).resolve().parent.parent / "docs" / "conditions.md"

HEAD = """\
# Conditions, their reasons, and what to do

<!-- written by hack/conditions: do not edit -->

[`kai-binder explain`](explain.md) finds the entry for a pod, and fills in `<pod>` and so on. To read it
yourself: `kubectl describe bindrequest <request> -n <namespace>`.

- **Conditions.** There is one for each enabled plugin, in the order in which they run, then `Bound` for the
  whole. A share of a GPU also has `GPUReserved`, first. `True` is always good; `Unknown` waits, or was held
  up by another one. A wait is shown after 2 s.
- **`status.reason`** repeats the failure in one line that begins with the condition at fault. `phase` and
  `failedAttempts` are what the scheduler reads.
- **Attempts.** A failed one is followed by another after 1, 2, 4, … s, until `failedAttempts` reaches
  `spec.backoffLimit`; without a `backoffLimit` there is one attempt. "Final" below: no further attempt is
  made, however many are left, and `failedAttempts` is set to the limit. While the API server is away,
  attempts are repeated without being counted.
- **The pod is told, too**: condition `PodBound`, events `Bound` and `BindingError`. The request gets a
  Warning event for each new reason, not for each retry. An event that comes again is counted; after 25 times
  it is written every five minutes.

Once the cause is mended, a request that has attempts left is tried again by itself. One that has failed for
good is deleted by KAI's scheduler, which then decides anew; to hurry it:
`kubectl delete bindrequest <request> -n <namespace>`. Counting also starts anew when the spec is corrected.
"""
_SITUATIONS = """\
## What no condition says

`explain` finds these in pods, events, the Lease and the request itself; the words are its own.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the page; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/conditions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    new = page()
    if options.check:
        old = PAGE.read_text() if PAGE.exists() else ""
        if new != old:
            print("docs/conditions.md is out of date; run hack/conditions", file=sys.stderr)
        return int(new != old)
    PAGE.write_text(new)
    return 0


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, table in SECTIONS.items():
        parts.append("\n".join([f"## {title}\n", *_rows(table)]) + "\n")
    parts.append("\n".join([_SITUATIONS, *_rows(SITUATIONS)]) + "\n")
    return "\n".join(parts)


def _rows(table: Mapping[str, Remedy]) -> Iterator[str]:
    has_status = any(remedy.status for remedy in table.values())
    yield (
        "| Reason | Condition | What it means | What to do |"
        if has_status
        else ("| Word | What it means | What to do |")
    )
    yield "|---|---|---|---|" if has_status else "|---|---|---|"
    for reason, remedy in table.items():
        steps = " ".join(_step(number, step, remedy) for number, step in enumerate(remedy.steps, start=1))
        status = f" {remedy.status} |" if has_status else ""
        means = f"{_plain(remedy.means)} {remedy.final.value}".rstrip()
        yield f"| `{reason}` |{status} {means} | {steps or 'Nothing.'} |"


def _step(number: int, step: str, remedy: Remedy) -> str:
    text = _plain(filled(step, {}))
    return f"{number}. {text}" if len(remedy.steps) > 1 else text


def _plain(text: str) -> str:
    """Text that Markdown shows as it is; commands as code."""
    parts = re.split(r"(kubectl .+?(?=$|;|\. |, it| \()|<[\w-]+>)", text)
    return "".join(
        f"`{part}`" if index % 2 else re.sub(r"([\\_*<>|\[\]#`])", r"\\\1", part)
        for index, part in enumerate(parts)
    )
