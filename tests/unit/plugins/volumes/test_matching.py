"""Which volume can serve which claim on which node."""

from collections import Counter

import pytest

from controller.plugins.volumes.matching import Capacity, choose, obstacle, sum_up
from controller.plugins.volumes.model import Claim, Place, Volume
from controller.runtime.client import Object

NODE = Place(
    {
        "metadata": {
            "name": "n1",
            "labels": {"kubernetes.io/hostname": "n1", "zone": "a", "cores": "8", "bad": "eight"},
        }
    }
)


def volume(name: str = "v", **changes: object) -> Volume:
    """A volume of class `c`; changes of its spec, `labels`, `phase` and `deleted`."""
    metadata: Object = {"name": name, "uid": name, "labels": changes.pop("labels", {})}
    if changes.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    phase = changes.pop("phase", "Available")
    spec = {"storageClassName": "c", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    return Volume.of({"metadata": metadata, "spec": {**spec, **changes}, "status": {"phase": phase}})


def claim(**changes: object) -> Claim:
    """A claim of class `c`; changes of its spec, `size` and `annotations`."""
    metadata = {
        "name": "data",
        "namespace": "ns",
        "uid": "claim",
        "annotations": changes.pop("annotations", {}),
    }
    size = changes.pop("size", "1Gi")
    spec = {"storageClassName": "c", "accessModes": ["ReadWriteOnce"]}
    resources = {"requests": {"storage": size}}
    return Claim.of({"metadata": metadata, "spec": {**spec, "resources": resources, **changes}})


def affinity(*terms: Object) -> Object:
    return {"required": {"nodeSelectorTerms": list(terms)}}


def label(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


# A volume and a claim.


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"deleted": True}, "being deleted"),
        ({"capacity": {"storage": "1023Mi"}}, "too small"),
        ({"capacity": {}}, "too small"),
        ({"volumeMode": "Block"}, "of another volume mode"),
        ({"volumeMode": "Filesystem"}, None),
        ({"volumeAttributesClassName": "gold"}, "of another volume attributes class"),
        ({"nodeAffinity": affinity(label("zone", "In", "b"))}, "not usable on the node"),
        ({"phase": "Released"}, "not available"),
        ({"phase": "Pending"}, "not available"),
        ({"accessModes": ["ReadWriteMany"]}, "without the access modes"),
        ({"accessModes": ["ReadWriteMany", "ReadWriteOnce"]}, None),
    ],
)
def test_what_keeps_a_volume_from_a_claim(changes: Object, problem: str | None) -> None:
    assert obstacle(volume(**changes), claim(), NODE) == problem


def test_the_selector_of_the_claim_counts() -> None:
    wanted = claim(selector={"matchLabels": {"kind": "fast"}})
    assert obstacle(volume(), wanted, NODE) == "not selected by the claim"
    assert obstacle(volume(labels={"kind": "fast"}), wanted, NODE) is None


def test_a_volume_attributes_class_has_to_be_the_same() -> None:
    wanted = claim(volumeAttributesClassName="gold")
    assert obstacle(volume(volumeAttributesClassName="gold"), wanted, NODE) is None
    assert obstacle(volume(), wanted, NODE) == "of another volume attributes class"


def test_a_tied_volume_has_only_to_be_large_enough_and_in_reach() -> None:
    reference = {"namespace": "ns", "name": "data"}
    tied = volume(claimRef=reference, phase="Bound", accessModes=["ReadOnlyMany"])
    assert obstacle(tied, claim(), NODE) is None
    small = volume(claimRef=reference, capacity={})
    assert obstacle(small, claim(), NODE) == "too small"


@pytest.mark.parametrize(
    ("reference", "tied"),
    [
        (None, False),
        ({"namespace": "ns", "name": "data"}, True),
        ({"namespace": "ns", "name": "data", "uid": ""}, True),
        ({"namespace": "ns", "name": "data", "uid": "claim"}, True),
        ({"namespace": "ns", "name": "data", "uid": "former"}, False),
        ({"namespace": "other", "name": "data"}, False),
        ({"namespace": "ns", "name": "other"}, False),
    ],
)
def test_a_claim_ref_ties_a_volume(reference: Object | None, tied: bool) -> None:
    assert volume(claimRef=reference).tied_to(claim()) is tied


def test_the_class_may_stand_in_the_old_annotation() -> None:
    old = claim(annotations={"volume.beta.kubernetes.io/storage-class": "old"})
    assert old.class_name == "old"


def test_f_12_an_empty_annotation_wins_over_the_field() -> None:
    """F-12: as GetPersistentVolumeClaimClass has it."""
    empty = {"volume.beta.kubernetes.io/storage-class": ""}
    assert claim(annotations=empty).class_name == ""
    item = {"metadata": {"name": "v", "annotations": empty}, "spec": {"storageClassName": "c"}}
    assert Volume.of(item).class_name == ""


# The choice.


def test_the_smallest_that_fits_is_chosen_by_exact_size() -> None:
    volumes = [
        volume("big", capacity={"storage": "3Gi"}),
        volume("small", capacity={"storage": "1000M"}),
        volume("right", capacity={"storage": "1074M"}),  # a little more than 1Gi
        volume("more", capacity={"storage": "1.1Gi"}),
    ]
    chosen = choose(volumes, claim(), NODE, {})
    assert isinstance(chosen, Volume)
    assert chosen.name == "right"


def test_equals_are_chosen_by_name_in_whatever_order_they_are_listed() -> None:
    volumes = [volume("b"), volume("a"), volume("c")]
    chosen = choose(volumes, claim(), NODE, {})
    assert isinstance(chosen, Volume)
    assert chosen.name == "a"


def test_what_does_not_fit_is_summed_up() -> None:
    volumes = [
        volume("promised"),
        volume("tiny", capacity={"storage": "1Mi"}),
        volume("far", nodeAffinity=affinity(label("zone", "In", "b"))),
    ]
    problems = choose(volumes, claim(), NODE, {"promised": "another claim"})
    assert isinstance(problems, Counter)
    problems["taken"] += 1
    assert sum_up(problems) == "2 are taken, 1 is too small, 1 is not usable on the node"
    assert choose([], claim(), NODE, {}) == Counter()
    assert sum_up(Counter({"taken": 0})) == "there is none"


def test_a_volume_that_is_promised_to_this_claim_is_taken_even_if_it_is_not_the_smallest() -> None:
    volumes = [volume("a"), volume("b", capacity={"storage": "9Gi"})]
    chosen = choose(volumes, claim(), NODE, {"b": "claim"})
    assert isinstance(chosen, Volume)
    assert chosen.name == "b"


# Provisioning.


@pytest.mark.parametrize(
    ("changes", "suffices"),
    [
        ({"capacity": "1Gi"}, True),
        ({"capacity": "1023Mi"}, False),
        ({"capacity": "10Gi", "maximumVolumeSize": "512Mi"}, False),
        ({"capacity": "512Mi", "maximumVolumeSize": "1Gi"}, True),
        ({}, False),
        ({"capacity": "1Gi", "nodeTopology": None}, False),
        ({"capacity": "1Gi", "nodeTopology": {"matchLabels": {"zone": "b"}}}, False),
        ({"capacity": "1Gi", "storageClassName": "d"}, False),
    ],
)
def test_storage_capacity(changes: Object, suffices: bool) -> None:
    capacity = {"storageClassName": "c", "nodeTopology": {"matchLabels": {"zone": "a"}}, **changes}
    assert Capacity.of(capacity).suffices(claim(), NODE) is suffices
