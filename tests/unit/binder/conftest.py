"""What tests of the binder in a world of their own need: a clock that jumps, and silence."""

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger
from trio.testing import MockClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time passes at once as soon as everybody waits."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the binder logs is not shown."""
    logger.disable("controller")
    yield
    logger.enable("controller")
