"""`kai-binder agent`: names the GPU of its reservation pod, then holds it until the pod ends (B-92…B-94).

Called with the arguments after the verb. Exit codes: 0 stopped as asked; 1 cannot go on; 2 wrong arguments.
Invariants: it ends at once whenever it is told to, whatever it waits for; and an end that nobody asked for is
one sentence, on stderr and in the container's termination log, which `kubectl describe pod` shows.

One such process runs for each shared GPU and does nothing for days, so what counts is the memory that it
keeps. Nothing of the binder is imported, see ``account``; and once the work is done, it is let go of.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.agent.account import SERVICE_ACCOUNT, AccountError, ApiServer
from controller.agent.device import DeviceError, discover
from controller.agent.pod import OwnPod, PodError

TERMINATION_LOG = Path("/dev/termination-log")

_TERMINATION_BYTES = 4096
"""The kubelet reads no more."""

_ENDS = (signal.SIGTERM, signal.SIGINT)
_LEAVE = signal.SIGUSR1
"""Between threads."""

_HELP = """kai-binder agent: names the GPU of its reservation pod, and holds it until the pod ends.

It takes no settings. POD_NAMESPACE and POD_NAME must name its pod; its service account must be allowed to get
and to patch pods in that namespace. The GPU's UUID, of a MIG slice that of the slice, goes to the annotation
run.ai/reserve_for_gpu_index.
  --version
      Print the version.
  --help
      Print this text.
"""


def main(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    account: Path = SERVICE_ACCOUNT,
    termination_log: Path = TERMINATION_LOG,
) -> int:
    """Runs the agent in the main thread until a signal ends the process; returns only if it cannot go on.

    Args:
        argv: What stands behind the verb.
        environ: The environment.
        account: Where the service account's token and its authority are.
        termination_log: Where the kubelet looks for the reason of an end; left alone if it is not there.

    Returns:
        The exit code.
    """
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(_HELP)
        return 0
    if "--version" in argv:
        sys.stdout.write(_version())
        return 0
    if argv:
        sys.stderr.write(f"kai-binder agent: it knows --help and --version only, not {' '.join(argv)}\n")
        return 2
    listener = _Listener()
    try:
        _report(environ, account)
    except (AccountError, DeviceError, PodError) as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the kubelet's reader shall see it
        traceback.print_exc()
        problem = f"a fault of its own: {type(error).__name__}: {error}"
    else:
        say("it holds the GPU until it is told to end")
        listener.leave()
        return _idle()
    say(problem)
    write_end(termination_log, problem)
    return 1


def _report(environ: Mapping[str, str], account: Path) -> None:
    """Sees to it that the pod's annotation names the device.

    Raises:
        AccountError: There is no service account.
        DeviceError: There is not exactly one device, or nothing that could tell.
        PodError: The annotation could not be written.
    """
    pod = OwnPod(ApiServer.from_environment(environ, account), environ, say)
    if not pod.has_index():
        pod.report(discover(environ))


class _Listener:
    """Has SIGTERM and SIGINT end the process from now on, whatever the main thread does.

    A handler would not do: Python runs it between its own steps, so not while the driver is being asked,
    which may hang for as long as it likes. And to the first process of a container a signal that is neither
    handled nor blocked does nothing at all.
    """

    def __init__(self) -> None:
        # Blocked in all threads, so that it waits for who asks for it. SIGALRM is for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_ENDS, _LEAVE, signal.SIGALRM})
        self._left = False
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def _listen(self) -> None:
        while not self._left:
            if signal.sigwait({*_ENDS, _LEAVE}) in _ENDS:
                os._exit(0)  # there is nothing to put in order, and a half-made request is none

    def leave(self) -> None:
        """Listens no longer; a signal that comes now is kept for who asks for it next."""
        self._left = True
        signal.pthread_kill(self._thread.ident or 0, _LEAVE)
        self._thread.join()


def _idle() -> int:
    """Waits for the end in a fresh interpreter, which keeps a third of the memory.

    What the work has loaded goes, the driver's library among it; signals that have come meanwhile stay.
    """
    numbers = ", ".join(str(int(number)) for number in _ENDS)
    code = f"from signal import sigwait; sigwait(({numbers}))"
    if sys.executable:  # Python may not know where it is itself
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-S", "-P", "-c", code])  # noqa: S606
    signal.sigwait(_ENDS)  # less well, but as long
    return 0


def say(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"kai-binder agent: {' '.join(text.split())}\n")
    sys.stderr.flush()


def write_end(path: Path, text: str) -> None:
    """Leaves the reason of an end where the kubelet looks for it, if there is such a place.

    Args:
        path: The termination log; it is not created.
        text: The reason; cut to what the kubelet reads.
    """
    content = text.encode(errors="replace")[:_TERMINATION_BYTES].decode(errors="ignore").encode()
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(file, content)
        finally:
            os.close(file)


def _version() -> str:
    from importlib.metadata import version

    from controller import KAI_VERSIONS

    return f"kai-binder {version('kai-binder')} for KAI {', '.join(KAI_VERSIONS)}\n"
