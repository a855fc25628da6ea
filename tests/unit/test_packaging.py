"""Wheel and sdist: the same bytes wherever they are built, nothing too much in them, and at once of use."""

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from controller import KAI_VERSIONS
from tests.unit.dockerfile import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = ("pyproject.toml", "README.md", "LICENSE", ".gitignore")
MOST_CPU_S = 0.3
TRIES = 5
"""A busy machine makes a try dearer; none makes it cheaper."""
TOLD_AT_ONCE = {
    "kai-binder --help": "kai-binder run: ",
    "kai-binder run --help": "kai-binder run: ",
    "kai-binder admission --help": "kai-binder admission: ",
    "kai-binder agent --help": "kai-binder agent: ",
    "kai-binder explain --help": "usage: kai-binder explain ",
    "kai-binder gpus --help": "usage: kai-binder gpus ",
    "kubectl-binder --help": "usage: kubectl binder ",
    "kubectl-binder explain --help": "usage: kubectl binder explain ",
    "kai-binder --version": f"kai-binder {PROJECT['version']} for KAI {', '.join(KAI_VERSIONS)}\n",
}


def run(command: list[str], cwd: Path) -> str:
    """Runs a command to which nothing of this test's own Python leads."""
    hidden = ("PYTHON", "BINDER_", "KUBECONFIG", "POD_", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, target: Path) -> list[Path]:
    """Builds both from a checkout, or what is built from an sdist."""
    run([sys.executable, "-m", "hatchling", "build", "-d", str(target)], source)
    return sorted(target.iterdir())


def checkout(target: Path) -> Path:
    """The files that a build may look at, as if checked out just now, and others that lie about."""
    # Bytecode is being written there while this copies.
    shutil.copytree(ROOT / "controller", target / "controller", ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, target / name)
    for name in (
        "controller/__pycache__/a.pyc",
        ".venv-3.99/lib/a.py",
        "dist/b.whl",
        "tests/c.py",
        "notes.txt",
    ):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).touch()
    for path in target.rglob("*"):
        os.utime(path)
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist and the wheel."""
    source = checkout(tmp_path_factory.mktemp("source") / "kai-binder")
    return build(source, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> zipfile.ZipFile:
    (path,) = (path for path in built if path.suffix == ".whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def sdist(built: list[Path]) -> tarfile.TarFile:
    (path,) = (path for path in built if path.suffix == ".gz")
    return tarfile.open(path)


@pytest.fixture(scope="module")
def installed(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands, where a person has installed the wheel: pip finds what it needs by itself.

    Its versions are those of the lock, so that a new one elsewhere breaks nothing here.
    """
    directory = tmp_path_factory.mktemp("installed")
    (path,) = (path for path in built if path.suffix == ".whl")
    constraints = re.findall(r"^([\w.-]+==[^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (directory / "constraints.txt").write_text("\n".join(constraints))
    run([sys.executable, "-m", "venv", str(directory / "venv")], directory)
    pip = [str(directory / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run([*pip, "-c", "constraints.txt", str(path)], directory)
    return directory / "venv/bin"


def digests(paths: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_two_builds_are_the_same_to_the_byte(built: list[Path], tmp_path: Path) -> None:
    source = checkout(tmp_path / "elsewhere")
    (source / "controller/app.py").touch()
    assert len(built) == 2
    assert digests(build(source, tmp_path / "built")) == digests(built)


def test_the_sdist_is_enough_to_build_the_same_wheel(
    built: list[Path], sdist: tarfile.TarFile, tmp_path: Path
) -> None:
    sdist.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert digests(build(source, tmp_path / "built")) == digests(built)


def test_the_sdist_has_nothing_else(sdist: tarfile.TarFile) -> None:
    names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    assert {name for name in names if not name.startswith("controller/")} == {*FILES, "PKG-INFO"}
    assert {name for name in names if "__pycache__" in name or name.endswith(".pyc")} == set()


def test_the_wheel_has_the_package_its_texts_and_its_licence(wheel: zipfile.ZipFile) -> None:
    info = f"kai_binder-{PROJECT['version']}.dist-info"
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "controller").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {*wheel.namelist()}
    assert {name for name in found if not name.startswith(info)} == ours
    assert {"controller/help/run.txt", "controller/py.typed"} <= ours
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_metadata_has_readme_and_licence(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"kai_binder-{PROJECT['version']}.dist-info/METADATA").decode()
    told = Parser().parsestr(text)
    assert told["License-Expression"] == "Apache-2.0"
    assert told["License-File"] == "LICENSE"
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload() == (ROOT / "README.md").read_text()
    needed = {re.split(r"[<>=; ]", line)[0] for line in told.get_all("Requires-Dist", [])}
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["agent"]]
    assert needed == {re.split(r"[<>=; ]", line)[0] for line in asked}


def test_the_licence_is_the_whole_text() -> None:
    """By the digest that the text has everywhere."""
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.mark.parametrize("words", TOLD_AT_ONCE)
def test_help_and_version_take_next_to_no_cpu(installed: Path, tmp_path: Path, words: str) -> None:
    command, *arguments = words.split()
    spent_s = []
    for _ in range(TRIES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = run([str(installed / command), *arguments], tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert told.startswith(TOLD_AT_ONCE[words])
    assert min(spent_s) < MOST_CPU_S, spent_s


def test_what_is_in_effect_can_be_asked_without_a_cluster(installed: Path, tmp_path: Path) -> None:
    told = run([str(installed / "kai-binder"), "admission", "--print-config"], tmp_path)
    assert "\nplugin-order:\n- name: volumebinding\n" in told


def test_pip_has_found_all_that_is_imported(installed: Path, tmp_path: Path) -> None:
    modules = "controller.app, controller.webhook, controller.explain.gpus, controller.explain.explain, kr8s"
    run([str(installed / "python"), "-c", f"import {modules}"], tmp_path)
    run([str(installed / "python"), "-m", "pip", "check"], tmp_path)
