"""Requests that KAI's real scheduler wrote end as the Go binder left them."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from controlplane import RequestError

from controller.runtime.client import Object
from tests.cluster import Cluster

DATA = Path(__file__).parents[2] / "data"
NAMES = ("cpu-only", "gpu-whole", "gpu-two", "mig-slice")
OF_THE_SERVER = ("creationTimestamp", "generation", "managedFields", "namespace", "resourceVersion", "uid")


def read(file: str, kind: str) -> dict[str, Object]:
    items = json.loads((DATA / file).read_text())["items"]
    return {item["metadata"]["name"]: item for item in items if item["kind"] == kind}


def as_met(pod: Object) -> Object:
    """The pod as the binder met it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in OF_THE_SERVER}
    annotations = {
        key: value for key, value in metadata["annotations"].items() if key != "received-resource-type"
    }
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": annotations},
        "spec": spec,
    }


def told(pod: Object) -> list[tuple[str, ...]]:
    """The conditions without their times."""
    conditions = pod["status"]["conditions"]
    keys = ("type", "status", "reason", "message")
    return sorted(tuple(item.get(key, "") for key in keys) for item in conditions)


@pytest.mark.usefixtures("binder")
@pytest.mark.parametrize("name", NAMES)
def test_a_request_of_kai(cluster: Cluster, name: str) -> None:
    written = read("kai-bindrequests.json", "BindRequest")[name]
    expected = read("kai-after-bind.json", "Pod")[name]
    node = written["spec"]["selectedNode"]
    with suppress(RequestError):  # it may be there: two of them are for one node
        cluster.node(node)
    made = cluster.plane.request("POST", cluster.pods, as_met(expected))
    labels = written["metadata"]["labels"]
    cluster.request(name, written["spec"], made)
    cluster.patch_request(name, {"metadata": {"labels": labels}})

    cluster.wait_for(name, "Succeeded")
    event = cluster.wait_for_event(name, "Bound")
    found = cluster.get_pod(name)
    assert found["spec"]["nodeName"] == expected["spec"]["nodeName"] == node
    assert found["metadata"]["annotations"] == expected["metadata"]["annotations"]
    assert found["metadata"]["labels"] == expected["metadata"]["labels"]
    assert told(found) == told(expected)
    assert found["status"]["phase"] == expected["status"]["phase"]
    theirs = read("kai-after-bind.json", "BindRequest")[name]["status"]
    assert {key: cluster.status(name)[key] for key in theirs} == theirs

    events = json.loads((DATA / "kai-after-bind.json").read_text())["items"]
    upstream = next(
        item
        for item in events
        if item["kind"] == "Event" and item["involvedObject"]["name"] == name and item["reason"] == "Bound"
    )
    for key in ("type", "message", "source", "reportingComponent", "count"):
        assert event[key] == upstream[key]
