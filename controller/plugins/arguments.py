"""Types of arguments that several plugins have."""

from typing import Annotated

from pydantic import BeforeValidator

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _go_bool(text: object) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("true or false is allowed")


GoBool = Annotated[bool, BeforeValidator(_go_bool)]
"""A boolean as Go's strconv.ParseBool reads it, since the operator writes it for Go (B-50)."""
