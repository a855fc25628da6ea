"""README and docs/ hold together: links lead somewhere, names are those of the code, commands are tested."""

import re
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from controller.planning import plan
from controller.setting_texts import rows
from controller.settings import VERBS, load
from tests.apiserver.docs.pages import KUBECTL_RUN, TESTED_ELSEWHERE, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """Where links and pictures of a page lead."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text)))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(path.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number, made = 0, anchor
        while made in found:
            number += 1
            made = f"{anchor}-{number}"
        found.add(made)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page.read_text()):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        if parts.fragment:
            assert parts.fragment in anchors(target), f"{name_of(page)}: {link}"


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / urlsplit(link).path).resolve() for link in links(index.read_text())}
    assert set(PAGES) - linked == {index}
    assert (ROOT / "docs/README.md") in {(ROOT / link).resolve() for link in links(PAGES[0].read_text())}


def test_anchors_are_made_as_github_does() -> None:
    assert "the-admission-webhook-kais-or-ours" in anchors(ROOT / "docs/install.md")
    assert "the-operators-modes" in anchors(ROOT / "docs/kai.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:config|hack|controller|tests|docs)/[\w./-]+)(?:`|::)", page.read_text()):
        assert (ROOT / path).exists(), f"{name_of(page)}: {path}"


def test_the_files_of_the_code_exist() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text()
    (layout,) = re.findall(r"^```text\n(controller/ .*?)^```", page, re.DOTALL | re.MULTILINE)
    folders = {-2: ROOT}
    named = 0
    for line in layout.splitlines():
        depth = len(line) - len(line.lstrip())
        name = line.split()[0].rstrip(",")
        folder = folders[max(outer for outer in folders if outer < depth)]
        assert (folder / name).exists(), line
        if name.endswith("/"):
            folders = {outer: path for outer, path in folders.items() if outer < depth} | {
                depth: folder / name
            }
        for other in re.findall(r"\b\w+\.py\b", line):
            assert (folder / other).exists() or (folders[depth] / other).exists(), f"{other} in {line}"
            named += 1
    assert named > 40


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_flags_exist(page: Path) -> None:
    known = {row.flag for verb in VERBS for row in rows(verb)}
    ours = {"--checkout", "--keep", "--kubernetes", "--list", "--upgrade", "--verbose", "--flag", "--help"}
    ours |= {"--context", "--namespace", "--watch", "--ascii", "--limit-variable", "--scheduler-name"}
    ours |= {"--requests", "--hours", "--peer", "--rounds", "--show"}  # of hack/soak and hack/bench
    ours |= {"--tool", "--cache-sim"}  # of valgrind
    ours |= {"--reservation-namespace", "--binder-namespace"}  # of explain and gpus
    lines = [
        line
        for line in prose(page.read_text()).splitlines()
        if not re.search(r"kubectl|docker|pip |FROM|COPY", line) and "of KAI's" not in line
    ]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", "\n".join(lines)))
    assert named - known - ours == set() or page.name in ("kai.md", "faults.md"), (
        "they are also about KAI's flags"
    )


def test_settings_that_are_shown_are_accepted() -> None:
    shown = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines() if line.startswith("BINDER_")]
        shown += [shlex.split(line, comments=True) for line in lines]
        shown += [[word] for word in re.findall(r"`(BINDER_\w+=[^`{…]+)`", text)]
    assert len(shown) >= 8
    for words in shown:
        names = dict(word.split("=", 1) for word in words if word.startswith("BINDER_"))
        names = {name: value for name, value in names.items() if "DRIVERCHECK" not in name}
        settings = load([], names)
        assert settings != load([], {}), words
        plan(settings)


def test_every_command_is_run_by_a_test() -> None:
    """`tests/apiserver/docs` runs those of kubectl; the others are named with the test that runs them."""
    named = 0
    for page in PAGES:
        for command in commands(page.read_text()):
            if command.startswith("kubectl"):
                assert name_of(page) in KUBECTL_RUN, f"nothing runs {command!r}: tests/apiserver/docs"
                continue
            (found,) = {test for start, test in TESTED_ELSEWHERE if command.startswith(start)} or {""}
            assert found, f"{name_of(page)}: no test is named for {command!r}"
            assert (ROOT / found).exists(), found
            named += 1
    assert named > 10


def test_each_failure_that_is_shown_is_staged_and_mended() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    shown = re.findall(r"^### .+\n\n[^#]+?<!-- output: (\w+) -->", page, re.MULTILINE)
    assert len(shown) == len(set(shown)) == page.count("\n### ") == 13
    assert "thirteen such pods" in PAGES[0].read_text()
    assert "twelve more pods" in (ROOT / "docs/explain.md").read_text()
    mended = 0
    for path in (ROOT / "tests/apiserver/explain").glob("test_*.py"):
        for function in path.read_text().split("\ndef ")[1:]:
            names = re.findall(r'team\.check\("(\w+)"\)', function)
            mended += len(names) if "team.wait_until_bound(" in function else 0
            shown = [name for name in shown if name not in names]
    assert shown == [], "no test stages these"
    assert mended == 12, "all but the one that waits for the scheduler"


def test_the_drawing_can_be_read_in_dark_and_light() -> None:
    text = (ROOT / "docs/how-it-works.svg").read_text()
    ElementTree.fromstring(text)  # noqa: S314 -- our own file
    light, _, dark = text.partition("prefers-color-scheme: dark")
    classes = set(re.findall(r"^ +\.(\w+) ?[{,]", light, re.MULTILINE)) - {"number"}  # on a dot of its own
    assert classes == {"ours", "kai", "text", "small", "arrow", "head", "dot", "server"}
    assert {name for name in classes if f".{name} {{" in dark or f".{name}, " in dark} == classes
    for left, text_of in re.findall(r'class="text" x="(\d+)"[^>]*>([^<]+)<', text):
        assert len(text_of) * 8 <= 150, f"{text_of} at {left} does not fit its box"
