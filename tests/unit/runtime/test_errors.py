"""From an answer to an exception."""

import inspect

import pytest

from controller.runtime import errors


@pytest.mark.parametrize(
    ("code", "reason", "cls"),
    [
        (400, "BadRequest", errors.BadRequestError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (409, "Conflict", errors.ConflictError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (409, "", errors.ConflictError),
        (410, "Expired", errors.GoneError),
        (422, "Invalid", errors.InvalidError),
        (429, "TooManyRequests", errors.TooManyRequestsError),
        (418, "", errors.StatusError),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (599, "", errors.ServerError),
    ],
)
def test_each_status_has_its_class(code: int, reason: str, cls: type[errors.StatusError]) -> None:
    error = errors.from_status("GET pods a", code, {"reason": reason, "message": "m"}, "")
    assert type(error) is cls
    assert (error.code, error.reason, error.message, str(error)) == (code, reason, "m", "m")
    assert error.request == "GET pods a"


def test_a_quota_that_is_being_changed_is_no_conflict_of_the_object() -> None:
    """F-23: it was taken for one, and failed for good."""
    body = {"reason": "Conflict", "details": {"name": "q", "kind": "resourcequotas"}, "message": "m"}
    error = errors.from_status("POST pods a", 409, body, "")
    assert type(error) is errors.QuotaConflictError
    assert not isinstance(error, errors.ConflictError)
    assert (error.transient, error.unclear) == (True, False)
    taken = {**body, "reason": "AlreadyExists"}
    assert type(errors.from_status("POST resourcequotas q", 409, taken, "")) is errors.AlreadyExistsError


@pytest.mark.parametrize("details", [None, [], "resourcequotas", {}, {"kind": "pods"}, {"kind": ["x"]}])
def test_other_details_leave_a_conflict_a_conflict(details: object) -> None:
    error = errors.from_status("POST pods a", 409, {"reason": "Conflict", "details": details}, "")
    assert type(error) is errors.ConflictError


def test_a_name_that_is_taken_is_also_a_conflict() -> None:
    assert issubclass(errors.AlreadyExistsError, errors.ConflictError)


@pytest.mark.parametrize(
    ("body", "text", "message"),
    [
        ({"message": "m"}, "t", "m"),
        ({}, " t\n", "t"),
        ({"message": ""}, "t", "t"),
        ({"message": None}, "", "the API server answered 500"),
        ({"message": 7}, "", "7"),
    ],
)
def test_there_is_always_a_message(body: dict[str, object], text: str, message: str) -> None:
    assert errors.from_status("GET pods", 500, body, text).message == message


def test_what_leaves_a_write_unclear() -> None:
    unclear = {code for code in range(400, 600) if errors.from_status("", code, {}, "").unclear}
    assert unclear == set(range(500, 600))
    assert errors.NoAnswerError("", "").unclear
    assert not errors.FencedError("", "").unclear


def test_what_is_the_fault_of_the_server_and_passes() -> None:
    transient = {code for code in range(400, 600) if errors.from_status("", code, {}, "").transient}
    assert transient == {401, 429, 503, 504}
    assert errors.NoAnswerError("", "").transient
    assert errors.FencedError("", "").transient


def test_every_error_is_an_api_error() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert len(classes) > 10
    assert all(issubclass(cls, errors.ApiError) for cls in classes)


def test_retry_after_is_kept() -> None:
    assert errors.from_status("", 429, {}, "", 3.0).retry_after_s == 3.0
    assert errors.from_status("", 429, {}, "").retry_after_s is None
