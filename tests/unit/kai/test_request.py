"""BindRequest and its status as they are read: real ones, and whatever a loosened schema lets in."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kai.reasons import Phase
from controller.kai.request import (
    SPEC_FIELDS,
    BindRequest,
    BindStatus,
    ComputeMode,
    InvalidRequestError,
    is_over,
)
from controller.runtime.client import Object

DATA = Path(__file__).parents[2] / "data"
REAL: list[Object] = json.loads((DATA / "kai-bindrequests.json").read_text())["items"]

SPEC: Object = {"podName": "a", "selectedNode": "n"}
GARBAGE: tuple[Any, ...] = (None, True, 7, -1, 1.5, "text", [], [None], {}, {"a": 1})


def item(spec: object = SPEC, **metadata: object) -> Object:
    return {"metadata": {"namespace": "team", "name": "a", "uid": "u1", **metadata}, "spec": spec}


def problems(spec: object) -> list[str]:
    with pytest.raises(InvalidRequestError) as caught:
        BindRequest.parse(item(spec))
    return str(caught.value).split("; ")


def owner(**changes: object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "p1", **changes}


def test_there_are_seventeen_real_requests() -> None:
    assert len(REAL) == 17


@pytest.mark.parametrize("real", REAL, ids=lambda real: str(real["metadata"]["name"]))
def test_a_request_of_the_real_scheduler(real: Object) -> None:
    request = BindRequest.parse(real)

    metadata, spec = real["metadata"], real["spec"]
    assert (request.namespace, request.name, request.uid) == (
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
    )
    assert request.owner_uid == metadata["ownerReferences"][0]["uid"]
    assert (request.pod_name, request.node_name) == (spec["podName"], spec["selectedNode"])
    assert request.resource_type == spec["receivedResourceType"]
    assert request.is_fraction is (spec["receivedResourceType"] == "Fraction")
    assert request.gpu_portion == spec["receivedGPU"]["portion"]
    assert request.gpu_count == spec["receivedGPU"].get("count")
    assert request.gpu_groups == tuple(spec.get("selectedGPUGroups", ()))
    assert request.claim_allocations == tuple(spec.get("resourceClaimAllocations", ()))
    assert request.extended_claim == spec.get("extendedResourceClaimAllocation")
    assert request.numa_zones == tuple(spec.get("predictedNUMAZones", ()))
    assert request.backoff_limit is None


def test_every_kind_of_request_is_among_the_real_ones() -> None:
    requests = [BindRequest.parse(real) for real in REAL]
    assert {request.resource_type for request in requests} == {"Regular", "Fraction", "MigInstance"}
    assert any(len(request.gpu_groups) == 2 for request in requests)
    assert any(request.claim_allocations for request in requests)
    assert any(request.extended_claim for request in requests)


def test_the_real_requests_that_take_whole_devices() -> None:
    """F-22: a count that is 0 is left out."""
    taking = {request.name for request in map(BindRequest.parse, REAL) if request.takes_devices}
    assert taking == {"gpu-whole", "gpu-two", "mig-slice", "dra-claim", "dra-template", "dra-plain"}


@pytest.mark.parametrize(
    ("gpu", "takes"),
    [
        (None, False),
        ({}, False),
        ({"count": 0, "portion": "0.00"}, False),
        ({"portion": "0"}, False),
        ({"portion": "1.00"}, True),
        ({"count": 1}, True),
    ],
)
def test_whether_a_request_takes_whole_gpus(gpu: Object | None, takes: bool) -> None:
    request = BindRequest.parse(item({**SPEC, "receivedGPU": gpu}))
    assert request.takes_devices is takes
    assert request.gpu_count == ((gpu or {}).get("count") or None)


def test_what_is_absent_or_null_has_a_default() -> None:
    bare = BindRequest.parse(item())
    nulls = dict.fromkeys(
        (
            "receivedResourceType",
            "receivedGPU",
            "selectedGPUGroups",
            "backoffLimit",
            "resourceClaimAllocations",
            "extendedResourceClaimAllocation",
            "predictedNUMAZones",
        )
    )
    assert BindRequest.parse(item({**SPEC, **nulls})) == bare
    assert (bare.resource_type, bare.gpu_portion, bare.gpu_groups) == ("", None, ())
    assert (bare.backoff_limit, bare.claim_allocations, bare.numa_zones) == (None, (), ())
    assert bare.extended_claim is None
    assert not bare.is_fraction


@pytest.mark.parametrize("limit", [0, 1, 3, -1, 2**31 - 1])
def test_a_backoff_limit_is_taken_as_it_is(limit: int) -> None:
    assert BindRequest.parse(item({**SPEC, "backoffLimit": limit})).backoff_limit == limit


@pytest.mark.parametrize("spec", [None, {}, {"podName": "", "selectedNode": ""}, {"podName": None}])
def test_an_empty_spec_lacks_two_names(spec: object) -> None:
    assert problems(spec) == ["spec.podName is empty", "spec.selectedNode is empty"]


@pytest.mark.parametrize("spec", ["text", 7, True, ["podName"]])
def test_a_spec_that_is_no_object_is_shown(spec: object) -> None:
    assert f"spec is {spec!r}, which is no object" in problems(spec)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("podName", 7, "spec.podName is 7, which is not text"),
        ("podName", 0, "spec.podName is 0, which is not text"),
        ("podName", False, "spec.podName is False, which is not text"),
        ("podName", [], "spec.podName is [], which is not text"),
        ("selectedNode", {"name": "n"}, "spec.selectedNode is {'name': 'n'}, which is not text"),
        ("receivedResourceType", 1.5, "spec.receivedResourceType is 1.5, which is not text"),
        ("receivedGPU", "half", "spec.receivedGPU is 'half', which is not an object"),
        ("receivedGPU", {"portion": 0.5}, "spec.receivedGPU.portion is 0.5, which is not text"),
        ("receivedGPU", {"count": "2"}, "spec.receivedGPU.count is '2', which is not a whole number"),
        ("receivedGPU", {"count": True}, "spec.receivedGPU.count is True, which is not a whole number"),
        ("backoffLimit", "3", "spec.backoffLimit is '3', which is not a whole number"),
        ("backoffLimit", True, "spec.backoffLimit is True, which is not a whole number"),
        ("backoffLimit", False, "spec.backoffLimit is False, which is not a whole number"),
        ("backoffLimit", 1.5, "spec.backoffLimit is 1.5, which is not a whole number"),
        ("selectedGPUGroups", "g", "spec.selectedGPUGroups is 'g', which is not a list"),
        ("selectedGPUGroups", ["g", 7], "spec.selectedGPUGroups[1] is 7, which is not text"),
        ("selectedGPUGroups", [None], "spec.selectedGPUGroups[0] is None, which is not text"),
        ("resourceClaimAllocations", {}, "spec.resourceClaimAllocations is {}, which is not a list"),
        (
            "resourceClaimAllocations",
            [{}, "c"],
            "spec.resourceClaimAllocations[1] is 'c', which is not an object",
        ),
        (
            "extendedResourceClaimAllocation",
            [],
            "spec.extendedResourceClaimAllocation is [], which is not an object",
        ),
        ("predictedNUMAZones", "zone", "spec.predictedNUMAZones is 'zone', which is not a list"),
        ("predictedNUMAZones", [7], "spec.predictedNUMAZones[0] is 7, which is not an object"),
    ],
)
def test_a_malformed_field_is_named_once_with_its_value(field: str, value: object, complaint: str) -> None:
    assert problems({**SPEC, field: value}) == [complaint]


def test_all_problems_are_named_at_once() -> None:
    spec = {
        "podName": 7,
        "receivedGPU": {"portion": 1},
        "backoffLimit": "many",
        "selectedGPUGroups": [1, "g", 2],
    }
    assert sorted(problems(spec)) == [
        "spec.backoffLimit is 'many', which is not a whole number",
        "spec.podName is 7, which is not text",
        "spec.receivedGPU.portion is 1, which is not text",
        "spec.selectedGPUGroups[0] is 1, which is not text",
        "spec.selectedGPUGroups[2] is 2, which is not text",
        "spec.selectedNode is empty",
    ]


def test_no_garbage_in_any_field_is_more_than_an_invalid_request() -> None:
    fields = (*SPEC, "receivedResourceType", "receivedGPU", "backoffLimit", "selectedGPUGroups")
    fields += ("resourceClaimAllocations", "extendedResourceClaimAllocation", "predictedNUMAZones")
    for field in fields:
        for value in GARBAGE:
            try:
                request = BindRequest.parse(item({**SPEC, field: value}))
            except InvalidRequestError as error:
                assert f"spec.{field}" in str(error)  # noqa: PT017 -- many values, either is right
            else:
                assert request.backoff_limit is None or type(request.backoff_limit) is int


def test_unknown_fields_are_no_problem() -> None:
    assert BindRequest.parse(item({**SPEC, "new": {"field": 1}})) == BindRequest.parse(item())


@pytest.mark.parametrize(
    ("owners", "uid"),
    [
        (None, None),
        ([], None),
        ([owner()], "p1"),
        ([owner(kind="Job"), owner(uid="p2")], "p2"),
        ([owner(name="other")], None),
        ([owner(kind="Job")], None),
        ([owner(apiVersion="example.com/v1")], None),
        ([owner(name="other", uid="p0"), owner(uid="p2")], "p2"),
    ],
)
def test_the_owner_is_the_pod_that_the_request_names(owners: list[Object] | None, uid: str | None) -> None:
    assert BindRequest.parse(item(ownerReferences=owners)).owner_uid == uid


def test_a_status_is_read() -> None:
    condition = {"type": "Bound", "status": "False"}
    status = {
        "phase": "Failed",
        "reason": "Bound NodeGone: gone",
        "failedAttempts": 2,
        "observedGeneration": 3,
        "conditions": [condition],
    }
    assert BindStatus.of({"status": status}) == BindStatus(
        "Failed", "Bound NodeGone: gone", 2, 3, (condition,)
    )


@pytest.mark.parametrize("status", [*GARBAGE, {"phase": None, "conditions": None}])
def test_a_status_that_is_none_reads_as_new(status: object) -> None:
    assert BindStatus.of({"status": status}) == BindStatus()
    assert BindStatus.of({}) == BindStatus()
    assert BindStatus().phase == Phase.NEW


def test_garbage_in_a_status_reads_as_absent_and_leaves_the_rest() -> None:
    good = {
        "phase": "Failed",
        "reason": "r",
        "failedAttempts": 2,
        "observedGeneration": 1,
        "conditions": [{"type": "Bound"}],
    }
    for field in good:
        for value in GARBAGE:
            status = BindStatus.of({"status": {**good, field: value}})
            assert type(status.failed_attempts) is int
            assert status.failed_attempts >= 0
            assert status.observed_generation is None or type(status.observed_generation) is int
            assert isinstance(status.phase, str)
            assert isinstance(status.reason, str)
            assert all(isinstance(condition, dict) for condition in status.conditions)
            if field != "phase":
                assert status.phase == "Failed"


@pytest.mark.parametrize(("written", "read"), [(-3, 0), (True, 0), ("2", 0), (2.0, 0), (5000, 5000)])
def test_attempts_are_a_number_from_zero_up(written: object, read: int) -> None:
    assert BindStatus.of({"status": {"failedAttempts": written}}).failed_attempts == read


def test_an_unknown_phase_is_kept() -> None:
    assert BindStatus.of({"status": {"phase": "Odd"}}).phase == "Odd"


@pytest.mark.parametrize(
    ("phase", "attempts", "limit", "over"),
    [
        ("Failed", 0, None, True),
        ("Failed", 2, None, True),
        ("Failed", 2, 5, False),
        ("Failed", 5, 5, True),
        ("Failed", 6, 5, True),
        ("Failed", 0, 0, True),
        ("Failed", 0, -1, True),
        ("", 5, 1, False),
        ("Pending", 5, None, False),
        ("Odd", 5, None, False),
        ("Succeeded", 0, None, True),
        ("Succeeded", 1, 3, True),
    ],
)
def test_a_request_is_over_when_the_scheduler_says_so(
    phase: str, attempts: int, limit: int | None, *, over: bool
) -> None:
    spec = SPEC if limit is None else {**SPEC, "backoffLimit": limit}
    found = {**item(spec, generation=1), "status": {"phase": phase, "failedAttempts": attempts}}
    assert is_over(found) is over
    found["status"]["observedGeneration"] = 1
    assert is_over(found) is over
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert is_over(found) is True


def test_a_mended_request_is_not_over_but_a_bound_one_is() -> None:
    found = {**item(generation=2), "status": {"phase": "Failed", "observedGeneration": 1}}
    assert is_over(found) is False
    found["status"]["phase"] = "Succeeded"
    assert is_over(found) is True


def test_garbage_is_not_over_by_accident() -> None:
    for garbage in GARBAGE:
        assert is_over({**item(garbage, generation=1), "status": garbage}) is False
    assert is_over(item()) is False


@pytest.mark.parametrize(
    "name", ["n1#x", "p?x=1", "../../kube-system/pods/v", "a\nb", "A", "-a", "a.", "a" * 254]
)
@pytest.mark.parametrize("field", ["podName", "selectedNode"])
def test_a_name_that_no_object_can_have(field: str, name: str) -> None:
    """Such a name must not reach a path, where it could mean another object."""
    spec = {"podName": "p", "selectedNode": "n", field: name}
    item = {"metadata": {"namespace": "t", "name": "r", "uid": "u"}, "spec": spec}
    with pytest.raises(InvalidRequestError, match=f"spec.{field} is .*, which is no name of an object"):
        BindRequest.parse(item)


def fraction(*groups: object, older: object = ("g", "h")) -> Object:
    return {
        **SPEC,
        "receivedResourceType": "Fraction",
        "selectedGPUGroups": list(older) if isinstance(older, tuple) else older,
        "selectedFractionalGpuGroups": list(groups),
    }


def test_groups_as_kai_018_writes_them() -> None:
    """N-1, N-5: both fields, the same groups; the newer one has the modes."""
    spec = fraction({"id": "g", "computeSharingMode": "sm-sharing"}, {"id": "h"})
    request = BindRequest.parse(item(spec))
    assert request.gpu_groups == ("g", "h")
    assert request.compute_modes == (ComputeMode.SM_SHARING, ComputeMode.TIME_SLICING)


def test_groups_as_kai_017_writes_them_have_no_mode() -> None:
    request = BindRequest.parse(item(fraction()))
    assert request.gpu_groups == ("g", "h")
    assert request.compute_modes == ()


def test_groups_that_differ_are_those_of_the_newer_field() -> None:
    """N-5: the two are never merged."""
    request = BindRequest.parse(item(fraction({"id": "x", "computeSharingMode": ""})))
    assert request.gpu_groups == ("x",)
    assert request.compute_modes == (ComputeMode.TIME_SLICING,)


def test_an_entry_without_an_id_is_a_group_that_names_none() -> None:
    """It is refused later, as an illegal group; the request is no fault of a conversion."""
    assert BindRequest.parse(item(fraction({}, older=()))).gpu_groups == ("",)


@pytest.mark.parametrize("mode", ["mps", "Time-Slicing", "sm-sharing ", "é"])
def test_an_unknown_mode_is_named(mode: str) -> None:
    assert problems(fraction({"id": "g"}, {"id": "h", "computeSharingMode": mode})) == [
        f"spec.selectedFractionalGpuGroups[1].computeSharingMode is {mode!r}, not time-slicing or sm-sharing"
    ]


def test_entries_of_wrong_types_are_named() -> None:
    found = problems(fraction("g", {"id": 7, "computeSharingMode": ["sm-sharing"]}))
    assert found == [
        "spec.selectedFractionalGpuGroups[0] is 'g', which is not an object",
        "spec.selectedFractionalGpuGroups[0].id is 7, which is not text",
        "spec.selectedFractionalGpuGroups[0].computeSharingMode is ['sm-sharing'], which is not text",
    ]


def test_numa_memory_groups_and_the_compute_portion() -> None:
    """N-7, N-9: an empty list says something else than none."""
    group = {"memoryNodes": ["0"], "amount": {"memory": "1Gi"}}
    spec = {**SPEC, "predictedNUMAMemoryGroups": [group], "receivedGPU": {"computePortion": "0.125"}}
    request = BindRequest.parse(item(spec))
    assert request.numa_memory_groups == (group,)
    assert request.compute_portion == "0.125"
    assert BindRequest.parse(item({**SPEC, "predictedNUMAMemoryGroups": []})).numa_memory_groups == ()
    bare = BindRequest.parse(item())
    assert (bare.numa_memory_groups, bare.compute_portion) == (None, None)


def test_the_fields_that_are_read_are_those_of_the_crd() -> None:
    """Else the comparison with the cluster's CRD would warn of what is right, or not of what is wrong."""
    crd = yaml.safe_load((DATA.parents[1] / "config/crd/scheduling.run.ai_bindrequests.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    found = set(spec)
    found |= {f"receivedGPU.{name}" for name in spec["receivedGPU"]["properties"]}
    groups = spec["selectedFractionalGpuGroups"]["items"]["properties"]
    assert found | {f"selectedFractionalGpuGroups.{name}" for name in groups} == SPEC_FIELDS
