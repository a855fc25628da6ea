"""Where a request goes: the path of a kind, a namespace, an object and its subresource."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.calls import Call, Resource

PODS = Resource("v1", "pods")
NODES = Resource("v1", "nodes", namespaced=False)
LEASES = Resource("coordination.k8s.io/v1", "leases")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("call", "location"),
    [
        (Call("GET", PODS), "/api/v1/pods"),
        (Call("GET", PODS, "ns"), "/api/v1/namespaces/ns/pods"),
        (Call("GET", PODS, "ns", "a.b-1"), "/api/v1/namespaces/ns/pods/a.b-1"),
        (Call("POST", PODS, "ns", "a", "binding"), "/api/v1/namespaces/ns/pods/a/binding"),
        (Call("GET", NODES, None, "n"), "/api/v1/nodes/n"),
        (Call("PUT", LEASES, "ns", "l"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
        (Call("GET", PODS, "ns", "system:a"), "/api/v1/namespaces/ns/pods/system%3Aa"),
        (Call("GET", Resource("", ""), path="/version"), "/version"),
    ],
)
def test_the_location_of_a_request(call: Call, location: str) -> None:
    assert call.location == location


@given(NAMES, NAMES)
def test_whatever_the_names_they_stay_one_segment_each(namespace: str, name: str) -> None:
    quoted = (quote(part, safe="") for part in (namespace, name))
    where, what = quoted
    assert Call("GET", PODS, namespace, name).location == f"/api/v1/namespaces/{where}/pods/{what}"
