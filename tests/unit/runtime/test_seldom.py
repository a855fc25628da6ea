"""Records that anybody can cause are few, and say how many there would have been."""

import anyio
import pytest

from controller.runtime.seldom import Seldom

pytestmark = pytest.mark.anyio


async def test_a_flood_is_said_now_and_then_and_counted() -> None:
    seldom = Seldom(most=2, every_s=60)
    assert [seldom.happened() for _ in range(5)] == [0, 0, None, None, None]
    await anyio.sleep(61)
    assert [seldom.happened() for _ in range(4)] == [3, 0, None, None]
    await anyio.sleep(600)
    assert seldom.happened() == 2


async def test_what_is_rare_is_always_said() -> None:
    seldom = Seldom(most=1, every_s=60)
    for _ in range(5):
        assert seldom.happened() == 0
        await anyio.sleep(60)
