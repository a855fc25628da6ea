"""CHANGELOG, CONTRIBUTING and SECURITY say what is so."""

import re
import subprocess
import tomllib

import interpreters
import pytest
from controlplane.build import supported_kubernetes

from controller import KAI_VERSIONS
from tests.unit.dockerfile import ROOT
from tests.unit.test_house import LAYERS

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def section(text: str, heading: str) -> str:
    found = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert found
    return found


def table(text: str, heading: str) -> dict[str, str]:
    """The first two columns of a section's table."""
    lines = re.findall(r"^\| (.+?) \| (.+?) \|", section(text, heading), re.MULTILINE)
    return dict(lines[1:])


def test_the_changelog_has_the_usual_form() -> None:
    first, *released = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in released)
    for part in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], "each once, in the usual order"


def test_the_changelog_knows_the_version() -> None:
    assert f"## [{VERSION}] - " in CHANGELOG or f"What is to be {VERSION}." in section(
        CHANGELOG, "[Unreleased]"
    )


@pytest.mark.parametrize("name", FILES)
def test_what_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)", text))
    named = re.findall(r"`((?:config|controller|docs|hack|tests)/[\w./-]+)", text)
    for path in linked | {*named}:
        assert (ROOT / path).exists(), path


def test_every_part_of_the_checks_is_explained() -> None:
    command = [str(ROOT / "hack/test"), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.split()
    fixed = {name for name in listed if not name.startswith("unit-")}
    explained = {name for names in table(CONTRIBUTING, "Test") for name in re.findall(r"`([\w.-]+)`", names)}
    assert explained == fixed | {f"unit-{interpreters.promised()[-1]}"}


def test_the_layers_are_those_that_are_held() -> None:
    rows = [re.findall(r"`(\w+)`", names) for names in table(CONTRIBUTING, "Layers")]
    assert [tuple(sorted(row)) for row in rows] == [tuple(sorted(layer)) for layer in LAYERS]


def test_the_versions_are_those_that_are_supported() -> None:
    told = table(SECURITY, "Supported versions")
    newest, *_, oldest = supported_kubernetes()
    first, image = interpreters.promised()
    assert told["Kubernetes"] == f"{oldest} to {newest}"
    assert told["KAI Scheduler"] == ", ".join(KAI_VERSIONS)
    assert told["Python"] == f"{first} and newer; the image has {image}"
    assert VERSION in told["kai-binder"]
    assert f"{first}, the oldest, and {image}, the image's" in CONTRIBUTING
    for name in (f"Kubernetes {oldest} to {newest}", *KAI_VERSIONS):
        assert name in CHANGELOG


def test_the_list_of_contents_is_where_it_is_said_to_be() -> None:
    (copied,) = re.findall(r"^COPY (sbom\S+) (/\S+/)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert f"`{copied[1]}{copied[0]}`" in SECURITY
