"""Quantities as Kubernetes writes them."""

from fractions import Fraction

import pytest

from controller.kai.quantity import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", 2**30),
        ("0.5Gi", 2**29),
        ("1.5Ki", 1536),
        ("500M", 500_000_000),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("2.5e-1", Fraction(1, 4)),
        ("12", 12),
        (12, 12),
        ("1k", 1000),
        ("3n", Fraction(3, 10**9)),
        ("3u", Fraction(3, 10**6)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+1Mi", 2**20),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_quantity_is_exact(text: object, value: object) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1K", "1gi", "1ee3", "1e", "1e3Gi", "one", "1e1000", "."])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|range"):
        quantity(text)


@pytest.mark.parametrize(
    "text",
    [
        "\u0661Gi",
        "1\u00a0Gi",
        "1_0",
        "1Gi\n",
        " 1Gi",
        "1,5Gi",
        "inf",
        "nan",
        "--1",
        "1e+",
        "9" * 5000,
        True,
        None,
        {},
    ],
)
def test_f_12_what_only_python_would_read_as_a_number_is_none(text: object) -> None:
    """F-12: digits of other scripts, underscores, blanks."""
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)
