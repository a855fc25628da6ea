"""What somebody sees who watches: the newest picture, and nothing left behind.

On a terminal the picture takes its other screen, as `top` does, so that all that stood there is back in the
end; elsewhere one picture follows the other. Invariant: however the watch ends, the terminal is as before.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO

from controller.explain.terminal import Terminal

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_COLUMNS, _ROWS = 80, 24


class Screen:
    """Shows one picture after the other."""

    def __init__(self, terminal: Terminal, *, is_whole: bool, gap: Sequence[str] = ()) -> None:
        """Shows nothing yet.

        Args:
            terminal: Where to.
            is_whole: Whether each picture takes the place of the last one.
            gap: Lines between pictures that follow each other.
        """
        self._terminal = terminal
        self._is_whole = is_whole
        self._gap = gap
        self._shown = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Takes the screen for the block, and gives it back."""
        if not self._is_whole:
            yield
            return
        sys.stdout.write(_ENTER)
        try:
            yield
        finally:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def canvas(self) -> tuple[Terminal, StringIO]:
        """What to draw the next picture on, as wide as the terminal is by now."""
        drawn = StringIO()
        width = _size().columns if self._is_whole else self._terminal.width
        canvas = Terminal(
            drawn,
            width=width,
            is_coloured=self._terminal.is_coloured,
            is_terminal=self._terminal.is_terminal,
        )
        return canvas, drawn

    def show(self, lines: Sequence[str]) -> None:
        """Shows a picture; of one that is longer than the screen, the beginning."""
        if not self._is_whole:
            for line in (*(self._gap if self._shown else ()), *lines):
                self._terminal.raw(line)
            self._shown = True
            sys.stdout.flush()
            return
        rows = _size().lines - 1  # the cursor is on the last one
        if len(lines) > rows:
            more = f"... {len(lines) - rows + 1} more lines; name a node to see less at once"
            lines = [*lines[: rows - 1], more]
        sys.stdout.write(_HOME)
        for line in lines:
            self._terminal.raw(line + _END_OF_LINE)
        sys.stdout.write(_END_OF_SCREEN)
        sys.stdout.flush()


def _size() -> os.terminal_size:
    """Of the terminal; the usual one where it says none."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        columns, lines = 0, 0
    return os.terminal_size((columns or _COLUMNS, lines or _ROWS))
