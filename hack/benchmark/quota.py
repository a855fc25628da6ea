"""Runs a command under a quota of CPU, as a container with a limit has it.

Used by the scenario `quota`. A control group of our own where this user may make one (version 2, then 1),
else one of systemd's; where there is neither, it says so.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class QuotaError(Exception):
    """This machine lets us set no quota; the text says why."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota that is in force: prefix a command with `prefix` to run it under it.

    Attributes:
        prefix: Words to put before a command. The process keeps its id.
        how: The means, for the reader of the figures.
    """

    prefix: tuple[str, ...]
    how: str


@contextlib.contextmanager
def quota(cpus: float) -> Iterator[Quota]:
    """Makes a quota of so many CPUs for the block.

    Raises:
        QuotaError: This machine lets us set none.
    """
    refused = []
    for folder, settings, how in _groups(cpus):
        try:
            folder.mkdir()
            for name, value in settings.items():
                (folder / name).write_text(value)
        except OSError as error:
            refused.append(f"{folder}: {error.strerror}")
            _remove(folder)
            continue
        try:
            yield Quota(("sh", "-c", ENTER, str(folder)), how)
        finally:
            _remove(folder)
        return
    systemd = ("systemd-run", "--scope", "--quiet", f"--property=CPUQuota={cpus:.0%}")
    words = systemd if os.geteuid() == 0 else (*systemd, "--user")
    if shutil.which("systemd-run") is None or not _succeeds((*words, "true")):
        raise QuotaError("; ".join([*refused, "systemd-run does not work here"]))
    yield Quota(words, "systemd-run")


def _groups(cpus: float) -> Sequence[tuple[Path, dict[str, str], str]]:
    """Folders of control groups to try, with the files that set the quota."""
    quota_us, name = round(cpus * PERIOD_US), f"kai-binder-bench-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    second = {"cpu.max": f"{quota_us} {PERIOD_US}"}
    first = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    found = []
    if (root / "cgroup.controllers").exists():
        with contextlib.suppress(OSError):  # it may well be there already
            (root / "cgroup.subtree_control").write_text("+cpu")
        found.append((root / name, second, "control groups, version 2"))
    if (root / "cpu").is_dir():
        found.append((root / "cpu" / name, first, "control groups, version 1"))
    return found


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
