"""The command as KAI's operator starts it, in a cluster where KAI's chart owns roles of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from controlplane import ControlPlane

from tests.binder import Binders
from tests.cluster import Cluster, minor
from tests.volumes import Volumes

ROOT = Path(__file__).parents[3]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADDRESSES = ("--health-probe-bind-address", "--metrics-bind-address")


def operator_arguments(kai: str = "v0.17") -> list[str]:
    """The arguments as the operator of that KAI writes them, but for the addresses, which tests share."""
    if kai == "v0.17":
        deployment = yaml.safe_load((ROOT / "tests/data/operator-binder-deployment.yaml").read_text())
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        args: list[str] = container["args"]
    else:
        args = yaml.safe_load((ROOT / "tests/data/operator-binder-arguments-v018.yaml").read_text())
    for name in ADDRESSES:
        at = args.index(name)
        del args[at : at + 2]
    return args


def test_a_binder_with_the_operators_arguments_binds(own_cluster: Cluster, own_binders: Binders) -> None:
    """F-65."""
    # In a pod the namespace of the lease is the pod's own.
    env = {"BINDER_LEADER_ELECTION_NAMESPACE": "kai-scheduler"}
    binder = own_binders.start(*operator_arguments(), env=env)
    own_cluster.pod_and_request("a", own_cluster.node())
    own_cluster.wait_for("a", "Succeeded")
    assert "This process leads now" in binder.log
    assert "GPUs cannot be shared" in binder.log, "its images have no registry, and that is told (F-29)"


def test_an_upgrade_of_kai_takes_no_right_away(own_plane: ControlPlane) -> None:
    """F-61: KAI's chart writes its own roles anew; none of ours has the name of one."""
    text = own_plane.kubectl("kustomize", str(ROOT / "config/rbac"))
    ours = {(item["kind"], item["metadata"]["name"]) for item in yaml.safe_load_all(text)}
    roles = {name for kind, name in ours if kind != "ServiceAccount"}
    assert roles.isdisjoint({"kai-binder", "binder", "kai-resource-reservation"})

    # The chart's role and binding beside ours, as an upgrade leaves them.
    subject = {"kind": "ServiceAccount", "name": "binder", "namespace": "kai-scheduler"}
    own_plane.request("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "kai-binder"}, "rules": []})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kai-binder"}
    binding = {"metadata": {"name": "kai-binder"}, "roleRef": reference, "subjects": [subject]}
    own_plane.request("POST", f"{RBAC}/clusterrolebindings", binding)
    account = "system:serviceaccount:kai-scheduler:binder"
    may = own_plane.kubectl("auth", "can-i", "patch", "persistentvolumes", f"--as={account}", check=False)
    assert may.split()[0] == "yes", may


@pytest.fixture(scope="module")
def operators_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster of KAI's operator: its service account with the rights that KAI gives it, and our overlay."""
    directory = tmp_path_factory.mktemp("operators-plane")
    with ControlPlane(directory, kubernetes=minor()) as plane:
        plane.kubectl("apply", "-f", str(ROOT / "config/default/namespaces.yaml"))
        account = {"metadata": {"name": "binder", "namespace": "kai-scheduler"}}
        plane.request("POST", "/api/v1/namespaces/kai-scheduler/serviceaccounts", account)
        rules = yaml.safe_load((ROOT / "tests/data/upstream-role.yaml").read_text())
        role = {"metadata": {"name": "kai-binder"}, "rules": rules}
        plane.request("POST", f"{RBAC}/clusterroles", role)
        subject = {"kind": "ServiceAccount", "name": "binder", "namespace": "kai-scheduler"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kai-binder"}
        binding = {"metadata": {"name": "kai-binder"}, "roleRef": reference, "subjects": [subject]}
        plane.request("POST", f"{RBAC}/clusterrolebindings", binding)
        plane.kubectl("apply", "-k", str(ROOT / "config/overlays/operator"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane


@pytest.mark.parametrize("kai", ["v0.17", "v0.18"])
def test_under_the_operators_account_with_the_overlay(
    operators_plane: ControlPlane, tmp_path: Path, kai: str
) -> None:
    """D-24, N-22 to N-28: the arguments of the operator, the rights of KAI's role, and the overlay."""
    binders = Binders(tmp_path, operators_plane.service_account_kubeconfig("kai-scheduler", "binder"))
    try:
        env = {"BINDER_LEADER_ELECTION_NAMESPACE": "kai-scheduler"}
        binder = binders.start(*operator_arguments(kai), env=env)
        cluster = Cluster.fresh(operators_plane)
        volumes = Volumes(cluster)
        node, class_name = volumes.node(), volumes.storage_class()
        cluster.pod_and_request("cpu", node)
        volumes.volume("disk", class_name, node)
        volumes.claim("disk", class_name)
        volumes.pod_and_request("disk", node, "disk")
        cluster.wait_for("cpu", "Succeeded", within_s=30)
        cluster.wait_for("disk", "Succeeded", within_s=30)
        assert set(cluster.conditions("cpu")) >= {"VolumeBinding", "Bound"}
        assert "A setting is not known" not in binder.log
        binders.close()
    finally:
        binders.kill()


def test_the_overlay_adds_to_the_operators_cluster_and_replaces_nothing(
    operators_plane: ControlPlane,
) -> None:
    text = operators_plane.kubectl("kustomize", str(ROOT / "config/overlays/operator"))
    kinds = sorted(item["kind"] for item in yaml.safe_load_all(text))
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"]


def test_a_newer_operators_settings_are_told_of(own_cluster: Cluster, own_binders: Binders) -> None:
    """N-22, N-23: they must not keep the binder from starting."""
    plugins = (
        '--plugins={"timemachine":{"enabled":true},"gpusharing":{"arguments":{"cdiEnabled":"false","x":"1"}}}'
    )
    binder = own_binders.start("--brand-new", "7", plugins)
    own_cluster.pod_and_request("a", own_cluster.node())
    own_cluster.wait_for("a", "Succeeded")
    for text in ("--brand-new is no known flag", "no plugin 'timemachine'", "gpusharing has no argument 'x'"):
        assert binder.log.count(text) == 1
