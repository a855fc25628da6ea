"""The command: which verb is meant, and signals until that verb listens to them.

Exit codes of all verbs: 0 stopped as asked; 1 cannot go on, or `--print-config` found something wrong;
2 wrong settings, or no verb.

Invariant: nearly nothing is imported at the top. A signal is heard from the first moment on, and each use of
the command pays only for the imports that it needs: the agent has to stay small.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

VERBS = ("run", "admission", "agent")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb with the process's arguments and environment; returns the exit code."""
    if argv is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end_at_once)
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words.pop(0) if words and not words[0].startswith("-") else "run"
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
