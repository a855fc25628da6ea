"""What overlays make of the webhook's manifests. That all are accepted: tests/apiserver/overlays."""

import yaml
from controlplane import ControlPlane

from tests.cluster import ROOT

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def built(plane: ControlPlane, overlay: str) -> dict[tuple[str, str], dict[str, object]]:
    """What kustomize makes of an overlay, by kind and name."""
    text = plane.kubectl("kustomize", str(ROOT / "config/overlays" / overlay))
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(text)}


def container(item: dict[str, object]) -> dict[str, object]:
    spec = item["spec"]
    assert isinstance(spec, dict)
    (only,) = spec["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_one_config_map_turns_the_limit_on_for_both(control_plane: ControlPlane) -> None:
    items = built(control_plane, "with-memory-limit")
    ((name, config_map),) = ((name, item) for (kind, name), item in items.items() if kind == "ConfigMap")
    assert config_map["data"] == {"BINDER_PLUGINS__GPUMEMORYLIMIT__ENABLED": "true"}
    for deployment in ("binder", "kai-binder-admission"):
        source = container(items["Deployment", deployment])["envFrom"]
        assert source == [{"configMapRef": {"name": name}}]


def test_the_operators_binder_is_left_to_the_operator(control_plane: ControlPlane) -> None:
    items = built(control_plane, "operator-with-admission")
    assert ("Deployment", "binder") not in items
    assert ("ServiceAccount", "binder") not in items
    assert ("Deployment", "kai-binder-admission") in items


def test_the_webhook_fits_the_restricted_pod_security_standard(control_plane: ControlPlane) -> None:
    item = built(control_plane, "with-admission")["Deployment", "kai-binder-admission"]
    spec = item["spec"]
    assert isinstance(spec, dict)
    namespace = "restricted-admission"
    body = {"metadata": {"name": namespace, "labels": RESTRICTED}}
    control_plane.request("POST", "/api/v1/namespaces", body)
    try:
        pod = {
            "metadata": {"name": "a"},
            "spec": spec["template"]["spec"] | {"serviceAccountName": "default"},
        }
        control_plane.kubectl("wait", "-n", namespace, "--for=create", "sa/default", "--timeout=20s")
        control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    finally:
        control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}")
