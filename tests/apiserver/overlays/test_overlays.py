"""Every overlay on a new, real API server: applied as people do it; applying it again changes nothing."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane import ControlPlane
from controlplane.process import ControlPlaneError

from controller.settings import load
from tests.apiserver.docs.pages import section
from tests.cluster import ROOT, minor
from tests.polling import wait_until

Object = dict[str, Any]

CONFIG = ROOT / "config"
INSTALLED = sorted({CONFIG / "default", *(path.parent for path in CONFIG.glob("overlays/*/*.yaml"))})
"""What people apply: new overlays are found by their folder."""
KUSTOMIZATIONS = sorted(
    path.parent
    for path in CONFIG.rglob("kustomization.yaml")
    if yaml.safe_load(path.read_text())["kind"] == "Kustomization"
)
BESIDE_OTHERS = {"kai-agent", "operator", "operator-with-admission", "shard"}
"""They add to a cluster that has KAI's namespaces already."""
STRICT = ("apply", "--validate=strict")
AGAIN = ("apply", "--server-side", "--force-conflicts")
"""The README's way for what KAI's own chart has put there before."""


def name_of(path: Path) -> str:
    return str(path.relative_to(CONFIG))


def test_no_overlay_is_left_out() -> None:
    folders = {path for path in (CONFIG / "overlays").iterdir() if path.is_dir()}
    assert folders | {CONFIG / "default"} == set(INSTALLED) <= set(KUSTOMIZATIONS)
    assert {path.name for path in folders} > BESIDE_OTHERS | {"ha", "ha-with-admission"}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Nothing of ours is there yet, and no controller changes what is applied."""
    with ControlPlane(tmp_path / "plane", kubernetes=minor(), controller_manager=False) as made:
        yield made


def built(plane: ControlPlane, path: Path) -> list[Object]:
    return list(yaml.safe_load_all(plane.kubectl("kustomize", str(path))))


def versions(plane: ControlPlane, path: Path, *command: str) -> dict[str, str]:
    """What every write of an object changes; of a CRD, whose status others write, every one of its spec.

    As they are after this command, which shows the objects in the end.
    """
    found = yaml.safe_load(plane.kubectl(*command, "-o", "yaml", "-k", str(path)))["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": str(item["metadata"][field])
        for item in found
        for field in ["generation" if item["kind"] == "CustomResourceDefinition" else "resourceVersion"]
    }


def stored(plane: ControlPlane, crd: Object) -> bool:
    """Whether the server serves a CRD; it must find no fault with the schema."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    conditions = plane.request("GET", path)["status"].get("conditions") or []
    told = {item["type"]: item["status"] for item in conditions}
    assert "NonStructuralSchema" not in told
    assert told.get("NamesAccepted") == told.get("Established") == "True", conditions
    return True


@pytest.mark.parametrize("path", INSTALLED, ids=name_of)
def test_an_overlay_is_applied_and_the_second_time_changes_nothing(plane: ControlPlane, path: Path) -> None:
    items = built(plane, path)
    if path.name in BESIDE_OTHERS:
        plane.kubectl(*STRICT, "-f", str(CONFIG / "default/namespaces.yaml"))
    said = plane.kubectl(*STRICT, "-k", str(path)).splitlines()
    assert len(said) == len(items)
    assert [line for line in said if not line.endswith(" created")] == []
    for crd in (item for item in items if item["kind"] == "CustomResourceDefinition"):
        wait_until(partial(stored, plane, crd))

    first = versions(plane, path, "get")
    assert len(first) == len(items), "two of the same kind and name"
    assert plane.kubectl("diff", "-k", str(path)) == ""
    # By what is stored, not by what kubectl says: of a PodDisruptionBudget it says "configured" every time.
    assert versions(plane, path, *STRICT) == first
    first = versions(plane, path, *AGAIN)
    assert versions(plane, path, *AGAIN) == first


def test_every_kustomization_is_built_and_a_fault_in_one_is_seen(plane: ControlPlane, tmp_path: Path) -> None:
    for path in KUSTOMIZATIONS:
        assert built(plane, path), path
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(CONFIG / 'overlays/ha', tmp_path)}]\n"
        "patches:\n"
        "- target: {kind: Deployment}\n"
        '  patch: \'[{"op": "add", "path": "/spec/topologySpread", "value": 1}]\'\n'
    )
    with pytest.raises(ControlPlaneError, match=r'unknown field "spec\.topologySpread"'):
        plane.kubectl(*STRICT, "-k", str(tmp_path))


def test_a_standby_goes_with_webhook_and_memory_limit(plane: ControlPlane, tmp_path: Path) -> None:
    """As the comment in config/overlays/ha says."""
    base, component = (
        os.path.relpath(CONFIG / name, tmp_path) for name in ("overlays/with-memory-limit", "manager/ha")
    )
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\n"
        "kind: Kustomization\n"
        f"resources: [{base}]\n"
        f"components: [{component}]\n"
    )
    plane.kubectl(*STRICT, "-k", str(tmp_path))
    assert "--leader-elect" not in str(built(plane, CONFIG / "overlays/with-memory-limit")), (
        "the flag is the component's"
    )
    deployments = plane.request("GET", "/apis/apps/v1/namespaces/kai-scheduler/deployments")["items"]
    found = {item["metadata"]["name"]: item["spec"] for item in deployments}
    for name in ("binder", "kai-binder-admission"):
        spec = found[name]
        assert spec["replicas"] == 2
        assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        (container,) = spec["template"]["spec"]["containers"]
        assert container["envFrom"][0]["configMapRef"]["name"].startswith("kai-binder-plugins-")
        assert ("--leader-elect" in container["args"]) == (name == "binder")
    settings = load(found["binder"]["template"]["spec"]["containers"][0]["args"], {})
    assert settings.leader_elect
    assert settings.ignored == ()
    budgets = plane.request("GET", "/apis/policy/v1/namespaces/kai-scheduler/poddisruptionbudgets")["items"]
    assert {item["metadata"]["name"] for item in budgets} == set(found)
    for item in budgets:
        labels = found[item["metadata"]["name"]]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"] == labels


def test_to_a_standby_and_back(plane: ControlPlane) -> None:
    """By the commands in the sentences of docs/install.md, between the applies that they tell of."""
    deployment = "/apis/apps/v1/namespaces/kai-scheduler/deployments/binder"
    budgets = "/apis/policy/v1/namespaces/kai-scheduler/poddisruptionbudgets"
    scale, delete = re.findall(r"`kubectl ([^`]+)`", section("docs/install.md", "With a standby"))
    shape = {"config/default": (1, "Recreate"), "config/overlays/ha": (2, "RollingUpdate")}
    steps = ("config/default", scale, "config/overlays/ha", "config/default")
    for step in steps:
        told = ("apply", "-k", str(ROOT / step)) if step in shape else step.split()
        plane.kubectl(*told)
        spec = plane.request("GET", deployment)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == shape.get(step, (0, "Recreate"))
    (left,) = plane.request("GET", budgets)["items"]
    assert left["spec"]["minAvailable"] == 1, "it refuses the eviction of the only one"
    plane.kubectl(*delete.split())
    assert plane.request("GET", budgets)["items"] == []
