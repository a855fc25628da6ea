"""A plugin as the pipeline calls it: the border to code that may be anybody's.

The pipeline and the undoing of an attempt call plugins through here only. Invariant: whatever a plugin
returns or raises, the pipeline gets an outcome that a status can hold. Three things pass as they are: that
the server was not there, that a wait has ended, and cancellation.
"""

import copy
import re
from collections.abc import Awaitable, Callable, Mapping

import anyio
from loguru import logger
from msgspec import Struct
from msgspec.structs import replace

from controller.binder.objects import size_of
from controller.kai.names import is_object_name
from controller.kai.outcome import (
    DependencyNotMet,
    Failed,
    Outcome,
    Ready,
    Skipped,
    WaitEndedError,
    failed_by,
)
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext, Plugin, Prepared
from controller.plugins.config import FailurePolicy
from controller.runtime import errors

POST_BIND_LIMIT_S = 30.0
"""What follows a bind may take so long: the status is written after it."""

ANNOTATIONS_LIMIT_BYTES = 64 * 1024
"""Of one plugin."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,252}")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_REASON_WORD = re.compile(r"[A-Za-z0-9_]+")
_REASON_LIMIT = 128
_SHOWN = 200
_TEXT_LIMIT = 16 * 1024


_OURS = frozenset(
    {
        Reason.ALREADY_BOUND,
        Reason.ALREADY_BOUND_ELSEWHERE,
        Reason.POD_REPLACED,
        Reason.REQUEST_CHANGED,
        Reason.REQUEST_DELETED,
    }
)
"""What the binder goes by, of its own reasons: by another's word a request would be left without an end."""


class Step(Struct, frozen=True):
    """One plugin of the plan.

    Attributes:
        plugin: The plugin.
        failure_policy: Whether the bind goes on without it.
        unmet: Why its needs are not met, by the settings.
        is_outside: Whether it is none of the built-in ones. Such a one is given copies of what caches hold.
    """

    plugin: Plugin
    failure_policy: FailurePolicy
    unmet: str | None
    is_outside: bool

    @property
    def type(self) -> str:
        """Of its condition."""
        return self.plugin.condition_type

    @property
    def name(self) -> str:
        """Of the plugin."""
        return self.plugin.name

    @property
    def may_fail(self) -> bool:
        """Whether the bind goes on although it failed."""
        return self.failure_policy == "Ignore"

    @property
    def can_undo(self) -> bool:
        """Whether the plugin may have something to take back after an attempt."""
        return type(self.plugin).rollback is not Plugin.rollback

    def concerns(self, context: BindContext) -> bool | Failed:
        """Whether there is anything to do for it in this attempt."""
        try:
            found: object = self.plugin.concerns(self._given(context))
        except BaseException as error:  # noqa: BLE001 -- see `_cause_of`
            return self._failure(error)
        if isinstance(found, bool):
            return found
        if hasattr(found, "close") and hasattr(found, "send"):
            found.close()  # a coroutine: nobody is going to await it
        return self._nonsense("concerns", found, "neither True nor False")

    async def prepare(self, context: BindContext) -> Prepared | Failed | None:
        """What it found while it prepared, or why the bind must not go on."""
        found = await self._call(self.plugin.prepare, context)
        if isinstance(found, Failed):
            return self._legal(found)
        if isinstance(found, Prepared):
            return self._checked(found)
        if found is None:
            return None
        return self._nonsense("prepare", found, "none of Prepared, Failed and None")

    async def pre_bind(self, context: BindContext) -> Outcome:
        """How its work ended."""
        found = await self._call(self.plugin.pre_bind, context)
        match found:
            case Ready():
                checked = self._checked(Prepared(annotations=found.annotations))
                if isinstance(checked, Failed):
                    return checked
                return Ready(_legal_text(found.message), checked.annotations)
            case Skipped():
                return Skipped(_legal_text(found.message))
            case DependencyNotMet():
                return DependencyNotMet(_legal_text(found.message))
            case Failed():
                return self._legal(found)
            case _:
                return self._nonsense("pre_bind", found, "no outcome")

    async def post_bind(self, context: BindContext) -> None:
        """What follows a bind; whatever comes of it, the pod is bound."""
        log = logger.bind(plugin=self.name)
        with anyio.move_on_after(POST_BIND_LIMIT_S) as limit:
            try:
                found = await self._call(self.plugin.post_bind, context)
            except (errors.ApiError, WaitEndedError) as error:
                found = Failed(Reason.INTERNAL_ERROR, str(error))
            if isinstance(found, Failed):
                log.bind(error=found.message).error("What follows a bind failed in a plugin")
        if limit.cancelled_caught:
            log.error("What follows a bind took too long in a plugin and was broken off")

    async def rollback(self, context: BindContext) -> str | None:
        """Takes back its work; returns what is wrong if it could not.

        Raises:
            errors.ApiError: The server was not there.
        """
        try:
            await self.plugin.rollback(self._given(context))
        except BaseException as error:
            cause = _cause_of(error)
            if isinstance(cause, errors.ApiError) and cause.transient:
                raise cause from error
            said = failed_by(cause).message if isinstance(cause, errors.ApiError) else _text_of(cause)
            text = _legal_text(said)
            logger.bind(plugin=self.name, error=text).error("A rollback failed")
            return f"{self.name} could not take back its work: {text}"
        return None

    async def _call(
        self, method: Callable[[BindContext], Awaitable[object]], context: BindContext
    ) -> object | Failed:
        """What a method of the plugin returned, or Failed if it raised.

        Raises:
            errors.ApiError: The server was not there.
            WaitEndedError: A wait in it ended.
        """
        try:
            return await method(self._given(context))
        except BaseException as error:  # noqa: BLE001 -- see `_cause_of`
            return self._failure(error)

    def _given(self, context: BindContext) -> BindContext:
        if not self.is_outside:
            return context
        request, pod, node = copy.deepcopy((context.request, context.pod, context.node))
        return replace(context, request=request, pod=pod, node=node)

    def _failure(self, error: BaseException) -> Failed:
        """What a plugin raised, as a failure; what is to pass is raised again."""
        cause = _cause_of(error)
        if isinstance(cause, WaitEndedError):
            raise cause
        if isinstance(cause, errors.ApiError):
            if cause.transient:
                raise cause
            return failed_by(cause)
        logger.bind(plugin=self.name).opt(exception=error).error("A plugin failed in an unforeseen way")
        return self._broken(f"plugin {self.name} raised {type(cause).__name__}: {_text_of(cause)}")

    def _nonsense(self, method: str, found: object, what: str) -> Failed:
        shown = _legal_text(_text_of(found, shown=True))
        text = f"plugin {self.name} returned {shown} from {method}, which is {what}"
        logger.bind(plugin=self.name).error(f"A plugin returned nonsense: {text}")
        return self._broken(text)

    def _broken(self, text: str) -> Failed:
        return Failed(Reason.INTERNAL_ERROR, _legal_text(text))

    def _checked(self, prepared: Prepared) -> Prepared | Failed:
        """What it prepared as plain mappings, which say the same whenever they are looked at."""
        for what, values in (("variables", prepared.container_env), ("annotations", prepared.annotations)):
            if not isinstance(values, Mapping):
                shown = _legal_text(_text_of(values, shown=True))
                return self._broken(f"plugin {self.name} prepared {shown}, which is no mapping of {what}")
        try:
            variables, annotations = dict(prepared.container_env), dict(prepared.annotations)
        except BaseException as error:  # noqa: BLE001 -- see `_cause_of`
            return self._failure(error)
        problem = _problem_of(variables, annotations)
        if problem is not None:
            return self._broken(f"plugin {self.name} prepared {problem}")
        return Prepared(container_env=variables, annotations=annotations, found=prepared.found)

    def _legal(self, failure: Failed) -> Failed:
        """The plugin's failure, in words that a status can hold."""
        message = _legal_text(failure.message)
        words = _REASON_WORD.findall(failure.reason) if isinstance(failure.reason, str) else []
        reason = "".join(word[:1].upper() + word[1:] for word in words).lstrip("0123456789_")
        reason = reason[:_REASON_LIMIT].rstrip("_")
        if not reason:
            shown = _legal_text(_text_of(failure.reason, shown=True))
            return self._broken(f"plugin {self.name} failed with {shown}, which is no reason: {message}")
        if reason in _OURS and self.is_outside:
            text = f"plugin {self.name} failed with {reason}, which only the binder may say: {message}"
            return self._broken(text)
        return Failed(reason, message, retry=failure.retry is not False)


def _cause_of(error: BaseException) -> BaseException:
    """What a plugin raised, out of its own task groups; if it is we who are to end, it is raised again.

    Everything else is a failure of the plugin, also what is no Exception: a library that calls sys.exit, or a
    task of the plugin's own that was cancelled, must not end this process or leave a request without a word.
    """
    cause = _innermost(error)
    if isinstance(cause, anyio.get_cancelled_exc_class()) and _is_cancelled():
        raise cause
    return cause


def _innermost(error: BaseException) -> BaseException:
    """First what passes the border, else the one error there is, else the group."""
    leaves: list[BaseException] = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            part
            for leaf in leaves
            for part in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else (leaf,))
        ]
    for kind in (WaitEndedError, errors.ApiError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0] if len(leaves) == 1 else error


def _is_cancelled() -> bool:
    """Whether it is us who are to end; else a plugin raised a cancellation of its own making."""
    return anyio.current_effective_deadline() == float("-inf")


def _text_of(value: object, *, shown: bool = False) -> str:
    """A value as text, though its own methods may fail."""
    try:
        text = repr(value) if shown else str(value)
    except Exception:  # noqa: BLE001 -- whatever it is
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN or not shown else f"{text[:_SHOWN]}…"


def _legal_text(value: object) -> str:
    """A message in one line of characters that can be written and read."""
    text = (value if isinstance(value, str) else _text_of(value))[:_TEXT_LIMIT]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip() or "no message"


def _problem_of(variables: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """What is wrong with what a plugin prepared, if anything."""
    for what, values, legal in (
        ("variables", variables, _is_variable),
        ("annotations", annotations, _is_annotation),
    ):
        for name, value in values.items():
            if not isinstance(name, str) or not legal(name):
                return f"{_text_of(name, shown=True)}, which is no legal name of one of its {what}"
            if not _is_plain_text(value):
                return f"{name} with {_text_of(value, shown=True)}, which is no text, for its {what}"
    size = size_of(annotations)
    if size > ANNOTATIONS_LIMIT_BYTES:
        return f"{size} bytes of annotations, more than the {ANNOTATIONS_LIMIT_BYTES} that a plugin may have"
    return None


def _is_variable(name: str) -> bool:
    return _VARIABLE.fullmatch(name) is not None


def _is_annotation(name: str) -> bool:
    """Whether it is a legal name. The server does not check a Binding's: the pod could never be updated."""
    domain, slash, rest = name.rpartition("/")
    return _QUALIFIED.fullmatch(rest) is not None and (not slash or is_object_name(domain.lower()))


def _is_plain_text(value: object) -> bool:
    """Whether a value can be written as UTF-8 and reach a container."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
