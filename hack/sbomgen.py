"""Writes sbom.cdx.json: what is in the image, as CycloneDX, from the lock and the Dockerfile.

hack/sbom            write it
hack/sbom --check    write nothing; exit 1 if it is out of date

The same input gives the same bytes: no time, and a serial number made from what is listed. The base image is
one entry; what is in it only its own makers can list.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from dependencies import LOCK, PROJECT, ROOT, Locked, licence_of, locked
from packageurl import PackageURL

SBOM = ROOT / "sbom.cdx.json"
_BASE = re.compile(r"^FROM (python):((3\.\d+)[\w.-]*)", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the file; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="hack/sbom", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    text = render()
    if options.check:
        if not SBOM.is_file() or SBOM.read_text() != text:
            print(f"{SBOM.name} is out of date; run hack/sbom", file=sys.stderr)
            return 1
        return 0
    SBOM.write_text(text)
    return 0


def base_image() -> tuple[str, str, str]:
    """The base image's name and tag, and the minor of its Python.

    Raises:
        ValueError: The stages of the Dockerfile have different ones.
    """
    found = {match.groups() for match in _BASE.finditer((ROOT / "Dockerfile").read_text())}
    if len(found) != 1:
        raise ValueError(f"the Dockerfile should name one base image, not {sorted(found)}")
    ((name, tag, minor),) = found
    return name, tag, minor


def environment() -> Mapping[str, str]:
    """What markers are judged by: the image's Python, on Linux."""
    minor = base_image()[2]
    return MappingProxyType(
        {
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "python_full_version": f"{minor}.0",
            "python_version": minor,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "extra": "",
        }
    )


def packages() -> list[Locked]:
    """The locked packages that are in the image."""
    return [package for package in locked(LOCK.read_text()) if package.is_needed(environment())]


def render() -> str:
    """The whole file.

    Raises:
        LicenceError: The environment lacks a package, or the licence of one is not known.
    """
    image, base, components = _components()
    bom = Bom(components=[base, *components.values()], metadata=BomMetaData(component=image))
    bom.register_dependency(image, [base, components[PROJECT]])
    bom.register_dependency(base)
    listed = packages()
    for name, component in components.items():
        bom.register_dependency(component, [components[p.name] for p in listed if name in p.needed_by])
    told = json.loads(JsonV1Dot6(bom).output_as_string())
    del told["metadata"]["timestamp"], told["serialNumber"]
    serial = uuid5(NAMESPACE_OID, json.dumps(told, sort_keys=True))
    return json.dumps({**told, "serialNumber": f"urn:uuid:{serial}"}, indent=2, sort_keys=True) + "\n"


def _components() -> tuple[Component, Component, dict[str, Component]]:
    """The image, its base, and all packages in it by name."""
    name, tag, _ = base_image()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = Component(
        type=ComponentType.CONTAINER, name=PROJECT, version=project["version"], bom_ref=f"image:{PROJECT}"
    )
    base = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        bom_ref=f"image:{name}",
        purl=PackageURL("docker", name=name, version=tag),
        description="The base image: Debian and CPython. What is in it is not listed here.",
    )
    own = _package(PROJECT, project["version"], project["license"], ComponentType.APPLICATION)
    others = {p.name: _package(p.name, p.version, licence_of(p)) for p in packages()}
    return image, base, {PROJECT: own, **others}


def _package(name: str, version: str, licence: str, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(
        type=kind,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)],
    )
