"""Runs the command by a wall clock that is off, by as many seconds as a file says at the moment.

`python -m tests.stepped FILE ARGUMENT…`. Only what Python asks for as wall time is off, as it is when the
clock of a machine is set: clocks that only go forward are not, nor are other processes.
"""

import datetime
import runpy
import sys
import time
from pathlib import Path
from typing import Any, Self

_real_time = time.time


def step(clock: Path, offset_s: float) -> None:
    """Sets the clock of those that run by this file."""
    beside = clock.with_suffix(".new")
    beside.write_text(str(offset_s))
    beside.replace(clock)


def run(clock: Path) -> None:
    """Runs the command in this process."""

    class Stepped(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return super().now(tz) + datetime.timedelta(seconds=float(clock.read_text()))

    def stepped_time() -> float:
        return _real_time() + float(clock.read_text())

    replaced: Any = datetime
    replaced.datetime = Stepped
    time.time = stepped_time
    runpy.run_module("controller", run_name="__main__")


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
