"""What tests of any part need."""

from collections.abc import Iterator

import pytest
from loguru import logger


@pytest.fixture
def logs() -> Iterator[list[str]]:
    """What is logged during the test, a line of level and message each."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{level} {message} {extra}")
    yield lines
    logger.remove(sink)
