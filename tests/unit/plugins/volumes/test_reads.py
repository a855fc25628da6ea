"""What is kept of a list of volumes."""

import sys

import pytest

from controller.plugins.volumes.model import Claim, Volume
from controller.plugins.volumes.reads import VolumeList
from controller.runtime.client import Object


def volume(name: str, phase: str = "Available", claim: Object | None = None, of_class: str = "c") -> Object:
    spec: Object = {"storageClassName": of_class, "capacity": {"storage": "1Gi"}}
    if claim is not None:
        spec["claimRef"] = claim
    return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"phase": phase}}


def claim(name: str = "data", uid: str = "u") -> Claim:
    return Claim.of({"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {}})


REFERENCE: Object = {"namespace": "ns", "name": "data", "uid": "u"}


def listed(*items: Object) -> VolumeList:
    made = VolumeList()
    for item in items:
        made.add(item)
    return made


def names(volumes: VolumeList, of_class: str = "c") -> list[str]:
    return sorted(found.name for found in volumes.free(of_class))


def test_f_02_of_those_that_are_bound_only_the_name_is_kept() -> None:
    """F-2: of a claim that does not know yet that it is bound, the volume can be found."""
    made = listed(volume("a"), volume("b", "Bound", REFERENCE), volume("other", of_class="d"))
    assert (names(made), names(made, "d"), names(made, "none")) == (["a"], ["other"], [])
    assert (made.claimed("c"), made.claimed("d"), made.claimed("none")) == (1, 0, 0)
    assert made.kept_for(claim()) == []
    assert made.bound_to(claim()) == "b"
    assert made.bound_to(claim(uid="successor")) == ""


@pytest.mark.parametrize(
    ("reference", "phase", "kept"),
    [
        (REFERENCE, "Available", True),
        (REFERENCE, "Pending", True),
        ({**REFERENCE, "uid": ""}, "Available", True),
        ({"namespace": "ns", "name": "data"}, "Released", True),
        ({**REFERENCE, "uid": "former"}, "Available", False),
        (REFERENCE, "Released", False),
        ({"name": "data"}, "Available", False),
        ({}, "Available", False),
    ],
)
def test_those_that_are_kept_for_a_claim_are_found(reference: Object, phase: str, kept: bool) -> None:
    made = listed(volume("a", phase, reference))
    assert [found.name for found in made.kept_for(claim())] == (["a"] if kept else [])
    assert (names(made), made.claimed("c")) == ([], 1)


def test_what_we_took_is_free_no_more() -> None:
    made = listed(volume("a"), volume("b"))
    made.take(Volume.of(volume("a", "Available", REFERENCE)))
    assert (names(made), made.claimed("c")) == (["b"], 1)
    assert [found.name for found in made.kept_for(claim())] == ["a"]


def test_f_12_what_comes_twice_counts_once_as_it_was_last() -> None:
    """F-12: as from a list that began anew."""
    made = listed(volume("a"), volume("b", "Bound", REFERENCE), volume("a", "Bound", REFERENCE), volume("b"))
    assert (names(made), made.claimed("c")) == (["b"], 1)


def test_f_02_what_volumes_have_in_common_is_kept_once() -> None:
    """F-2: ten thousand free volumes of five hundred nodes."""
    made = VolumeList()
    for number in range(2000):
        item = volume(f"v{number}")
        where = {"key": "host", "operator": "In", "values": [f"n{number % 50}"]}
        item["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}
        item["spec"]["accessModes"] = ["ReadWriteOnce"]
        made.add(item)
    found = list(made.free("c"))
    assert len({id(one.affinity) for one in found}) == 50
    assert len({id(one.access_modes) for one in found} | {id(one.size) for one in found}) == 2
    assert sys.getsizeof(found[0]) < 200
