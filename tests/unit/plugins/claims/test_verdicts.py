"""Whether a pod can have a device claim, and whether its devices are prepared: without a server."""

from typing import Any

import pytest

from controller.kai.outcome import Failed, Ready
from controller.kai.reasons import Reason
from controller.plugins.claims.verdicts import (
    devices_failure,
    judge_devices,
    readiness,
    usage_failure,
    write_failure,
)
from controller.runtime import errors

Object = dict[str, Any]
POD: Object = {"metadata": {"name": "a", "namespace": "team", "uid": "uid-a"}, "spec": {}}
NODE: Object = {"metadata": {"name": "node-1", "labels": {"zone": "x"}}}


def claim(status: Object | None = None, **metadata: object) -> Object:
    return {"metadata": {"name": "one", "namespace": "team", **metadata}, "spec": {}, "status": status or {}}


def owned_by(uid: str, *, controller: bool = True) -> list[Object]:
    return [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": controller}]


def result(device: str, **more: object) -> Object:
    return {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": device, **more}


def allocation(*results: Object, **more: object) -> Object:
    return {"devices": {"results": list(results)}, **more}


class TestUsage:
    def reason(self, item: Object, *, from_template: bool = False) -> str | None:
        failure = usage_failure(item, POD, from_template=from_template)
        return failure.reason if failure else None

    def test_a_free_claim(self) -> None:
        assert self.reason(claim()) is None

    def test_in_deletion(self) -> None:
        assert self.reason(claim(deletionTimestamp="2026-01-01T00:00:00Z")) == Reason.CLAIM_TERMINATING

    def test_made_for_another_pod(self) -> None:
        item = claim(ownerReferences=owned_by("uid-b"))
        failure = usage_failure(item, POD, from_template=True)
        assert failure is not None
        assert failure.reason == Reason.CLAIM_NOT_OWNED
        assert failure.message == (
            "claim team/one was made for the pod with uid uid-b, not for pod a with uid uid-a"
        )

    def test_of_another_pod_but_named_by_this_one(self) -> None:
        """F-14: a leader may own the claim that its workers use."""
        assert self.reason(claim(ownerReferences=owned_by("uid-b"))) is None

    def test_an_owner_that_is_no_controller_does_not_count(self) -> None:
        item = claim(ownerReferences=owned_by("uid-b", controller=False))
        assert self.reason(item) is None
        assert self.reason(item, from_template=True) == Reason.CLAIM_NOT_OWNED

    def test_from_a_template_of_this_pod(self) -> None:
        assert self.reason(claim(ownerReferences=owned_by("uid-a")), from_template=True) is None


class TestDevices:
    ONE = allocation(result("gpu-1"))

    def failure(self, item: Object, wanted: Object | None) -> Failed | None:
        return devices_failure(item, wanted, POD, NODE)

    def test_brought_by_the_request(self) -> None:
        assert self.failure(claim(), self.ONE) is None

    def test_there_already(self) -> None:
        assert self.failure(claim({"allocation": self.ONE}), None) is None
        assert self.failure(claim({"allocation": self.ONE}), self.ONE) is None

    def test_none(self) -> None:
        failure = self.failure(claim(), None)
        assert failure is not None
        assert failure.reason == Reason.CLAIM_UNALLOCATED

    def test_others(self) -> None:
        failure = self.failure(claim({"allocation": allocation(result("gpu-2"))}), self.ONE)
        assert failure is not None
        assert failure.reason == Reason.ALLOCATION_CONFLICT

    @pytest.mark.parametrize(
        ("selector", "fits"),
        [
            (None, True),
            ({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}, True),
            ({"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}, False),
            ({"nodeSelectorTerms": []}, False),
        ],
    )
    def test_for_the_node(self, selector: Object | None, fits: bool) -> None:
        wanted = {**self.ONE, "nodeSelector": selector}
        assert (self.failure(claim(), wanted) is None) == fits

    def test_no_place_left(self) -> None:
        """F-13: users come and go, so it is tried again."""
        users = [{"resource": "pods", "name": f"p{index}", "uid": f"uid-{index}"} for index in range(256)]
        failure = self.failure(claim({"allocation": self.ONE, "reservedFor": users}), self.ONE)
        assert failure is not None
        assert (failure.reason, failure.retry) == (Reason.CLAIM_FULL, True)
        users[7]["uid"] = "uid-a"
        assert self.failure(claim({"allocation": self.ONE, "reservedFor": users}), self.ONE) is None

    @pytest.mark.parametrize(
        ("cause", "reason"),
        [
            ({"reason": "FieldValueTooMany", "message": "must have at most 32 items"}, Reason.CLAIM_FULL),
            # Kubernetes 1.31
            (
                {
                    "reason": "FieldValueTooLong",
                    "field": "status.reservedFor",
                    "message": "Too long: may not be longer than 32",
                },
                Reason.CLAIM_FULL,
            ),
            ({"reason": "FieldValueTooLong", "field": "status.allocation.x"}, Reason.REJECTED),
            (
                {"reason": "FieldValueForbidden", "message": "cannot patch resourceclaims/binding"},
                Reason.FORBIDDEN,
            ),
            ({"reason": "FieldValueInvalid", "message": "no such request"}, Reason.REJECTED),
        ],
    )
    def test_not_taken_by_the_server(self, cause: Object, reason: Reason) -> None:
        error = errors.InvalidError("PATCH x", "invalid", code=422, body={"details": {"causes": [cause]}})
        failure = write_failure(error, claim(), self.ONE, "node-1")
        assert (failure.reason, failure.retry) == (reason, True)


RESULT = result("gpu-0", bindingConditions=["ready"], bindingFailureConditions=["broken"])
READY: Object = {"type": "ready", "status": "True"}
BROKEN: Object = {"type": "broken", "status": "True", "message": "no link"}


def reported(*conditions: Object, device: str = "gpu-0") -> Object:
    said = {"driver": "gpu.example.com", "pool": "node-1", "device": device, "conditions": list(conditions)}
    return claim({"allocation": allocation(RESULT), "devices": [said]})


class TestReadiness:
    def test_nothing_to_wait_for(self) -> None:
        item = claim({"allocation": allocation(result("gpu-0"))})
        assert readiness(item) == readiness(claim())
        assert not readiness(item).waits_for

    def test_not_reported_yet(self) -> None:
        assert readiness(reported()).waits_for == "device gpu-0 of claim team/one to be ready"

    def test_ready(self) -> None:
        state = readiness(reported(READY))
        assert (state.waits_for, state.failure) == ("", "")

    def test_not_ready(self) -> None:
        assert readiness(reported({"type": "ready", "status": "False"})).waits_for

    def test_of_another_device(self) -> None:
        assert readiness(reported(READY, device="gpu-1")).waits_for

    def test_broken(self) -> None:
        state = readiness(reported(BROKEN))
        assert state.failure == "device gpu-0 of claim team/one cannot be used: broken, no link"


class TestJudgeDevices:
    def test_all_ready(self) -> None:
        assert judge_devices([], "node-1") == Ready()
        assert judge_devices([reported(READY), reported(READY)], "node-1") == Ready()

    def test_one_to_come(self) -> None:
        assert judge_devices([reported(READY), reported()], "node-1") is None

    def test_one_failed(self) -> None:
        """F-15: the request names the device, so another attempt would get it again."""
        verdict = judge_devices([reported(), reported(BROKEN)], "node-1")
        assert isinstance(verdict, Failed)
        assert (verdict.reason, verdict.retry) == (Reason.DEVICE_NOT_READY, False)
        assert verdict.message.endswith("cannot be used: broken, no link, on node node-1")
