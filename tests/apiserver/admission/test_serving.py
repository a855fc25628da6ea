"""The webhook while it serves: down, with another certificate, and beside a binder with other plugins."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from tests.binder import Binders
from tests.certificates import Mount
from tests.limits import CARD, ENABLED, LIMIT
from tests.polling import wait_until
from tests.webhook import (
    PATHS,
    VALIDATE,
    Keys,
    Users,
    Webhook,
    Webhooks,
    apply,
    configurations,
    installed,
    remove,
    user_pod,
)

HALF = {"gpu-fraction": "0.5"}
DIFFERENT = (
    "Warning: the binder and its admission webhook run different plugins: "
    "gpumemorylimit is on in the webhook and off in the binder\n"
)


@pytest.fixture(scope="module")
def webhook(webhooks: Webhooks, mount: Mount) -> Webhook:
    """One webhook for this file; each test says how the API server calls it."""
    return webhooks.make("--binder-metrics-url=", mount=mount).start()


@pytest.fixture(autouse=True)
def called_by_nobody(control_plane: ControlPlane) -> Iterator[None]:
    """No webhook is called when a test begins, and none when it has ended."""
    for path in PATHS.values():
        assert control_plane.request("GET", path)["items"] == []
    yield
    remove(control_plane)


def test_while_it_is_down_only_shares_wait(
    control_plane: ControlPlane, users: Users, webhook: Webhook, keys: Keys, binders: Binders
) -> None:
    """With failurePolicy Fail they are refused in words; all else goes on, and so does the binder."""
    node, group = users.node(), users.group()
    with installed(webhook, control_plane, keys.authority):
        users.apply(user_pod("early", HALF))
        assert webhook.stop() == 0
        said = users.apply(user_pod("late", HALF))
        assert 'failed calling webhook "mutate.pods.kai-binder.kai.scheduler"' in said
        assert users.apply(user_pod("plain", {})) == "pod/plain created\n"
        assert "created" in users.apply(user_pod("others", HALF, schedulerName="default-scheduler"))
        said = users.kubectl("annotate", "--overwrite", "pod/early", "gpu-fraction=1")
        assert 'failed calling webhook "validate.pods.kai-binder.kai.scheduler"' in said

        binders.start()
        users.ask_share("early", node, group, owner=users.get_pod("early"))
        users.wait_for("early", "Succeeded")
        assert users.node_of("early") == node, "the binder reserves, labels and binds without it"

        webhook.start()
        wait_until(lambda: users.apply(user_pod("late", HALF)) == "pod/late created\n")


def test_an_old_pod_that_would_be_refused_today_can_end(
    control_plane: ControlPlane, users: Users, webhook: Webhook, keys: Keys
) -> None:
    users.apply(user_pod("old", {"gpu-fraction": "7", "gpu-memory": "x"}))
    users.hold(f"{users.pods}/old")
    with installed(webhook, control_plane, keys.authority):
        assert "labeled" in users.kubectl("label", "pod/old", "a=b")
        assert "denied the request" in users.kubectl("annotate", "pod/old", "gpu-memory-")
        users.delete_pod("old")
        users.let_go(f"{users.pods}/old")
        wait_until(lambda: not users.all_pods())


def test_a_certificate_is_swapped_while_it_serves(
    control_plane: ControlPlane, users: Users, webhook: Webhook, keys: Keys, mount: Mount, tmp_path: Path
) -> None:
    """By a new authority too: while the API server trusts both, no pod is refused."""
    new, unknown = Keys.make(tmp_path / "new"), Keys.make(tmp_path / "unknown")
    with installed(webhook, control_plane, keys.authority):
        apply(control_plane, configurations(webhook.port, keys.authority + new.authority))
        before = webhook.log.count("A certificate is in use")
        said: list[str] = []
        mount.put(new.pair)

        def swapped() -> bool:
            said.append(users.apply(user_pod(f"a{len(said)}", HALF)))
            return webhook.log.count("A certificate is in use") == before + 1

        wait_until(swapped)
        apply(control_plane, configurations(webhook.port, new.authority))
        said.append(users.apply(user_pod("last", HALF)))
        assert [line for line in said if not line.endswith("created\n")] == []

        # What nobody trusts is named, and keeps nobody else from working.
        apply(control_plane, configurations(webhook.port, unknown.authority))
        wait_until(lambda: "signed by unknown authority" in users.apply(user_pod("b", HALF)))
        assert users.apply(user_pod("plain", {})) == "pod/plain created\n"
        mount.put(unknown.pair)
        wait_until(lambda: users.apply(user_pod("b", HALF)) == "pod/b created\n")
    mount.put(keys.pair)


def test_what_it_does_not_expect_is_allowed(
    control_plane: ControlPlane, users: Users, webhook: Webhook, keys: Keys
) -> None:
    """The API server sends all that happens in a namespace, by a rule that is too wide."""
    wide = configurations(webhook.port, keys.authority)
    for item in wide:
        only = item["webhooks"][0]
        item["webhooks"] = [only]
        only["matchConditions"] = []
        here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [users.namespace]}
        only["namespaceSelector"]["matchExpressions"].append(here)
        everything = {key: ["*"] for key in ("operations", "resources", "apiGroups", "apiVersions")}
        only["rules"][0] |= everything
    apply(control_plane, wide)
    before = webhook.counts().get((VALIDATE, "allowed"), 0)
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    wait_until(lambda: users.apply(item) and webhook.counts().get((VALIDATE, "allowed"), 0) > before)
    assert users.apply(user_pod("a", {})) == "pod/a created\n"
    assert users.apply(user_pod("b", HALF)) == "pod/b created\n"
    assert "deleted" in users.kubectl("delete", "--grace-period=0", "--force", "pod/a", "configmap/a")
    assert {"bad", "failed"}.isdisjoint(result for _, result in webhook.counts()), webhook.log


def test_a_limit_that_only_one_of_both_knows_is_told_to_who_makes_a_pod(
    control_plane: ControlPlane, users: Users, webhooks: Webhooks, keys: Keys, mount: Mount, binders: Binders
) -> None:
    """Once both know it, by one environment, a pod gets from what its user wrote to its limit."""
    shared = {**ENABLED, "BINDER_QPS": "-1", "BINDER_BLOCK_NVIDIA_VISIBLE_DEVICES": "false"}
    binder = binders.start()
    url = f"--binder-metrics-url=http://127.0.0.1:{binder.metrics_port}/metrics"
    limiting = webhooks.make(url, mount=mount, env=shared).start()
    node, group = users.node(labels={CARD: "15360"}), users.group()
    with installed(limiting, control_plane, keys.authority):
        wait_until(lambda: "The binder runs other plugins than the webhook" in limiting.log)
        said = users.apply(user_pod("a", {"gpu-memory": "4096"}))
        assert "pod/a created\n" in said
        assert said.count(DIFFERENT) == 1, said
        assert users.apply(user_pod("plain", {})) == "pod/plain created\n"
        assert 'kai_binder_admission_binder_plugins{found="different"} 1.0' in limiting.metrics()

        assert binder.stop() == 0
        binders.start(env=shared)
        pod = users.get_pod("a")
        users.ask_share("a", node, group, owner=pod, portion="0.27")
        users.wait_for("a", "Succeeded")
        maps = users.annotations("a")["runai/shared-gpu-configmap"]
        assert users.data(f"{maps}-0")[LIMIT] == "4096m"
        env = {item["name"]: item["valueFrom"] for item in pod["spec"]["containers"][0]["env"]}
        assert env[LIMIT]["configMapKeyRef"]["name"] == f"{maps}-0"
