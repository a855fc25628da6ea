"""The arithmetic of device claims, without a server; T-20 names upsert and claim names."""

from typing import Any

import pytest

from controller.plugins.claims.model import (
    EXTENDED,
    FINALIZER,
    PodClaim,
    covers,
    device_requests,
    devices,
    extended_claim,
    extended_claim_name,
    is_extended_claim_of,
    pod_claims,
    same_devices,
    users,
    with_pod,
    without_pod,
)

Object = dict[str, Any]
POD: Object = {"metadata": {"name": "a", "namespace": "team", "uid": "uid-a"}, "spec": {}}
REFERENCE = {"resource": "pods", "name": "a", "uid": "uid-a"}


def pod(claims: list[Object], statuses: list[Object] | None = None) -> Object:
    return {**POD, "spec": {"resourceClaims": claims}, "status": {"resourceClaimStatuses": statuses}}


def claim(**metadata: object) -> Object:
    return {"metadata": {"name": "one", "namespace": "team", **metadata}, "spec": {}}


def owned_by(uid: str, *, controller: bool = True) -> list[Object]:
    return [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": controller}]


def result(device: str, **more: object) -> Object:
    return {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": device, **more}


def allocation(*results: Object, **more: object) -> Object:
    return {"devices": {"results": list(results)}, **more}


class TestPodClaims:
    def test_of_a_name(self) -> None:
        found = pod_claims(pod([{"name": "x", "resourceClaimName": "one"}]))
        assert found == [PodClaim("x", "one", from_template=False)]

    def test_of_a_template(self) -> None:
        statuses = [{"name": "other"}, {"name": "x", "resourceClaimName": "a-x-1"}]
        found = pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses))
        assert found == [PodClaim("x", "a-x-1", from_template=True)]

    @pytest.mark.parametrize("name", [{}, {"resourceClaimName": None}])
    def test_that_is_not_needed(self, name: Object) -> None:
        statuses = [{"name": "x", **name}]
        assert pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses)) == []

    @pytest.mark.parametrize("statuses", [None, [], [{"name": "y", "resourceClaimName": "a-y-1"}]])
    def test_that_is_not_made_yet(self, statuses: list[Object] | None) -> None:
        found = pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses))
        assert found == [PodClaim("x", "", from_template=True)]

    def test_of_a_pod_without_any(self) -> None:
        assert pod_claims(POD) == []


class TestReservedFor:
    """T-20, TestUpsertReservedFor."""

    def test_first(self) -> None:
        assert with_pod([], POD) == [REFERENCE]

    def test_after_others(self) -> None:
        other = {"resource": "pods", "name": "b", "uid": "uid-b"}
        assert with_pod([other], POD) == [other, REFERENCE]

    def test_once(self) -> None:
        assert with_pod([REFERENCE], POD) == [REFERENCE]

    def test_a_pod_of_the_same_name_that_was_replaced_is_another(self) -> None:
        old = {**REFERENCE, "uid": "uid-old"}
        assert with_pod([old], POD) == [old, REFERENCE]

    def test_the_list_given_is_left_alone(self) -> None:
        given: list[Object] = []
        with_pod(given, POD)
        assert given == []

    def test_removal(self) -> None:
        other = {"resource": "pods", "name": "b", "uid": "uid-b"}
        assert without_pod([REFERENCE, other], "uid-a") == [other]
        assert without_pod([other], "uid-a") == [other]


class TestSameDevices:
    def test_equal(self) -> None:
        assert same_devices(allocation(result("gpu-0")), allocation(result("gpu-0")))

    def test_order_does_not_matter(self) -> None:
        one, two = result("gpu-0"), result("gpu-1")
        assert same_devices(allocation(one, two), allocation(two, one))

    def test_what_the_server_adds_or_drops_does_not_matter(self) -> None:
        stored = allocation(result("gpu-0"), allocationTimestamp="2026-01-01T00:00:00Z")
        asked = allocation(result("gpu-0", adminAccess=False, bindingConditions=["ready"]))
        assert same_devices(stored, asked)

    @pytest.mark.parametrize(
        "other",
        [
            result("gpu-1"),
            result("gpu-0", pool="node-2"),
            result("gpu-0", driver="x.example.com"),
            result("gpu-0", request="other"),
            result("gpu-0", shareID="a671734a-e8e5-11e4-8fde-42010af09327"),
        ],
    )
    def test_different(self, other: Object) -> None:
        assert not same_devices(allocation(result("gpu-0")), allocation(other))

    def test_more_devices(self) -> None:
        more = allocation(result("gpu-0"), result("gpu-1"))
        assert not same_devices(allocation(result("gpu-0")), more)

    def test_no_device(self) -> None:
        assert same_devices({}, {"devices": {}})


EXACTLY: Object = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 2}
FIRST: Object = {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "c"}]}


class TestDeviceRequests:
    @pytest.mark.parametrize("version", ["v1", "v1beta2"])
    def test_of_newer_versions(self, version: str) -> None:
        requests = [{"name": "gpu", "exactly": EXACTLY}, FIRST]
        assert device_requests(requests, version) == requests

    @pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
    def test_of_older_versions_which_have_the_fields_inline(self, version: str) -> None:
        requests = [{"name": "gpu", "exactly": EXACTLY}, FIRST]
        assert device_requests(requests, version) == [{"name": "gpu", **EXACTLY}, FIRST]


def test_covers_allows_for_defaults() -> None:
    stored = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c", "count": 1}}]}
    assert covers(stored, {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]})
    assert not covers(stored, {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "d"}}]})
    assert not covers(stored, {"requests": []})
    assert not covers(None, {"requests": []})


def test_extended_claim_is_found_again() -> None:
    made = extended_claim(POD, [{"name": "gpu", "exactly": {"deviceClassName": "c"}}], "v1beta1")
    assert made["apiVersion"] == "resource.k8s.io/v1beta1"
    assert made["metadata"]["name"] == "a-extended-resources-uid-a"
    assert made["metadata"]["generateName"] == "a-extended-resources-"
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"]["devices"]["requests"] == [{"name": "gpu", "deviceClassName": "c"}]
    assert is_extended_claim_of(made, "uid-a")
    assert not is_extended_claim_of(made, "uid-b")
    made["metadata"]["annotations"] = {EXTENDED: "false"}
    assert not is_extended_claim_of(made, "uid-a")


def test_name_of_an_extended_claim() -> None:
    """F-18: it follows from the pod, is no other pod's, and is legal however long the pod's is."""
    uid = "0b7c1c9e-7d60-4a54-a4c5-6c3a54b2b6b0"
    long = "a" * 195 + ".-" + "b" * 56
    name = extended_claim_name({"metadata": {"name": long, "uid": uid}})
    assert name == f"{'a' * 195}-extended-resources-{uid}"
    assert len(name) <= 253
    assert extended_claim_name({"metadata": {"name": long, "uid": uid[::-1]}}) != name


def test_an_extended_claim_whose_name_the_server_makes_up() -> None:
    made = extended_claim(POD, [], "v1", named=False)
    assert "name" not in made["metadata"]
    assert is_extended_claim_of(made, "uid-a")


def test_words_for_messages() -> None:
    assert devices(allocation(result("gpu-0"))) == "gpu-0 of gpu.example.com (pool node-1)"
    assert devices({}) == "no device"
    shared = {"status": {"reservedFor": [{"name": f"p{index}"} for index in range(5)]}}
    assert users(shared) == "p0, p1, p2 and 2 more"
    assert users({}) == "nobody"
