"""Whether a binder leads: a Lease may be left over, and clocks differ."""

from typing import Any

import pytest

from controller.explain.answer import Answer
from controller.explain.reads import Read
from tests.unit.explain.objects import answer, condition, failed, pod, reasons, request

LONG_AGO, NOW = "2026-01-01T11:00:00.5Z", "2026-01-01T11:59:50.123456Z"
TOUCHED = failed(condition("Bound", "False", "NodeGone"))


def lease(holder: str | None, renewed: str | None) -> Read:
    return Read(({"metadata": {"name": "x"}, "spec": {"holderIdentity": holder, "renewTime": renewed}},))


def told(status: dict[str, Any] | None, holder: str | None, renewed: str | None = None) -> Answer:
    item = request(status, backoffLimit=5)
    return answer(item, pod(), lease=lease(holder, renewed))


def test_a_binder_that_leads() -> None:
    found = told(None, "a", NOW)
    assert (found.leader.leads, found.leader.text) == (True, "a leads")
    assert reasons(found) == ["NotTakenUp"]


@pytest.mark.parametrize(("holder", "renewed"), [("a", LONG_AGO), ("a", None), ("", NOW), (None, None)])
def test_nobody_leads_if_nothing_was_written_either(holder: str | None, renewed: str | None) -> None:
    found = told(None, holder, renewed)
    assert found.leader.leads is False
    assert found.leader.text.startswith("nobody leads, or ")
    assert reasons(found) == ["NoLeader"]


def test_a_lease_that_is_left_over_beside_a_binder_that_works() -> None:
    found = told(TOUCHED, "a", LONG_AGO)
    assert found.leader.leads is None
    assert found.leader.text == (
        "cannot tell: a has not renewed the Lease since 2026-01-01T11:00:00Z; "
        "without --leader-elect that means nothing"
    )
    assert reasons(found) == ["NodeGone"]
    free = told(TOUCHED, "")
    assert free.leader.leads is None
    assert free.leader.text == "cannot tell: the Lease is free; without --leader-elect that means nothing"


def test_a_request_that_is_new_proves_nothing() -> None:
    item = request(backoffLimit=5)
    item["metadata"]["creationTimestamp"] = "2026-01-01T11:59:55Z"
    found = answer(item, pod(), lease=lease("a", LONG_AGO))
    assert found.leader.leads is None
    assert reasons(found) == []


def test_no_request_proves_nothing() -> None:
    assert answer(None, pod(), lease=lease("a", LONG_AGO)).leader.leads is None


@pytest.mark.parametrize(("renewed", "leads"), [("11:58:46", True), ("11:58:44", False)])
def test_clocks_may_differ_by_a_minute(renewed: str, *, leads: bool) -> None:
    assert told(None, "a", f"2026-01-01T{renewed}Z").leader.leads is leads
