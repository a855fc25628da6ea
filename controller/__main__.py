"""The command: settings, logging, signals, exit code.

Exit codes: 0 stopped as asked; 1 cannot go on, or `--print-config` found something wrong; 2 wrong settings.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

import anyio
from loguru import logger

from controller import app, logs
from controller.plugins.registry import PlannedPlugin
from controller.runtime.client import CredentialsError
from controller.runtime.endpoints import ListenError
from controller.runtime.leader import LeaseLostError
from controller.settings import Settings, SettingsError, describe, help_text, load
from controller.sources import typed


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the binder with the process's arguments and environment; returns the exit code."""
    try:
        settings = load(sys.argv[1:] if argv is None else argv, os.environ)
        if settings.help:
            sys.stdout.write(help_text())
            return 0
        if settings.version:
            sys.stdout.write(f"kai-binder {version('kai-binder')}\n")
            return 0
        plugins = app.plan(settings)
        if settings.leader_elect:
            app.election_namespace(settings)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"kai-binder: {problem}\n")
        return 2
    if settings.print_config:
        return _print_config(settings, plugins)
    logs.configure(settings.log_level, settings.log_format)
    _allow_many_connections()
    code = 0
    try:
        anyio.run(_run, settings, plugins)
    except* (CredentialsError, LeaseLostError, ListenError) as group:
        for fault in _leaves(group):
            logger.bind(error=str(fault)).critical("The binder cannot go on")
        code = 1
    return code


async def _run(settings: Settings, plugins: tuple[PlannedPlugin, ...]) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope)
        await app.run(settings, plugins, stop)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(stop: anyio.Event, everything: anyio.CancelScope) -> None:
    """The first signal asks for an orderly end, the second one ends it."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if stop.is_set():
                everything.cancel()
                return
            stop.set()


def _allow_many_connections() -> None:
    """Raises the soft limit of open files to the hard one: each long wait for a volume holds some watches."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what it calls unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print_config(settings: Settings, plugins: Sequence[PlannedPlugin]) -> int:
    """Shows what is in effect, as YAML; 1 if a plugin's needs are not met."""
    sys.stdout.write(f"{describe(settings)}plugin-order:\n")
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
    unmet = [planned.unmet for planned in plugins if planned.unmet is not None]
    for problem in unmet:
        sys.stderr.write(f"kai-binder: DependencyNotMet: {problem}\n")
    return 1 if unmet else 0


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
