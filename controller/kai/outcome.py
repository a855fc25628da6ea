"""How a step of a bind, and an attempt as a whole, can end.

The unions are closed, so that the type checker proves every ending is handled. What is expected is returned
as one of these; what surprises is raised.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from controller.kai.reasons import ConditionType, Reason
from controller.runtime import errors


class Ready(Struct, frozen=True):
    """The work is done, or was found done.

    Attributes:
        message: What was done, for the condition.
        annotations: For the pod, as in `plugins.base.Prepared`; for what is known only now.
    """

    message: str = "done"
    annotations: Mapping[str, str] = field(default_factory=dict)


class Skipped(Struct, frozen=True):
    """There is nothing for this step in this request."""

    message: str = "nothing to do for this request"


class DependencyNotMet(Struct, frozen=True):
    """A plugin that this one needs is disabled, missing, runs later, or has failed."""

    message: str


class Failed(Struct, frozen=True):
    """The work could not be done: the one form of a failure.

    Attributes:
        reason: One CamelCase word, a `controller.kai.reasons.Reason` or the plugin's own.
        message: A sentence with the object's name and the value at fault.
        retry: False if another attempt of this request cannot end better.
    """

    reason: str
    message: str
    retry: bool = True


Outcome = Ready | Skipped | DependencyNotMet | Failed


class WaitEndedError(Exception):
    """Waiting is of no use any more; leaves the block of the wait, through whatever waits in it.

    Attributes:
        verdict: Why; Ready if the pod is on its node, which is all that was wished.
    """

    def __init__(self, verdict: Ready | Failed) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class Ending(Struct, frozen=True):
    """How far an attempt came and how it ended.

    Attributes:
        order: Condition types of all steps, in the order in which they run; `Bound` is not among them.
        outcomes: By condition type, of the steps that ran or were found wanting.
        verdict: On the whole.
        culprit: Condition type of the step at which it ended; `Bound` if it was none of them.
        was_found: Whether the pod is on its node, but perhaps not by this attempt's Binding.
    """

    order: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    verdict: Ready | Failed
    culprit: str = ConditionType.BOUND
    was_found: bool = False


class Interrupted(Struct, frozen=True):
    """An attempt that says nothing about its request: the server was not there. It is not counted.

    Attributes:
        order: As of an `Ending`.
        outcomes: As of an `Ending`.
        step: Condition type of the step that was interrupted; `Bound` if it was none of them.
        error: What the server said, if anything.
    """

    order: tuple[str, ...]
    outcomes: Mapping[str, Outcome]
    step: str
    error: errors.ApiError


class HandedOver(Struct, frozen=True):
    """An attempt at a request that is another shard's by now, which finds done what was done.

    Nothing of it is undone or told: that binder may be at work on it.
    """


Attempted = Ending | Interrupted | HandedOver


def failed_by(error: errors.ApiError) -> Failed:
    """The failure that an answer of the server means."""
    match error:
        case errors.ForbiddenError():
            reason = Reason.FORBIDDEN
        case errors.ConflictError():
            reason = Reason.CONFLICT
        case errors.ServerError():
            reason = Reason.SERVER_ERROR
        case _:
            reason = Reason.REJECTED
    return Failed(reason, f"{error.request}: {error.message}")
