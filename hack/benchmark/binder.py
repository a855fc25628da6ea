"""The processes that are measured, and what can be read of them."""

import re
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

TICKS_PER_S = sysconf("SC_CLK_TCK")
TIMEOUT_S = 300.0
NO_LIMIT = ("--qps=-1",)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and where.

    Attributes:
        plane: The control plane.
        directory: For logs.
        guard: Ends the binder if this process dies.
        checkout: The folder that the binder is taken from.
    """

    plane: ControlPlane
    directory: Path
    guard: Guard
    checkout: Path


class Measured(Program):
    """The command, as any of its verbs, with what can be read of its process."""

    def __init__(self, subject: Subject, name: str, words: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Starts nothing yet.

        Args:
            subject: What is measured.
            name: Of the program, for its log.
            words: The command line: a verb, if it is said, and flags.
            prefix: Goes before the command.
        """
        self.metrics_port, self.health_port = free_ports(2)
        own = (
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
            "--log-level=warning",
        )
        # -P: not what happens to lie in the current folder.
        command = (*prefix, sys.executable, "-P", "-m", "controller", *words, *own)
        environment = {"PYTHONPATH": str(subject.checkout)}
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
        """What it reports of itself; empty if it does not answer."""
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
        kubeconfig = subject.plane.service_account_kubeconfig("kai-scheduler", "binder")
        super().__init__(subject, "kai-binder", (f"--kubeconfig={kubeconfig}", *flags), prefix)

    def finished(self) -> int:
        """Reconciles of requests that have ended well."""
        pattern = r'controller_runtime_reconcile_total\{controller="bindrequest",result="success"\} ([0-9.]+)'
        found = re.search(pattern, self.metrics())
        return int(float(found.group(1))) if found else 0

    def sent(self) -> Counter[str]:
        """Requests that the binder has sent so far, by method."""
        counted: Counter[str] = Counter()
        pattern = r'rest_client_requests_total\{.*method="(\w+)".*\} ([0-9.]+)'
        for method, value in re.findall(pattern, self.metrics()):
            counted[method] += int(float(value))
        return counted

    def wait_finished(self, count: int) -> None:
        """Waits until so many reconciles have ended. Each look costs the binder some 2 ms of CPU."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.finished() < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {self.finished()} of {count} ended; see {self.log}")
            time.sleep(0.05)


def cpu_s(pid: int | None) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
