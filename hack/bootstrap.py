"""Makes the repository's virtual environment and moves the calling script into it.

Called first by every script here in Python, with whatever Python the machine has, so it uses the standard
library only and avoids syntax that an old Python cannot read: it must still get to say what is missing.
Invariant: an environment that carries the right stamp is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable  # noqa: UP035 -- of collections.abc it would need a newer Python

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
STAMP = ".kai-binder-stamp"
# There while the environment is being made: still there later, it tells of an interrupted try.
UNFINISHED = ".kai-binder-unfinished"
OLDEST = (3, 11)
CANDIDATES = ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python")
# What the environment is made from; the stamp is a hash of their content.
SOURCES = ("requirements-dev.lock", "requirements.lock", "pyproject.toml")
# Has the process id of a script that was moved already, so that a broken environment cannot make it loop.
MOVED = "KAI_BINDER_BOOTSTRAPPED"
PROBE = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST})"


def ensure() -> None:
    """Continues the calling script inside a complete virtual environment, made first when there is none.

    Returns when the process runs in it already; otherwise the process is replaced. Ends the process with a
    sentence and status 1 when no usable Python is found or the installation fails.
    """
    python = ENVIRONMENT / "bin" / "python"
    prepare(ENVIRONMENT, find_python)
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        return
    if os.environ.get(MOVED) == str(os.getpid()):
        raise _failure(f"{python} does not run inside {ENVIRONMENT}; remove that folder and try again.")
    os.environ[MOVED] = str(os.getpid())
    # The scripts that the environment brings (ruff, mypy, pytest) are found by name from here on.
    os.environ["PATH"] = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execv(python, [str(python), *sys.argv])  # noqa: S606


def prepare(environment: Path, find: Callable[[], str]) -> None:
    """Makes or updates an environment unless it is complete; of several processes one does, the others wait.

    Args:
        environment: Its folder, in this repository.
        find: Says which Python is to make it, if it has to be made.
    """
    if is_complete(environment):
        return
    with (ROOT / (environment.name + ".lock")).open("w") as lock:
        _wait_for(lock.fileno(), environment)
        if not is_complete(environment):  # another run may have made it meanwhile
            _make(environment, find)


def is_complete(environment: Path) -> bool:
    """Tells whether an environment was made from the present lock files and its Python still runs."""
    try:
        if (environment / UNFINISHED).exists() or (environment / STAMP).read_text() != stamp(environment):
            return False
        command = [str(environment / "bin" / "python"), "-c", ""]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def stamp(environment: Path) -> str:
    """A hash of everything that an environment is made from, its place included: scripts in it name it."""
    digest = hashlib.sha256(str(environment).encode())
    for name in SOURCES:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()


def find_python() -> str:
    """Finds a Python that is new enough and can make virtual environments; the running one is preferred.

    A name on PATH proves nothing (version managers put stand-ins there), so each is tried.
    """
    own = str(ENVIRONMENT / "bin")
    # Not the environment's own Python: it is what is about to be replaced.
    path = os.pathsep.join(entry for entry in os.get_exec_path() if entry != own)
    running = sys.executable
    if running.startswith(own + os.sep):
        running = getattr(sys, "_base_executable", "")
    tried: dict[str, str] = {}
    for candidate in (running, *CANDIDATES):
        python = shutil.which(candidate, path=path)
        if python is None or python in tried:
            continue
        tried[python] = why_unusable(python)
        if not tried[python]:
            return python
    found = "; ".join(f"{python} {reason}" for python, reason in tried.items()) or "none at all"
    raise _failure(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer with venv is needed. Found: {found}. "
        "On Debian and Ubuntu: apt-get install python3 python3-venv."
    )


def why_unusable(python: str) -> str:
    """Why a Python cannot be used; empty when it can."""
    try:
        # A clean environment: a PYTHONHOME or the like of the caller need not fit another interpreter.
        done = subprocess.run([python, "-E", "-c", PROBE], check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    if "ensurepip" in done.stderr or "venv" in done.stderr:
        return "has no venv (package python3-venv)"
    return "does not run" if done.stderr else "too old"


def _make(environment: Path, find: Callable[[], str]) -> None:
    """Makes or updates an environment and stamps it last: an interrupted try never passes for complete."""
    _say(f"Preparing {environment.name} (once; about a minute) ...")
    if not _is_reusable(environment):
        _run([find(), "-m", "venv", "--clear", str(environment)], "making the virtual environment")
    (environment / STAMP).unlink(missing_ok=True)
    (environment / UNFINISHED).touch()
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    _say("Installing the locked packages ...")
    locked = ["--require-hashes", "-r", str(ROOT / "requirements-dev.lock")]
    _run([*pip, *locked], "installing the packages", environment)
    _say("Installing the project itself ...")
    own = ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    _run([*pip, *own], "installing the project", environment)
    (environment / STAMP).write_text(stamp(environment))
    (environment / UNFINISHED).unlink()
    _say("Ready.")


def _is_reusable(environment: Path) -> bool:
    """Tells whether an environment only needs other packages: a running program may be using it."""
    if (environment / UNFINISHED).exists() or not (environment / "pyvenv.cfg").is_file():
        return False
    probe = f"import pip, sys; sys.exit(sys.version_info < {OLDEST})"
    command = [str(environment / "bin" / "python"), "-c", probe]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _wait_for(lock: int, environment: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"Another run is preparing {environment.name}, waiting ...")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _run(command: list[str], purpose: str, unfinished: Path | None = None) -> None:
    # Not inherited: a caller's own environment must not leak into the one that is being made.
    hidden = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_USER")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    status = subprocess.run(command, check=False, env=clean, stdout=sys.stderr).returncode
    # It gave up in an orderly way, unlike one that was killed: the next try can go on from here.
    if status > 0 and unfinished is not None:
        (unfinished / UNFINISHED).unlink(missing_ok=True)
    if status != 0:
        raise _failure(f"{purpose} failed, see above.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _failure(reason: str) -> SystemExit:
    return SystemExit(f"{Path(sys.argv[0]).name}: {reason}")
