"""Time in these tests is virtual: when all tasks sleep, the clock jumps to the moment the first one wakes."""

from typing import Any

import pytest
from trio.testing import MockClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}
