"""A short day of requests: hack/soak has the long one, docs/longrun.md what it found."""

from pathlib import Path

from longrun import growth, soak

from tests.cluster import minor

HOURS = [50] * 6


def test_nothing_grows_over_a_short_day(tmp_path: Path) -> None:
    samples = soak(tmp_path, minor(), HOURS, print)
    assert growth(samples) == ""
    assert [sample.requests for sample in samples] == [50, 100, 150, 200, 250, 300]
    assert {sample.queued for sample in samples} == {0}
    assert {sample.surprises for sample in samples} == {0}
