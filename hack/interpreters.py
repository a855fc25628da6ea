"""Which Pythons the tests are to run on, and where this machine has them.

Called by ``hack/test``. Two are promised: the oldest that the package accepts, and the one of the image. The
environment of ``hack/test`` has one of them, as a rule; here the other is looked for. Nothing is fetched: a
machine that lacks it leaves the tests on it out, and ``hack/test`` says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bootstrap

ROOT = bootstrap.ROOT
IMAGE = re.compile(r"^FROM python:(3\.\d+)", re.MULTILINE)


def promised() -> list[str]:
    """The minors, such as 3.11, oldest first."""
    oldest = ".".join(map(str, bootstrap.OLDEST))
    versions = {oldest, *IMAGE.findall((ROOT / "Dockerfile").read_text())}
    return sorted(versions, key=lambda version: int(version.split(".")[1]))


def others() -> list[str]:
    """The promised ones that this process does not run on."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [version for version in promised() if version != running]


def find(version: str) -> str | None:
    """The path of a Python of this minor that can make virtual environments; None if there is none."""
    probe = (
        "import sys, venv, ensurepip; print(sys.executable); "
        f"sys.exit('%d.%d' % sys.version_info[:2] != {version!r} or sys.prefix != sys.base_prefix)"
    )
    # Stand-ins, such as pyenv's, look on PATH in their turn; what they lead to is what is told.
    clean = {**os.environ, "PATH": _path()}
    for candidate in _candidates(version):
        command = [candidate, "-E", "-c", probe]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=clean)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def environment(version: str) -> Path:
    """Where the environment of this minor is, beside that of ``hack/test``."""
    return ROOT / f".venv-{version}"


def prepare(version: str) -> None:
    """Makes the environment of a minor that was found, unless it is there."""
    bootstrap.prepare(environment(version), lambda: find(version) or "")


def _candidates(version: str) -> Iterator[str]:
    """By name on PATH, then where pyenv and uv keep theirs, newest patch first; not all of them run."""
    named = shutil.which(f"python{version}", path=_path())
    if named is not None:
        yield named
    home = Path.home()
    kept = [
        *Path(os.environ.get("PYENV_ROOT", home / ".pyenv")).glob(
            f"versions/{version}.*/bin/python{version}"
        ),
        *(home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/python{version}"),
    ]
    yield from map(str, sorted(kept, key=_patch, reverse=True))


def _path() -> str:
    """PATH without the environments here: hack/test puts theirs before all others."""
    return os.pathsep.join(entry for entry in os.get_exec_path() if not Path(entry).is_relative_to(ROOT))


def _patch(path: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", path.parent.parent.name)))[:3]
