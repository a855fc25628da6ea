"""Where a verb writes: as wide as the terminal, coloured where somebody looks, without smuggled sequences.

Called by all that renders text. Invariant: control characters, and those that turn the direction of text,
get to the terminal only as visible escapes; the colours are the only sequences that are sent, and they come
from here.
"""

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TextIO

from controller.runtime.texts import visible

_WIDTH, _LEAST_WIDTH, _MOST_WIDTH = 100, 40, 160
_RESET = "\x1b[0m"


class Style(StrEnum):
    """How a piece of text looks; the value is what the terminal is told."""

    PLAIN = ""
    TITLE = "\x1b[1m"
    GOOD = "\x1b[32m"
    BAD = "\x1b[31m"
    WAITING = "\x1b[33m"
    FAINT = "\x1b[2m"


Span = str | tuple[str, Style]
"""A piece of text, in a style if it has one."""


def cells(text: str) -> int:
    """How many columns of a terminal a visible text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def shortened(text: str, columns: int) -> str:
    """A visible text in so many columns at most, with an ellipsis where it was longer."""
    if cells(text) <= columns:
        return text
    kept = ""
    for char in text:
        if cells(kept + char) > columns - 1:
            break
        kept += char
    return f"{kept}…"


def wrapped(text: str, columns: int, hang: int = 0) -> list[str]:
    """A visible text in lines that fit; words that are longer than a line are cut.

    Args:
        text: The text.
        columns: That a line may have.
        hang: So many less for the lines after the first.
    """
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        for part in _parts(word, columns - hang):
            if not line:
                line = part
            elif cells(line) + 1 + cells(part) <= columns - (hang if lines else 0):
                line += f" {part}"
            else:
                lines.append(line)
                line = part
    return [*lines, line]


def _parts(word: str, columns: int) -> Iterator[str]:
    """A word in pieces that fit a line."""
    piece = ""
    for char in word:
        if cells(piece + char) > columns:
            yield piece
            piece = ""
        piece += char
    yield piece


class Terminal:
    """Lines of text to a stream.

    Attributes:
        width: Columns that a line may take.
        is_coloured: Whether styles are shown.
        is_terminal: Whether somebody looks at it, rather than a program.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        width: int = _WIDTH,
        is_coloured: bool = False,
        is_terminal: bool = False,
    ) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.width = max(width, _LEAST_WIDTH)
        self.is_coloured = is_coloured
        self.is_terminal = is_terminal

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> "Terminal":
        """The stream as the environment wants it: NO_COLOR, TERM and COLUMNS are looked at."""
        is_terminal = stream.isatty()
        coloured = is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(
            stream,
            width=_width_of(stream, environ, is_terminal),
            is_coloured=coloured,
            is_terminal=is_terminal,
        )

    @property
    def can_draw(self) -> bool:
        """Whether it takes more than ASCII, such as the blocks that bars are drawn with."""
        try:
            "█▏✓✗…".encode(self._encoding)
        except (LookupError, UnicodeEncodeError):
            return False
        return True

    def line(self, *spans: Span, indent: int = 0) -> None:
        """Writes one line, as long as it is; its text is made visible."""
        self._write(" " * indent + "".join(map(self._styled, spans)).rstrip(" "))

    def paragraph(self, *spans: Span, indent: int = 0, hang: int = 0) -> None:
        """Writes text in as many lines as it takes; those after the first are indented by `hang` more."""
        flat = [span if isinstance(span, tuple) else (span, Style.PLAIN) for span in spans]
        shown = [(visible(text), style) for text, style in flat]
        styles = [style for text, style in shown for _ in text]
        whole, position = "".join(text for text, _ in shown), 0
        for number, line in enumerate(wrapped(whole, self.width - indent, hang)):
            position = whole.index(line, position)
            margin = " " * (indent + hang if number else indent)
            self._write(margin + self._in_styles(line, styles[position : position + len(line)]))
            position += len(line)

    def blank(self) -> None:
        """Writes an empty line."""
        self._write("")

    def raw(self, text: str) -> None:
        """Writes what is for programs, e.g. JSON in ASCII, as it is."""
        self._write(text)

    def clear(self) -> None:
        """Begins a screen anew, on a terminal."""
        if self.is_terminal:
            self._stream.write("\x1b[H\x1b[2J\x1b[3J")

    def _in_styles(self, line: str, styles: Iterable[Style]) -> str:
        out, current = "", Style.PLAIN
        for char, style in zip(line, styles, strict=True):
            if style != current and self.is_coloured:
                out += (_RESET if current else "") + style
                current = style
            out += char
        return out + (_RESET if current else "")

    def _styled(self, span: Span) -> str:
        text, style = span if isinstance(span, tuple) else (span, Style.PLAIN)
        shown = visible(text)
        return f"{style}{shown}{_RESET}" if style and self.is_coloured and shown else shown

    def _write(self, line: str) -> None:
        shown = (
            line if line.isascii() else line.encode(self._encoding, "backslashreplace").decode(self._encoding)
        )
        self._stream.write(f"{shown}\n")


def _width_of(stream: TextIO, environ: Mapping[str, str], is_terminal: bool) -> int:
    told = environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return min(int(told), _MOST_WIDTH)
    if is_terminal:
        try:
            return min(os.get_terminal_size(stream.fileno()).columns or _WIDTH, _MOST_WIDTH)
        except (OSError, ValueError):
            pass
    return _WIDTH
