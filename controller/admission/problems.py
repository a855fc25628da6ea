"""Why a pod is refused, in the words that Kubernetes uses for fields. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from controller.kai.sharing import shown

_MOST = 20
_LONGEST = 1024


class Problem(Struct, frozen=True):
    """One thing that is wrong with a pod.

    Attributes:
        field: Path of the field.
        text: The value, what is wrong with it, and what is allowed.
        forbidden: Whether it is nothing but a matter of who may write it.
    """

    field: str
    text: str
    forbidden: bool = False

    def __str__(self) -> str:
        whole = f"{self.field}: {self.text}"
        return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 1]}…"


def field_of(annotation: str) -> str:
    """The path of an annotation."""
    return f"metadata.annotations[{annotation}]"


def invalid(annotation: str, value: str | None, text: str) -> Problem:
    """An annotation whose value is not allowed; `text` says what is."""
    return Problem(field_of(annotation), f"Invalid value: {shown(value)}: {text}")


def forbidden(annotation: str, text: str) -> Problem:
    """An annotation that may not be there, or not be changed, whatever its value."""
    return Problem(field_of(annotation), f"Forbidden: {text}")


def guarded(annotation: str, text: str) -> Problem:
    """An annotation that this user may not write."""
    return Problem(field_of(annotation), f"Forbidden: {text}", forbidden=True)


def told(problems: Sequence[Problem]) -> str:
    """All problems in one text."""
    texts = [str(problem) for problem in problems[:_MOST]]
    more = len(problems) - len(texts)
    return "; ".join([*texts, f"and {more} more"] if more else texts)
