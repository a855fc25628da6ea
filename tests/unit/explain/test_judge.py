"""What is made of requests and pods, odd ones too; nothing is read here."""

import pytest

from controller.explain.answer import Verdict
from controller.explain.reads import Read
from controller.kai.reasons import Reason
from tests.unit.explain.objects import (
    answer,
    condition,
    failed,
    pod,
    reasons,
    request,
    reservation,
    shared,
    state,
    text,
)

FAILED = failed(
    condition("GPUSharing", "False", "InvalidPortion"), condition("Bound", "False", "InvalidPortion")
)
FORBIDDEN = Read(problem="may not read pods team/train: no")


def waits(step: str, what: str) -> dict[str, object]:
    conditions = [condition(step, "Unknown", "Waiting", what), condition("Bound", "Unknown", "Waiting", what)]
    return {"observedGeneration": 1, "conditions": conditions}


def test_a_pod_that_is_bound() -> None:
    found = answer(request({"phase": "Succeeded"}), pod({"phase": "Running"}, nodeName="gpu-1"))
    assert found.verdict is Verdict.BOUND
    assert found.summary == "pod team/train is bound to gpu-1."
    assert reasons(found) == []
    assert found.then == ""


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("ErrImagePull", "Image"),
        ("CreateContainerConfigError", "ContainerConfig"),
        ("CrashLoopBackOff", "Crashing"),
    ],
)
def test_a_pod_that_is_bound_and_does_not_run(reason: str, word: str) -> None:
    found = answer(request({"phase": "Succeeded"}), pod(state(reason), nodeName="gpu-1"))
    assert found.verdict is Verdict.BOUND
    assert found.summary.endswith("is bound to gpu-1, and is not running yet.")
    assert reasons(found) == [word]
    assert found.pod.lines == (f"container main: {reason}: words",)


def test_a_pod_that_another_binder_put_elsewhere() -> None:
    found = answer(request(FAILED), pod(nodeName="gpu-2"))
    assert found.verdict is Verdict.BOUND
    assert found.summary == "pod team/train is on gpu-2, not on gpu-1 as its BindRequest wants."


def test_the_reason_of_the_whole_is_not_told_twice() -> None:
    found = answer(request(FAILED), pod())
    assert reasons(found) == ["InvalidPortion"]
    assert found.advice[0].about == "GPUSharing"
    assert "To hurry it: kubectl delete bindrequest train -n team" in found.then


def test_an_attempt_that_comes_again() -> None:
    item = request(failed(condition("Bound", "False", "NodeGone"), attempts=3), backoffLimit=5)
    item["metadata"]["managedFields"] = [
        {"subresource": "status", "time": "2026-01-01T11:59:59Z"},
        {"subresource": "status", "time": "2026-01-01T11:50:00Z"},
        {"time": "2026-01-01T12:30:00Z"},
    ]
    attempts = answer(item, pod()).attempts
    assert attempts is not None
    assert attempts.next_in_s == 3.0
    assert attempts.text == (
        "3 failed of 5 allowed; the next comes 4 s after the last one, in about 3 s "
        "(by the binder's default delays)"
    )
    del item["metadata"]["managedFields"]
    unknown = answer(item, pod()).attempts
    assert unknown is not None
    assert unknown.next_in_s is None
    assert unknown.text.endswith("the next comes 4 s after the last one (by the binder's default delays)")


def test_an_attempt_whose_time_has_come() -> None:
    item = request(failed(condition("Bound", "False", "NodeGone")), backoffLimit=5)
    item["metadata"]["managedFields"] = [{"subresource": "status", "time": "2026-01-01T11:00:00Z"}]
    attempts = answer(item, pod()).attempts
    assert attempts is not None
    assert "so it should be under way" in attempts.text


def test_a_failure_that_is_final_counts_as_all_attempts() -> None:
    """The binder sets failedAttempts to the limit then: so many attempts there were not."""
    attempts = answer(request({**FAILED, "failedAttempts": 8}, backoffLimit=8), pod()).attempts
    assert attempts is not None
    assert attempts.is_over
    assert attempts.text == (
        "no further attempt comes for this request: InvalidPortion is final, however many are allowed"
    )
    other = failed(condition("Bound", "False", "PodNotFound"), attempts=8)
    used_up = answer(request(other, backoffLimit=8), pod()).attempts
    assert used_up is not None
    assert used_up.text.startswith("8 failed of 8 allowed; no further attempt")


def test_a_spec_that_was_changed_since() -> None:
    item = request(FAILED)
    item["metadata"]["generation"] = 2
    found = answer(item, pod())
    assert found.attempts is not None
    assert "tried anew at once" in found.attempts.text
    assert all(step.is_stale for step in found.steps)
    assert "(of an earlier spec)" in text(found)


def test_a_crd_that_drops_conditions() -> None:
    status = {"phase": "Failed", "failedAttempts": 1, "reason": "GPUReserved ReservationTimeout: not in time"}
    found = answer(shared(status), pod())
    assert reasons(found) == [Reason.RESERVATION_TIMEOUT]
    assert "has no conditions" in found.notes[0]
    assert "reason: GPUReserved ReservationTimeout: not in time" in text(found)


def test_a_status_of_kais_own_binder() -> None:
    found = answer(request({"phase": "Failed", "failedAttempts": 1, "reason": "pods gone"}), pod())
    assert found.summary == "pod team/train is not bound: the last attempt has failed."
    assert [advice.about for advice in found.advice] == ["status.reason"]


def test_a_request_without_status() -> None:
    found = answer(request(), pod())
    assert found.summary.endswith("the binder has not said anything of the request yet.")
    assert reasons(found) == ["NotTakenUp"]


def test_a_request_that_succeeded_of_a_pod_without_a_node() -> None:
    item = request({"phase": "Succeeded", "conditions": [condition("Bound", "True", "Reconciled")]})
    found = answer(item, pod())
    assert found.verdict is Verdict.NOT_BOUND
    assert found.summary == "pod team/train has no node, though its BindRequest says that it was bound."
    assert reasons(found) == ["SucceededUnbound"]
    assert "delete" not in found.then + " ".join(found.advice[0].steps)


def test_a_request_that_is_being_deleted() -> None:
    item = request(FAILED)
    item["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:59Z"
    found = answer(item, pod())
    assert reasons(found) == ["RequestDeleting"]
    assert found.notes[0] == "The request is being deleted."


def test_conditions_of_others_are_shown_and_not_followed() -> None:
    others = condition("example.com/Audited", "False", "NotYet")
    found = answer(request(failed(others, condition("Bound", "False", "NodeGone"))), pod())
    assert reasons(found) == ["NodeGone"]
    assert "example.com/Audited: False NotYet, for 60 s (not the binder's)" in text(found)


def test_a_status_that_makes_no_sense() -> None:
    status = {"phase": 7, "failedAttempts": "x", "reason": [], "conditions": ["x", {"type": 3}, {}, None]}
    assert "is not bound" in text(answer(request(status), pod()))
    assert "is not bound" in text(answer({**request(), "status": "x"}, pod()))


def test_a_spec_that_makes_no_sense() -> None:
    found = answer(request(selectedNode=None, receivedGPU="x"), pod())
    assert "spec.selectedNode is empty" in found.notes[0]
    assert "spec.receivedGPU is 'x'" in found.notes[0]
    assert "is not bound" in text(answer({**request(), "spec": None}, pod()))


def test_a_pod_of_another_scheduler() -> None:
    found = answer(None, pod(schedulerName="default-scheduler"))
    assert reasons(found) == ["OtherScheduler"]


def test_a_pod_that_the_scheduler_has_not_decided_on() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
    found = answer(None, pod({"conditions": [said]}))
    assert found.summary == "pod team/train is not bound: the scheduler has not decided where it is to go."
    assert found.pod.lines == ("PodScheduled False: Unschedulable: no node fits",)
    assert reasons(found) == ["NoRequest"]


def test_the_last_request_was_deleted_after_it_failed() -> None:
    regarding = {"kind": "BindRequest", "name": "train"}
    event = {"involvedObject": regarding, "type": "Warning", "reason": "NodeGone", "message": "gone"}
    found = answer(None, pod(), events=[event])
    assert reasons(found) == ["NodeGone", "NoRequest"]
    assert found.advice[0].about == "the last BindRequest, train"


def test_requests_that_may_not_be_read() -> None:
    found = answer(None, pod(), requests_problem="may not list bindrequests")
    assert found.summary == "pod team/train is not bound, and its BindRequest may not be read."
    assert reasons(found) == []


def test_a_pod_that_is_gone() -> None:
    found = answer(request(FAILED), None)
    assert found.summary == "pod team/train does not exist."
    assert reasons(found) == [Reason.POD_NOT_FOUND]
    was = answer(request({"phase": "Succeeded"}), None)
    assert was.verdict is Verdict.NOT_BOUND
    assert was.summary == "pod team/train does not exist. It was bound to gpu-1."


def test_a_pod_that_may_not_be_read() -> None:
    assert answer(request({"phase": "Succeeded"}), FORBIDDEN).verdict is Verdict.BOUND
    found = answer(request(FAILED), FORBIDDEN)
    assert found.verdict is Verdict.NOT_BOUND
    assert reasons(found) == ["InvalidPortion"]


def test_a_request_for_another_pod_of_the_name() -> None:
    found = answer(request({"phase": "Succeeded"}, uid="pod-0"), pod(nodeName="gpu-1"))
    assert found.verdict is Verdict.NOT_BOUND
    assert reasons(found) == [Reason.POD_REPLACED]


@pytest.mark.parametrize(
    ("phase", "reason"), [("Succeeded", Reason.POD_FINISHED), ("Failed", Reason.POD_FINISHED)]
)
def test_a_pod_that_has_ended(phase: str, reason: str) -> None:
    assert reasons(answer(request(FAILED), pod({"phase": phase}))) == [reason]


def test_several_requests_for_a_pod() -> None:
    found = answer(request(FAILED), pod(), beside=(request(name="train-old"),))
    assert found.requests == ("train-old",)
    assert reasons(found) == ["InvalidPortion", "RequestAside"]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("ImagePullBackOff", "ImageOfReservation"),
        ("CrashLoopBackOff", "StartOfReservation"),
        ("", "WaitingForReservation"),
    ],
)
def test_a_reservation_pod_that_does_not_start(reason: str, word: str) -> None:
    pods = Read((reservation(status=state(reason) if reason else {}),))
    found = answer(shared(waits("GPUReserved", "the pod")), pod(), reservations=pods)
    assert reasons(found) == [word]
    assert (
        "gpu-reservation-g -n kai-resource-reservation"
        in found.advice[0].steps[-1] + found.advice[0].steps[0]
    )
    assert found.then == "Then wait: the bind goes on by itself."
    group = found.decision.groups[0] if found.decision is not None else None
    assert group is not None
    assert group.image == "agent:1"


def test_a_group_and_its_others() -> None:
    others = (
        shared(None),
        {**shared({"phase": "Succeeded"}), "metadata": {"name": "b", "namespace": "x", "uid": "b"}},
    )
    pods = Read((reservation(device="GPU-1"),))
    found = answer(shared(None), pod(), reservations=pods, group_requests=Read(others))
    assert [(other.namespace, other.name, other.group) for other in found.others] == [("x", "b", "g")]
    assert "device GPU-1" in text(found)
    unknown = answer(shared(None), pod(), reservations=Read(problem="may not list pods"))
    assert "its reservation may not be read" in text(unknown)


@pytest.mark.parametrize(
    ("step", "word"),
    [("VolumeBinding", "WaitingForVolume"), ("DynamicResources", "WaitingForDevices"), ("Mine", "Waiting")],
)
def test_what_is_waited_for(step: str, word: str) -> None:
    found = answer(request(waits(step, "claim team/data")), pod(), claims={"data": Read(), "other": Read()})
    assert reasons(found) == [word]
    assert found.summary == f"pod team/train is not bound: {step} waits."
    if word == "WaitingForVolume":
        assert found.advice[0].steps[0].endswith("kubectl describe pvc data -n team")


def test_events_that_say_the_same_are_one() -> None:
    base = {"involvedObject": {"kind": "Pod", "name": "train"}, "type": "Warning", "reason": "BindingError"}
    times = ("2026-01-01T11:58:00Z", "2026-01-01T11:59:30Z")
    same = [
        {**base, "message": "x", "lastTimestamp": when, "firstTimestamp": when, "count": 2} for when in times
    ]
    newer = {**base, "message": "y", "eventTime": "2026-01-01T11:59:50.5Z", "series": {"count": 3}}
    odd = {"message": None, "count": "x", "lastTimestamp": 4}
    found = answer(request(), pod(), events=[newer, *same, odd])
    assert [(event.message, event.count) for event in found.events] == [("", 1), ("x", 4), ("y", 3)]
    assert "BindingError (30 s ago, 4 times, Pod/train): x" in text(found)
