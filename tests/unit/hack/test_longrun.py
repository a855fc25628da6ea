"""The judge of a day of requests sees what grows."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from longrun import ENDS, MIXTURE, Sample, _kinds, growth

SAMPLE = Sample(
    requests=1000,
    seconds=60.0,
    resident_mib=60.0,
    peak_mib=70.0,
    files=25,
    threads=3,
    queued=0,
    objects=9000,
    surprises=0,
)


def day(**per_hour: float) -> list[Sample]:
    """24 hours, in each of which something grows by so much."""
    return [
        replace(
            SAMPLE,
            **{
                name: type(getattr(SAMPLE, name))(getattr(SAMPLE, name) + hour * step)
                for name, step in per_hour.items()
            },
        )
        for hour in range(24)
    ]


def test_what_stays_has_not_grown() -> None:
    assert growth(day()) == ""
    assert growth(day(requests=1000, seconds=60)) == ""


@pytest.mark.parametrize(
    ("name", "step"),
    [("resident_mib", 1.2), ("files", 1), ("threads", 1), ("queued", 1), ("objects", 500), ("surprises", 1)],
)
def test_what_grows_slowly_is_named(name: str, step: float) -> None:
    assert growth(day(**{name: step})).startswith(f"{name} from ")


def test_what_is_filled_once_is_no_growth() -> None:
    first = replace(SAMPLE, resident_mib=40.0, files=10)
    assert growth([first, *day()[1:]]) == ""


def test_one_that_is_noisy_is_no_growth() -> None:
    hours = day()
    hours[-1] = replace(SAMPLE, resident_mib=90.0)
    assert growth(hours) == ""


def test_the_mixture() -> None:
    assert sum(MIXTURE.values()) == 100
    assert MIXTURE.keys() == ENDS.keys()
    assert Counter(islice(_kinds(), 100)) == MIXTURE
