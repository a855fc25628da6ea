"""The rate limit, with a clock that is set by hand."""

import pytest

from controller.runtime.ratelimit import TokenBucket


class Clock:
    """Shows what it is told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_passes_at_once_and_the_rest_in_line() -> None:
    bucket = TokenBucket(10, 3, clock=Clock())
    assert [bucket.reserve() for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_tokens_come_back_with_time_up_to_the_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(10, 3, clock=clock)
    for _ in range(5):
        bucket.reserve()
    clock.now_s += 0.3
    assert bucket.reserve() == pytest.approx(0.0)
    clock.now_s += 3600
    assert [bucket.reserve() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


@pytest.mark.parametrize("qps", [0, -1])
def test_without_a_rate_there_is_no_limit(qps: float) -> None:
    bucket = TokenBucket(qps, 1, clock=Clock())
    assert {bucket.reserve() for _ in range(1000)} == {0.0}


def test_a_slow_rate() -> None:
    bucket = TokenBucket(0.5, 1, clock=Clock())
    assert [bucket.reserve() for _ in range(3)] == pytest.approx([0, 2, 4])
