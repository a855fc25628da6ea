"""Kubernetes quantities, exactly. Pure."""

import re
from collections.abc import Mapping
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_SUFFIXES: Mapping[str, Fraction] = {
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("num kMGTPE", start=-3)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_MAX_EXPONENT = 99
_MAX_LENGTH = 256


def quantity(text: object) -> Fraction:
    """The exact value of a Kubernetes quantity such as `1Gi`, `500M` or `1e3`.

    Raises:
        ValueError: It is none.
    """
    shown = str(text)
    match = _QUANTITY.fullmatch(shown) if len(shown) <= _MAX_LENGTH else None
    if match is None or isinstance(text, bool):
        raise ValueError(f"{shown[:_MAX_LENGTH]!r} is no quantity")
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"{shown!r} is out of range")
    return Fraction(match["number"]) * _SUFFIXES[match["suffix"] or " "] * Fraction(10) ** exponent


def mebibytes(mib: int) -> str:
    """So many MiB as the quantity that Kubernetes itself would write: 4096 is 4Gi, 7680 is 7680Mi.

    Args:
        mib: A positive number.
    """
    suffixes = iter(("Mi", "Gi", "Ti", "Pi", "Ei"))
    suffix = next(suffixes)
    while mib % 1024 == 0 and suffix != "Ei":
        mib, suffix = mib // 1024, next(suffixes)
    return f"{mib}{suffix}"
