"""What is printed, and what is left out of it. Only `say` and `heading` write.

Called by ``play``. Invariant: what stands below a command is that command's output, or lines of it.
"""

from __future__ import annotations

from itertools import pairwise

CONDITION = "    Last Transition Time:"
"""Begins each condition in what `kubectl describe` shows."""


def say(line: str = "") -> None:
    """Prints a line at once."""
    print(line, flush=True)


def heading(text: str) -> None:
    """Prints a heading."""
    say(f"\n=== {text}")


def section_of(text: str, key: str) -> str:
    """A field at the top of YAML, with all that belongs to it."""
    lines = text.splitlines()
    first = lines.index(f"{key}:")
    last = first + 1
    while last < len(lines) and lines[last].startswith(" "):
        last += 1
    return "\n".join(lines[first:last])


def failure_of(text: str) -> str:
    """The status in what `kubectl describe` shows; of its conditions only the first that is False."""
    lines = text.splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("Events:"))
    status = lines[lines.index("Status:") : end]
    starts = [number for number, line in enumerate(status) if line.startswith(CONDITION)]
    rest = next(number for number in range(starts[-1], len(status)) if not status[number].startswith("    "))
    blocks = [status[first:last] for first, last in pairwise((*starts, rest))]
    failed = next(block for block in blocks if any(line.split() == ["Status:", "False"] for line in block))
    return "\n".join((*status[: starts[0]], *failed, *status[rest:]))
