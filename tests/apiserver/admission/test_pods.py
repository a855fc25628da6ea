"""Pods as users write them, from kubectl through the webhook to their GPU; and those that it does not see."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.binder import Binder
from tests.certificates import Mount
from tests.cluster import MERGE
from tests.polling import wait_until
from tests.webhook import MUTATE, VALIDATE, Keys, Users, Webhook, Webhooks, installed, user_pod

pytestmark = pytest.mark.usefixtures("webhook")
HALF = {"gpu-fraction": "0.5"}
MAPS = "runai/shared-gpu-configmap"
BOTH = {(MUTATE, "allowed"): 1, (VALIDATE, "allowed"): 1}

WHOLE = {"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


class Seen:
    """What a webhook was asked since this was made."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self._before = webhook.counts()

    def __call__(self) -> dict[tuple[str, str], int]:
        now = self._webhook.counts()
        return {
            key: count - self._before.get(key, 0)
            for key, count in now.items()
            if count != self._before.get(key)
        }


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, webhooks: Webhooks, keys: Keys, mount: Mount) -> Iterator[Webhook]:
    """One webhook with default settings, called by the shipped configurations."""
    made = webhooks.make("--binder-metrics-url=", mount=mount).start()
    with installed(made, control_plane, keys.authority):
        yield made


@pytest.fixture
def seen(webhook: Webhook) -> Seen:
    return Seen(webhook)


def variables(pod: Object) -> dict[str, Any]:
    """From which keys the first container takes its variables."""
    env = pod["spec"]["containers"][0]["env"]
    return {item["name"]: item["valueFrom"]["configMapKeyRef"] for item in env}


@pytest.mark.parametrize(
    ("annotations", "portion"), [(HALF, "0.50"), ({"gpu-memory": "4096"}, "0.27")], ids=["fraction", "memory"]
)
def test_from_kubectl_to_its_gpu(
    users: Users, binder: Binder, annotations: dict[str, str], portion: str
) -> None:
    node, group = users.node(labels={"nvidia.com/gpu.memory": "15360"}), users.group()
    assert users.apply(user_pod("a", annotations)) == "pod/a created\n"
    pod = users.get_pod("a")
    users.ask_share("a", node, group, owner=pod, portion=portion)
    users.wait_for("a", "Succeeded")

    assert users.node_of("a") == node
    maps = users.annotations("a")[MAPS]
    assert variables(pod)["NVIDIA_VISIBLE_DEVICES"]["name"] == f"{maps}-0"
    assert users.data(f"{maps}-0")["NVIDIA_VISIBLE_DEVICES"] == users.device(group)
    assert users.data(f"{maps}-0")["GPU_PORTION"] == portion
    (other,) = pod["spec"]["containers"][0]["envFrom"]
    assert other["configMapRef"] == {"name": f"{maps}-0-evar", "optional": False}
    assert users.all_config_maps() == [f"{maps}-0", f"{maps}-0-evar"]
    volumes = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
    assert volumes == [f"{maps}-0"]


def test_a_pod_whose_name_the_server_makes(users: Users) -> None:
    body = user_pod("", HALF)
    body["metadata"] = {"generateName": "many-", "annotations": HALF}
    said = users.kubectl("create", "-f", "-", item=body)
    assert said.startswith("pod/many-"), said
    (pod,) = users.all_pods()
    assert pod["metadata"]["annotations"][MAPS].endswith("-shared-gpu")


@pytest.mark.parametrize("kind", ["ReplicaSet", "Job"])
def test_pods_that_a_controller_makes(users: Users, kind: str) -> None:
    pod = user_pod("unused", HALF, restartPolicy="Never" if kind == "Job" else "Always")
    template = {"metadata": {"annotations": HALF, "labels": {"of": "a"}}, "spec": pod["spec"]}
    counted = {"completions": 2, "parallelism": 2} if kind == "Job" else {"replicas": 2}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"of": "a"}}}
    spec = {"template": template, **counted, **selector}
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    assert "created" in users.apply(body)

    def prefixes() -> set[str]:
        pods = users.all_pods()
        assert len(pods) == 2
        return {item["metadata"]["annotations"][MAPS] for item in pods}

    found = wait_until(prefixes)
    assert len(found) == 2, "each pod has maps of its own"
    assert all(prefix.startswith("a-") for prefix in found), "named after their owner"


@pytest.mark.parametrize(
    ("annotations", "spec", "words"),
    [
        ({"gpu-fraction": "1.5"}, {}, ["gpu-fraction", "1.5", "above 0 and below 1, such as 0.5"]),
        ({"gpu-memory": "4Gi"}, {}, ["gpu-memory", "4Gi", "a whole number of MiB"]),
        ({**HALF, "gpu-memory": "1"}, {}, ["by gpu-fraction or by gpu-memory, not by both"]),
        ({**HALF, "gpu-fraction-container-name": "cuda"}, {}, ["gpu-fraction-container-name", "main"]),
        ({"gpu-fraction-num-devices": "2"}, {}, ["gpu-fraction-num-devices", "share of each device"]),
        (
            HALF,
            {
                "containers": [
                    {"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                ]
            },
            ["spec.containers[0]", "may not ask for whole ones as well"],
        ),
    ],
    ids=["number", "unit", "both", "container", "count", "whole"],
)
def test_a_refusal_as_kubectl_shows_it(
    users: Users, annotations: dict[str, str], spec: dict[str, Any], words: list[str]
) -> None:
    said = users.apply(user_pod("a", annotations, **spec))
    assert "denied the request: " in said
    assert ".pods.kai-binder.kai.scheduler" in said
    assert [word for word in words if word not in said] == [], said
    assert users.all_pods() == []


def test_only_pods_that_ask_for_a_share_are_seen(users: Users, seen: Seen) -> None:
    for name, annotations, spec in (
        ("plain", {}, {}),
        ("others", {"example.com/note": "gpu-fraction"}, {}),
        ("another-scheduler", {"gpu-fraction": "nonsense"}, {"schedulerName": "default-scheduler"}),
    ):
        assert users.apply(user_pod(name, annotations, **spec)) == f"pod/{name} created\n"
    assert seen() == {}
    users.apply(user_pod("share", HALF))
    assert seen() == BOTH


@pytest.mark.parametrize("namespace", ["kube-system", "kai-scheduler", "kai-resource-reservation"])
def test_some_namespaces_are_left_alone(users: Users, seen: Seen, namespace: str) -> None:
    body = user_pod("not-asked-about", {"gpu-fraction": "nonsense"})
    body["metadata"]["namespace"] = namespace
    said = users.plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(body), check=False)
    assert "admission webhook" not in said
    assert seen() == {}


def test_a_dry_run_is_answered_like_any_other(users: Users, seen: Seen) -> None:
    assert users.apply(user_pod("a", HALF), "--dry-run=server") == "pod/a created (server dry run)\n"
    assert "denied the request" in users.apply(user_pod("b", {"gpu-fraction": "2"}), "--dry-run=server")
    assert seen()[MUTATE, "allowed"] >= 1
    assert users.all_pods() == []
    assert users.all_config_maps() == []


def test_what_was_settled_with_a_pod_cannot_be_changed(users: Users) -> None:
    users.apply(user_pod("a", HALF))
    before = users.annotations("a")
    for change in ("gpu-fraction=0.6", "gpu-fraction-", "gpu-memory=1", f"{MAPS}=other", f"{MAPS}-"):
        said = users.kubectl("annotate", "--overwrite", "pod/a", change)
        assert "denied the request" in said, change
        assert change.rstrip("-").partition("=")[0] in said
        assert "make the pod anew" in said
    assert users.annotations("a") == before


def test_changes_of_something_else_do_not_wait_for_the_webhook(users: Users, seen: Seen) -> None:
    users.apply(user_pod("a", HALF))
    assert seen() == BOTH
    assert users.kubectl("annotate", "pod/a", "example.com/note=b") == "pod/a annotated\n"
    assert users.kubectl("label", "pod/a", "runai-gpu-group=g") == "pod/a labeled\n"
    users.hold(f"{users.pods}/a")
    users.set_phase("a", "Running")
    users.delete_pod("a")
    users.let_go(f"{users.pods}/a")
    wait_until(lambda: not users.all_pods())
    assert seen() == BOTH


def test_what_a_container_was_given_only_the_binder_may_write(users: Users) -> None:
    given = "nvidia.com/container.main.gpus.devices"
    said = users.apply(user_pod("a", {**HALF, given: "GPU-1"}))
    assert "only system:serviceaccount:kai-scheduler:binder may write it" in said
    users.apply(user_pod("a", HALF))
    assert "may write it" in users.kubectl("annotate", "pod/a", f"{given}=GPU-1")
    account = "--as=system:serviceaccount:kai-scheduler:binder"
    assert users.kubectl("annotate", "pod/a", f"{given}=GPU-1", account) == "pod/a annotated\n"


GIVEN = "nvidia.com/container.main.gpus.devices"


def test_what_a_container_was_given_is_guarded_whoever_schedules_the_pod(users: Users, seen: Seen) -> None:
    another = {"schedulerName": "default-scheduler"}
    assert "may write it" in users.apply(user_pod("a", {GIVEN: "GPU-1"}, **another))
    assert (
        users.apply(user_pod("a", {"nvidia.com/container.main.status": "x"}, **another)) == "pod/a created\n"
    )
    assert "may write it" in users.kubectl("annotate", "pod/a", f"{GIVEN}=GPU-1")
    before = seen()
    assert before == {(VALIDATE, "refused"): 2}
    assert users.kubectl("annotate", "pod/a", "example.com/note=b") == "pod/a annotated\n"
    assert seen() == before
    account = "--as=system:serviceaccount:kai-scheduler:binder"
    assert users.kubectl("annotate", "pod/a", f"{GIVEN}=GPU-1", account) == "pod/a annotated\n"
    assert users.kubectl("annotate", "pod/a", f"{GIVEN}-") == "pod/a annotated\n"


@pytest.mark.parametrize("namespace", ["kube-system", "kai-scheduler", "kai-resource-reservation"])
def test_what_was_given_in_namespaces_that_are_left_alone(users: Users, seen: Seen, namespace: str) -> None:
    body = user_pod("not-asked-about", {GIVEN: "GPU-1"}, schedulerName="default-scheduler")
    body["metadata"]["namespace"] = namespace
    said = users.plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(body), check=False)
    assert "admission webhook" not in said
    assert seen() == {}


def test_who_may_write_statuses_is_not_asked(users: Users, seen: Seen) -> None:
    """A limit: the server takes annotations by that way, too, which kubelets go by every ten seconds."""
    users.pod("a")
    devices = "nvidia.com/container.main.gpus.devices"
    body = {"metadata": {"annotations": {devices: "GPU-of-others"}}}
    users.plane.request("PATCH", f"{users.pods}/a/status", body, MERGE)
    assert users.annotations("a")[devices] == "GPU-of-others"
    assert seen() == {}


def test_kubectl_debug_gets_no_gpu(users: Users, seen: Seen) -> None:
    for name, annotations in (("share", HALF), ("plain", {})):
        users.apply(user_pod(name, annotations))

    def debug(pod: str, name: str, value: str) -> str:
        flags = ("--attach=false", "--image=busybox", f"--env=NVIDIA_VISIBLE_DEVICES={value}")
        return users.kubectl("debug", f"pod/{pod}", f"--container={name}", *flags)

    assert "denied" not in debug("share", "first", "void")
    said = debug("share", "second", "all")
    where = "spec.ephemeralContainers[1].env[NVIDIA_VISIBLE_DEVICES]: Invalid value: 'all'"
    assert f"{where}: container second has no share of a GPU; must be void or none" in said
    assert "denied" not in debug("share", "third", "none")
    asked = seen()
    assert "denied" not in debug("plain", "first", "all")
    assert seen() == asked

    def names(pod: str) -> list[str]:
        return [item["name"] for item in users.get_pod(pod)["spec"]["ephemeralContainers"]]

    assert (names("share"), names("plain")) == (["first", "third"], ["first"])
