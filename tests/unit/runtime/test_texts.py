"""Texts of others: no terminal obeys them, no reader is led astray, and JSON still says the same."""

import json
import unicodedata

import pytest

from controller.runtime.reporting import cut
from controller.runtime.texts import escaped, in_json, visible

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x9b31mred by C1",
    "\x07\x08\x7f\x00",
    "a\nPhase:  Succeeded",
    "a\r\x1b[2Kb",
    "\u202egnp.exe",
    "\u2066\u2069\u200e\u200f",
    "\u2028\u2029\u0085",
    "\ufeff\u200b\U000e0041",
    "\ud800",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_hostile_gets_through(text: str) -> None:
    for shown in (
        visible(text),
        escaped(text),
        cut(text, 4096),
        in_json(json.dumps(text, ensure_ascii=False)),
    ):
        assert shown.isprintable()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") for char in shown)


@pytest.mark.parametrize("text", [*HOSTILE, "é 名前 🚀", 'a "quoted" \\ text'], ids=range(12))
def test_json_says_the_same(text: str) -> None:
    assert json.loads(in_json(json.dumps(text, ensure_ascii=False))) == text


def test_a_message_is_one_line() -> None:
    assert visible("two\nlines\tand  more") == "two lines and more"
    assert visible("two  blanks") == "two  blanks"
    assert escaped("a\x1b\n") == "a\\x1b\\x0a"


def test_what_is_cut_is_cut_as_it_is_shown() -> None:
    shown = cut("\x1b" * 100_000, 1024)
    assert shown.startswith("\\x1b\\x1b")
    assert len(shown.encode()) <= 1024
    assert shown.endswith("…")
