"""The command: which verb is meant, and signals until that verb listens to them.

Exit codes of the verbs that run: 0 stopped as asked; 1 cannot go on, or `--print-config` found something
wrong; 2 wrong settings, or no verb. The verbs that tell have their own (`controller.explain.command`).

Invariant: nearly nothing is imported at the top. A signal is heard from the first moment on, and each use of
the command pays only for the imports that it needs: the agent has to stay small.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

RUN = ("run", "admission", "agent")
TELL = ("explain", "gpus")
VERBS = (*RUN, *TELL)

RESERVATION_POD = "gpu-reservation-"
"""How the names of reservation pods begin, which all binders give (B-86); they set POD_NAME there, too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb with the process's arguments and environment; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words and (pod := os.environ.get("POD_NAME", "")).startswith(RESERVATION_POD):
        # The binder gives no argument to an image that it does not take for its own, such as one by the name
        # of a mirror. A binder has nothing to do there, and would wait for a GPU that nobody names.
        sys.stderr.write(
            f"kai-binder: no verb is said, and {pod} is the name of a reservation pod: this is the agent\n"
        )
        words = ["agent"]
    verb = words.pop(0) if words and not words[0].startswith("-") else "run"
    if verb in TELL:
        from controller.explain.command import main as tell

        return tell([verb, *words], os.environ)
    if argv is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end_at_once)
    if verb == "agent":
        from controller.agent.command import main as agent

        return agent(words, os.environ)
    if verb not in VERBS:
        sys.stderr.write(f"kai-binder: {verb!r} is no verb; there are {', '.join(VERBS)}\n")
        return 2
    from controller.command import main as start

    return start(verb, words, os.environ)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Until the event loop listens to signals there is nothing to put in order.

    The first process of a container has to say so itself: for it the kernel leaves out what signals do
    otherwise. An exception would not do, as some of what is imported catches any.
    """
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
