"""Which function runs which verb, and what they have in common."""

from importlib import import_module
from typing import Protocol, cast

from controller.explain.options import Options
from controller.explain.terminal import Terminal


class CannotTellError(Exception):
    """There is no answer; the message is a sentence that says why."""


class Verb(Protocol):
    """A verb: tells what was asked for and returns the exit code."""

    async def __call__(self, options: Options, terminal: Terminal, /) -> int:
        """Runs it.

        Raises:
            CannotTellError: There is no answer.
            CredentialsError: There is no way to the API server.
            errors.ApiError: It does not answer.
        """


async def run(options: Options, terminal: Terminal) -> int:
    """Runs the verb: the function `run` of the module of its name, which nothing else imports."""
    module = import_module(f"controller.explain.{options.verb}")
    return await cast(Verb, module.run)(options, terminal)
