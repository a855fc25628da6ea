"""`kai-binder agent` with a GPU that is not there: for tests and the demo, on machines without one.

Usage: python hack/agent.py --nvml JSON [--account FOLDER] [--termination-log FILE] [argument ...]

The JSON says what NVML finds, see `fakenvml.Machine.of`; the arguments are the agent's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fakenvml

from controller.agent.account import SERVICE_ACCOUNT
from controller.agent.command import TERMINATION_LOG, main


def run(arguments: list[str]) -> int:
    """Runs the agent; returns its exit code.

    Args:
        arguments: Of the command line; not by argparse, whose memory the agent does not take.
    """
    own = {"--nvml": "{}", "--account": str(SERVICE_ACCOUNT), "--termination-log": str(TERMINATION_LOG)}
    while len(arguments) >= 2 and arguments[0] in own:
        own[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    fakenvml.install(fakenvml.Machine.of(own["--nvml"]))
    places = {"account": Path(own["--account"]), "termination_log": Path(own["--termination-log"])}
    return main(arguments, os.environ, **places)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
