"""What can be said of the webhook's manifests without a server: they fit the settings, and each other."""

import re
from typing import Any

import pytest
import yaml

from controller.admission.validation import SETTLED
from controller.kai.fractions import ENDINGS, is_granted, is_settled
from controller.kai.sharing import asks_for_share
from controller.settings import AdmissionSettings, Settings, load_as
from controller.webhook import MUTATE, VALIDATE
from tests.unit.dockerfile import ROOT

FOLDER = ROOT / "config/admission"


def items(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / path).read_text()))


def item(path: str) -> dict[str, Any]:
    (only,) = items(path)
    return only


POD = item("deployment.yaml")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
WEBHOOKS = [webhook for config in items("webhooks.yaml") for webhook in config["webhooks"]]
MAKES, CHECKS, GRANTS, EPHEMERAL = WEBHOOKS
KEY = "nvidia.com/container.main."


def settings(*more: str) -> AdmissionSettings:
    verb, *flags = CONTAINER["args"]
    assert verb == AdmissionSettings.verb
    return load_as(AdmissionSettings, [*flags, *more], {})


def test_the_arguments_are_accepted_and_say_the_defaults() -> None:
    assert settings() == load_as(AdmissionSettings, [], {})


def test_the_names_are_those_of_the_settings() -> None:
    told = settings()
    service = item("service.yaml")["metadata"]
    assert (service["namespace"], service["name"]) == (told.webhook_namespace, told.webhook_service_name)
    names = {config["metadata"]["name"] for config in items("webhooks.yaml")}
    assert names == {told.webhook_configuration_name}
    for webhook in WEBHOOKS:
        called = webhook["clientConfig"]["service"]
        assert (called["namespace"], called["name"]) == (service["namespace"], service["name"])
    assert [webhook["clientConfig"]["service"]["path"] for webhook in WEBHOOKS] == [
        *(MUTATE, VALIDATE, VALIDATE, VALIDATE)
    ]
    (mounted,) = (mount for mount in CONTAINER["volumeMounts"] if mount["name"] == "tls")
    assert told.tls_cert_file == f"{mounted['mountPath']}/tls.crt"
    assert told.tls_private_key_file == f"{mounted['mountPath']}/tls.key"


def test_the_ports_are_those_of_the_settings() -> None:
    told = settings()
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    addresses = (told.webhook_bind_address, told.metrics_bind_address, told.health_probe_bind_address)
    assert [f":{port}" for port in ports.values()] == list(addresses)
    assert {port["targetPort"] for port in item("service.yaml")["spec"]["ports"]} <= ports.keys()


def test_rights_are_tied_to_names() -> None:
    told = settings("--self-signed-certificate")
    for path, names in (
        ("self-signed/role.yaml", [told.webhook_secret_name]),
        ("self-signed/cluster_role.yaml", [told.webhook_configuration_name]),
    ):
        role, binding = items(path)
        for rule in role["rules"]:
            assert rule["resourceNames"] == names
            assert not {"*", "list", "watch", "delete", "create"} & {*rule["verbs"], *rule["resources"]}
        assert [subject["name"] for subject in binding["subjects"]] == [POD["serviceAccountName"]]
    assert not POD["automountServiceAccountToken"], "without the component it has no rights"


@pytest.mark.parametrize("webhook", WEBHOOKS, ids=lambda webhook: webhook["name"])
def test_only_who_has_to_waits_for_the_webhook(webhook: dict[str, Any]) -> None:
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")
    assert webhook["timeoutSeconds"] <= 5
    (excluded,) = webhook["namespaceSelector"]["matchExpressions"]
    binder = Settings()
    needed = {"kube-system", settings().webhook_namespace, binder.resource_reservation_namespace}
    assert (excluded["operator"], set(excluded["values"])) == ("NotIn", needed)
    scheduler, _ = webhook["matchConditions"]
    how = "!=" if webhook is GRANTS else "=="
    assert scheduler["expression"] == f'object.spec.schedulerName {how} "{settings().scheduler_name}"'
    part = "pods/ephemeralcontainers" if webhook is EPHEMERAL else "pods"
    assert {tuple(rule["resources"]) for rule in webhook["rules"]} == {(part,)}, "no other subresource"


def pattern_of(*webhooks: dict[str, Any]) -> re.Pattern[str]:
    """The one by which these choose annotations."""
    conditions = [webhook["matchConditions"][1]["expression"] for webhook in webhooks]
    patterns = {pattern for text in conditions for pattern in re.findall(r'matches\("(.+?)"\)', text)}
    assert len(patterns) == 1
    return re.compile(patterns.pop().replace("\\\\", "\\"))


def test_new_pods_are_judged_as_changed_and_changes_by_the_same_annotations() -> None:
    operations = [webhook["rules"][0]["operations"] for webhook in WEBHOOKS]
    assert operations == [["CREATE"], ["CREATE", "UPDATE"], ["CREATE", "UPDATE"], ["UPDATE"]]
    pattern = pattern_of(MAKES, CHECKS)
    assert {name for name in JUDGED if not pattern.search(name)} == set()
    others = {"received-resource-type", "nvidiaXcom/container.a", "example.com/gpu-fraction", "runai/other"}
    others |= {"nvidia.cdi.k8s.io.example.com/a", "runai/shared-gpu-configmap-a"}
    assert {name for name in others if pattern.search(name)} == set()


ALL = (
    *("gpu-fraction", "gpu-memory", "gpu-fraction.limit", "gpu-memory.limit", "gpu-fraction-num-devices"),
    *("gpu-fraction-container-name", "runai/shared-gpu-configmap", "nvidia.com/gpu", "gpu-memory.request"),
    *(f"{KEY}{ending}" for ending in (*ENDINGS, "status", "gpus.devices.x", "xgpus.devices")),
    *(f"nvidia.com/container.{ending}" for ending in ENDINGS),
    *(f"nvidia.com/container..{ending}" for ending in ENDINGS),
    *("nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/container.main", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.iox"),
    *("kai.scheduler/container.main.gpu-memory.portion.limit", "xnvidia.cdi.k8s.io/pod"),
)
JUDGED = {name for name in ALL if is_granted(name, cdi=True) or is_settled(name) or name in SETTLED}
"""All of these that any judge of ours looks at."""


def test_the_annotations_that_are_judged_are_many() -> None:
    assert len(JUDGED) > 20
    assert JUDGED >= SETTLED
    assert {"nvidia.cdi.k8s.io", f"{KEY}gpus.devices", "nvidia.com/container.gpus.devices"} <= JUDGED


def test_pods_of_other_schedulers_are_asked_about_for_what_only_the_binder_writes() -> None:
    pattern = pattern_of(GRANTS)
    assert {name for name in ALL if pattern.search(name)} == {
        name for name in ALL if is_granted(name, cdi=True)
    }


def test_containers_that_come_later_are_asked_about_in_pods_with_a_share() -> None:
    pattern = pattern_of(EPHEMERAL)
    assert {name for name in ALL if pattern.search(name)} == {
        name for name in ALL if asks_for_share({name: ""})
    }


def test_two_replicas_end_one_after_the_other() -> None:
    deployment = item("deployment.yaml")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert item("disruption_budget.yaml")["spec"]["minAvailable"] == 1
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert item("disruption_budget.yaml")["spec"]["selector"]["matchLabels"] == labels
    assert item("service.yaml")["spec"]["selector"] == labels


def test_it_runs_as_little_as_the_binder_does() -> None:
    (binder,) = yaml.safe_load((ROOT / "config/manager/deployment.yaml").read_text())["spec"]["template"][
        "spec"
    ]["containers"]
    assert CONTAINER["securityContext"] == binder["securityContext"]
    assert CONTAINER["image"] == binder["image"]
