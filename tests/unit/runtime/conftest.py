"""Time in these tests is virtual: when all tasks sleep, the clock jumps to the moment the first one wakes."""

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger
from trio.testing import MockClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
def logs() -> Iterator[list[str]]:
    """What is logged during the test, a line of level and message each."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message} {extra}")
    yield lines
    logger.remove(sink)
