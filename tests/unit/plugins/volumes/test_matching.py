"""Which volume can serve which claim on which node."""

from fractions import Fraction

import pytest

from controller.kai.quantity import quantity
from controller.kai.selectors import label_selected, node_affinity_text, node_allowed, topology_allowed
from controller.plugins.volumes.matching import Claim, capacity_suffices, choose, obstacle, tied_to
from controller.runtime.client import Object

NODE: Object = {
    "metadata": {
        "name": "n1",
        "labels": {"kubernetes.io/hostname": "n1", "zone": "a", "cores": "8", "bad": "eight"},
    }
}


def volume(name: str = "v", **changes: object) -> Object:
    """A volume of class `c`; changes of its spec, `labels`, `phase` and `deleted`."""
    metadata: Object = {"name": name, "uid": name, "labels": changes.pop("labels", {})}
    if changes.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    phase = changes.pop("phase", "Available")
    spec = {"storageClassName": "c", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    return {"metadata": metadata, "spec": {**spec, **changes}, "status": {"phase": phase}}


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
    return Claim({"metadata": metadata, "spec": {**spec, "resources": resources, **changes}})


def affinity(*terms: Object) -> Object:
    return {"required": {"nodeSelectorTerms": list(terms)}}


def label(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


# Quantities.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", 2**30),
        ("0.5Gi", 2**29),
        ("1.5Ki", 1536),
        ("500M", 500_000_000),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("2.5e-1", Fraction(1, 4)),
        ("12", 12),
        (12, 12),
        ("1k", 1000),
        ("3n", Fraction(3, 10**9)),
        ("3u", Fraction(3, 10**6)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+1Mi", 2**20),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_quantity_is_exact(text: object, value: object) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1K", "1gi", "1ee3", "1e", "1e3Gi", "one", "1e1000", "."])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|range"):
        quantity(text)


# Node affinity.


@pytest.mark.parametrize(
    ("term", "allowed"),
    [
        (label("zone", "In", "a", "b"), True),
        (label("zone", "In", "b"), False),
        (label("none", "In", "a"), False),
        (label("zone", "NotIn", "b"), True),
        (label("zone", "NotIn", "a"), False),
        (label("none", "NotIn", "a"), True),
        (label("zone", "Exists"), True),
        (label("none", "Exists"), False),
        (label("none", "DoesNotExist"), True),
        (label("zone", "DoesNotExist"), False),
        (label("cores", "Gt", "7"), True),
        (label("cores", "Gt", "8"), False),
        (label("cores", "Lt", "9"), True),
        (label("cores", "Lt", "8"), False),
        (label("bad", "Gt", "7"), False),
        (label("cores", "Gt", "seven"), False),
        (label("none", "Lt", "7"), False),
        (label("cores", "Gt"), False),
        (label("zone", "Like", "a"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}, False),
        (
            {**label("zone", "In", "b"), "matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
            False,
        ),
        ({}, False),
    ],
)
def test_a_term_of_node_affinity(term: Object, allowed: bool) -> None:
    assert node_allowed(volume(nodeAffinity=affinity(term)), NODE) is allowed


def test_any_term_is_enough_and_all_of_its_requirements_count() -> None:
    both = {
        "matchExpressions": label("zone", "In", "a")["matchExpressions"]
        + label("cores", "Lt", "4")["matchExpressions"]
    }
    assert not node_allowed(volume(nodeAffinity=affinity(both)), NODE)
    assert node_allowed(volume(nodeAffinity=affinity(both, label("zone", "In", "a"))), NODE)


def test_no_affinity_allows_all_and_no_term_allows_none() -> None:
    assert node_allowed(volume(), NODE)
    assert not node_allowed(volume(nodeAffinity=affinity()), NODE)


def test_an_affinity_can_be_read() -> None:
    terms = affinity(label("zone", "In", "a", "b"), label("ssd", "Exists"))
    assert node_affinity_text(volume(nodeAffinity=terms)) == "zone In a,b or ssd Exists"
    assert node_affinity_text(volume()) == ""


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
    assert obstacle({**tied, "spec": {**tied["spec"], "capacity": {}}}, claim(), NODE) == "too small"


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
    assert tied_to(volume(claimRef=reference), claim()) is tied


def test_the_class_may_stand_in_the_old_annotation() -> None:
    old = claim(annotations={"volume.beta.kubernetes.io/storage-class": "old"})
    assert old.class_name == "old"


# The choice.


def test_the_smallest_that_fits_is_chosen_by_exact_size() -> None:
    volumes = [
        volume("big", capacity={"storage": "3Gi"}),
        volume("small", capacity={"storage": "1000M"}),
        volume("right", capacity={"storage": "1074M"}),  # a little more than 1Gi
        volume("more", capacity={"storage": "1.1Gi"}),
    ]
    chosen = choose(volumes, claim(), NODE, {})
    assert not isinstance(chosen, str)
    assert chosen["metadata"]["name"] == "right"


def test_equals_are_chosen_by_name_in_whatever_order_they_are_listed() -> None:
    volumes = [volume("b"), volume("a"), volume("c")]
    chosen = choose(volumes, claim(), NODE, {})
    assert not isinstance(chosen, str)
    assert chosen["metadata"]["name"] == "a"


def test_other_classes_do_not_count_and_what_does_not_fit_is_summed_up() -> None:
    volumes = [
        volume("other", storageClassName="d"),
        volume("mine", claimRef={"namespace": "ns", "name": "other"}),
        volume("promised"),
        volume("tiny", capacity={"storage": "1Mi"}),
        volume("far", nodeAffinity=affinity(label("zone", "In", "b"))),
    ]
    text = "2 are taken, 1 is too small, 1 is not usable on the node"
    assert choose(volumes, claim(), NODE, {"promised": "another claim"}) == text
    assert choose([], claim(), NODE, {}) == "there is none"


def test_a_volume_that_is_promised_to_this_claim_is_taken_even_if_it_is_not_the_smallest() -> None:
    volumes = [volume("a"), volume("b", capacity={"storage": "9Gi"})]
    chosen = choose(volumes, claim(), NODE, {"b": "claim"})
    assert not isinstance(chosen, str)
    assert chosen["metadata"]["name"] == "b"


# Provisioning.


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([], True),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}], True),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}], False),
        ([{"matchLabelExpressions": [{"key": "none", "values": ["a"]}]}], False),
        (
            [
                {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]},
                {"matchLabelExpressions": [{"key": "cores", "values": ["8"]}]},
            ],
            True,
        ),
        (
            [
                {
                    "matchLabelExpressions": [
                        {"key": "zone", "values": ["a"]},
                        {"key": "cores", "values": ["4"]},
                    ]
                }
            ],
            False,
        ),
        ([{}], False),
    ],
)
def test_allowed_topologies(terms: list[Object], allowed: bool) -> None:
    assert topology_allowed({"allowedTopologies": terms}, NODE) is allowed


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
    assert capacity_suffices(capacity, claim(), NODE) is suffices


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "1", "b": "1"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
    ],
)
def test_label_selectors(selector: Object | None, selected: bool) -> None:
    assert label_selected(selector, {"a": "1"}) is selected
