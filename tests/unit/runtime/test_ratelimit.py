"""The rate limit, on a clock that jumps."""

import anyio
import pytest

from controller.runtime.ratelimit import RateLimits, TokenBucket

pytestmark = pytest.mark.anyio


def bucket(qps: float, burst: int) -> TokenBucket:
    return TokenBucket(qps, burst, clock=anyio.current_time)


async def passed_s(limit: TokenBucket, callers: int, *, limit_s: float = 1e9) -> list[float]:
    """Seconds after which each of some callers that come at once has passed."""
    started_s = anyio.current_time()
    times_s: list[float] = []

    async def call() -> None:
        if await limit.take(limit_s):
            times_s.append(anyio.current_time() - started_s)

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(call)
    return sorted(times_s)


async def test_a_burst_passes_at_once_and_the_rest_in_line() -> None:
    assert await passed_s(bucket(10, 3), 6) == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3], abs=1e-6)


async def test_tokens_come_back_with_time_up_to_the_burst() -> None:
    limit = bucket(10, 3)
    await passed_s(limit, 5)
    await anyio.sleep(0.1)
    assert await passed_s(limit, 1) == pytest.approx([0.0], abs=1e-6)
    await anyio.sleep(3600)
    assert await passed_s(limit, 4) == pytest.approx([0, 0, 0, 0.1], abs=1e-6)


@pytest.mark.parametrize("qps", [0, -1])
async def test_without_a_rate_there_is_no_limit(qps: float) -> None:
    assert set(await passed_s(bucket(qps, 1), 1000)) == {0.0}
    limits = RateLimits(qps, 1)
    assert all([await limits.take("pods", 0.0) for _ in range(1000)])


async def test_a_slow_rate() -> None:
    assert await passed_s(bucket(0.5, 1), 3) == pytest.approx([0, 2, 4], abs=1e-6)


async def test_callers_that_are_cancelled_give_their_tokens_back() -> None:
    """F-48: 400 callers that went away kept the next one waiting for 20 s."""
    limit = bucket(20, 1)
    await limit.take(0.0)
    with anyio.move_on_after(0.01):
        await passed_s(limit, 400)
    assert await passed_s(limit, 1) == pytest.approx([0.04], abs=1e-3)


async def test_a_token_that_comes_too_late_is_refused_at_once_and_not_taken() -> None:
    """F-48: the wait counts in the deadline of a request."""
    limit = bucket(10, 1)
    assert await passed_s(limit, 20, limit_s=0.35) == pytest.approx([0, 0.1, 0.2, 0.3], abs=1e-6)
    assert await passed_s(limit, 1) == pytest.approx([0.1], abs=1e-6), "the other 16 left nothing behind"


async def test_keys_do_not_hold_each_other_up() -> None:
    """F-63: one bucket for everything halved the rate of binds."""
    limits = RateLimits(10, 2)
    for key in ("pods", "events", ("pods", "lists")):
        assert [await limits.take(key, 0.0) for _ in range(3)] == [True, True, False]
