"""Child processes that are stopped by pid, keep a log file and never outlive their parent.

Called by ``ControlPlane`` and the demo. Invariant: only pids that were started here get a signal.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

LAST_LINES = 20

# Below the ports that kernels give to outgoing connections (from 32768 on Linux, 49152 on macOS): otherwise
# a client's connection could sit on the port of a killed server when that server comes back.
PORTS = range(20000, 32000)

# Reads pids to watch (negative: no longer) and kills them when its stdin ends, that is when the parent is
# gone, whatever it died of. Linux's "parent death signal" would do less: it fires when the thread that
# started the child ends, and macOS has none.
GUARD = """
import os, signal, sys
pids = set()
for line in sys.stdin:
    pid = int(line)
    pids.add(pid) if pid > 0 else pids.discard(-pid)
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class ControlPlaneError(Exception):
    """The control plane cannot do what was asked; the text says why."""


class Guard:
    """Kills the watched processes when this process ends without having stopped them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the whole group; the guard must stay until the end
            text=True,
        )

    def watch(self, pid: int) -> None:
        """Takes a process under guard."""
        self._send(pid)

    def forget(self, pid: int) -> None:
        """Releases a process, which has ended: its pid may soon belong to another."""
        self._send(-pid)

    def close(self) -> None:
        """Ends the guard; what it still watches is killed."""
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()

    def _send(self, number: int) -> None:
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.write(f"{number}\n")
                self._process.stdin.flush()


class Program:
    """One program, running or not; `environment` is added to this process's own."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        guard: Guard,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._guard = guard
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts the program; its output is appended to the log.

        Raises:
            ControlPlaneError: It runs already.
        """
        if self.pid is not None:
            raise ControlPlaneError(f"{self.name} runs already, as pid {self.pid}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard.watch(self._process.pid)

    def stop(self, grace_s: float) -> None:
        """Asks the program to end, and kills it when it is still there after the grace time."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """Kills the program at once, as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._reap()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Polls until the program is ready.

        Raises:
            ControlPlaneError: It ended or took too long; the text has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.pid is None:
                status = None if self._process is None else self._process.returncode
                raise ControlPlaneError(f"{self.name} ended with status {status}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{self.name} was not ready after {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self) -> str:
        """The last lines of the log."""
        with suppress(FileNotFoundError), self.log.open(errors="replace") as log:
            return "".join(deque(log, maxlen=LAST_LINES))
        return ""

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._guard.forget(self._process.pid)
            self._process = None


def free_ports(count: int) -> list[int]:
    """Finds ports of the loopback address that nobody listens on.

    Raises:
        ControlPlaneError: There are too few.
    """
    found: list[int] = []
    candidates = SystemRandom().sample(PORTS, k=500)
    while len(found) < count:
        if not candidates:
            raise ControlPlaneError(f"no free port between {PORTS.start} and {PORTS.stop}")
        port = candidates.pop()
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found
