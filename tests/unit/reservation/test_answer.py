"""What a reservation pod says of its device, and what its status says if it says nothing."""

import pytest

from controller.kai.outcome import Failed
from controller.reservation.answer import answer_of, hindrances_of
from controller.reservation.manifest import device_of
from controller.runtime.client import Object


def reservation(
    device: str | None = None, *, uid: str = "u", phase: str = "Running", **more: object
) -> Object:
    annotations = {} if device is None else {"run.ai/reserve_for_gpu_index": device}
    metadata = {"name": "r", "namespace": "kai", "uid": uid, "annotations": annotations, **more}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase}}


@pytest.mark.parametrize("device", ["0", "17", "GPU-5b1d9e6a-0b0c", "MIG-GPU-5b/1/0", "0:1", "a" * 128])
def test_a_device(device: str) -> None:
    assert device_of(reservation(device)) == device


@pytest.mark.parametrize("device", [None, ""])
def test_nothing_said_yet(device: str | None) -> None:
    assert device_of(reservation(device)) is None


@pytest.mark.parametrize(
    "device",
    ["5,6", " 3 ", "3\n", "all", "ALL", "none", "void", "-1", "a b", "\u0663", "a=b", "a" * 129, "/dev/0"],
)
def test_no_device(device: str) -> None:
    """F-25."""
    answer = device_of(reservation(device))
    assert isinstance(answer, Failed)
    assert answer.reason == "ReservationFailed"
    assert answer.message.startswith(f"reservation pod kai/r reports {repr(device)[:4]}")
    assert answer.message.endswith(", which is not one device")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "was deleted"),
        (reservation("0", uid="other"), "was replaced"),
        (reservation("0", deletionTimestamp="2026-01-01T00:00:00Z"), "is being deleted"),
        (reservation("0", phase="Failed"), "ended with phase Failed"),
        (reservation("0", phase="Succeeded"), "ended with phase Succeeded"),
    ],
)
def test_a_reservation_that_will_never_answer(found: Object | None, text: str) -> None:
    answer = answer_of(found, reservation())
    assert isinstance(answer, Failed)
    assert answer.message == f"reservation pod kai/r {text}"


def test_one_that_may_answer_yet() -> None:
    assert answer_of(reservation(), reservation()) is None
    assert answer_of(reservation("7"), reservation()) == "7"


def test_a_status_that_says_nothing() -> None:
    for status in (
        {},
        {"phase": "Pending"},
        {"containerStatuses": [{"name": "c", "state": {"running": {}}}]},
    ):
        assert hindrances_of({"status": status}) == ""
    assert hindrances_of({}) == ""


def test_what_a_status_says_is_one_line_and_not_endless() -> None:
    """F-24."""
    waiting = {"reason": "ErrImagePull", "message": "a\nb  c " + "x" * 999}
    text = hindrances_of({"status": {"containerStatuses": [{"name": "c", "state": {"waiting": waiting}}]}})
    assert text.startswith("container c: ErrImagePull: a b c xxx")
    assert text.endswith("x…")
    assert len(text) < 250
