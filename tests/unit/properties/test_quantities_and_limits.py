"""Quantities as Kubernetes means them, and limits of GPU memory that are exact and never too much."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kai.memory import Card, share_of
from controller.kai.outcome import Failed
from controller.kai.quantity import mebibytes, quantity
from controller.kai.request import BindRequest
from controller.runtime.client import Object
from tests.unit.properties.profile import examples

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
NUMBERS = st.from_regex(r"[+-]?([0-9]{1,12}(\.[0-9]{0,9})?|\.[0-9]{1,9})", fullmatch=True)
PORTIONS = st.integers(0, 120).map(lambda cents: f"{cents // 100}.{cents % 100:02d}")
FRACTIONS = st.one_of(
    st.none(), st.from_regex(r"[01]\.[0-9]{1,40}", fullmatch=True), st.sampled_from(("0", "1", "2", "x", ""))
)
CARDS = st.integers(1, 400_000)


@examples
@given(NUMBERS, st.sampled_from(sorted(DECIMAL)), st.sampled_from(sorted(BINARY)), st.integers(-18, 18))
def test_a_quantity_is_its_number_times_its_suffix(
    number: str, decimal: str, binary: str, exponent: int
) -> None:
    value = Fraction(Decimal(number))
    assert quantity(number + decimal) == value * Fraction(10) ** DECIMAL[decimal]
    assert quantity(number + binary) == value * 2 ** BINARY[binary]
    for sign in "eE":
        assert quantity(f"{number}{sign}{exponent}") == value * Fraction(10) ** exponent


@examples
@given(NUMBERS, NUMBERS, st.sampled_from(sorted(DECIMAL)))
def test_quantities_are_in_the_order_of_their_values(one: str, other: str, suffix: str) -> None:
    assert (quantity(one + suffix) < quantity(other + suffix)) == (Decimal(one) < Decimal(other))
    assert quantity(one + suffix) == quantity(one + suffix.strip()) == quantity(str(one) + suffix)


@examples
@given(st.text(max_size=8))
def test_what_is_no_quantity_is_refused_and_nothing_else_is_raised(text: str) -> None:
    try:
        value = quantity(text)
    except ValueError:
        return
    assert isinstance(value, Fraction)
    assert text.isascii()


@examples
@given(st.one_of(st.integers(1, 2**50), st.integers(1, 40).map(lambda power: 2**power)))
def test_mebibytes_come_back_as_they_were(mib: int) -> None:
    assert quantity(mebibytes(mib)) == mib * 2**20


@pytest.mark.parametrize(
    "word", ["1ki", "1K", "1mi", "1e", "1Ee", "1 Gi", " 1", "1Gi ", "1_0", "\u0661", "1e1.5"]
)
def test_what_looks_like_a_quantity_and_is_none(word: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(word)


def share(portion: str, card_mib: int, annotations: dict[str, str]) -> int | Failed:
    request = BindRequest(
        namespace="ns",
        name="a",
        uid="u",
        owner_uid="p",
        pod_name="a",
        node_name="n",
        resource_type="Fraction",
        gpu_portion=portion,
        gpu_groups=("g",),
    )
    metadata = {"name": "a", "namespace": "ns", "uid": "p", "annotations": annotations}
    pod: Object = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    found = share_of(request, pod, Card(card_mib, "by its label"))
    return found if isinstance(found, Failed) else found.mib


@examples
@given(PORTIONS, CARDS, FRACTIONS)
def test_a_limit_by_fraction_is_exact(portion: str, card_mib: int, fraction: str | None) -> None:
    found = share(portion, card_mib, {} if fraction is None else {"gpu-fraction": fraction})
    granted = Fraction(portion)
    if isinstance(found, Failed):
        return
    assert 1 <= found <= card_mib
    close = fraction is not None and abs(Fraction(fraction) - granted) <= Fraction(1, 200)
    wanted = Fraction(fraction) if fraction is not None and close and Fraction(fraction) <= 1 else granted
    assert found == wanted * card_mib // 1
    assert found <= (granted + Fraction(1, 200)) * card_mib


@examples
@given(st.integers(1, 100), CARDS)
def test_every_portion_that_is_one_has_a_limit_unless_it_is_too_small(cents: int, card_mib: int) -> None:
    found = share(f"{cents // 100}.{cents % 100:02d}", card_mib, {})
    assert isinstance(found, Failed) == (cents * card_mib < 100)


@examples
@given(PORTIONS, CARDS, st.integers(0, 500_000))
def test_a_limit_by_memory_is_what_was_asked_or_nothing(portion: str, card_mib: int, asked_mib: int) -> None:
    found = share(portion, card_mib, {"gpu-memory": str(asked_mib)})
    granted = ceil((Fraction(portion) + Fraction(1, 100)) * card_mib)
    if 1 <= asked_mib <= min(card_mib, granted):
        assert found == asked_mib
    else:
        assert isinstance(found, Failed)
