"""Reads the Dockerfile for the tests that check it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Instruction = tuple[str, str]


def read_stages() -> list[list[Instruction]]:
    """The instructions of each stage, as (word, rest), continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    stages: list[list[Instruction]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages


STAGES = read_stages()


def of(stage: list[Instruction], word: str) -> list[str]:
    """What the lines say that begin with this word."""
    return [rest for name, rest in stage if name == word]
