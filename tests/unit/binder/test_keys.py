"""Which changes of a request wake the reconciler."""

from controller.binder.reconciler import keys_to_bind
from controller.runtime.cache import Change
from controller.runtime.client import Object

KEY = [("team", "a")]


def request(generation: int | None = 1, *, status: object = None, **metadata: object) -> Object:
    found: Object = {"metadata": {"namespace": "team", "name": "a", "uid": "u1", **metadata}}
    if generation is not None:
        found["metadata"]["generation"] = generation
    return found if status is None else {**found, "status": status}


def keys(old: Object | None, new: Object | None) -> list[tuple[str, str]]:
    return list(keys_to_bind(Change(old, new)))


def test_a_new_request_is_worked_on() -> None:
    assert keys(None, request()) == KEY
    assert keys(None, request(status={"phase": "Pending"})) == KEY


def test_one_that_comes_in_finished_is_not_worked_on() -> None:
    """F-55: ten thousand of them took a second of each start."""
    assert keys(None, request(status={"phase": "Succeeded"})) == []
    assert keys(None, request(status={"phase": "Failed"})) == [], "without a backoffLimit one attempt decides"
    open_ = request(status={"phase": "Failed", "failedAttempts": 1})
    assert keys(None, {**open_, "spec": {"backoffLimit": 3}}) == KEY
    mended = request(2, status={"phase": "Failed", "failedAttempts": 1, "observedGeneration": 1})
    assert keys(None, mended) == KEY


def test_a_deleted_request_is_looked_at_once_more() -> None:
    assert keys(request(), None) == KEY


def test_a_changed_spec_is_worked_on() -> None:
    assert keys(request(1), request(2)) == KEY
    assert keys(request(1, status={"phase": "Failed"}), request(2, status={"phase": "Failed"})) == KEY


def test_the_binder_does_not_wake_itself_by_a_status() -> None:
    assert keys(request(), request(status={"phase": "Failed", "failedAttempts": 1})) == []
    assert keys(request(status={"phase": "Failed"}), request(status={"phase": "Succeeded"})) == []


def test_labels_and_annotations_are_nobodys_business() -> None:
    assert keys(request(), request(labels={"a": "b"}, annotations={"c": "d"}, resourceVersion="9")) == []


def test_a_request_in_deletion_is_looked_at() -> None:
    assert keys(request(), request(deletionTimestamp="2026-01-01T00:00:00Z")) == KEY


def test_without_generations_only_new_and_gone_ones_count() -> None:
    assert keys(None, request(None)) == KEY
    assert keys(request(None), request(None, status={"phase": "Failed"})) == []
    assert keys(request(None), None) == KEY


def test_a_request_made_anew_comes_as_gone_and_new() -> None:
    # The cache splits it: the generation of both is 1, so together they would look unchanged.
    old, new = request(uid="u1"), request(uid="u2")
    assert keys(old, None) + keys(None, new) == KEY * 2
