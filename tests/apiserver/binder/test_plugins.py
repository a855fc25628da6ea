"""Plugins from outside, found by their entry points, in a running binder."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane import ControlPlane

from controller.runtime.client import Object
from tests.binder import Binder, Binders
from tests.cluster import ORDER, Cluster

NAMES = ("Waits", "Raises", "Optional", "Needy", "Orphan")


def install(directory: Path) -> None:
    """Makes a package as pip would leave it behind."""
    shutil.copy(Path(__file__).parent / "example_plugins.py", directory / "example_plugins.py")
    info = directory / "example_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugins\nVersion: 1.0\n")
    lines = [f"{name.lower()} = example_plugins:{name}" for name in NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[kai_binder.plugins]", *lines, ""]))


@pytest.fixture(scope="module")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One with two workers, beside which the package is installed."""
    directory = tmp_path_factory.mktemp("plugins")
    install(directory)
    made = Binders(directory, control_plane.service_account_kubeconfig("kai-scheduler", "binder"))
    settings = json.dumps({"optional": {"failurePolicy": "Ignore"}})
    flags = ("--max-concurrent-reconciles=2", f"--plugins={settings}")
    try:
        yield made.start(*flags, env={"PYTHONPATH": str(directory)})
        made.close()
    finally:
        made.kill()


pytestmark = pytest.mark.usefixtures("binder")


def ask(cluster: Cluster, name: str, wishes: dict[str, str], **spec: object) -> Object:
    annotations = {f"example.com/{plugin}": wish for plugin, wish in wishes.items()}
    made = cluster.pod(name, annotations=annotations)
    cluster.ask(name, cluster.node(), owner=made, **spec)
    return made


def test_they_run_in_order_of_their_priority(cluster: Cluster) -> None:
    ask(cluster, "a", {"waits": "0.1"})
    cluster.wait_for("a", "Succeeded")
    conditions = cluster.conditions("a")
    assert tuple(conditions) == (*ORDER[:-1], *NAMES, "Bound")
    waits, needy = conditions["Waits"], conditions["Needy"]
    assert (waits["status"], waits["reason"], waits["message"]) == ("True", "Reconciled", "waited 0.1 s")
    assert (needy["status"], needy["reason"]) == ("True", "NotApplicable")


def test_a_long_wait_is_shown_and_keeps_nobody_from_binding(cluster: Cluster) -> None:
    for number in range(20):
        ask(cluster, f"slow-{number}", {"waits": "7"})
    asked_s = time.monotonic()
    for number in range(10):
        cluster.pod_and_request(f"quick-{number}", cluster.node())
    for number in range(10):
        cluster.wait_for(f"quick-{number}", "Succeeded", within_s=3)
    assert time.monotonic() - asked_s < 5

    def shown(name: str) -> dict[str, Object]:
        deadline_s = time.monotonic() + 5
        while not (conditions := cluster.conditions(name)):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        return conditions

    conditions = shown("slow-19")
    waits, bound = conditions["Waits"], conditions["Bound"]
    assert (waits["status"], waits["reason"]) == ("Unknown", "Waiting")
    assert waits["message"] == "waits for the egg timer"
    assert (bound["status"], bound["reason"]) == ("Unknown", "Waiting")
    assert bound["message"] == "Waits waits for the egg timer"
    assert (conditions["VolumeBinding"]["status"], conditions["Raises"]["reason"]) == ("True", "Blocked")
    assert cluster.status("slow-19").get("phase", "") == ""
    cluster.wait_for_all(30, within_s=20)
    assert cluster.conditions("slow-19")["Waits"]["message"] == "waited 7 s"


def test_a_short_wait_is_not_shown(cluster: Cluster) -> None:
    made = ask(cluster, "a", {"waits": "0.5"})
    cluster.wait_for("a", "Succeeded")
    # One write of the status, not two: the first version is the one that was created.
    assert "example.com/waits" in made["metadata"]["annotations"]
    assert cluster.conditions("a")["Waits"]["reason"] == "Reconciled"


def test_a_plugin_that_raises_fails_its_request_only(cluster: Cluster, binder: Binder) -> None:
    ask(cluster, "a", {"raises": "it"}, backoffLimit=2)
    status = cluster.wait_for_attempts("a", 2)
    assert status["reason"] == "Raises InternalError: plugin raises raised RuntimeError: 100%s broken: it"
    conditions = cluster.conditions("a")
    assert (conditions["Raises"]["status"], conditions["Raises"]["reason"]) == ("False", "InternalError")
    assert conditions["Optional"]["reason"] == "Blocked"
    cluster.assert_unbound("a")
    assert "100%s broken" in binder.log
    for number in range(4):  # more than there are workers
        cluster.pod_and_request(f"next-{number}", cluster.node())
    for number in range(4):
        cluster.wait_for(f"next-{number}", "Succeeded")


def test_a_failure_that_is_ignored_does_not_stop_the_bind(cluster: Cluster) -> None:
    ask(cluster, "a", {"optional": "it"})
    status = cluster.wait_for("a", "Succeeded")
    assert "reason" not in status
    condition = cluster.conditions("a")["Optional"]
    assert (condition["status"], condition["reason"]) == ("False", "OutOfLuck")
    assert condition["message"] == "no luck with it"
    assert cluster.conditions("a")["Bound"]["status"] == "True"


def test_who_needs_a_plugin_that_failed_does_not_run(cluster: Cluster) -> None:
    ask(cluster, "a", {"optional": "it", "needy": "me"})
    status = cluster.wait_for("a", "Failed")
    text = "needy needs optional, which failed: no luck with it"
    assert status["reason"] == f"Needy DependencyNotMet: {text}"
    cluster.wait_for_event("a", "DependencyNotMet", "BindRequest")
    cluster.assert_unbound("a")


def test_who_needs_a_plugin_that_is_content_runs(cluster: Cluster) -> None:
    ask(cluster, "a", {"needy": "me"})
    cluster.wait_for("a", "Succeeded")
    assert cluster.conditions("a")["Needy"]["message"] == "saw me"


def test_who_needs_a_plugin_that_nobody_has_never_runs(cluster: Cluster, binder: Binder) -> None:
    ask(cluster, "a", {"orphan": "me"}, backoffLimit=3)
    status = cluster.wait_for("a", "Failed")
    text = "orphan needs the plugin absent, which is not installed"
    assert status["reason"] == f"Orphan DependencyNotMet: {text}"
    assert status["failedAttempts"] == 3
    cluster.assert_unbound("a")
    assert binder.log.count("A plugin's needs are not met") == 1
    assert text in binder.log
