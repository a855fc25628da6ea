"""The quota of CPU that hack/bench measures under is in force, or is said to be out of reach."""

import subprocess
import sys

import pytest
from benchmark.quota import QuotaError, quota

BUSY = "import time; begin = time.monotonic(); sum(range(6_000_000)); print(time.monotonic() - begin)"


def took_s(*prefix: str) -> float:
    done = subprocess.run([*prefix, sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_the_command_gets_the_cpu_that_it_is_allowed() -> None:
    try:
        with quota(0.1) as limit:
            throttled_s = took_s(*limit.prefix)
    except QuotaError as error:
        pytest.skip(str(error))
    # A tenth of a CPU; on a busy machine the other run is slow as well.
    assert throttled_s > 2 * took_s()
