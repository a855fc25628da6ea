"""What is written in docs/ is true: every row of the faults has tests, and what KAI knows is what we read."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = (ROOT / "docs/faults.md").read_text()
ROWS = {
    int(number): re.findall(r"`(tests/[\w/.]+)::([\w:]+)`", tests)
    for number, tests in re.findall(r"^\| F-(\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", FAULTS, re.MULTILINE)
}


@cache
def sources_of(path: str) -> dict[str, str]:
    """The tests of a file by name, with their source and the comment above them."""
    text = (ROOT / path).read_text()
    found = {}
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
                found[prefix + function.name] = with_comment(text, function)
    return {name: source for name, source in found.items() if name.split("::")[-1].startswith("test_")}


def with_comment(text: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = text.splitlines()
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first : function.end_lineno])


def test_every_row_is_there() -> None:
    assert list(ROWS) == list(range(1, 69))
    assert FAULTS.count("\n| F-") == len(ROWS), "a row twice, or one that is no row"


@pytest.mark.parametrize("number", ROWS)
def test_every_test_of_a_row_exists_and_carries_its_number(number: int) -> None:
    named = ROWS[number]
    assert named, "a row without a test is not done"
    for path, name in named:
        source = sources_of(path).get(name)
        assert source is not None, f"{path} has no test {name}"
        assert re.search(rf"\bF-{number}\b|def test_f_?0?{number}_", source), f"{path}::{name}"
