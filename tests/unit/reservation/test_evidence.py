"""Of which GPU groups a pod has a share: for certain, and perhaps."""

from typing import Any

import pytest

from controller.binder.objects import trim_request
from controller.reservation.evidence import groups_kept, groups_used
from controller.runtime.client import Object

OURS = "kai-scheduler"
BOUND = {"type": "Bound", "status": "True", "reason": "Reconciled"}
RESERVED = {"type": "GPUReserved", "status": "True", "reason": "Reconciled"}
FOUND = {"type": "GPUReserved", "status": "True", "reason": "AlreadyBound"}
GAVE, CAME_LATE, UNTOLD = [RESERVED, BOUND], [FOUND, BOUND], None


def pod(*groups: str, **annotations: str) -> Object:
    """A pod that runs on node a, with these groups in its labels."""
    labels = {f"runai-gpu-group/{group}": group for group in groups}
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": labels, "annotations": annotations}
    metadata["creationTimestamp"] = "2026-01-01T00:00:09Z"
    return {"metadata": metadata, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}}


def request(
    conditions: list[Any] | None,
    *groups: str,
    node: str = "a",
    owner: str | None = "u",
    made_s: int = 9,
    **status: object,
) -> Object:
    """A request that has succeeded."""
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner}] if owner else []
    kind = {"receivedResourceType": "Fraction", "selectedGPUGroups": [*groups]} if groups else {}
    told: Object = {"phase": "Succeeded", "observedGeneration": 1, "conditions": conditions, **status}
    metadata = {"name": "r", "namespace": "n", "uid": "r", "generation": 1, "ownerReferences": owners}
    metadata["creationTimestamp"] = f"2026-01-01T00:00:{made_s:02}Z"
    return {
        "metadata": metadata,
        "spec": {"podName": "p", "selectedNode": node, **kind},
        "status": told,
    }


SHARE = {"gpu-fraction": "0.5"}
BOUND_SHARE = {**SHARE, "received-resource-type": "Fraction"}

CASES: dict[str, tuple[Object, list[Object], set[str], set[str]]] = {
    "as it should be": (pod("g", **BOUND_SHARE), [request(GAVE, "g")], {"g"}, {"g"}),
    "by another binder": (pod("g", **BOUND_SHARE), [request(UNTOLD, "g")], {"g"}, {"g"}),
    "its labels were taken off": (pod(**BOUND_SHARE), [request(GAVE, "g")], {"g"}, {"g"}),
    "all that was taken off": (pod(), [request(GAVE, "g")], {"g"}, {"g"}),
    "its labels say another group": (pod("h", **BOUND_SHARE), [request(GAVE, "g")], {"g"}, {"g"}),
    "no request is there": (pod("g", **BOUND_SHARE), [], {"g"}, {"g"}),
    "no request, and it asks for nothing": (pod("g"), [], set(), set()),
    "a pod without a share that says it has one": (pod("g", **SHARE), [request(GAVE)], set(), set()),
    "a second request came late": (
        pod("g", **BOUND_SHARE),
        [request(GAVE, "g"), request(CAME_LATE, "h")],
        {"g", "h"},
        {"g"},
    ),
    "the first is gone": (pod("g", **BOUND_SHARE), [request(CAME_LATE, "h")], {"g", "h"}, {"g"}),
    "the first is gone, the second is for no share": (
        pod("g", **BOUND_SHARE),
        [request(CAME_LATE)],
        {"g"},
        {"g"},
    ),
    "bound by hand, and a request came late": (pod(**SHARE), [request(CAME_LATE, "h")], {"h"}, set()),
    "bound by hand, and another binder's request came late": (
        pod(**SHARE),
        [request(UNTOLD, "h")],
        {"h"},
        set(),
    ),
    "all was done, but somebody else bound it": (
        pod("g", **BOUND_SHARE),
        [request([RESERVED, {**BOUND, "reason": "AlreadyBound"}], "h")],
        {"g", "h"},
        {"g"},
    ),
    "labels are not written yet": (pod(**BOUND_SHARE), [request(CAME_LATE, "g")], {"g"}, {"g"}),
    "a request of nobody, for a former pod": (
        pod(),
        [request(GAVE, "g", owner=None, made_s=8)],
        {"g"},
        set(),
    ),
    "a request of nobody, for a pod that was there": (pod(), [request(GAVE, "g", owner=None)], {"g"}, {"g"}),
    "a request for another node": (pod(), [request(GAVE, "g", node="b")], set(), set()),
    "its spec was changed since": (
        pod("g", **BOUND_SHARE),
        [request(GAVE, "h", observedGeneration=0)],
        {"g", "h"},
        {"g"},
    ),
    "it was not bound": (pod("g", **BOUND_SHARE), [request(GAVE, "g", phase="Failed")], {"g"}, {"g"}),
    "conditions of all kinds": (pod("g", **BOUND_SHARE), [request([7, "x", {}], "g")], {"g"}, {"g"}),
}


@pytest.mark.parametrize("cached", [False, True], ids=["live", "from the cache"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_and_what_is_certain(case: str, cached: bool) -> None:
    user, requests, kept, used = CASES[case]
    if cached:
        copies = [
            {**item, "metadata": {**item["metadata"]}, "status": {**item["status"]}} for item in requests
        ]
        requests = [trim_request(item) for item in copies]
        assert [trim_request(item) for item in requests] == requests
    assert groups_kept(user, requests, OURS) == kept
    assert groups_used(user, requests, OURS) == used
    assert used <= kept


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_has_nothing(phase: str) -> None:
    user = {**pod("g", **BOUND_SHARE), "status": {"phase": phase}}
    assert (
        groups_kept(user, [request(GAVE, "g")], OURS)
        == groups_used(user, [request(GAVE, "g")], OURS)
        == set()
    )
