"""The claims of requests that KAI's real scheduler wrote end as the Go binder left them, but protected."""

import json
from pathlib import Path

import pytest
from controlplane import RequestError

from controller.runtime.client import Object
from tests.claims import FINALIZER, Claims
from tests.cluster import Cluster
from tests.features import EXTENDED_RESOURCES, skip_without
from tests.polling import wait_until

pytestmark = pytest.mark.usefixtures("binder")

DATA = Path(__file__).parents[2] / "data"
CLAIMS = {"dra-claim": "one-card", "dra-template": "own-card", "dra-plain": "extended-resources"}
"""Part of the name of the claim of each pod."""


def read(file: str, kind: str, name: str) -> Object:
    """The object of this kind whose name contains `name`."""
    items = json.loads((DATA / file).read_text())["items"]
    (found,) = [item for item in items if item["kind"] == kind and name in item["metadata"]["name"]]
    return dict(found)


def make_pod(cluster: Cluster, expected: Object) -> Object:
    metadata = {key: expected["metadata"][key] for key in ("name", "labels")}
    spec = {key: value for key, value in expected["spec"].items() if key != "nodeName"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return cluster.plane.request("POST", cluster.pods, body)


def make_claim(cluster: Cluster, pod: str, expected: Object) -> None:
    """What a user has made before the pod: the claim, or the template."""
    claims = Claims(cluster)
    name, spec = expected["metadata"]["name"], claims.shaped(expected["spec"])
    if pod == "dra-claim":
        body = {"metadata": {"name": name}, "spec": spec}
        cluster.plane.request("POST", claims.path, body)
    elif pod == "dra-template":
        template = {"metadata": {"name": "card-each"}, "spec": {"spec": spec}}
        cluster.plane.request("POST", claims.templates, template)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_request_of_kai_with_claims(cluster: Cluster, name: str) -> None:
    if name == "dra-plain":
        skip_without(cluster.plane, EXTENDED_RESOURCES)
    written = read("kai-bindrequests.json", "BindRequest", name)
    expected_pod = read("kai-after-bind.json", "Pod", name)
    expected = read("kai-after-bind.json", "ResourceClaim", CLAIMS[name])
    node = written["spec"]["selectedNode"]
    try:
        cluster.node(node)
    except RequestError as error:
        if error.status != 409:  # two of them are for one node
            raise
    make_claim(cluster, name, expected)
    pod = make_pod(cluster, expected_pod)
    if name == "dra-template":
        wait_until(lambda: cluster.get_pod(name)["status"].get("resourceClaimStatuses"))
    cluster.request(name, written["spec"], pod)
    cluster.wait_for(name, "Succeeded")
    cluster.wait_for_event(name, "Bound")

    (claim,) = Claims(cluster).all()
    found = cluster.get_pod(name)
    assert found["spec"]["nodeName"] == node
    assert found["metadata"]["annotations"]["received-resource-type"] == "Regular"
    # Only names and uids that the server makes up, and the finalizer, may differ (D-22).
    text = json.dumps(expected)
    for old, new in (
        (expected_pod["metadata"]["uid"], pod["metadata"]["uid"]),
        (expected["metadata"]["name"], claim["metadata"]["name"]),
    ):
        text = text.replace(old, new)
    expected = json.loads(text)
    assert claim["spec"] == Claims(cluster).shaped(expected["spec"])
    assert claim["status"] == expected["status"]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    if name == "dra-template":  # it is Kubernetes' own controller that made it; that of 1.31 writes this, too
        claim["metadata"]["ownerReferences"][0].pop("blockOwnerDeletion", None)
    kept = ("annotations", "generateName", "ownerReferences")
    for key in kept if name != "dra-claim" else ():
        assert claim["metadata"][key] == expected["metadata"][key]
    told = "extendedResourceClaimStatus"
    theirs = dict(expected_pod["status"].get(told) or {})
    if theirs:
        theirs["resourceClaimName"] = claim["metadata"]["name"]
    assert dict(found["status"].get(told) or {}) == theirs
