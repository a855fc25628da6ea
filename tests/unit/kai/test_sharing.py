"""What pods and requests say of shared GPUs: target container, names of the maps, groups and labels."""

import pytest

from controller.kai.outcome import Failed
from controller.kai.pods import is_finished, live
from controller.kai.request import BindRequest
from controller.kai.sharing import (
    Target,
    group_labels,
    groups_of_pod,
    groups_of_request,
    is_group,
    needs_labels,
    target_of,
)
from controller.runtime.client import Object

PREFIX = "job-7x2kq9a-shared-gpu"


def pod(
    *,
    containers: tuple[str, ...] = ("one", "two"),
    init: tuple[str, ...] = (),
    target: str | None = None,
    prefix: str | None = PREFIX,
    devices: str | None = None,
    labels: dict[str, str] | None = None,
    **status: object,
) -> Object:
    given = {
        "runai/shared-gpu-configmap": prefix,
        "gpu-fraction-container-name": target,
        "gpu-fraction-num-devices": devices,
    }
    spec: Object = {"containers": [{"name": name} for name in containers]}
    if init:
        spec["initContainers"] = [{"name": name} for name in init]
    return {
        "metadata": {
            "namespace": "team",
            "name": "a",
            "annotations": {key: value for key, value in given.items() if value is not None},
            "labels": labels,
        },
        "spec": spec,
        "status": status,
    }


# T-21 TestGetFractionContainerRef, T-22 names by index.


@pytest.mark.parametrize(
    ("of", "container", "index"),
    [
        (pod(containers=("only",)), "only", "0"),
        (pod(), "one", "0"),
        (pod(init=("warm",)), "one", "0"),
        (pod(target="one"), "one", "0"),
        (pod(target="two"), "two", "1"),
        (pod(init=("warm", "up"), target="warm"), "warm", "i0"),
        (pod(init=("warm", "up"), target="up"), "up", "i1"),
        (pod(init=("warm",), target="two"), "two", "1"),
        (pod(containers=tuple(f"c{number}" for number in range(12)), target="c11"), "c11", "11"),
    ],
)
def test_the_target_container_and_its_maps(of: Object, container: str, index: str) -> None:
    target = target_of(of)
    assert isinstance(target, Target)
    assert target.container["name"] == container
    assert target.config_map == f"{PREFIX}-{index}"
    assert target.env_config_map == f"{PREFIX}-{index}-evar"


def keyed(container: str, read_by: str = "", **given: str) -> Object:
    """A pod with an annotation of KAI v0.18 for a container, which a webhook prepared for that or another."""
    made = pod(**given)  # type: ignore[arg-type]
    made["metadata"]["annotations"][f"nvidia.com/container.{container}.gpu-memory.request"] = "4Gi"
    for index, each in enumerate(made["spec"]["containers"]):
        if each["name"] == read_by:
            each["envFrom"] = [{"configMapRef": {"name": f"{PREFIX}-{index}-evar"}}]
    return made


@pytest.mark.parametrize(
    ("of", "container", "strictly"),
    [
        (keyed("two"), "one", "two"),
        (keyed("two", read_by="one"), "one", "two"),
        (keyed("two", read_by="two"), "two", "two"),
        (keyed("gone"), "one", None),
        (keyed("gone", target="two"), "two", None),
        (keyed("two", target="two"), "two", "two"),
    ],
)
def test_annotations_of_v0_18_name_the_container_where_the_request_knows_them(
    of: Object, container: str, strictly: str | None
) -> None:
    """N-41: before v0.18 they meant nothing; a pod that was prepared for such a container is believed."""
    target = target_of(of)
    assert isinstance(target, Target)
    assert target.container["name"] == container
    strict = target_of(of, strict=True)
    assert (strict.container["name"] if isinstance(strict, Target) else None) == strictly


NOT_NAMED = "has no annotation runai/shared-gpu-configmap; the admission webhook sets it"
NOT_THERE = "has no container {!r}, which its annotation gpu-fraction-container-name names"


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (pod(target="nope"), NOT_THERE.format("nope")),
        (pod(target=""), NOT_THERE.format("")),
        (pod(containers=()), "has no container"),
        (pod(containers=(), init=("warm",)), "has no container"),
        (pod(prefix=None), NOT_NAMED),
        (pod(prefix=""), NOT_NAMED),
    ],
)
def test_no_target(of: Object, message: str) -> None:
    assert target_of(of) == Failed("InvalidGPUConfig", f"pod team/a {message}", retry=False)


def test_a_pod_without_annotations() -> None:
    bare = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "one"}]}}
    failure = target_of(bare)
    assert isinstance(failure, Failed)
    assert failure.message.startswith("pod a has no annotation")


NOT_A_NAME = (
    "-abc",
    "a/b",
    "../secrets/x",
    "..",
    "A",
    "a_b",
    "a b",
    "ä",
    "a.-b",
    "a\n",
    "a" * 247,
    "a" * 250_000,
)


@pytest.mark.parametrize("prefix", NOT_A_NAME, ids=lambda value: ascii(value[:20]))
def test_a_name_for_the_maps_that_is_no_name(prefix: str) -> None:
    """D-35. It is never put into a path."""
    failure = target_of(pod(prefix=prefix))
    assert isinstance(failure, Failed)
    assert (failure.reason, failure.retry) == ("InvalidGPUConfig", False)
    assert f"runai/shared-gpu-configmap of pod team/a is {prefix[:64]!r}"[:-1] in failure.message
    assert failure.message.endswith("cannot be a ConfigMap's name")
    assert len(failure.message) < 300


@pytest.mark.parametrize("prefix", ["a", "a.b", "a-b", "0", "a" * 246])
def test_names_for_the_maps(prefix: str) -> None:
    target = target_of(pod(prefix=prefix))
    assert isinstance(target, Target)
    assert target.env_config_map == f"{prefix}-0-evar"


# Groups.


@pytest.mark.parametrize("group", ["a", "A_b.c-1", "0", "785c4e3e-a0f9-42c1-b68f-3e7461baa06d", "x" * 63])
def test_groups(group: str) -> None:
    assert is_group(group)


@pytest.mark.parametrize("group", ["", "-a", "a-", "a/b", "a b", "ä", "x" * 64, "a\n", "_", "a=b", "a,b"])
def test_no_groups(group: str) -> None:
    assert not is_group(group)


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        (None, set()),
        ({}, set()),
        ({"app": "x", "runai-gpu-groups": "no", "x/runai-gpu-group": "no"}, set()),
        ({"runai-gpu-group": "g"}, {"g"}),
        ({"runai-gpu-group/g": "g"}, {"g"}),
        ({"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"}, {"g", "h"}),
        ({"runai-gpu-group": "f", "runai-gpu-group/g": "g"}, {"f", "g"}),
        ({"runai-gpu-group": "", "runai-gpu-group/g": ""}, set()),
    ],
)
def test_the_groups_of_a_pod_are_in_labels_of_both_forms(
    labels: dict[str, str] | None, groups: set[str]
) -> None:
    """D-9."""
    assert groups_of_pod(pod(labels=labels)) == groups


@pytest.mark.parametrize("groups", [None, "g", {}, [], [7]])
@pytest.mark.parametrize("spec", [None, "text", {}, {"receivedResourceType": "Fraction"}])
def test_a_request_without_groups(spec: object, groups: object) -> None:
    whole = {**spec, "selectedGPUGroups": groups} if isinstance(spec, dict) else spec
    assert groups_of_request({"spec": whole}) == frozenset()


def test_the_groups_of_a_request_that_is_malformed_otherwise() -> None:
    spec = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g", 7, None, "h", "g"]}
    assert groups_of_request({"spec": spec}) == {"g", "h"}


@pytest.mark.parametrize(
    ("newer", "groups"),
    [
        ([{"id": "x"}, {"id": "y", "computeSharingMode": "sm-sharing"}], {"x", "y"}),
        ([{"id": "x", "computeSharingMode": "nonsense"}], {"x"}),
        ([{"id": "x"}, {"id": ""}, {}, 7, {"id": 7}], {"x"}),
        ([], {"g"}),
        (None, {"g"}),
        ("x", {"g"}),
    ],
)
def test_groups_of_the_newer_field_go_before_those_of_the_older(newer: object, groups: set[str]) -> None:
    """N-5, for what protects and releases groups, too."""
    spec = {"receivedResourceType": "Fraction", "selectedGPUGroups": ["g"]}
    assert groups_of_request({"spec": {**spec, "selectedFractionalGpuGroups": newer}}) == groups


@pytest.mark.parametrize("kind", ["Regular", "MigInstance", "", None])
def test_only_a_share_has_groups(kind: str | None) -> None:
    """Else a pod with a GPU of its own would be labelled, found without a reservation, and deleted."""
    assert (
        groups_of_request({"spec": {"receivedResourceType": kind, "selectedGPUGroups": ["g"]}}) == frozenset()
    )


@pytest.mark.parametrize(
    ("devices", "groups", "labels"),
    [
        (None, ["g"], {"runai-gpu-group": "g"}),
        ("1", ["g"], {"runai-gpu-group": "g"}),
        ("0", ["g"], {"runai-gpu-group": "g"}),
        ("2", ["g"], {"runai-gpu-group/g": "g"}),
        ("2", ["g", "h"], {"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"}),
        (None, ["g", "h"], {"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"}),
        (None, [], {}),
    ],
)
def test_group_labels(devices: str | None, groups: list[str], labels: dict[str, str]) -> None:
    """B-84."""
    assert group_labels(pod(devices=devices), groups) == labels


@pytest.mark.parametrize("devices", ["", "two", "-1", "1.0", " 2", "2_0", "\u0662", "1" * 10])
def test_a_number_of_devices_that_is_none(devices: str) -> None:
    text = f"annotation gpu-fraction-num-devices is {devices!r}, which is no whole number"
    failure = Failed("InvalidGPUConfig", text, retry=False)
    assert group_labels(pod(devices=devices), ["g"]) == failure
    assert needs_labels(request("g"), pod(devices=devices)) == failure


def request(*groups: str) -> BindRequest:
    return BindRequest(
        namespace="team", name="a", uid="u", owner_uid=None, pod_name="a", node_name="n", gpu_groups=groups
    )


def test_the_labels_that_a_pod_lacks() -> None:
    assert needs_labels(request("g"), pod()) == {"runai-gpu-group": "g"}
    assert needs_labels(request("g"), pod(labels={"runai-gpu-group": "g"})) == {}
    assert needs_labels(request("g"), pod(labels={"runai-gpu-group": "old"})) == {"runai-gpu-group": "g"}
    two = pod(labels={"runai-gpu-group/g": "g"})
    assert needs_labels(request("g", "h"), two) == {"runai-gpu-group/h": "h"}


# Pods.


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "", None])
def test_pods_that_hold_their_gpu(phase: str | None) -> None:
    assert not is_finished(pod(phase=phase))
    assert not is_finished({"metadata": {"name": "a"}, "spec": {}})


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_hold_it_no_more(phase: str) -> None:
    assert is_finished(pod(phase=phase))


def test_live_pods() -> None:
    going = pod(phase="Running")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    lives = pod(phase="Running")
    assert list(live([pod(phase="Failed"), going, lives, pod(phase="Succeeded")])) == [lives]
