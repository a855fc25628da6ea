"""The rights that are shipped are those that are used: no fewer, no more.

A binder does once what it ever does, on an API server that writes down every request; what it asked for is
compared with the roles, verb by verb. What only the server itself asks for has a test of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.audit import answered
from tests.binder import Binders
from tests.claims import GPU, Claims, brings, extended, prepared, uses
from tests.cluster import ROOT, prepared_plane
from tests.features import BINDING_CONDITIONS, EXTENDED_RESOURCES, skip_without
from tests.polling import wait_until
from tests.provisioner import Provisioner
from tests.sharing import RESERVATIONS, Agents, Sharing, playing_agents
from tests.volumes import Volumes

Right = tuple[str, str, str, str]
"""Verb, group, resource with its subresource, and the namespace; `*` for all namespaces."""

NAMESPACE, ACCOUNT = "kai-scheduler", "binder"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
DECISION = "authorization.k8s.io/decision"
GPUS = {GPU: "1"}
GUARD = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
ASKED_BY_THE_SERVER: frozenset[Right] = frozenset(
    {
        # test_a_claim_that_its_pod_owns_needs_a_right_on_finalizers
        ("update", "", "pods/finalizers", "*"),
        # plugins/test_dynamicresources_faults.py::test_the_right_on_bindings_of_claims_is_needed
        ("patch", "resource.k8s.io", "resourceclaims/binding", "*"),
    }
)
"""Rights that the server looks at while it judges another request."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Audited, and with the guard of owner references that some clusters have."""
    directory = tmp_path_factory.mktemp("audited")
    with prepared_plane(directory, audit=True, apiserver_flags=[GUARD]) as made:
        skip_without(made, BINDING_CONDITIONS, EXTENDED_RESOURCES)
        yield made


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[Agents]:
    with playing_agents(plane) as decisions:
        yield decisions


@pytest.fixture
def cluster(plane: ControlPlane, agents: Agents) -> Sharing:
    return Sharing.beside(plane, agents)


@pytest.fixture
def binders(plane: ControlPlane, tmp_path: Path) -> Iterator[Binders]:
    made = Binders(tmp_path, plane.service_account_kubeconfig(NAMESPACE, ACCOUNT))
    try:
        yield made
        made.close()
    finally:
        made.kill()


def granted(path: Path, account: str) -> set[Right]:
    """What the roles of a folder give an account, each verb on each resource by itself."""
    found: set[Right] = set()
    items = [item for file in sorted(path.rglob("*.yaml")) for item in yaml.safe_load_all(file.read_text())]
    roles = {(item["kind"], item["metadata"]["name"]): item for item in items if "rules" in (item or {})}
    for binding in items:
        subjects = (binding or {}).get("subjects") or ()
        if not any(subject["name"] == account for subject in subjects):
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        namespace = binding["metadata"].get("namespace", "*")
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    found |= {(verb, group, resource, namespace) for verb in rule["verbs"]}
    return found


def used(log: Path, user: str, within: set[str]) -> set[Right]:
    """What a user has asked for, by the audit log.

    Args:
        log: The audit log.
        user: His name.
        within: Namespaces that the roles tell apart.
    """
    found = set()
    for entry in answered(log):
        reference = entry.get("objectRef")
        if entry["user"]["username"] != user or reference is None:
            continue
        assert (entry.get("annotations") or {}).get(DECISION) != "forbid", entry
        part = f"/{reference['subresource']}" if "subresource" in reference else ""
        namespace = reference.get("namespace", "")
        place = namespace if namespace in within else "*"
        found.add((entry["verb"], reference.get("apiGroup", ""), reference["resource"] + part, place))
    return found


# What a binder ever does.


def requests_and_pods(cluster: Sharing) -> None:
    node = cluster.node()
    cluster.pod_and_request("plain", node)
    cluster.pod_and_request("gone", "no-such-node", backoffLimit=2)
    large = [{"zone": "x" * 500, "amount": {"cpu": "1"}} for _ in range(50)]
    cluster.pod_and_request("large", node, predictedNUMAZones=large)
    stale = {"kai.scheduler/numa-placement-predicted": "[]"}
    cluster.ask("stale", node, owner=cluster.pod("stale", annotations=stale))
    gpu = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
    cluster.pod_and_request("no-group", node, **gpu)
    cluster.ask("absent", node)
    for name, phase in (("plain", "Succeeded"), ("large", "Succeeded"), ("stale", "Succeeded")):
        cluster.wait_for(name, phase, within_s=30)
    cluster.wait_for_attempts("gone", 2, within_s=30)
    wait_until(lambda: "no-group" not in {item["metadata"]["name"] for item in cluster.all_requests()})


def shared_gpus(cluster: Sharing) -> None:
    node, group = cluster.node(), cluster.group()
    cluster.share("a", node, group)
    cluster.make_config_map("b-shared-gpu-0", {"GPU_PORTION": "1"})  # nobody's: taken over
    cluster.share("b", node, group)
    for name in ("a", "b"):
        cluster.wait_for(name, "Succeeded", within_s=30)
    with cluster.bindings_denied():
        cluster.share("c", node, group)
        cluster.wait_for("c", "Failed", within_s=30)
    for name in ("a", "b"):
        cluster.delete_pod(name)
    cluster.wait_until_freed(group, within_s=30)


def volumes(cluster: Sharing) -> None:
    made = Volumes(cluster)
    node, local, dynamic = made.node(), made.storage_class(), made.made_class()
    driver = f"{made.unique('driver')}.example.com"
    body: Object = {"metadata": {"name": driver}, "spec": {"storageCapacity": True}}
    cluster.plane.request("POST", "/apis/storage.k8s.io/v1/csidrivers", body)
    made.claim("full", made.storage_class("csi", driver))
    cluster.ask("full", node, owner=cluster.pod("full", claims=("full",)))
    cluster.wait_for("full", "Failed", within_s=30)
    names = tuple(f"absent-{number}" for number in range(8))  # so many are listed, not read one by one
    cluster.ask("many", node, owner=cluster.pod("many", claims=names))
    cluster.wait_for("many", "Failed", within_s=30)
    made.volume("v", local, node)
    made.claim("static", local)
    with Provisioner(cluster.plane, cluster.namespace) as provisioner:
        provisioner.delay_s = 3.0
        made.claim("made", dynamic)
        cluster.ask("stored", node, owner=cluster.pod("stored", claims=("static", "made")))
        cluster.wait_for("stored", "Succeeded", within_s=30)
    ebs: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "awsElasticBlockStore": {"volumeID": "vol-0123456789abcdef0"},
    }
    where = {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    ebs["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}
    name = made.unique("ebs")
    cluster.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": ebs})
    made.bound_claim("old", "", name)
    cluster.ask("old", node, owner=cluster.pod("old", claims=("old",)))
    cluster.wait_for("old", "Failed", within_s=30)


def device_claims(cluster: Sharing) -> None:
    claims, node = Claims(cluster), cluster.node()
    claims.make("one")
    waits = cluster.pod("waits", resourceClaims=uses(gpu="one"))
    cluster.ask("waits", node, owner=waits, resourceClaimAllocations=brings("gpu", prepared(node)))
    wait_until(lambda: "DynamicResources" in cluster.conditions("waits"), within_s=30)
    claims.report(node, "example.com/attached")
    cluster.wait_for("waits", "Succeeded", within_s=30)
    more = cluster.pod("more", limits=GPUS)
    cluster.ask("more", node, owner=more, extendedResourceClaimAllocation=extended(node, "gpu-1"))
    cluster.wait_for("more", "Succeeded", within_s=30)
    with cluster.bindings_denied():
        taken_back = cluster.pod("back", limits=GPUS)
        cluster.ask("back", node, owner=taken_back, extendedResourceClaimAllocation=extended(node, "gpu-7"))
        cluster.wait_for("back", "Failed", within_s=30)


def test_the_binder_has_the_rights_that_it_uses_and_no_more(
    plane: ControlPlane, cluster: Sharing, binders: Binders
) -> None:
    elects = ("--leader-elect", f"--leader-election-namespace={NAMESPACE}")
    binders.start(*elects).stop()
    binder = binders.start(*elects)  # which finds the lease
    requests_and_pods(cluster)
    shared_gpus(cluster)
    volumes(cluster)
    device_claims(cluster)
    binder.stop()  # a watch is logged once it has ended
    asked = used(plane.audit_log, USER, {NAMESPACE, RESERVATIONS})
    given = granted(ROOT / "config/rbac", ACCOUNT)
    everywhere = {right[:3] for right in given if right[3] == "*"}
    # Where a right holds everywhere, it does not matter where it was used.
    asked = {(*right[:3], "*") if right[:3] in everywhere else right for right in asked}
    assert asked - given == set(), "missing"
    assert given - asked - ASKED_BY_THE_SERVER == set(), "not needed"
    assert given >= ASKED_BY_THE_SERVER


def test_a_claim_that_its_pod_owns_needs_a_right_on_finalizers(
    plane: ControlPlane, cluster: Sharing, binders: Binders
) -> None:
    """By the admission plugin OwnerReferencesPermissionEnforcement."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kai-binder-python"
    whole = plane.request("GET", role)
    rules = [rule for rule in whole["rules"] if "pods/finalizers" not in rule["resources"]]
    plane.request("PUT", role, {**whole, "rules": rules})
    try:
        binders.start()
        node = cluster.node()
        cluster.ask(
            "a", node, owner=cluster.pod("a", limits=GPUS), extendedResourceClaimAllocation=extended(node)
        )
        reason = cluster.wait_for("a", "Failed", within_s=30)["reason"]
        assert "Forbidden" in reason
        assert "finalizers" in reason
    finally:
        present = plane.request("GET", role)
        plane.request("PUT", role, {**present, "rules": whole["rules"]})


def test_agent_and_webhook_have_what_they_use() -> None:
    """Their verbs are few, and each is taken away in a test of theirs or stands in one line of code."""
    agent = granted(ROOT / "config/rbac", "kai-resource-reservation")
    assert agent == {(verb, "", "pods", RESERVATIONS) for verb in ("get", "patch")}
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    webhook = granted(ROOT / "config/admission", "kai-binder-admission")
    group = "admissionregistration.k8s.io"
    assert webhook == {(verb, group, kind, "*") for verb in ("get", "patch") for kind in kinds} | {
        (verb, "", "secrets", NAMESPACE) for verb in ("get", "update")
    }
