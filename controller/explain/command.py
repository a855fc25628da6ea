"""The verbs `explain` and `gpus` as commands: arguments, exit code, and what goes wrong as a sentence.

Called by `kai-binder`, and by `kubectl-binder` (a plugin of kubectl: `kubectl binder explain …`).
Invariant: a verb's imports are paid only when it runs.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.explain.options import ArgumentsError, HelpRequested, Options, parse
from controller.explain.terminal import Terminal
from controller.runtime.texts import visible

VERBS = ("explain", "gpus")

CANNOT_TELL = 2
_INTERRUPTED = 130


def main(argv: Sequence[str], environ: Mapping[str, str], program: str = "kai-binder") -> int:
    """Runs a verb and returns the exit code: 0 or 1 as the verb says, 2 if it cannot tell.

    Args:
        argv: Verb and arguments.
        environ: Of the process; NO_COLOR, COLUMNS and TERM are looked at, and by the client KUBECONFIG.
        program: As the user has called it.
    """
    try:
        code = _main(argv, environ, program)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT_TELL
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def plugin() -> int:
    """`kubectl-binder`, which kubectl runs for `kubectl binder`."""
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    return main(sys.argv[1:], os.environ, "kubectl binder" if is_plugin else "kai-binder")


def _main(argv: Sequence[str], environ: Mapping[str, str], program: str) -> int:
    try:
        options = parse(argv, program)
    except HelpRequested as wanted:
        sys.stdout.write(str(wanted))
        return 0
    except ArgumentsError as error:
        return _cannot_tell(program, str(error))
    return _run(options, Terminal.of(sys.stdout, environ), program)


def _run(options: Options, terminal: Terminal, program: str) -> int:
    """Runs the verb; what keeps it from telling anything is one sentence."""
    from controller.runtime.imports import frugal_imports

    with frugal_imports():
        import anyio
        from loguru import logger

        from controller.explain.verbs import CannotTellError, run
        from controller.runtime import errors
        from controller.runtime.client import CredentialsError

    logger.remove()  # what is worth telling is told as a sentence, not as lines of a log
    try:
        return anyio.run(run, options, terminal)
    except (CannotTellError, CredentialsError, errors.ApiError, ExceptionGroup) as raised:
        fault: Exception = raised
        while isinstance(fault, ExceptionGroup):  # of reads that ran side by side
            fault = fault.exceptions[0]
        match fault:
            case CannotTellError() | CredentialsError():
                problem = str(fault)
            case errors.UnauthorizedError():
                problem = f"the API server does not accept the credentials: {fault.message}"
            case errors.ApiError():
                problem = f"the API server cannot be asked ({fault.request}): {fault.message}"
            case _:
                raise
    return _cannot_tell(program, problem)


def _cannot_tell(program: str, problem: str) -> int:
    sys.stderr.write(f"{program}: {visible(problem)}\n")
    return CANNOT_TELL
