"""What can go wrong with a request to the API server, as exceptions that callers tell apart by class.

Three branches: `StatusError` (the server answered, with a metav1.Status), `NoAnswerError` (it did not, so
that nobody knows whether a write was applied) and `NotSentError` (it was never asked). Only the client and
those who read the lines of its watches raise them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class ApiError(Exception):
    """A request to the API server that did not succeed.

    Attributes:
        request: The request as a person would name it, e.g. `GET pods team/a`.
        message: One sentence, the server's own where there is one.
    """

    def __init__(self, request: str, message: str) -> None:
        super().__init__(message)
        self.request = request
        self.message = message

    @property
    def unclear(self) -> bool:
        """Whether a write may have been applied although it was answered with this error."""
        return False

    @property
    def transient(self) -> bool:
        """Whether the fault lies with the server or the way to it, not with what was asked."""
        return False

    @property
    def says_nothing(self) -> bool:
        """Whether it says nothing of what was asked for: the server was not there, or failed."""
        return self.transient or self.unclear


class NoAnswerError(ApiError):
    """The server could not be reached, did not answer in time, or broke the connection."""

    unclear = True
    transient = True


class TooLargeError(ApiError):
    """The page of a list is larger than is taken into memory at a time: fewer objects must be asked for."""

    transient = True


class NotSentError(ApiError):
    """The request was never sent: its turn in the rate limit would have come after its deadline."""

    transient = True


class FencedError(NotSentError):
    """The write was never sent: this process no longer holds the leader's lease."""


class StatusError(ApiError):
    """The server answered with a status of 400 or more.

    Attributes:
        status: HTTP status code.
        reason: The machine-readable reason of the metav1.Status, e.g. `AlreadyExists`; may be empty.
        body: The decoded metav1.Status, or an empty mapping.
        retry_after_s: Seconds the server asks to wait, or None.
    """

    status: ClassVar[int] = 0

    def __init__(
        self,
        request: str,
        message: str,
        *,
        code: int,
        reason: str = "",
        body: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(request, message)
        self.code = code
        self.reason = reason
        self.body = body or {}
        self.retry_after_s = retry_after_s


class BadRequestError(StatusError):
    """400: the request makes no sense to the server."""

    status = 400


class UnauthorizedError(StatusError):
    """401, after one new login: the credentials are not accepted."""

    status = 401
    transient = True


class ForbiddenError(StatusError):
    """403: a missing permission, a quota, or an admission policy."""

    status = 403

    @property
    def may_be_premature(self) -> bool:
        """Whether a server says so, too, that has just started and does not know its roles or objects yet."""
        lacks_rights = 'User "' in self.message and " cannot " in self.message
        return lacks_rights or "not yet ready" in self.message


class NotFoundError(StatusError):
    """404: no such object, or no such kind."""

    status = 404


class ImpossibleNameError(NotFoundError):
    """No object can have this name, so that nothing was sent: in a path it would name something else."""


class ConflictError(StatusError):
    """409: the object changed meanwhile, exists already, or does not allow this now."""

    status = 409


class AlreadyExistsError(ConflictError):
    """409 to a create: an object of that name exists."""


class QuotaConflictError(StatusError):
    """409 to a write that met a ResourceQuota which another write was changing; it was not carried out.

    Not a `ConflictError`: the object itself is in nobody's way.
    """

    transient = True


class GoneError(StatusError):
    """410: the resource version, or the page of a list, is too old."""

    status = 410


class InvalidError(StatusError):
    """422: a value is not valid."""

    status = 422


class TooManyRequestsError(StatusError):
    """429: the server sheds load; the request was not carried out."""

    status = 429
    transient = True


class ServerError(StatusError):
    """5xx: the server failed, perhaps after the write."""

    status = 500
    unclear = True

    @property
    def transient(self) -> bool:
        """503: the server as a whole is not there. 504: it cannot say what became of the write."""
        return self.code in (503, 504)


_BY_STATUS: Mapping[int, type[StatusError]] = {
    cls.status: cls
    for cls in (
        BadRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        GoneError,
        InvalidError,
        TooManyRequestsError,
    )
}


def from_status(
    request: str, code: int, body: Mapping[str, Any], text: str, retry_after_s: float | None = None
) -> StatusError:
    """Makes the exception for an answer of 400 or more.

    Args:
        request: The request as a person would name it.
        code: HTTP status code, or the code of an ERROR event of a watch.
        body: The decoded metav1.Status; empty if the answer was something else.
        text: What the server said, used where the body has no message.
        retry_after_s: Seconds from the Retry-After header.
    """
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or text.strip() or f"the API server answered {code}")
    details = body.get("details")
    kind = details.get("kind") if isinstance(details, Mapping) else None
    if code == 409 and reason == "AlreadyExists":
        cls: type[StatusError] = AlreadyExistsError
    elif code == 409 and kind == "resourcequotas":
        cls = QuotaConflictError
    else:
        cls = _BY_STATUS.get(code, ServerError if code >= 500 else StatusError)
    return cls(request, message, code=code, reason=reason, body=body, retry_after_s=retry_after_s)
