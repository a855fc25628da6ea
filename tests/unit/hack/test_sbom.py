"""The list of what is in the image is complete, valid and always the same."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import sbomgen
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.unit.dockerfile import ROOT, STAGES, of

TEXT = sbomgen.SBOM.read_text()
SBOM: dict[str, Any] = json.loads(TEXT)
PACKAGES = {item["name"]: item for item in SBOM["components"] if item["purl"].startswith("pkg:pypi/")}
NEEDED_ELSEWHERE = {"colorama", "exceptiongroup", "win32-setctime"}
"""The lock has them for Windows, and for Pythons older than the image's."""


def test_it_is_up_to_date() -> None:
    assert sbomgen.render() == TEXT, "run hack/sbom"


def test_it_is_valid() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(TEXT) is None
    broken = TEXT.replace('"type": "library"', '"type": "book"', 1)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


def test_every_locked_package_is_in_it_with_version_and_licence() -> None:
    """Read from the lock by other means than the script does."""
    lock = (ROOT / "requirements.lock").read_text()
    versions = dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", lock, re.MULTILINE))
    assert lock.count("\n    # via") == len(versions) > 30
    assert {name: versions[name] for name in versions.keys() - NEEDED_ELSEWHERE} == {
        name: item["version"] for name, item in PACKAGES.items() if name != "kai-binder"
    }
    for name, item in PACKAGES.items():
        assert item["purl"] == f"pkg:pypi/{name}@{item['version']}"
        assert item["licenses"], name


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    (base,) = (item for item in SBOM["components"] if item not in PACKAGES.values())
    name = of(STAGES[1], "FROM")[0]
    assert (base["type"], f"{base['name']}:{base['version']}") == ("container", name)
    assert base["purl"] == "pkg:docker/" + name.replace(":", "@")


def test_all_of_it_hangs_together() -> None:
    """From the image on, each entry is needed by another one, and nobody needs what is not there."""
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in SBOM["dependencies"]}
    reached: set[str] = set()
    to_visit = [SBOM["metadata"]["component"]["bom-ref"]]
    while to_visit:
        ref = to_visit.pop()
        if ref not in reached:
            reached.add(ref)
            to_visit += needs[ref]
    assert (
        reached
        == needs.keys()
        == {SBOM["metadata"]["component"]["bom-ref"]} | {item["bom-ref"] for item in SBOM["components"]}
    )


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_same_input_gives_the_same_bytes(seed: str) -> None:
    code = "import sys, sbomgen; sys.stdout.write(sbomgen.render())"
    environment = {"PYTHONPATH": str(ROOT / "hack"), "PYTHONHASHSEED": seed, "PATH": ""}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=120
    )
    assert told.stdout.decode() == TEXT
