"""The files of config/ on a real API server: what is stored or pruned, and what the binder's account may."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crdgen
import pytest
from controlplane import ControlPlane
from controlplane.flags import claim_versions

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
DATA = ROOT / "tests" / "data"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"
NAMESPACE = "crd-tests"
REQUESTS = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{NAMESPACE}/bindrequests"
ACCOUNT = "system:serviceaccount:kai-scheduler:binder"

Object = dict[str, Any]


def read_requests() -> list[Object]:
    """The requests that KAI's scheduler wrote, as it sent them: without what a server adds."""
    found: list[Object] = []
    for item in json.loads((DATA / "kai-bindrequests.json").read_text())["items"]:
        kept = {key: item["metadata"][key] for key in ("name", "labels", "ownerReferences")}
        found.append({**item, "metadata": kept})
    return found


def bind_request(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "kind": "BindRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def wait_until_established(plane: ControlPlane) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        conditions = plane.request("GET", CRD).get("status", {}).get("conditions") or []
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        time.sleep(0.1)
    pytest.fail("the CRD is not established")


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with our CRD and a namespace of this module's own."""
    control_plane.kubectl("apply", "-k", str(CONFIG / "crd"))
    wait_until_established(control_plane)
    control_plane.kubectl("create", "namespace", NAMESPACE)
    yield control_plane
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def create(plane: ControlPlane, body: Object) -> Object:
    """Stores a request and reads it back; the server refuses what its schema does not know."""
    plane.request("POST", f"{REQUESTS}?fieldValidation=Strict", body)
    return plane.request("GET", f"{REQUESTS}/{body['metadata']['name']}")


def test_the_schema_has_no_fault(plane: ControlPlane) -> None:
    conditions = {each["type"]: each for each in plane.request("GET", CRD)["status"]["conditions"]}
    assert conditions["NamesAccepted"]["status"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("body", read_requests(), ids=lambda body: body["metadata"]["name"])
def test_what_kais_scheduler_wrote_is_stored_whole(plane: ControlPlane, body: Object) -> None:
    # Without the owner: those pods do not exist here, so the garbage collector would delete the request.
    orphan = body | {"metadata": {key: body["metadata"][key] for key in ("name", "labels")}}
    stored = create(plane, orphan)
    assert stored["spec"] == body["spec"]
    assert stored["metadata"]["labels"] == body["metadata"]["labels"]


def test_the_owner_that_the_scheduler_names_is_accepted(plane: ControlPlane) -> None:
    body = read_requests()[0]
    owned = body | {"metadata": body["metadata"] | {"name": "owned"}}
    answer = plane.request("POST", f"{REQUESTS}?fieldValidation=Strict&dryRun=All", owned)
    assert answer["metadata"]["ownerReferences"] == body["metadata"]["ownerReferences"]


RESULT = {
    "request": "card/large",
    "driver": "card.example.com",
    "pool": "node-1",
    "device": "card-0",
    "adminAccess": True,
    "bindingConditions": ["card.example.com/attached"],
    "bindingFailureConditions": ["card.example.com/broken"],
    "consumedCapacity": {"memory": "4Gi", "lanes": 4},
    "shareID": "2d7e3f1c-5a44-4f3e-9d4b-0d3a1b9a7c11",
    "tolerations": [
        {
            "key": "card.example.com/slow",
            "operator": "Equal",
            "value": "yes",
            "effect": "NoExecute",
            "tolerationSeconds": 5_000_000_000,
        },
        {"operator": "Exists"},
    ],
}
ALLOCATION = {
    "allocationTimestamp": "2026-11-30T01:18:22Z",
    "nodeSelector": {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
            },
        ]
    },
    "devices": {
        "results": [RESULT],
        "config": [
            {
                "source": "FromClass",
                "requests": ["card"],
                "opaque": {
                    "driver": "card.example.com",
                    "parameters": {
                        "apiVersion": "card.example.com/v1",
                        "kind": "CardConfig",
                        "sharing": {"strategy": "TimeSlicing", "list": [1, {"deep": None, "more": 1.5}]},
                    },
                },
            },
            {"source": "FromClaim"},
        ],
    },
}
EXACTLY = {
    "deviceClassName": "card.example.com",
    "allocationMode": "ExactCount",
    "count": 3_000_000_000,
    "adminAccess": False,
    "capacity": {"requests": {"memory": "10Gi", "lanes": 2}},
    "selectors": [{"cel": {"expression": 'device.driver == "card.example.com"'}}],
    "tolerations": [{"key": "card.example.com/slow", "operator": "Exists", "effect": "NoSchedule"}],
}
FIRST_AVAILABLE = {key: value for key, value in EXACTLY.items() if key != "adminAccess"} | {"name": "large"}
MAXIMAL = {
    "podName": "everything",
    "selectedNode": "node-1",
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": 2, "portion": "0.50", "computePortion": "0.3333333333333333"},
    "selectedGPUGroups": ["785c4e3e-a0f9-42c1-b68f-3e7461baa06d", "another"],
    "selectedFractionalGpuGroups": [
        {"id": "785c4e3e-a0f9-42c1-b68f-3e7461baa06d", "computeSharingMode": "sm-sharing"},
        {"id": "another", "computeSharingMode": "time-slicing"},
        {"id": "without-a-mode"},
    ],
    "backoffLimit": 2_147_483_647,
    "resourceClaimAllocations": [
        {"name": "card", "allocation": ALLOCATION},
        {"name": "nothing-allocated"},
    ],
    "extendedResourceClaimAllocation": {
        "allocation": ALLOCATION,
        "deviceRequests": [
            {"name": "exact", "exactly": EXACTLY},
            {"name": "choice", "firstAvailable": [FIRST_AVAILABLE]},
        ],
        "containerMappings": [
            {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "exact"},
        ],
    },
    "predictedNUMAZones": [
        {"zone": "0", "amount": {"cpu": "1500m", "nvidia.com/gpu": 1}},
        {"zone": "1", "amount": {"memory": "2Gi"}},
    ],
    "predictedNUMAMemoryGroups": [
        {"memoryNodes": ["0", "1"], "amount": {"memory": "8Gi", "hugepages-1Gi": 2}},
        {"memoryNodes": [], "amount": {}},
    ],
}


def test_every_field_at_once_is_stored_whole(plane: ControlPlane) -> None:
    assert create(plane, bind_request("everything", MAXIMAL))["spec"] == MAXIMAL


def test_the_operator_of_a_toleration_is_filled_in(plane: ControlPlane) -> None:
    result = {key: RESULT[key] for key in ("request", "driver", "pool", "device")}
    allocation = {"devices": {"results": [{**result, "tolerations": [{"key": "slow"}]}]}}
    spec = {"resourceClaimAllocations": [{"name": "card", "allocation": allocation}]}
    stored = create(plane, bind_request("toleration", spec))["spec"]["resourceClaimAllocations"][0]
    (toleration,) = stored["allocation"]["devices"]["results"][0]["tolerations"]
    assert toleration == {"key": "slow", "operator": "Equal"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"receivedResourceType": "SomethingNew", "receivedGPU": {"portion": "not a number", "count": -1}},
        {"backoffLimit": -1, "selectedGPUGroups": ["", "not a label value!"]},
    ],
    ids=["empty", "odd-values", "negative-limit"],
)
def test_no_value_of_kais_own_fields_is_refused(
    plane: ControlPlane, spec: Object, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    assert create(plane, bind_request(name, spec))["spec"] == spec


def test_a_request_without_a_spec_is_stored(plane: ControlPlane) -> None:
    body = bind_request("no-spec", {})
    del body["spec"]
    assert "spec" not in create(plane, body)


def test_an_unknown_field_is_pruned(plane: ControlPlane) -> None:
    body = bind_request("pruned", {"podName": "pod", "unknownToUs": 1})
    stored = plane.request("POST", REQUESTS, body)
    assert stored["spec"] == {"podName": "pod"}


STATUS = {
    "phase": "Failed",
    "reason": "Bound NodeGone: node-1 does not exist",
    "failedAttempts": 2,
    "observedGeneration": 1,
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "x" * length,
            "lastTransitionTime": "2026-11-30T01:18:22Z",
            "observedGeneration": 1,
        }
        for kind, status, reason, length in [
            ("VolumeBinding", "Unknown", "Blocked", 0),
            ("Bound", "False", "NodeGone", 32768),
        ]
    ],
}


def test_the_status_is_stored_whole_and_the_columns_show_it(plane: ControlPlane) -> None:
    spec = {"podName": "the-pod", "selectedNode": "node-1", "receivedResourceType": "Regular"}
    create(plane, bind_request("columns", spec))
    patch = {"status": STATUS}
    path = f"{REQUESTS}/columns/status"
    stored = plane.request("PATCH", path, patch, content_type="application/merge-patch+json")
    assert stored["status"] == STATUS

    header, row = plane.kubectl("get", "br", "columns", "-n", NAMESPACE).splitlines()
    assert header.split() == ["NAME", "POD", "NODE", "TYPE", "PHASE", "ATTEMPTS", "REASON", "AGE"]
    assert row.split()[:-1] == ["columns", "the-pod", "node-1", "Regular", "Failed", "2", "NodeGone"]


def test_the_status_is_only_written_as_status(plane: ControlPlane) -> None:
    body = bind_request("status-apart", {"podName": "pod"}) | {"status": STATUS}
    assert "status" not in create(plane, body)


def test_the_category_finds_requests(plane: ControlPlane) -> None:
    create(plane, bind_request("in-category", {}))
    assert "bindrequest.scheduling.run.ai/in-category" in plane.kubectl(
        "get", "kai", "-n", NAMESPACE, "-o", "name"
    )


def test_kubectl_explain_explains(plane: ControlPlane) -> None:
    assert "Name of the node on which the pod shall run." in plane.kubectl(
        "explain", "bindrequest.spec.selectedNode"
    )
    assert "where the allocated resources are available" in plane.kubectl(
        "explain", "br.spec.resourceClaimAllocations.allocation"
    )


def check_crd(plane: ControlPlane, folder: Path, *arguments: str) -> int:
    """The exit code of hack/crd --check, with the OpenAPI of this very server."""
    if plane.kubernetes != crdgen.KUBERNETES:
        pytest.skip(f"the file follows from Kubernetes {crdgen.KUBERNETES}")
    openapi = folder / "openapi.json"
    openapi.write_text(json.dumps(plane.request("GET", crdgen.OPENAPI_PATH)))
    return crdgen.main(["--check", "--openapi", str(openapi), *arguments])


def test_the_crd_file_follows_from_this_servers_openapi(plane: ControlPlane, tmp_path: Path) -> None:
    assert check_crd(plane, tmp_path) == 0


def test_upstreams_crd_file_follows_from_it_too(plane: ControlPlane, tmp_path: Path) -> None:
    file = Path(__file__).parent / "data" / "upstream-crd.yaml"
    assert check_crd(plane, tmp_path, "--upstream", str(file)) == 0


def test_a_crd_file_that_is_out_of_date_is_noticed(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text("kind: CustomResourceDefinition\n")
    assert check_crd(plane, tmp_path, "--upstream", str(old)) == 1
    assert "out of date" in capsys.readouterr().err


@pytest.fixture(scope="module")
def deployed(plane: ControlPlane) -> ControlPlane:
    """The control plane with all of config/default."""
    plane.kubectl("apply", "-k", str(CONFIG / "default"))
    return plane


def test_the_default_configuration_is_accepted_as_it_stands(deployed: ControlPlane) -> None:
    applied = deployed.kubectl("apply", "--validate=strict", "-k", str(CONFIG / "default"))
    assert {line.rpartition(" ")[2] for line in applied.splitlines()} == {"unchanged"}, applied
    assert "deployment.apps/binder unchanged" in applied


def test_the_deployment_fits_the_restricted_pod_security_standard(deployed: ControlPlane) -> None:
    template = deployed.request("GET", "/apis/apps/v1/namespaces/kai-scheduler/deployments/binder")["spec"][
        "template"
    ]
    label = "pod-security.kubernetes.io/enforce"
    namespace = {"metadata": {"name": "crd-tests-restricted", "labels": {label: "restricted"}}}
    deployed.request("POST", "/api/v1/namespaces", namespace)
    try:
        pod = {
            "metadata": {"name": "binder", "labels": template["metadata"]["labels"]},
            "spec": template["spec"] | {"serviceAccountName": "default", "serviceAccount": "default"},
        }
        deployed.request("POST", "/api/v1/namespaces/crd-tests-restricted/pods?dryRun=All", pod)
    finally:
        deployed.request("DELETE", "/api/v1/namespaces/crd-tests-restricted")


def test_the_samples_are_accepted(deployed: ControlPlane) -> None:
    if "v1" not in claim_versions(deployed.kubernetes):
        pytest.skip(f"a sample is for resource.k8s.io/v1, not served by {deployed.kubernetes}")
    applied = deployed.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-k", str(CONFIG / "samples")
    )
    assert len(applied.splitlines()) == 27, applied


HERE = "default"
OWN = "kai-scheduler"
RESERVATION = "kai-resource-reservation"
MAY = [
    ("get list watch delete", "bindrequests.scheduling.run.ai", HERE),
    ("patch", "bindrequests.scheduling.run.ai/status", HERE),
    ("get list watch patch delete", "pods", HERE),
    ("create", "pods/binding", HERE),
    ("patch", "pods/status", HERE),
    ("update", "pods/finalizers", HERE),
    ("create delete", "pods", RESERVATION),
    ("get list watch", "nodes", HERE),
    ("create patch", "events", HERE),
    ("get create update delete", "configmaps", HERE),
    ("get list watch patch", "persistentvolumeclaims", HERE),
    ("get list watch patch", "persistentvolumes", HERE),
    ("get", "storageclasses.storage.k8s.io", HERE),
    ("get", "csidrivers.storage.k8s.io", HERE),
    ("get", "csinodes.storage.k8s.io", HERE),
    ("list", "csistoragecapacities.storage.k8s.io", HERE),
    ("get list watch create patch delete", "resourceclaims.resource.k8s.io", HERE),
    ("patch", "resourceclaims.resource.k8s.io/status", HERE),
    ("patch", "resourceclaims.resource.k8s.io/binding", HERE),
    ("create", "leases.coordination.k8s.io", OWN),
    ("get update", "leases.coordination.k8s.io:2ad35f9c.kai.scheduler", OWN),
]
MAY_NOT = [
    ("create", "pods", HERE),
    ("create update patch delete", "nodes", HERE),
    ("get list watch create", "secrets", HERE),
    ("get list watch", "secrets", OWN),
    ("list watch", "configmaps", HERE),
    ("create update patch", "bindrequests.scheduling.run.ai", HERE),
    ("update", "bindrequests.scheduling.run.ai/status", HERE),
    ("update", "pods/status", HERE),
    ("update", "persistentvolumes", HERE),
    ("create delete", "persistentvolumes", HERE),
    ("create delete", "persistentvolumeclaims", HERE),
    ("create get update", "leases.coordination.k8s.io", HERE),
    ("update delete", "leases.coordination.k8s.io:another", OWN),
    ("create", "pods/exec", HERE),
    ("create", "pods/eviction", HERE),
    ("create", "serviceaccounts/token", OWN),
    ("create update patch bind escalate", "clusterroles.rbac.authorization.k8s.io", HERE),
    ("update patch", "customresourcedefinitions.apiextensions.k8s.io", HERE),
]


def is_allowed(plane: ControlPlane, verb: str, what: str, namespace: str) -> bool:
    """What the server's authorizer says; ``what`` is resource[.group][/subresource][:name]."""
    rest, _, name = what.partition(":")
    rest, _, subresource = rest.partition("/")
    resource, _, group = rest.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "name": name,
        "namespace": namespace,
    }
    groups = ["system:serviceaccounts", "system:serviceaccounts:kai-scheduler", "system:authenticated"]
    spec = {"user": ACCOUNT, "groups": groups, "resourceAttributes": attributes}
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize(("verbs", "what", "namespace"), MAY)
def test_the_account_may(deployed: ControlPlane, verbs: str, what: str, namespace: str) -> None:
    refused = [verb for verb in verbs.split() if not is_allowed(deployed, verb, what, namespace)]
    assert not refused


@pytest.mark.parametrize(("verbs", "what", "namespace"), MAY_NOT)
def test_the_account_may_not(deployed: ControlPlane, verbs: str, what: str, namespace: str) -> None:
    granted = [verb for verb in verbs.split() if is_allowed(deployed, verb, what, namespace)]
    assert not granted


def test_no_rule_of_the_role_is_left_untested(deployed: ControlPlane) -> None:
    """A right that is added to the role has to be added to MAY, with the thought that it takes."""
    role = deployed.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/kai-binder-python")
    tested = {(verb, what) for verbs, what, _ in MAY for verb in verbs.split()}
    granted = set()
    for rule in role["rules"]:
        (group,) = rule["apiGroups"]
        for whole in rule["resources"]:
            resource, slash, subresource = whole.partition("/")
            name = f"{resource}.{group}" if group else resource
            granted |= {(verb, f"{name}{slash}{subresource}") for verb in rule["verbs"]}
    assert granted <= tested
    assert not any("*" in verb + what for verb, what in granted)
