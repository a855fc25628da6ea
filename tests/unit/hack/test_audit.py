"""Licences and known vulnerabilities: what fails, and what is only said to be not checked."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import auditing
import dependencies
import pytest
from dependencies import LOCK, Locked, locked

SKIPPED = {"name": "anyio", "skip_reason": "Dependency not found on the index: anyio (4.16.0)"}
CLEAN = {"name": "aiohttp", "version": "3.14.5", "vulns": []}
FOUND: dict[str, Any] = {
    "name": "idna",
    "version": "3.6",
    "vulns": [
        {
            "id": "PYSEC-2024-60",
            "fix_versions": ["3.7"],
            "aliases": ["CVE-2024-3651"],
            "description": "A crafted argument takes quadratic time.",
        }
    ],
}
"""As pip-audit reports a version that had one."""


def test_all_that_is_locked_may_be_passed_on() -> None:
    packages = [package for package in locked(LOCK.read_text()) if package.is_needed()]
    verdict = auditing.judge_licences(packages)
    assert verdict.problems == []
    assert verdict.notes == [f"licences: {len(packages)} of {len(packages)} packages are allowed"]
    assert len(packages) > 30


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("BSD", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("MPL-2.0 AND (AGPL-3.0-only OR SSPL-1.0)", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("LGPL-2.1-only", False),
        ("MIT AND", False),
        ("", False),
    ],
)
def test_of_several_licences_all_or_one_must_be_allowed(licence: str, allowed: bool) -> None:
    assert auditing.is_allowed(licence) is allowed


def test_what_is_not_allowed_or_not_known_fails() -> None:
    other = auditing.judge_licences([Locked("pip", "0.0.1", None, ())])
    assert other.problems[0].startswith(f"licences: pip is installed as {version('pip')}, locked as 0.0.1")
    none = auditing.judge_licences([Locked("no-such-package", "1", None, ())])
    assert none.problems[0].startswith("licences: no-such-package is not installed; allowed are 0BSD, ")
    assert none.notes == ["licences: 0 of 1 packages are allowed"]


def make_package(directory: Path, *lines: str) -> Locked:
    metadata = directory / "a_package-1.0.dist-info"
    metadata.mkdir()
    text = "\n".join(("Metadata-Version: 2.1", "Name: a-package", "Version: 1.0", *lines))
    (metadata / "METADATA").write_text(text + "\n")
    return Locked("a-package", "1.0", None, ())


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("License-Expression: GPL-3.0-only",), "a-package 1.0 is GPL-3.0-only"),
        (("License: see the file",), "a-package 1.0 says 'see the file' of its licence"),
        ((), "a-package 1.0 says 'nothing' of its licence"),
        (
            ("Classifier: License :: OSI Approved :: MIT License", "Classifier: License :: Other"),
            "a-package 1.0 says 'License :: OSI Approved :: MIT License, License :: Other' of its licence",
        ),
        (("License-Expression: MIT",), ""),
        (("License: Apache 2.0",), ""),
        (("Classifier: License :: OSI Approved :: MIT License",), ""),
    ],
)
def test_a_package_says_its_licence_in_one_of_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], problem: str
) -> None:
    package = make_package(tmp_path, *lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    problems = auditing.judge_licences([package]).problems
    assert [line.partition("; allowed are ")[0] for line in problems] == (
        [f"licences: {problem}"] if problem else []
    )


def test_a_known_vulnerability_fails_and_says_what_to_do() -> None:
    verdict = auditing.judge_report({"dependencies": [CLEAN, FOUND], "fixes": []}, 2)
    assert verdict.problems == [
        "vulnerabilities: idna 3.6 has PYSEC-2024-60 (CVE-2024-3651), mended in 3.7; "
        "run hack/lock --upgrade-package idna"
    ]
    assert verdict.notes == ["vulnerabilities: 2 of 2 packages checked"]


def test_what_the_index_does_not_tell_is_not_checked() -> None:
    verdict = auditing.judge_report({"dependencies": [CLEAN, SKIPPED], "fixes": []}, 3)
    assert verdict.problems == []
    assert verdict.notes == [
        "vulnerabilities: 1 of 3 packages checked",
        f"vulnerabilities: NOT CHECKED, 2 of 3 packages: {SKIPPED['skip_reason']}",
    ]


def test_without_a_network_nothing_is_checked_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pip-audit, which no way leads out of."""
    lock = tmp_path / "requirements.lock"
    lock.write_text("idna==3.6\n")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # nothing that an earlier run has kept
    verdict = auditing.ask(lock, 1)
    assert verdict.problems == []
    (note,) = verdict.notes
    assert note.startswith("vulnerabilities: NOT CHECKED, ")
    assert "proxy" in note.lower()


def test_the_lock_is_read_with_markers_and_who_needs_what() -> None:
    text = (
        'one==1.0 ; python_full_version < "3.4" \\\n    --hash=sha256:aa\n'
        "    # via kai-binder (pyproject.toml)\n"
        "Two_b==2.0.post1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "    # via\n    #   one\n    #   kr8s\n"
    )
    one, two = dependencies.locked(text)
    assert (one.name, one.version, one.needed_by, one.is_needed()) == ("one", "1.0", ("kai-binder",), False)
    assert (two.name, two.version, two.needed_by, two.is_needed()) == (
        *("two-b", "2.0.post1"),
        ("one", "kr8s"),
        True,
    )
    assert one.is_needed({"python_full_version": "3.3.0"})
