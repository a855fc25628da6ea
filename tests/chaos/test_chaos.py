"""The randomised run: CHAOS_SEED chooses what happens (7, or 1-10 for ten runs), CHAOS_SECONDS how long.

With CHAOS_CALM=1 nothing befalls the binder: what the auditor finds then is its own mistake, or a plain one.
"""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.auditor import told
from tests.chaos.plan import make_plan
from tests.chaos.recovery import Healed, table
from tests.chaos.run import run

SHOWN = 12


def seeds() -> list[int]:
    """As CHAOS_SEED says, else one by chance."""
    first, _, last = os.environ.get("CHAOS_SEED", "").partition("-")
    if not first:
        return [random.SystemRandom().randrange(1_000_000)]
    return list(range(int(first), int(last or first) + 1))


def say(text: str) -> None:
    """Shows how the run goes; hack/test has pytest let it through."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@pytest.fixture(scope="module")
def healed() -> Iterator[list[Healed]]:
    """The faults of all runs; in the end they are told together."""
    found: list[Healed] = []
    yield found
    say(f"\nHow long after a fault the next pod was bound:\n{table(found)}")


@pytest.mark.parametrize("seed", seeds())
def test_whatever_befalls_it_the_binder_keeps_its_promises(
    seed: int, tmp_path: Path, healed: list[Healed]
) -> None:
    seconds = float(os.environ.get("CHAOS_SECONDS", "240"))
    plan = make_plan(seed, seconds, calm=bool(os.environ.get("CHAOS_CALM")))
    again = f"CHAOS_SEED={seed} CHAOS_SECONDS={seconds:g} hack/test chaos"
    say(f"\n{again}")
    result = run(plan, tmp_path, say)
    healed.extend(result.healed)
    say(result.summary)
    shown = [told(violation, result.history) for violation in result.violations[:SHOWN]]
    text = "\n\n".join(shown)
    assert not result.violations, (
        f"{len(result.violations)} violations\n\n{text}\n\nlogs: {tmp_path}\n{again}"
    )
