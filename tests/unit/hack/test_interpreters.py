"""The tests run on the oldest Python that is promised and on the image's, where a machine has both."""

import subprocess
import sys
import tomllib
from pathlib import Path

import bootstrap
import interpreters
import pytest

ROOT = bootstrap.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_what_is_promised_is_said_the_same_everywhere() -> None:
    oldest, *_ = versions = interpreters.promised()
    assert len(versions) == 2
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    prefix = "Programming Language :: Python :: "
    classifiers = [name for name in PROJECT["project"]["classifiers"] if name.startswith(prefix)]
    assert classifiers == [prefix + version for version in versions]
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"--python-version {oldest} " in (ROOT / "hack/lock").read_text()


def test_the_others_are_those_that_this_is_not() -> None:
    assert {RUNNING, *interpreters.others()} == {RUNNING, *interpreters.promised()}
    assert RUNNING not in interpreters.others()


@pytest.mark.parametrize("version", interpreters.promised())
def test_what_is_found_is_that_python_and_not_our_own_environment(version: str) -> None:
    found = interpreters.find(version)
    if found is None:
        assert version != RUNNING or not getattr(sys, "_base_executable", "")
    else:
        code = "import sys; print(sys.prefix == sys.base_prefix, *sys.version_info[:2])"
        told = subprocess.run([found, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert told == ["True", *version.split(".")]


def make(directory: Path, status: int) -> str:
    directory.mkdir(parents=True)
    path = directory / "python3.99"
    path.write_text(f"#!/bin/sh\necho $0\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_one_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "path", 127)  # as pyenv's stand-ins are
    make(tmp_path / "pyenv/versions/3.99.9/bin", 1)
    wanted = make(tmp_path / "pyenv/versions/3.99.10/bin", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert interpreters.find("3.99") == wanted
    Path(wanted).unlink()
    assert interpreters.find("3.99") is None


def test_uvs_are_found_without_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = make(tmp_path / ".local/share/uv/python/cpython-3.99.1-linux-x86_64-gnu/bin", 0)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert interpreters.find("3.99") == wanted
