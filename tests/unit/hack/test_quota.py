"""The quota of CPU that hack/bench measures under is in force, or is said to be out of reach."""

import subprocess
import sys

import pytest
from benchmark.quota import QuotaError, quota

BUSY = (
    "import time; begin = time.monotonic(); sum(range(6_000_000)); "
    "print((time.monotonic() - begin) / time.process_time())"
)


def wall_by_cpu(*prefix: str) -> float:
    """Seconds that pass for each second of CPU that a busy process gets."""
    done = subprocess.run([*prefix, sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_the_command_gets_the_cpu_that_it_is_allowed() -> None:
    try:
        with quota(0.1) as limit:
            throttled = wall_by_cpu(*limit.prefix)
    except QuotaError as error:
        pytest.skip(str(error))
    assert throttled > 4  # ten, less what it may use at once; the start of Python is in the CPU only
