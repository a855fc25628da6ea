"""The RUN and COPY lines of the Dockerfile, carried out in a temporary directory.

No container engine is needed for it: the directory stands for the file system of the build stage.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.unit.dockerfile import ROOT, STAGES, of

VENV = "/opt/kai-binder"
STDLIB = "/usr/local/lib/python3.13"


def run(command: list[str], cwd: Path) -> str:
    """Runs a command as the image would: nothing of this test's own Python reaches it."""
    kept = ("PATH", "HOME", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "HTTPS_PROXY", "NO_PROXY")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def python(venv: Path, cwd: Path, *arguments: str) -> str:
    return run([str(venv / "bin" / "python"), *arguments], cwd)


def normal(requirement: str) -> str:
    return requirement.lower().replace("_", "-")


def copy(arguments: str, source: Path, target: Path) -> None:
    *names, destination = arguments.split()
    (target / destination).mkdir(parents=True, exist_ok=True)
    for name in names:
        if (source / name).is_dir():
            # What .dockerignore leaves out.
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source / name, target / destination, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, target / destination)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment that the build stage ends with."""
    for needed in ("requirements.lock", "README.md"):
        assert (ROOT / needed).exists(), f"the Dockerfile copies {needed}"
    root = tmp_path_factory.mktemp("image")
    src = root / "src"
    src.mkdir()
    venv = root / "opt" / "kai-binder"
    for word, rest in STAGES[0]:
        if word == "COPY":
            copy(rest.replace(VENV, str(venv)), ROOT, src)
        elif word == "RUN":
            command = shlex.split(rest.replace(VENV, str(venv)).replace(STDLIB, sysconfig.get_path("stdlib")))
            run([sys.executable, *command[1:]] if command[0] == "python" else command, src)
    return venv


def test_the_command_starts(installed: Path, tmp_path: Path) -> None:
    assert "--scheduler-name" in run([str(installed / "bin" / "kai-binder"), "--help"], tmp_path)


def test_the_module_starts(installed: Path, tmp_path: Path) -> None:
    assert "--scheduler-name" in python(installed, tmp_path, "-m", "controller", "--help")


def test_a_start_compiles_nothing(installed: Path, tmp_path: Path) -> None:
    """F-64: all bytecode is there, of the standard library too, and nobody looks whether it is fresh."""
    prefix = f"pycache_prefix={installed}/bytecode"
    command = [
        str(installed / "bin" / "python"),
        "-B",
        "-X",
        prefix,
        "-v",
        "-m",
        "controller",
        "--kubeconfig=no",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "kubeconfig no does not exist" in done.stderr
    loaded = re.findall(r"^# code object from '?(.*?)'?$", done.stderr, re.MULTILINE)
    # This test's own interpreter may bring modules of its own, such as a sitecustomize.
    compiled = [path for path in loaded if path.endswith(".py") and "sitecustomize" not in path]
    assert len(loaded) > 300
    assert compiled == []


def test_exactly_the_locked_versions_are_there(installed: Path, tmp_path: Path) -> None:
    listing = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    found = {normal(entry) for entry in python(installed, tmp_path, "-c", listing).split()}
    locked = {
        normal(line.split()[0])
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line[:1].isalnum()
    }
    own = {entry for entry in found if entry.startswith("kai-binder==")}
    # Python 3.11 puts setuptools into every virtual environment.
    extra = {entry for entry in found - locked - own if not entry.startswith("setuptools==")}
    assert own
    assert not extra


def test_the_list_of_contents_has_what_is_installed(installed: Path, tmp_path: Path) -> None:
    """Beside what the lock brings for other Pythons and systems than the image's."""
    listing = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    found = {normal(entry) for entry in python(installed, tmp_path, "-c", listing).split()}
    told = json.loads((installed / "share/doc/kai-binder/sbom.cdx.json").read_text())["components"]
    listed = {f"{item['name']}=={item['version']}" for item in told if item["purl"].startswith("pkg:pypi/")}
    assert listed <= found
    elsewhere = {entry.partition("==")[0] for entry in found - listed}
    assert elsewhere <= {"setuptools", *(("exceptiongroup",) if sys.version_info < (3, 12) else ())}


def test_no_dependency_is_missing(installed: Path, tmp_path: Path) -> None:
    # kr8s is imported late, when a client is made: --help alone would not miss it.
    python(installed, tmp_path, "-c", "import kr8s, aiohttp, orjson, prometheus_client")


def test_the_agent_is_there_with_what_it_needs(installed: Path, tmp_path: Path) -> None:
    """One image for all."""
    python(installed, tmp_path, "-c", "import pynvml")
    told = python(installed, tmp_path, "-m", "controller", "agent", "--help")
    assert told.startswith("kai-binder agent: ")


def test_the_final_stage_only_takes_that_environment() -> None:
    assert of(STAGES[1], "COPY") == [f"--from=build {VENV} {VENV}"]
