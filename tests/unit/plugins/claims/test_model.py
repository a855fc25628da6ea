"""The arithmetic of claims, without a server; T-20 names upsert and claim names."""

from typing import Any

import pytest

from controller.kai.reasons import Reason
from controller.plugins.claims.model import (
    EXTENDED,
    FINALIZER,
    PodClaim,
    covers,
    device_requests,
    devices,
    extended_claim,
    is_extended_claim_of,
    pod_claims,
    readiness,
    same_devices,
    unusable,
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
        assert found == ([PodClaim("x", "one", from_template=False)], [])

    def test_of_a_template(self) -> None:
        statuses = [{"name": "other"}, {"name": "x", "resourceClaimName": "a-x-1"}]
        found = pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses))
        assert found == ([PodClaim("x", "a-x-1", from_template=True)], [])

    @pytest.mark.parametrize("name", [{}, {"resourceClaimName": None}])
    def test_that_is_not_needed(self, name: Object) -> None:
        statuses = [{"name": "x", **name}]
        assert pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses)) == ([], [])

    @pytest.mark.parametrize("statuses", [None, [], [{"name": "y", "resourceClaimName": "a-y-1"}]])
    def test_that_is_not_made_yet(self, statuses: list[Object] | None) -> None:
        assert pod_claims(pod([{"name": "x", "resourceClaimTemplateName": "t"}], statuses)) == ([], ["x"])

    def test_of_a_pod_without_any(self) -> None:
        assert pod_claims(POD) == ([], [])


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


class TestUnusable:
    def reason(self, item: Object, *, from_template: bool = False) -> str | None:
        refused = unusable(item, POD, from_template=from_template)
        return refused.reason if refused else None

    def test_a_free_claim(self) -> None:
        assert self.reason(claim()) is None

    def test_in_deletion(self) -> None:
        assert self.reason(claim(deletionTimestamp="2026-01-01T00:00:00Z")) == Reason.CLAIM_TERMINATING

    def test_made_for_another_pod(self) -> None:
        assert self.reason(claim(ownerReferences=owned_by("uid-b"))) == Reason.CLAIM_NOT_OWNED

    def test_an_owner_that_is_no_controller_does_not_count(self) -> None:
        item = claim(ownerReferences=owned_by("uid-b", controller=False))
        assert self.reason(item) is None
        assert self.reason(item, from_template=True) == Reason.CLAIM_NOT_OWNED

    def test_from_a_template_of_this_pod(self) -> None:
        assert self.reason(claim(ownerReferences=owned_by("uid-a")), from_template=True) is None


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

    def test_v1beta1_has_the_fields_inline(self) -> None:
        requests = [{"name": "gpu", "exactly": EXACTLY}, FIRST]
        assert device_requests(requests, "v1beta1") == [{"name": "gpu", **EXACTLY}, FIRST]


def test_covers_allows_for_defaults() -> None:
    stored = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c", "count": 1}}]}
    assert covers(stored, {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]})
    assert not covers(stored, {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "d"}}]})
    assert not covers(stored, {"requests": []})
    assert not covers(None, {"requests": []})


def test_extended_claim_is_found_again() -> None:
    made = extended_claim(POD, [{"name": "gpu", "exactly": {"deviceClassName": "c"}}], "v1beta1")
    assert made["apiVersion"] == "resource.k8s.io/v1beta1"
    assert made["metadata"]["generateName"] == "a-extended-resources-"
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"]["devices"]["requests"] == [{"name": "gpu", "deviceClassName": "c"}]
    assert is_extended_claim_of(made, "uid-a")
    assert not is_extended_claim_of(made, "uid-b")
    made["metadata"]["annotations"] = {EXTENDED: "false"}
    assert not is_extended_claim_of(made, "uid-a")


def test_words_for_messages() -> None:
    assert devices(allocation(result("gpu-0"))) == "gpu-0 of gpu.example.com (pool node-1)"
    assert devices({}) == "no device"
    shared = {"status": {"reservedFor": [{"name": f"p{index}"} for index in range(5)]}}
    assert users(shared) == "p0, p1, p2 and 2 more"
    assert users({}) == "nobody"


class TestReadiness:
    RESULT = result("gpu-0", bindingConditions=["ready"], bindingFailureConditions=["broken"])

    def reported(self, *conditions: Object, device: str = "gpu-0") -> Object:
        said = {
            "driver": "gpu.example.com",
            "pool": "node-1",
            "device": device,
            "conditions": list(conditions),
        }
        return {**claim(), "status": {"allocation": allocation(self.RESULT), "devices": [said]}}

    def test_nothing_to_wait_for(self) -> None:
        item = {**claim(), "status": {"allocation": allocation(result("gpu-0"))}}
        assert readiness(item) == readiness(claim())
        assert not readiness(item).waits_for

    def test_not_reported_yet(self) -> None:
        assert readiness(self.reported()).waits_for == "device gpu-0 of claim team/one to be ready"

    def test_ready(self) -> None:
        state = readiness(self.reported({"type": "ready", "status": "True"}))
        assert (state.waits_for, state.failure) == ("", "")

    def test_not_ready(self) -> None:
        assert readiness(self.reported({"type": "ready", "status": "False"})).waits_for

    def test_of_another_device(self) -> None:
        assert readiness(self.reported({"type": "ready", "status": "True"}, device="gpu-1")).waits_for

    def test_broken(self) -> None:
        state = readiness(self.reported({"type": "broken", "status": "True", "message": "no link"}))
        assert state.failure == "device gpu-0 of claim team/one cannot be used: broken, no link"
