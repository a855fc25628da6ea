"""The reservation agent as a process of its own, as a kubelet starts it, with a GPU that is not there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.polling import wait_until

ROOT = Path(__file__).parents[1]
CARD = "GPU-5a1f0000-0001-0002-0003-00000000aaaa"
OTHER_CARD = "GPU-5a1f0000-0001-0002-0003-00000000bbbb"
SLICE = "MIG-7c2e0000-0001-0002-0003-00000000cccc"
ONE_GPU = {"cards": [{"uuid": CARD}]}
ENDED_WITHIN_S = 30.0


class Agent:
    """One agent and what its container would have: service account, termination log, environment.

    Attributes:
        account: The folder of the service account; tests write `token` and `ca.crt`.
        termination_log: The file that the kubelet reads.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str], machine: Mapping[str, Any]) -> None:
        """Starts nothing yet.

        Args:
            directory: A fresh one.
            environ: What the kubelet puts into the environment.
            machine: What NVML finds, as of `fakenvml.Machine.of`.
        """
        self.account = directory / "serviceaccount"
        self.account.mkdir()
        self.termination_log = directory / "termination-log"
        self.termination_log.touch()
        self._log_file = directory / "agent.log"
        self._environ = {**clean_environment(), **environ}
        self._machine = machine
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, inside: Sequence[str] = ()) -> "Agent":
        """Starts the process, by this command if there is one."""
        places = ["--account", str(self.account), "--termination-log", str(self.termination_log)]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "hack/agent.py", "--nvml", json.dumps(self._machine), *places],
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log_file.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for(self, text: str, *, within_s: float = 15.0) -> None:
        """Waits until it has said this, while it runs."""

        def check() -> bool:
            assert text in self.log or self.running, f"it ended:\n{self.log}"
            assert text in self.log, self.log
            return True

        wait_until(check, within_s=within_s)

    def wait_until_idle(self) -> None:
        """Waits until it has done what it is for."""
        self.wait_for("holds the GPU")

    def end(self, within_s: float = ENDED_WITHIN_S) -> int:
        """Waits for its end and returns the exit code."""
        assert self._process is not None
        return self._process.wait(within_s)

    def stop(self, number: signal.Signals = signal.SIGTERM, within_s: float = 2.0) -> int:
        """Tells it to end, which it does at once, and returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.end(within_s)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def refusal(self) -> str:
        """Why it cannot go on: the last line that it said, which the termination log has, too."""
        assert self.end() == 1, self.log
        last = self.log.splitlines()[-1].removeprefix("kai-binder agent: ")
        assert self.termination_log.read_text() == last
        return last

    def memory_kib(self, name: str) -> int:
        """A value of /proc/<pid>/status, such as VmHWM, the most that was ever resident."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (found,) = (line for line in lines if line.startswith(f"{name}:"))
        return int(found.split()[1])

    def wakeups(self) -> tuple[int, int]:
        """Clock ticks of CPU so far, and how often any thread of it has given the CPU away."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        switches = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    switches += int(line.split()[1])
        return int(fields[11]) + int(fields[12]), switches


def clean_environment() -> dict[str, str]:
    """This process's environment without what a pod would have, and with this checkout to import from."""
    ours = ("POD_", "KUBERNETES_SERVICE_", "NVIDIA_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT)}
