"""Makes the repository's virtual environment and moves the calling script into it.

Called first by ``hack/demo`` and ``hack/test``, with whatever Python the machine has, so it uses the standard
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

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
STAMP = ENVIRONMENT / ".kai-binder-stamp"
# There while the environment is being made: still there later, it tells of an interrupted try.
UNFINISHED = ENVIRONMENT / ".kai-binder-unfinished"
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
    if not is_complete():
        with (ROOT / ".venv.lock").open("w") as lock:
            _wait_for(lock.fileno())
            if not is_complete():  # another run may have made it meanwhile
                _make()
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        return
    if os.environ.get(MOVED) == str(os.getpid()):
        raise _failure(f"{python} does not run inside {ENVIRONMENT}; remove that folder and try again.")
    os.environ[MOVED] = str(os.getpid())
    # The scripts that the environment brings (ruff, mypy, pytest) are found by name from here on.
    os.environ["PATH"] = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execv(python, [str(python), *sys.argv])  # noqa: S606


def is_complete() -> bool:
    """Tells whether the environment was made from the present lock files and its Python still runs."""
    try:
        if UNFINISHED.exists() or STAMP.read_text() != stamp():
            return False
        command = [str(ENVIRONMENT / "bin" / "python"), "-c", ""]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def stamp() -> str:
    """A hash of everything that the environment is made from, its place included: scripts in it name it."""
    digest = hashlib.sha256(str(ENVIRONMENT).encode())
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
        tried[python] = _why_unusable(python)
        if not tried[python]:
            return python
    found = "; ".join(f"{python} {reason}" for python, reason in tried.items()) or "none at all"
    raise _failure(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer with venv is needed. Found: {found}. "
        "On Debian and Ubuntu: apt-get install python3 python3-venv."
    )


def _why_unusable(python: str) -> str:
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


def _make() -> None:
    """Makes or updates the environment and stamps it last: an interrupted try never passes for complete."""
    _say("Preparing .venv (once; about a minute) ...")
    if not _is_reusable():
        _run([find_python(), "-m", "venv", "--clear", str(ENVIRONMENT)], "making the virtual environment")
    STAMP.unlink(missing_ok=True)
    UNFINISHED.touch()
    pip = [
        str(ENVIRONMENT / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    _say("Installing the locked packages ...")
    _run([*pip, "--require-hashes", "-r", str(ROOT / "requirements-dev.lock")], "installing the packages")
    _say("Installing the project itself ...")
    _run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], "installing the project")
    STAMP.write_text(stamp())
    UNFINISHED.unlink()
    _say("Ready.")


def _is_reusable() -> bool:
    """Tells whether the environment only needs other packages: a running program may be using it."""
    if UNFINISHED.exists() or not (ENVIRONMENT / "pyvenv.cfg").is_file():
        return False
    probe = f"import pip, sys; sys.exit(sys.version_info < {OLDEST})"
    command = [str(ENVIRONMENT / "bin" / "python"), "-c", probe]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say("Another run is preparing .venv, waiting ...")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _run(command: list[str], purpose: str) -> None:
    # Not inherited: a caller's own environment must not leak into the one that is being made.
    hidden = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_USER")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    status = subprocess.run(command, check=False, env=clean, stdout=sys.stderr).returncode
    if (
        status > 0
    ):  # it gave up in an orderly way, unlike one that was killed: the next try can go on from here
        UNFINISHED.unlink(missing_ok=True)
    if status != 0:
        raise _failure(f"{purpose} failed, see above.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _failure(reason: str) -> SystemExit:
    return SystemExit(f"{Path(sys.argv[0]).name}: {reason}")
