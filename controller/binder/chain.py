"""The plugins in one attempt: which are concerned, what each found, how each ended, and where that leads.

The pipeline makes one for each attempt and calls its methods in the order in which they stand here.
Invariant: a plugin that is not concerned, or whose needs are not met, does no work; what it may have done in
an earlier attempt, under other settings, it is asked to take back.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from controller.binder.steps import Step
from controller.kai.outcome import DependencyNotMet, Failed, Outcome, Ready, Skipped
from controller.kai.reasons import Reason
from controller.plugins.base import BindContext

_SHOWN = 100
"""Characters of a value in a message."""


class Stop(Struct, frozen=True):
    """That an attempt goes no further.

    Attributes:
        step: Condition type of the step at which it ends.
        verdict: On the attempt.
    """

    step: str
    verdict: Ready | Failed


class Chain:
    """The plugins in their order."""

    def __init__(
        self, steps: Sequence[Step], outcomes: dict[str, Outcome], entering: Callable[[str], None]
    ) -> None:
        """Makes it.

        Args:
            steps: All plugins of the plan.
            outcomes: By condition type; filled here.
            entering: Told the condition type of each plugin before it is called.
        """
        self._steps = steps
        self._outcomes = outcomes
        self._entering = entering
        self._concerned: dict[str, bool | Failed] = {}
        self._found: dict[str, object] = {}
        self._annotations: dict[str, Mapping[str, str]] = {}
        self._variables: dict[str, str] = {}

    async def prepare(self, context: BindContext) -> Stop | None:
        """What can be known before anything is touched: needs that the settings rule out, bad input."""
        for step in self._steps:
            concerned = self._is_concerned(step, context)
            if isinstance(concerned, Failed):
                self._outcomes[step.type] = concerned
                if not step.may_fail:
                    return Stop(step.type, concerned)
            elif concerned and step.unmet and not step.may_fail:
                self._outcomes[step.type] = DependencyNotMet(step.unmet)
                return Stop(step.type, Failed(Reason.DEPENDENCY_NOT_MET, step.unmet, retry=False))
        for step in self._steps:
            if step.unmet or self._is_concerned(step, context) is not True:
                continue
            failure = await self._prepare_one(step, context)
            if failure is not None:
                self._outcomes[step.type] = failure
                if not step.may_fail:
                    return Stop(step.type, failure)
        return None

    async def _prepare_one(self, step: Step, context: BindContext) -> Failed | None:
        self._entering(step.type)
        prepared = await step.prepare(context)
        if prepared is None or isinstance(prepared, Failed):
            return prepared
        for mine, theirs in (
            (prepared.container_env, self._variables),
            (prepared.annotations, self.annotations(of_all=True)),
        ):
            for name, value in mine.items():
                if theirs.get(name, value) != value:
                    text = f"plugin {step.name} wants {name} to be {value[:_SHOWN]!r}, but a plugin before it"
                    return Failed(Reason.INTERNAL_ERROR, f"{text} wants {theirs[name][:_SHOWN]!r}")
        self._found[step.type] = prepared.found
        self._annotations[step.type] = dict(prepared.annotations)
        self._variables |= prepared.container_env
        return None

    @property
    def variables(self) -> Mapping[str, str]:
        """What all plugins together prepared for the container with the share."""
        return MappingProxyType(self._variables)

    def annotations(self, *, of_all: bool = False) -> dict[str, str]:
        """What the plugins want on the pod; unless `of_all`, only those that did their work."""
        merged: dict[str, str] = {}
        for type_ in {**self._annotations, **self._outcomes}:
            outcome = self._outcomes.get(type_)
            if of_all or isinstance(outcome, Ready):
                merged |= self._annotations.get(type_, {})
            if isinstance(outcome, Ready):
                merged |= outcome.annotations
        return merged

    async def pre_bind(self, context: BindContext) -> Stop | None:
        """Runs the plugins, up to the first that stops the bind."""
        for step in self._steps:
            if step.type in self._outcomes:
                continue  # failed already while it prepared, and may
            self._entering(step.type)
            outcome = await self._pre_bind_one(step, context)
            self._outcomes[step.type] = outcome
            if step.may_fail:
                continue
            match outcome:
                case DependencyNotMet(message):
                    return Stop(step.type, Failed(Reason.DEPENDENCY_NOT_MET, message))
                case Failed():
                    return Stop(step.type, outcome)
        return None

    async def _pre_bind_one(self, step: Step, context: BindContext) -> Outcome:
        if not self._is_concerned(step, context):
            return Skipped()
        unmet = step.unmet or self._failed_need(step)
        return DependencyNotMet(unmet) if unmet else await step.pre_bind(self._of(step, context))

    def _failed_need(self, step: Step) -> str | None:
        """A plugin that this one needs and that failed without stopping the bind."""
        needs = set(step.plugin.requires)
        for other in self._steps:
            outcome = self._outcomes.get(other.type)
            is_needed = not needs.isdisjoint((other.name, *other.plugin.aliases))
            if is_needed and isinstance(outcome, (Failed, DependencyNotMet)):
                return f"{step.name} needs {other.name}, which failed: {outcome.message}"
        return None

    async def post_bind(self, context: BindContext) -> None:
        """Tells the plugins that did their work that the pod is bound."""
        for step in self._steps:
            failed = isinstance(self._outcomes.get(step.type), (Failed, DependencyNotMet))
            if self._is_concerned(step, context) is True and not failed:
                await step.post_bind(self._of(step, context))

    def undoes(self, context: BindContext) -> bool:
        """Whether there is a plugin that is concerned and may have something to take back."""
        return any(step.can_undo and self._is_concerned(step, context) is True for step in self._steps)

    async def rollback(self, context: BindContext) -> list[str]:
        """Has every plugin that is concerned take back its work, in reverse.

        Returns:
            What could not be taken back.

        Raises:
            errors.ApiError: The server was not there.
        """
        concerned = [step for step in self._steps if self._is_concerned(step, context) is True]
        problems = [await step.rollback(self._of(step, context)) for step in reversed(concerned)]
        return [problem for problem in problems if problem is not None]

    def _is_concerned(self, step: Step, context: BindContext) -> bool | Failed:
        """Asked once in each attempt: what a plugin says of the same request must not change under way."""
        if step.type not in self._concerned:
            self._concerned[step.type] = step.concerns(context)
        return self._concerned[step.type]

    def _of(self, step: Step, context: BindContext) -> BindContext:
        return replace(context, found=self._found.get(step.type))
