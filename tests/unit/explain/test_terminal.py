"""What reaches a terminal: visible text, in lines that fit, and no sequences but our own colours."""

import io
import os
import pty

import pytest

from controller.explain.terminal import Style, Terminal, cells, shortened, wrapped
from controller.runtime.texts import visible

NASTY = (
    *("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x7f", "\r", "\x00"),
    *("\u202e", "\u2066", "\u200f", "\ufeff", "\u2028", "\udc80", "\u061c", "\U000e0041"),
)


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_what_is_no_printable_character_becomes_an_escape(nasty: str) -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.line("a", nasty, "b", ("c" + nasty, Style.BAD))
    terminal.paragraph(nasty, " x ", (nasty, Style.GOOD), indent=2, hang=2)
    assert all(line.isprintable() for line in out.getvalue().splitlines())
    assert nasty.strip() == "" or nasty not in out.getvalue()


def test_escapes_say_what_was_there() -> None:
    assert visible("\x1b[31mred") == "\\x1b[31mred"
    assert visible("a\u202eb") == "a\\u202eb"
    assert visible("\U000e0041") == "\\U000e0041"
    assert visible("one\n\ttwo\r\nthree") == "one two three"
    assert visible("größer ✓ 漢字") == "größer ✓ 漢字"
    assert visible(None) == "None"


@pytest.mark.parametrize("columns", [10, 40, 100])
def test_lines_fit(columns: int) -> None:
    text = "a bb ccc " + "d" * 95 + " 漢字漢字漢字漢字漢字 e\u0301e\u0301 " + "word " * 20
    lines = wrapped(text.strip(), columns, 4)
    assert cells(lines[0]) <= columns
    assert all(cells(line) <= columns - 4 for line in lines[1:])
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_text_is_shortened_by_columns() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert cells(shortened("漢字漢字", 6)) <= 6


def test_a_pipe_gets_no_colour() -> None:
    out = io.StringIO()
    Terminal.of(out, {"TERM": "xterm"}).line(("red", Style.BAD))
    assert out.getvalue() == "red\n"


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"NO_COLOR": ""}, True),
    ],
)
def test_a_terminal_gets_colour_unless_it_does_not_want_it(environ: dict[str, str], coloured: bool) -> None:
    primary, secondary = pty.openpty()
    try:
        with os.fdopen(secondary, "w") as stream:
            terminal = Terminal.of(stream, {**environ, "COLUMNS": "80"})
            terminal.paragraph(("red ", Style.BAD), "plain")
            stream.flush()
            said = os.read(primary, 1000)
    finally:
        os.close(primary)
    assert terminal.is_coloured is coloured
    assert (b"\x1b[31m" in said) is coloured
    assert said.count(b"\x1b[0m") == int(coloured)


@pytest.mark.parametrize(
    ("environ", "width"),
    [({}, 100), ({"COLUMNS": "72"}, 72), ({"COLUMNS": "12"}, 40), ({"COLUMNS": "x"}, 100)],
)
def test_the_width_is_that_of_the_environment(environ: dict[str, str], width: int) -> None:
    assert Terminal.of(io.StringIO(), environ).width == width


def test_a_terminal_that_knows_ascii_only() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal = Terminal.of(stream, {})
    assert not terminal.can_draw
    terminal.line("✓ größer")
    stream.flush()
    assert stream.buffer.getvalue() == b"\\u2713 gr\\xf6\\xdfer\n"
