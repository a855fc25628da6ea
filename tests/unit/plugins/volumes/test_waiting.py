"""What ends the wait for a volume, judged object by object."""

import pytest

from controller.kai.outcome import Failed, Ready
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.plugins.volumes.attempt import Holds
from controller.plugins.volumes.matching import SELECTED_NODE, Claim
from controller.plugins.volumes.waiting import Leg, judge_claim, judge_pod, judge_request, judge_volume
from controller.runtime.client import Object

NODE: Object = {"metadata": {"name": "n1", "labels": {"zone": "a"}}}
REQUEST = BindRequest(namespace="ns", name="a", uid="request", owner_uid="pod", pod_name="a", node_name="n1")
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def claim(node: str = "n1", uid: str = "claim", volume: str = "", **metadata: object) -> Object:
    annotations = {SELECTED_NODE: node} if node else {}
    if volume:
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    whole = {"name": "data", "namespace": "ns", "uid": uid, "annotations": annotations, **metadata}
    return {"metadata": whole, "spec": {"storageClassName": "c", "volumeName": volume}}


def volume(uid: str = "volume", owner: str | None = "claim", zone: str = "a", **metadata: object) -> Object:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    spec: Object = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    if owner is not None:
        spec["claimRef"] = {"namespace": "ns", "name": "data", "uid": owner}
    return {"metadata": {"name": "v", "uid": uid, **metadata}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (claim(), None),
        (claim(volume="v"), Reason.RECONCILED),
        (None, Reason.CLAIM_NOT_FOUND),
        (claim(uid="another"), Reason.CLAIM_REPLACED),
        (claim(**DELETED), Reason.CLAIM_TERMINATING),
        (claim(volume="v", **DELETED), Reason.CLAIM_TERMINATING),
        (claim(node=""), Reason.PROVISIONING_REFUSED),
        (claim(node="n2"), Reason.PROVISIONING_REFUSED),
        (claim(node="", volume="v"), Reason.RECONCILED),
    ],
)
def test_a_claim_that_is_to_be_provisioned(found: Object | None, reason: Reason | None) -> None:
    verdict = judge_claim(Leg(Claim(claim()), provisioner="p"), found, "n1")
    match verdict:
        case Failed():
            assert verdict.reason == reason
            assert "ns/data" in verdict.message
        case Ready():
            assert reason == Reason.RECONCILED
        case None:
            assert reason is None


def test_a_claim_with_a_volume_needs_no_selected_node() -> None:
    assert judge_claim(Leg(Claim(claim(node="")), volume()), claim(node=""), "n1") is None


def test_what_was_last_seen_of_a_claim_is_kept_but_not_of_its_successor() -> None:
    leg = Leg(Claim(claim()), provisioner="p")
    judge_claim(leg, claim(node=""), "n1")
    assert (leg.claim.selected_node, leg.lost) == ("", False)
    judge_claim(leg, claim(uid="another"), "n1")
    assert (leg.claim.uid, leg.lost) == ("claim", True)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (volume(), None),
        (None, Reason.VOLUME_NOT_FOUND),
        (volume(uid="another"), Reason.VOLUME_NOT_FOUND),
        (volume(**DELETED), Reason.VOLUME_NOT_FOUND),
        (volume(owner=None), Reason.VOLUME_TAKEN),
        (volume(owner=""), Reason.VOLUME_TAKEN),
        (volume(owner="another"), Reason.VOLUME_TAKEN),
        (volume(zone="b"), Reason.VOLUME_UNREACHABLE),
    ],
)
def test_a_chosen_volume(found: Object | None, reason: Reason | None) -> None:
    verdict = judge_volume(Leg(Claim(claim()), volume()), found, NODE)
    assert (verdict and verdict.reason) == reason
    assert verdict is None or ("volume v" in verdict.message and "ns/data" in verdict.message)


def pod(uid: str = "pod", node: str = "", phase: str = "Pending", **metadata: object) -> Object:
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"name": "a", "uid": uid, **metadata}, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pod(), None),
        (pod(node="n1"), None),
        (None, Reason.POD_NOT_FOUND),
        (pod(uid="another"), Reason.POD_REPLACED),
        (pod(**DELETED), Reason.POD_TERMINATING),
        (pod(phase="Failed"), Reason.POD_FINISHED),
        (pod(node="n2"), Reason.ALREADY_BOUND_ELSEWHERE),
    ],
)
def test_a_pod_that_waits(found: Object | None, reason: Reason | None) -> None:
    verdict = judge_pod(REQUEST, pod(), found)
    assert (verdict and verdict.reason) == reason
    assert verdict is None or not verdict.retry


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        ({"metadata": {"uid": "request"}}, False),
        (None, True),
        ({"metadata": {"uid": "another"}}, True),
        ({"metadata": {"uid": "request", **DELETED}}, True),
    ],
)
def test_a_request_that_waits(found: Object | None, gone: bool) -> None:
    verdict = judge_request(REQUEST, found)
    assert (verdict is not None) is gone


def test_holds_are_shared_by_those_of_one_purpose_until_the_last_lets_go() -> None:
    holds = Holds()
    assert holds.take("v", "claim")
    assert holds.take("v", "claim")
    assert not holds.take("v", "another")
    holds.release("v")
    assert not holds.take("v", "another")
    holds.release("v")
    assert holds.purposes == {}
    assert holds.take("v", "another")
