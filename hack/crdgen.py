"""Writes the CRD of BindRequest: hack/crd.template.yaml plus the claim types of resource.k8s.io/v1.

A BindRequest carries parts of a ResourceClaim. Their schema is taken from what an API server itself
publishes, so that nothing which that server accepts in a claim is pruned from a BindRequest.

    hack/crd                    write the file, asking a local API server that is started for it
    hack/crd --check            write nothing; exit 1 if the file is out of date
    hack/crd --openapi FILE     take the OpenAPI v3 document of resource.k8s.io/v1 from a file instead,
                                as kubectl get --raw /openapi/v3/apis/resource.k8s.io/v1 writes it
    hack/crd --upstream FILE    write the CRD as KAI v0.17 ships it (no conditions, no columns)
"""

import argparse
import copy
import difflib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from controlplane import ControlPlane

Schema = dict[str, Any]

HACK = Path(__file__).resolve().parent
TEMPLATE = HACK / "crd.template.yaml"
TARGET = HACK.parent / "config" / "crd" / "scheduling.run.ai_bindrequests.yaml"
OPENAPI_PATH = "/openapi/v3/apis/resource.k8s.io/v1"
# The Kubernetes whose claims the file follows: the newest that the binder is tested with.
KUBERNETES = "1.36"

# What a CRD may say and what we keep. A keyword that is in neither list stops the generator: dropping it
# unseen could make the CRD accept or refuse other objects than the API server does.
KEPT = {
    *("type", "properties", "required", "items", "additionalProperties", "description"),
    *("format", "enum", "pattern", "minLength", "maxLength", "minimum"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
}
# Hints for clients, and the defaults that only mean "the zero value of Go".
DROPPED = {
    *("default", "x-kubernetes-group-version-kind", "x-kubernetes-unions"),
    *("x-kubernetes-patch-merge-key", "x-kubernetes-patch-strategy"),
}

# The OpenAPI of built-in types cannot express these two; a CRD can, in this way.
QUANTITY: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    "x-kubernetes-int-or-string": True,
}
OPAQUE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPECIAL = {"Quantity": QUANTITY, "RawExtension": OPAQUE}
PREFERRED_PACKAGE = "io.k8s.api.resource.v1."


class UnknownKeywordError(Exception):
    """The OpenAPI document uses something that this generator has not been taught."""


class Converter:
    """Makes a structural schema (no references, no allOf) of the types of one OpenAPI document."""

    def __init__(self, document: Schema) -> None:
        """Takes the document; nothing is converted before it is asked for."""
        self._types: dict[str, Schema] = document["components"]["schemas"]

    def convert(self, schema: Schema, *, from_server: bool = False) -> Schema:
        """The same schema with all references put in place."""
        schema = dict(schema)
        references = [part["$ref"] for part in schema.pop("allOf", [])]
        if "$ref" in schema:
            references.append(schema.pop("$ref"))
        if len(references) > 1:
            raise UnknownKeywordError(f"allOf of several types: {references}")
        converted = self._convert_keywords(schema, from_server)
        return self._convert_type(references[0]) | converted if references else converted

    def _convert_type(self, reference: str) -> Schema:
        name = self._full_name(reference.removeprefix("#/components/schemas/"))
        short = name.rpartition(".")[2]
        if short in SPECIAL:
            return copy.deepcopy(SPECIAL[short])
        converted = self.convert(self._types[name], from_server=True)
        if short == "DeviceToleration":
            # The one default of these types that is not a zero value: the server fills it in, so must we.
            converted["properties"]["operator"]["default"] = "Equal"
        return converted

    def _full_name(self, name: str) -> str:
        """The template may use the short name of a type."""
        return name if "." in name or name in SPECIAL else PREFERRED_PACKAGE + name

    def _convert_keywords(self, schema: Schema, from_server: bool) -> Schema:
        converted: Schema = {}
        for keyword, value in schema.items():
            if keyword in DROPPED or (keyword == "enum" and from_server):
                # Enums of the server grow from version to version: today's would refuse what tomorrow's
                # scheduler writes. KAI's own CRD has none, either.
                continue
            if keyword not in KEPT:
                raise UnknownKeywordError(f"keyword {keyword!r} with value {value!r}")
            match keyword:
                case "properties":
                    converted[keyword] = {
                        name: self.convert(part, from_server=from_server) for name, part in value.items()
                    }
                case "items" | "additionalProperties":
                    converted[keyword] = self.convert(value, from_server=from_server)
                case "required":
                    converted[keyword] = sorted(value)
                case "description":
                    converted[keyword] = first_paragraph(value)
                case _:
                    converted[keyword] = value
        return converted


def first_paragraph(text: str) -> str:
    """Enough for kubectl explain; the whole texts would make the file several times as long."""
    return " ".join(text.partition("\n\n")[0].split())


def build(document: Schema) -> Schema:
    """The CRD with all that this binder adds."""
    crd: Schema = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    version = crd["spec"]["versions"][0]
    schema = version["schema"]
    schema["openAPIV3Schema"] = Converter(document).convert(schema["openAPIV3Schema"])
    return crd


def as_upstream(crd: Schema) -> Schema:
    """The CRD as KAI v0.17 ships it: its contract, without what this binder and KAI v0.18 add."""
    crd = copy.deepcopy(crd)
    del crd["spec"]["names"]["shortNames"], crd["spec"]["names"]["categories"]
    version = crd["spec"]["versions"][0]
    del version["additionalPrinterColumns"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["conditions"], status["properties"]["observedGeneration"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["selectedFractionalGpuGroups"], spec["predictedNUMAMemoryGroups"]
    del spec["receivedGPU"]["properties"]["computePortion"]
    _drop_descriptions(version["schema"]["openAPIV3Schema"])
    return crd


def _drop_descriptions(schema: Schema) -> None:
    schema.pop("description", None)
    for part in schema.get("properties", {}).values():
        _drop_descriptions(part)
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            _drop_descriptions(schema[keyword])


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which kubectl reads but people do not."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render(crd: Schema, comment: str) -> str:
    """YAML in a fixed order, so that the same input always gives the same bytes."""
    body: str = yaml.dump(crd, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=120)
    return f"# {comment}\n{body}"


def fetch() -> Schema:
    """The OpenAPI document as an API server publishes it."""
    with (
        tempfile.TemporaryDirectory(prefix="kai-binder-crd-") as directory,
        ControlPlane(Path(directory), kubernetes=KUBERNETES, controller_manager=False) as plane,
    ):
        return plane.request("GET", OPENAPI_PATH)


def write_or_check(path: Path, text: str, check: bool) -> int:
    """Writes the file, or shows how it differs; returns the exit code."""
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    if check:
        if present == text:
            print(f"{path.name} is up to date")
            return 0
        sys.stdout.writelines(
            difflib.unified_diff(
                present.splitlines(keepends=True), text.splitlines(keepends=True), str(path), "generated", n=2
            )
        )
        print(f"{path.name} is out of date: run hack/crd", file=sys.stderr)
        return 1
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Does as the arguments say (those of the command line by default); returns the exit code."""
    summary, _, usage = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="hack/crd",
        description=summary,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--check", action="store_true", help="compare only; exit 1 if the file is out of date")
    add("--openapi", type=Path, metavar="FILE", help="OpenAPI v3 document of resource.k8s.io/v1")
    add("--upstream", type=Path, metavar="FILE", help="write or check KAI's own CRD in this file")
    options = parser.parse_args(arguments)

    document = json.loads(options.openapi.read_text()) if options.openapi else fetch()
    crd = build(document)
    if options.upstream:
        text = render(as_upstream(crd), "KAI's own CRD, re-created by hack/crd --upstream. Do not edit.")
        return write_or_check(options.upstream, text, options.check)
    text = render(crd, "Generated by hack/crd from hack/crd.template.yaml. Do not edit.")
    return write_or_check(TARGET, text, options.check)
