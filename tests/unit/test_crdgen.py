"""The generator of the CRD: from the OpenAPI of built-in types to a structural schema."""

from pathlib import Path
from typing import Any

import crdgen
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def convert(schema: dict[str, Any], **types: dict[str, Any]) -> dict[str, Any]:
    named = {f"io.k8s.api.resource.v1.{name}": body for name, body in types.items()}
    return crdgen.Converter({"components": {"schemas": named}}).convert(schema)


def reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/io.k8s.api.resource.v1.{name}"}


def test_a_reference_is_replaced_by_the_type() -> None:
    assert convert(reference("Claim"), Claim={"type": "object"}) == {"type": "object"}


def test_what_a_field_says_of_itself_wins_over_its_type() -> None:
    field = {"allOf": [reference("Claim")], "default": {}, "description": "of the field"}
    result = convert(field, Claim={"type": "object", "description": "of the type"})
    assert result == {"type": "object", "description": "of the field"}


def test_types_are_resolved_inside_lists_and_maps() -> None:
    schema = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": reference("Name")}},
        "additionalProperties": reference("Name"),
    }
    result = convert(schema, Name={"type": "string", "default": ""})
    assert result["properties"]["list"]["items"] == {"type": "string"}
    assert result["additionalProperties"] == {"type": "string"}


def test_a_quantity_may_be_a_number_or_text() -> None:
    name = "io.k8s.apimachinery.pkg.api.resource.Quantity"
    assert convert({"$ref": f"#/components/schemas/{name}"})["x-kubernetes-int-or-string"] is True


def test_opaque_parameters_are_kept_whole() -> None:
    name = "io.k8s.apimachinery.pkg.runtime.RawExtension"
    assert convert({"$ref": f"#/components/schemas/{name}"})["x-kubernetes-preserve-unknown-fields"] is True


def test_only_the_operator_of_a_toleration_keeps_its_default() -> None:
    toleration = {
        "type": "object",
        "properties": {
            "operator": {"type": "string", "default": "Equal"},
            "key": {"type": "string", "default": ""},
        },
    }
    properties = convert(reference("DeviceToleration"), DeviceToleration=toleration)["properties"]
    assert properties == {"operator": {"type": "string", "default": "Equal"}, "key": {"type": "string"}}


def test_enums_of_the_server_are_left_out_and_our_own_are_kept() -> None:
    mode = {"type": "string", "enum": ["All", "ExactCount"]}
    assert convert(reference("Mode"), Mode=mode) == {"type": "string"}
    assert convert(mode) == mode


@pytest.mark.parametrize("schema", [{"oneOf": [{"type": "string"}]}, {"not": {}}, {"x-new": True}])
def test_an_unknown_keyword_stops_the_generator(schema: dict[str, Any]) -> None:
    with pytest.raises(crdgen.UnknownKeywordError):
        convert(schema)


def fields(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every part of a schema by its path, without descriptions."""
    own = {
        key: value
        for key, value in schema.items()
        if key not in ("description", "properties", "items", "additionalProperties")
    }
    found = {path: own}
    for name, part in schema.get("properties", {}).items():
        found |= fields(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            found |= fields(schema[key], f"{path}[]")
    return found


def read_fields(path: Path) -> dict[str, dict[str, Any]]:
    crd = yaml.safe_load(path.read_text())
    return fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


OURS = read_fields(ROOT / "config/crd/scheduling.run.ai_bindrequests.yaml")
UPSTREAM = read_fields(ROOT / "tests/apiserver/data/upstream-crd.yaml")


def test_ours_is_upstreams_and_adds_the_status_and_what_kai_018_has() -> None:
    assert {path: OURS.get(path) for path in UPSTREAM} == UPSTREAM
    added = set(OURS) - set(UPSTREAM)
    assert added
    status = (".status.conditions", ".status.observedGeneration")
    groups = (".spec.selectedFractionalGpuGroups", ".spec.predictedNUMAMemoryGroups")
    assert all(path.startswith((*status, *groups, ".spec.receivedGPU.computePortion")) for path in added)


def test_no_field_of_kai_is_required_limited_or_defaulted() -> None:
    claim_types = (".allocation", ".deviceRequests", ".containerMappings", ".predictedNUMA")
    for path, schema in OURS.items():
        if not path.startswith(".status.conditions") and not any(part in path for part in claim_types):
            assert not schema.keys() & {"required", "enum", "pattern", "minimum", "maximum", "default"}, path


def test_the_only_defaults_are_the_operators_of_tolerations() -> None:
    defaults = {path: schema["default"] for path, schema in OURS.items() if "default" in schema}
    assert defaults
    assert all(path.endswith(".tolerations[].operator") for path in defaults)
    assert set(defaults.values()) == {"Equal"}


def test_no_field_that_the_contract_names_is_missing() -> None:
    claim = ".spec.resourceClaimAllocations[].allocation"
    extended = ".spec.extendedResourceClaimAllocation"
    result = "devices.results[]"
    expected = {
        ".spec.podName": {"type": "string"},
        ".spec.selectedNode": {"type": "string"},
        ".spec.receivedResourceType": {"type": "string"},
        ".spec.backoffLimit": {"type": "integer", "format": "int32"},
        ".spec.selectedGPUGroups[]": {"type": "string"},
        ".spec.receivedGPU.count": {"type": "integer"},
        ".spec.receivedGPU.portion": {"type": "string"},
        ".spec.resourceClaimAllocations[].name": {"type": "string"},
        f"{claim}.allocationTimestamp": {"type": "string", "format": "date-time"},
        f"{claim}.devices.config[]": {"type": "object", "required": ["source"]},
        f"{claim}.devices.config[].opaque": {"type": "object", "required": ["driver", "parameters"]},
        f"{claim}.devices.config[].opaque.parameters": crdgen.OPAQUE,
        f"{claim}.{result}": {"type": "object", "required": ["device", "driver", "pool", "request"]},
        f"{claim}.{result}.adminAccess": {"type": "boolean"},
        f"{claim}.{result}.bindingConditions[]": {"type": "string"},
        f"{claim}.{result}.bindingFailureConditions[]": {"type": "string"},
        f"{claim}.{result}.consumedCapacity[]": crdgen.QUANTITY,
        f"{claim}.{result}.shareID": {"type": "string"},
        f"{extended}.deviceRequests[]": {"type": "object", "required": ["name"]},
        f"{extended}.deviceRequests[].exactly": {"type": "object", "required": ["deviceClassName"]},
        f"{extended}.deviceRequests[].firstAvailable[]": {
            "type": "object",
            "required": ["deviceClassName", "name"],
        },
        f"{extended}.containerMappings[]": {
            "type": "object",
            "required": ["containerName", "requestName", "resourceName"],
        },
        f"{extended}.allocation.{result}.tolerations[].tolerationSeconds": {
            "type": "integer",
            "format": "int64",
        },
        ".spec.predictedNUMAZones[]": {"type": "object", "required": ["amount", "zone"]},
        ".spec.predictedNUMAZones[].amount[]": crdgen.QUANTITY,
        ".status.phase": {"type": "string"},
        ".status.reason": {"type": "string"},
        ".status.failedAttempts": {"type": "integer", "format": "int32"},
    }
    assert {path: UPSTREAM.get(path) for path in expected} == expected
