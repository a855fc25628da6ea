"""The processes that are measured, and what can be read of them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import sysconf
from pathlib import Path

from controlplane import ControlPlane
from controlplane.process import Guard, Program, free_ports

from benchmark.figures import OURS, PEER
from benchmark.watching import Endings

TICKS_PER_S = sysconf("SC_CLK_TCK")
TIMEOUT_S = 300.0
SETTLE_S, SETTLE_TRIES = 1.0, 30
SETTLED_S = 0.02
"""So much CPU in that time is nothing: the pulse of what waits."""
NO_LIMIT = ("--qps=-1",)
OWN = ("-P", "-m", "controller")  # -P: not what happens to lie in the current folder


class UnfinishedError(Exception):
    """What was measured did not do its work in time; the text says how far it got."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and where.

    Attributes:
        plane: The control plane.
        directory: For logs.
        guard: Ends the binder if this process dies.
        checkout: The folder that our binder is taken from.
        python: What runs our binder.
        name: Of the program.
        words: The command line of a binder of others, with `{kubeconfig}`, `{metrics}`, `{health}` (addresses
            to listen on) and `{flags}` (those of the scenario) in it; empty: our own.
    """

    plane: ControlPlane
    directory: Path
    guard: Guard
    checkout: Path
    python: str = sys.executable
    name: str = OURS
    words: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether it is our own binder."""
        return not self.words

    def compile(self) -> None:
        """Brings our binder's code into the state that it has in the image, where no start compiles it."""
        command = [self.python, "-m", "compileall", "-q", str(self.checkout / "controller")]
        subprocess.run(command, check=True)


class Measured(Program):
    """A program, with what can be read of its process."""

    def __init__(self, subject: Subject, name: str, words: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Starts nothing yet.

        Args:
            subject: What is measured.
            name: Of the program, for its log.
            words: Of our own command: a verb, if it is said, and flags. Of another one: its flags.
            prefix: Goes before the command.
        """
        self.metrics_port, self.health_port = free_ports(2)
        metrics, health = f"127.0.0.1:{self.metrics_port}", f"127.0.0.1:{self.health_port}"
        environment = {"PYTHONPATH": str(subject.checkout)} if subject.is_ours else {}
        if subject.is_ours:
            own = (f"--metrics-bind-address={metrics}", f"--health-probe-bind-address={health}")
            command = [*prefix, subject.python, *OWN, *words, *own, "--log-level=warning"]
        else:
            kubeconfig = str(kubeconfig_of(subject))
            known = {"kubeconfig": kubeconfig, "metrics": metrics, "health": health}
            filled = ([*words] if word == "{flags}" else [word.format(**known)] for word in subject.words)
            command = [*prefix, *(word for some in filled for word in some)]
        super().__init__(name, command, subject.directory / f"{name}.log", subject.guard, environment)

    def wait_answers(self, path: str = "readyz") -> None:
        """Waits until a health endpoint says yes."""
        self.wait_until(lambda: self._get(self.health_port, path) is not None, 60.0)

    def memory_mib(self, field: str = "VmHWM") -> float:
        """Resident memory: VmHWM is the peak, VmRSS the present."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(rf"{field}:\s+(\d+) kB", status)[0]) / 1024

    def files(self) -> int:
        """Descriptors that it holds."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return cpu_s(self.pid)

    def metrics(self) -> str:
        """What it reports of itself; empty if it does not answer. Each look costs it some CPU."""
        return self._get(self.metrics_port, "metrics") or ""

    @staticmethod
    def _get(port: int, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return bytes(answer.read()).decode()
        except OSError:
            return None


class Binder(Measured):
    """The binder, with flags of the scenario's own; `prefix` goes before the command."""

    def __init__(self, subject: Subject, flags: Sequence[str] = NO_LIMIT, prefix: Sequence[str] = ()) -> None:
        words = (f"--kubeconfig={kubeconfig_of(subject)}", *flags) if subject.is_ours else flags
        super().__init__(subject, subject.name, words, prefix)

    def sent(self) -> Counter[str]:
        """Requests that the binder has sent so far, by method."""
        counted: Counter[str] = Counter()
        pattern = r'rest_client_requests_total\{.*method="(\w+)".*\} ([0-9.]+)'
        for method, value in re.findall(pattern, self.metrics()):
            counted[method] += int(float(value))
        return counted

    def wait_settled(self) -> None:
        """Waits until it has nothing more to do: events are written behind the work."""
        for _ in range(SETTLE_TRIES):
            before_s = self.cpu_s()
            time.sleep(SETTLE_S)
            if self.cpu_s() - before_s <= SETTLED_S:
                return

    def wait_ended(self, endings: Endings, count: int) -> None:
        """Waits until so many requests have ended well.

        Raises:
            UnfinishedError: They have not.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        while not endings.wait(count, 1.0):
            if self.pid is None or time.monotonic() > deadline_s:
                text = f"only {len(endings.ended_s)} of {count} requests ended; its log ends with:"
                raise UnfinishedError(f"{text}\n{self.tail()}")


def kubeconfig_of(subject: Subject) -> Path:
    """The credentials of the program's service account: ours has its shipped rights, a peer has all."""
    return subject.plane.service_account_kubeconfig("kai-scheduler", "binder" if subject.is_ours else PEER)


def cpu_s(pid: int | None) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
