"""JSON from the API server, however deeply it is nested. Pure.

All that reads answers and lines of watches parses them here. The server takes 10,000 levels, in fields that
may hold anything, such as the parameters of a device; parsers of JSON take about 1,000. Invariant: an object
of somebody's that is too deep costs only what is deep in it, never the list or the watch that it is in.
"""

import re
from typing import Any

import orjson

DEEPEST = 500
"""Levels that are read; no object of use has 50."""
TOO_DEEP = "(nested too deeply to be read)"
"""Stands where deeper levels were."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LEAF = rb"\[[^\[\]{}\"]*+\]|{[^\[\]{}\"]*+}"
_BRACKET = re.compile(rb"(?:[^\[\]{}\"]++|" + _STRING + rb"|" + _LEAF + rb")*+([\[\]{}])")
"""The next bracket that matters: not in a text, nor of what holds neither texts nor others."""


def loads(text: bytes) -> Any:  # noqa: ANN401 -- whatever it says
    """What a text in JSON says, without what lies deeper than `DEEPEST` if it is too deep to be read whole.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        shallow = _shallow(text) if text.count(b"[") + text.count(b"{") > DEEPEST else None
        if shallow is None:
            raise
    return orjson.loads(shallow)


def depth_of(value: object, most: int) -> int:
    """How many levels of objects and lists a value has; counted up to one more than `most`."""
    level: list[object] = [value]
    for depth in range(most + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return depth
        level = [
            inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return most + 1


def _shallow(text: bytes) -> bytes | None:
    """The text with what is too deep replaced; None if nothing is."""
    depth, begun, kept_to = 0, 0, 0
    parts: list[bytes] = []
    for found in _BRACKET.finditer(text):
        if found[1] in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                begun = found.start(1)
        else:
            if depth == DEEPEST + 1:
                parts += [text[kept_to:begun], b'"%s"' % TOO_DEEP.encode()]
                kept_to = found.end()
            depth -= 1
    return b"".join((*parts, text[kept_to:])) if parts else None
