"""The command as KAI's operator starts it, in a cluster where KAI's chart owns roles of its own."""

from pathlib import Path

import yaml
from controlplane import ControlPlane

from tests.binder import Binders
from tests.cluster import Cluster

ROOT = Path(__file__).parents[3]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADDRESSES = ("--health-probe-bind-address", "--metrics-bind-address")


def operator_arguments() -> list[str]:
    """The arguments as the operator of v0.17 writes them, but for the addresses, which tests share."""
    deployment = yaml.safe_load((ROOT / "tests/data/operator-binder-deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    args: list[str] = container["args"]
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
