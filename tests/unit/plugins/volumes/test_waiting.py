"""What ends the wait for a volume, judged object by object."""

import pytest

from controller.kai.outcome import Failed, Ready
from controller.kai.reasons import Reason
from controller.plugins.volumes.leg import Leg
from controller.plugins.volumes.model import SELECTED_NODE, Claim, Place, Volume
from controller.plugins.volumes.waiting import judge_claim, judge_volume
from controller.runtime.client import Object

NODE = Place({"metadata": {"name": "n1", "labels": {"zone": "a"}}})
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
    verdict = judge_claim(Leg(Claim.of(claim()), provisioner="p"), found, "n1")
    match verdict:
        case Failed():
            assert verdict.reason == reason
            assert "ns/data" in verdict.message
        case Ready():
            assert reason == Reason.RECONCILED
        case None:
            assert reason is None


def test_a_claim_with_a_volume_needs_no_selected_node() -> None:
    assert judge_claim(Leg(Claim.of(claim(node="")), Volume.of(volume())), claim(node=""), "n1") is None


def test_what_was_last_seen_of_a_claim_is_kept_but_not_of_its_successor() -> None:
    leg = Leg(Claim.of(claim()), provisioner="p")
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
    leg = Leg(Claim.of(claim()), Volume.of(volume()))
    verdict = judge_volume(leg, None if found is None else Volume.of(found), NODE)
    assert (verdict and verdict.reason) == reason
    assert verdict is None or ("volume v" in verdict.message and "ns/data" in verdict.message)
