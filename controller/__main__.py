"""The command: settings, logging, signals, exit code.

Exit codes: 0 stopped as asked; 1 cannot go on, or `--print-config` found something wrong; 2 wrong settings.

Invariant: little is imported at the top. A signal is heard from the first moment on, and each use of the
command pays only for the imports that it needs.
"""

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from controller import KAI_VERSIONS
from controller.runtime.imports import frugal_imports

if TYPE_CHECKING:
    import anyio

    from controller.plugins.registry import PlannedPlugin
    from controller.settings import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the binder with the process's arguments and environment; returns the exit code."""
    if argv is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end_at_once)
    with frugal_imports():
        from controller.settings import SettingsError, load

        try:
            settings = load(sys.argv[1:] if argv is None else argv, os.environ)
            if settings.help or settings.version:
                sys.stdout.write(_help() if settings.help else _version())
                return 0
            ignored = [*settings.ignored]
            plugins = _plan(settings, ignored)
        except SettingsError as error:
            for problem in error.problems:
                sys.stderr.write(f"kai-binder: {problem}\n")
            return 2
    if settings.print_config:
        return _print_config(settings, plugins, ignored)
    return _run_to_end(settings, plugins, ignored)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Until the event loop listens to signals there is nothing to put in order.

    The first process of a container has to say so itself: for it the kernel leaves out what signals do
    otherwise. An exception would not do, as some of what is imported catches any.
    """
    os._exit(0)


def _help() -> str:
    from controller.setting_texts import help_text

    return help_text()


def _version() -> str:
    from importlib.metadata import version

    return f"kai-binder {version('kai-binder')} for KAI {', '.join(KAI_VERSIONS)}\n"


def _plan(settings: "Settings", ignored: list[str]) -> "tuple[PlannedPlugin, ...]":
    """The plugins in their order; with this the whole binder is imported."""
    from controller import app

    if settings.leader_elect:
        app.election_namespace(settings)
    return app.plan(settings, ignored)


def _run_to_end(settings: "Settings", plugins: "tuple[PlannedPlugin, ...]", ignored: "Sequence[str]") -> int:
    """Runs until a signal asks to stop; what ends it otherwise is one record in the log."""
    import anyio
    from loguru import logger

    from controller import logs
    from controller.runtime.client import CredentialsError
    from controller.runtime.endpoints import ListenError
    from controller.runtime.leader import LeaseLostError

    logs.configure(settings.log_level, settings.log_format)
    for text in ignored:
        logger.bind(what=text).warning("A setting is not known to this version, and was left out")
    _allow_many_connections()
    gc.freeze()  # what was imported stays: no collection needs to look at it
    try:
        anyio.run(_run, settings, plugins)
    except Exception as error:  # noqa: BLE001 -- the log is where it is read; a bare trace is no JSON
        for fault in _leaves(error):
            if isinstance(fault, CredentialsError | LeaseLostError | ListenError):
                logger.bind(error=str(fault)).critical("The binder cannot go on")
            else:
                logger.opt(exception=fault).critical("The binder ends by a fault of its own")
        return 1
    return 0


async def _run(settings: "Settings", plugins: "tuple[PlannedPlugin, ...]") -> None:
    import anyio

    from controller import app

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope)
        await app.run(settings, plugins, stop)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(stop: "anyio.Event", everything: "anyio.CancelScope") -> None:
    """The first signal asks for an orderly end, the second one ends it."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if stop.is_set():
                everything.cancel()
                return
            stop.set()


def _allow_many_connections() -> None:
    """Raises the soft limit of open files to the hard one: each request and each watch is a connection."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what it calls unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print_config(settings: "Settings", plugins: "Sequence[PlannedPlugin]", ignored: "Sequence[str]") -> int:
    """Shows what is in effect, as YAML; 1 if there is a problem with it."""
    from controller import app
    from controller.setting_texts import describe
    from controller.sources import typed

    sys.stdout.write(f"kai-versions: {json.dumps(KAI_VERSIONS)}\n{describe(settings)}plugin-order:\n")
    for planned in plugins:
        sys.stdout.write(
            f"- name: {planned.cls.name}\n"
            f"  priority: {planned.priority}\n"
            f"  failurePolicy: {planned.failure_policy}\n"
        )
        for name, value in planned.arguments.model_dump(by_alias=True).items():
            sys.stdout.write(f"  {name}: {typed(value)}\n")
        if planned.unmet is not None:
            sys.stdout.write(f"  dependencyNotMet: {planned.unmet}\n")
    if ignored:
        sys.stdout.write("ignored:\n" + "".join(f"- {json.dumps(text)}\n" for text in ignored))
    problems = [f"DependencyNotMet: {planned.unmet}" for planned in plugins if planned.unmet is not None]
    sharing = app.sharing_problem(settings, plugins)
    if sharing is not None:
        problems.append(sharing)
    for problem in problems:
        sys.stderr.write(f"kai-binder: {problem}\n")
    return 1 if problems else 0


def _leaves(error: Exception) -> list[Exception]:
    """The exceptions in a group, however deep, or the one that is no group."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


if __name__ == "__main__":
    sys.exit(main())
