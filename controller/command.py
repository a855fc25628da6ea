"""What `run` and `admission` have in common: settings, questions about them, logging, signals, exit code.

Called by ``__main__``. A verb is a class of settings and a composition root, which is imported only once it
is needed. Who asks for help or the version, and nothing else, gets a text that is there already: the classes
of settings alone cost some 0.3 s of CPU.
"""

import contextlib
import gc
import json
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from controller import KAI_VERSIONS

if TYPE_CHECKING:
    import anyio

    from controller.plugins.registry import PlannedPlugin
    from controller.setting_base import CommonSettings

Plan = tuple["PlannedPlugin", ...]

HELP = Path(__file__).parent / "help"
"""A text for each verb, as `setting_texts` makes it; hack/readme writes them."""
_HELP_FLAGS = ("--help", "-help", "--h", "-h")
_VERSION_FLAGS = ("--version", "-version")
"""As Go's flag package takes them, and so `sources`."""


class Root(Protocol):
    """A composition root: the module `app` or `webhook`. Each takes the settings of its own verb.

    Attributes:
        NAME: What runs, as the subject of a sentence in the log.
    """

    NAME: str

    def prepare(self, settings: Any, ignored: list[str]) -> Plan:  # noqa: ANN401
        """The plugins in their order; what was left out of the settings is added to `ignored`."""

    def problems(self, settings: Any, plugins: Plan) -> list[str]:  # noqa: ANN401
        """What stands in the way of these settings, beside needs of plugins."""

    def outlook(self, settings: Any, plugins: Plan) -> Mapping[str, str]:  # noqa: ANN401
        """What it will do that the settings alone do not show, by a name for it."""

    def run(self, settings: Any, plugins: Plan, stop: "anyio.Event") -> Coroutine[Any, Any, None]:  # noqa: ANN401
        """Runs until `stop` is set."""


def main(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs a verb.

    Args:
        verb: `run` or `admission`.
        argv: The command line behind the verb.
        environ: The environment.

    Returns:
        The exit code.
    """
    if len(argv) == 1 and argv[0] in (*_HELP_FLAGS, *_VERSION_FLAGS):
        sys.stdout.write(_help(verb) if argv[0] in _HELP_FLAGS else _version())
        return 0
    from controller.runtime.imports import frugal_imports

    with frugal_imports():
        from controller.settings import VERBS, SettingsError, load_as

        (cls,) = (known for known in VERBS if known.verb == verb)
        try:
            settings = load_as(cls, argv, environ)
            if settings.help or settings.version:
                sys.stdout.write(_help(verb) if settings.help else _version())
                return 0
            root = _root(verb)  # with this, nearly all that the verb runs is imported
            ignored = [*settings.ignored]
            plugins = root.prepare(settings, ignored)
        except SettingsError as error:
            for problem in error.problems:
                sys.stderr.write(f"kai-binder: {problem}\n")
            return 2
    if settings.print_config:
        return _print_config(root, settings, plugins, ignored)
    return _run_to_end(root, settings, plugins, ignored)


def _root(verb: str) -> Root:
    if verb == "admission":
        from controller import webhook

        return cast(Root, webhook)
    from controller import app

    return cast(Root, app)


def _help(verb: str) -> str:
    return (HELP / f"{verb}.txt").read_text(encoding="utf-8")


def _version() -> str:
    from importlib.metadata import version

    return f"kai-binder {version('kai-binder')} for KAI {', '.join(KAI_VERSIONS)}\n"


def _run_to_end(root: Root, settings: "CommonSettings", plugins: Plan, ignored: Sequence[str]) -> int:
    """Runs until a signal asks to stop; what ends it otherwise is one record in the log."""
    import anyio
    from loguru import logger

    from controller import logs
    from controller.runtime.client import CredentialsError
    from controller.runtime.endpoints import ListenError
    from controller.runtime.leader import LeaseLostError

    logs.configure(settings.log_level, settings.log_format)
    for text in ignored:
        logger.bind(what=text).warning("A setting was left out")
    _allow_many_connections()
    gc.freeze()  # what was imported stays: no collection needs to look at it
    try:
        anyio.run(_run, root, settings, plugins)
    except Exception as error:  # noqa: BLE001 -- the log is where it is read; a bare trace is no JSON
        for fault in _leaves(error):
            if isinstance(fault, CredentialsError | LeaseLostError | ListenError):
                logger.bind(error=str(fault)).critical(f"{root.NAME} cannot go on")
            else:
                logger.opt(exception=fault).critical(f"{root.NAME} ends by a fault of its own")
        return 1
    return 0


async def _run(root: Root, settings: "CommonSettings", plugins: Plan) -> None:
    import anyio

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope)
        await root.run(settings, plugins, stop)
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


def _print_config(root: Root, settings: "CommonSettings", plugins: Plan, ignored: Sequence[str]) -> int:
    """Shows what is in effect, as YAML; 1 if there is a problem with it."""
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
    for name, text in root.outlook(settings, plugins).items():
        sys.stdout.write(f"{name}: {json.dumps(text)}\n")
    if ignored:
        sys.stdout.write("ignored:\n" + "".join(f"- {json.dumps(text)}\n" for text in ignored))
    problems = [f"DependencyNotMet: {planned.unmet}" for planned in plugins if planned.unmet is not None]
    problems += root.problems(settings, plugins)
    for problem in problems:
        sys.stderr.write(f"kai-binder: {problem}\n")
    return 1 if problems else 0


def _leaves(error: Exception) -> list[Exception]:
    """The exceptions in a group, however deep, or the one that is no group."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
