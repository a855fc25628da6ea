"""How a step of a bind can end: a closed union, so that the type checker proves every ending is handled."""

from dataclasses import dataclass

from controller.kai.reasons import Reason
from controller.runtime import errors


@dataclass(frozen=True, slots=True)
class Ready:
    """The work is done, or was found done."""

    message: str = "done"


@dataclass(frozen=True, slots=True)
class Skipped:
    """There is nothing for this step in this request."""

    message: str = "nothing to do for this request"


@dataclass(frozen=True, slots=True)
class DependencyNotMet:
    """A plugin that this one needs is disabled, missing, runs later, or has failed."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The work could not be done.

    Attributes:
        reason: One CamelCase word, a `controller.api.Reason` or the plugin's own.
        message: A sentence with the object's name and the value at fault.
        retry: False if another attempt of this request cannot end better.
    """

    reason: str
    message: str
    retry: bool = True


Outcome = Ready | Skipped | DependencyNotMet | Failed


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
