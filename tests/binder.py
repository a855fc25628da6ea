"""The binder as a process of its own, the way it runs in a cluster: started, watched from outside, ended."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Self

from controlplane.process import free_ports

from tests.polling import wait_until

ROOT = Path(__file__).parents[1]
READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 45.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would change the binder's settings."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("BINDER_", "KUBECONFIG", "POD_"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


def run_to_end(
    *flags: str, env: Mapping[str, str] | None = None, timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """Runs the command with these flags, which are to make it end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "controller", *flags],
        cwd=ROOT,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(slots=True)
class Binder:
    """One binder; `start` and `stop` may follow each other.

    Attributes:
        kubeconfig: Whose rights it has, and which way it goes.
        log_file: Gets its standard error, from all starts.
        flags: Win over those that are set here.
        env: Added to the environment.
        clock: By how many seconds its clock is off, as `tests.stepped` reads it; None for the right time.
    """

    kubeconfig: Path
    log_file: Path
    flags: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    clock: Path | None = None
    health_port: int = 0
    metrics_port: int = 0
    _process: "subprocess.Popen[bytes] | None" = None

    def start(self, *, ready: bool = True) -> Self:
        """Starts the process, and waits until it says that it is ready."""
        assert self._process is None
        self.health_port, self.metrics_port = free_ports(2)
        command = ["controller"] if self.clock is None else ["tests.stepped", str(self.clock)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, *self.arguments(), *self.flags],
                cwd=ROOT,
                env=environment(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if ready:
            self.wait_until_ready()
        return self

    def arguments(self) -> list[str]:
        """The verb, if it is said, and the flags that are set here."""
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
            "--qps=-1",
        ]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def wait_until_ready(self, *, within_s: float = READY_WITHIN_S) -> None:
        """Waits for /readyz to say yes."""

        def check() -> bool:
            assert self.answers("readyz") == 200, self.log[-4000:]
            return True

        def check_alive() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"the binder ended with {self.exit_code}:\n{self.log[-4000:]}")
            return check()

        wait_until(check_alive, within_s=within_s)

    def answers(self, path: str) -> int:
        """The HTTP status that a health endpoint answers with; 0 if there is no answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.health_port}/{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def assert_spaced(self, request: str, delays_s: Sequence[float]) -> None:
        """The failed attempts at a request (namespace/name) came with these delays, by the binder's log."""
        lines = [line for line in self.log.splitlines() if "A bind failed" in line]
        moments = [datetime.fromisoformat(line.split()[0]) for line in lines if f"key={request} " in line]
        gaps_s = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
        assert len(gaps_s) == len(delays_s), gaps_s
        # Beside the delay, the attempt and its writes take their time, on a busy machine most of a second.
        for gap_s, delay_s in zip(gaps_s, delays_s, strict=True):
            assert delay_s - 0.01 < gap_s < delay_s + 0.9, gaps_s

    def metrics(self) -> str:
        """What it reports of itself."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            return bytes(answer.read()).decode()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, within_s: float = STOPPED_WITHIN_S) -> int:
        """Waits for it to end and returns the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {within_s:g} s:\n{self.log[-4000:]}") from None
        self._process = None
        return code

    def stop(self, within_s: float = STOPPED_WITHIN_S) -> int:
        """Asks it to end (SIGTERM) and returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(within_s)

    def kill(self) -> None:
        """Ends it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Binders:
    """Makes binders and sees to it that none outlives the test."""

    def __init__(self, directory: Path, kubeconfig: Path) -> None:
        self._directory = directory
        self._kubeconfig = kubeconfig
        self._made: list[Binder] = []

    def make(
        self, *flags: str, kubeconfig: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Binder:
        """A binder that is not started yet; of the shipped ServiceAccount unless told otherwise."""
        log_file = self._directory / f"binder-{len(self._made)}.log"
        made = Binder(kubeconfig or self._kubeconfig, log_file, flags, dict(env or {}))
        self._made.append(made)
        return made

    def start(
        self,
        *flags: str,
        kubeconfig: Path | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Binder:
        """A binder that runs."""
        return self.make(*flags, kubeconfig=kubeconfig, env=env).start(ready=ready)

    def close(self) -> None:
        """Ends those that still run; each has to end well."""
        running = [binder for binder in self._made if binder.running]
        for binder in running:
            binder.signal(signal.SIGTERM)
        codes = [binder.wait() for binder in running]
        assert codes == [0] * len(codes), [binder.log[-4000:] for binder in running]

    def kill(self) -> None:
        """Ends those that still run, at once."""
        for binder in self._made:
            binder.kill()
