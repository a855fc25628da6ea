"""The README is true and short: its tables follow the code, and it names what there is."""

import re
from pathlib import Path

import readmegen
from controlplane import supported_kubernetes

from controller.kai.names import CLAIM_VERSIONS
from controller.setting_texts import rows
from controller.settings import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
KAI = (ROOT / "docs/kai.md").read_text()
MOST_LINES = 200
"""Beside the tables, which grow with the settings."""


def test_it_is_short() -> None:
    lines = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(lines) <= MOST_LINES, "tell it in a page of docs/"


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert readmegen.with_tables(README) == README, "run hack/readme"


def test_its_pictures_of_the_verbs_are_those_of_their_pages() -> None:
    """Which tests compare with what the verbs print."""
    shown = re.findall(r"^```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for page, name in (("troubleshooting", "image"), ("gpus", "node")):
        text = (ROOT / f"docs/{page}.md").read_text()
        (output,) = re.findall(rf"<!-- output: {name} -->\n```text\n(.*?)```", text, re.DOTALL)
        assert output in shown


def test_it_names_the_versions_of_kubernetes_that_can_be_chosen() -> None:
    newest, *_, oldest = supported_kubernetes()
    install = (ROOT / "docs/install.md").read_text()
    for text in (README, KAI, install):
        assert f"on Kubernetes {oldest} to {newest}" in " ".join(text.split())
    assert f"`hack/demo --kubernetes {oldest}`" in README


def test_the_versions_of_device_claims_are_named_best_first() -> None:
    best, *older = CLAIM_VERSIONS
    text = f"`{best}` since 1.34, before that `{older[0]}`, `{older[1]}` or `{older[2]}`"
    assert text in " ".join(KAI.split())


def test_markdown_does_not_eat_the_text_of_a_setting() -> None:
    shown = "\n".join(readmegen.tables().values()).splitlines()
    for row in {row for verb in VERBS for row in rows(verb)}:
        (line,) = (line for line in shown if f"| `{row.flag}` |" in line)
        assert row.description in re.sub(r"\\(.)", r"\1", line)
        assert len(re.findall(r"(?<!\\)\|", line)) == 4
