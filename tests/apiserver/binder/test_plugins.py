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
from tests.polling import wait_until

NAMES = (
    *("Waits", "Raises", "Optional", "Needy", "Orphan"),
    *("Prepares", "Also", "Keeps", "Nonsense", "Undecided"),
)
"""In the order in which they run, after the built-in ones; Vandal runs before those."""


def install(directory: Path) -> None:
    """Makes a package as pip would leave it behind."""
    shutil.copy(Path(__file__).parent / "example_plugins.py", directory / "example_plugins.py")
    info = directory / "example_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugins\nVersion: 1.0\n")
    lines = [f"{name.lower()} = example_plugins:{name}" for name in ("Vandal", *NAMES)]
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
    assert tuple(conditions) == ("Vandal", *ORDER[:-1], *NAMES, "Bound")
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


# What they return, raise and name is checked at the border.

RETURNED_NO_OUTCOME = (
    *("None", "False", "True", "text", "number", "class", "tuple", "exception", "unspeakable", "prepared"),
)
RETURNED_NO_PREPARED = ("False", "True", "text", "number", "class", "tuple", "ready", "skipped", "unmet")
PREPARED_WRONGLY = {
    "env-is-list": "no mapping of variables",
    "env-with-bad-name": "'a b', which is no legal name",
    "env-with-number": "A with 7, which is no text",
    "annotation-with-bad-name": "'a/b/c', which is no legal name",
    "annotation-with-number": "example.com/a with 7, which is no text",
    "annotation-of-half-a-character": "which is no text",
    "annotations-too-long": "70013 bytes of annotations",
    "annotations-that-break": "raised RuntimeError: no items",
}
RAISED = {
    "raise-runtime": "RuntimeError: boom",
    "raise-exit": "SystemExit: 3",
    "raise-interrupt": "KeyboardInterrupt:",
    "raise-cancelled": "CancelledError: of my own",
    "raise-generator-exit": "GeneratorExit:",
    "raise-group": "ExceptionGroup: two",
    "raise-group-of-one": "ValueError: inner",
    "raise-unspeakable": "RuntimeError: a RuntimeError",
}
NONSENSE = [
    *((f"pre_bind {what}", "which is no outcome") for what in RETURNED_NO_OUTCOME),
    *((f"prepare {what}", "none of Prepared, Failed and None") for what in RETURNED_NO_PREPARED),
    *((f"prepare {what}", text) for what, text in PREPARED_WRONGLY.items()),
    *((f"{method} {what}", text) for method in ("prepare", "pre_bind") for what, text in RAISED.items()),
    *((f"concerns {what}", text) for what, text in RAISED.items()),
    ("pre_bind no-reason", "failed with '', which is no reason: quiet"),
    ("pre_bind reason-of-signs", "failed with '!?', which is no reason: quiet"),
    ("pre_bind reason-is-number", "failed with 7, which is no reason: quiet"),
    ("prepare no-reason", "failed with '', which is no reason: quiet"),
]


def assert_told(cluster: Cluster, name: str, head: str) -> Object:
    """The request failed with a reason that begins so, and everything about it is written."""
    status = cluster.wait_for(name, "Failed")
    assert status["reason"].startswith(head), status["reason"]
    conditions = cluster.conditions(name)
    assert tuple(conditions) == ("Vandal", *ORDER[:-1], *NAMES, "Bound")
    reason = head.split()[1].rstrip(":")
    assert (conditions["Bound"]["status"], conditions["Bound"]["reason"]) == ("False", reason)
    cluster.assert_unbound(name)
    return status


@pytest.mark.parametrize(("wish", "text"), NONSENSE, ids=[wish for wish, _ in NONSENSE])
def test_nonsense_never_binds(cluster: Cluster, wish: str, text: str) -> None:
    """F-53"""
    ask(cluster, "a", {"nonsense": wish, "keeps": ""})
    status = assert_told(cluster, "a", "Nonsense InternalError: plugin nonsense ")
    assert text in status["reason"]
    cluster.wait_for_event("a", "InternalError", "BindRequest")


def test_nonsense_is_rolled_back(cluster: Cluster) -> None:
    """F-53: also the work of those before it."""
    for number, wish in enumerate(("pre_bind None", "pre_bind raise-exit", "prepare False")):
        ask(cluster, f"a-{number}", {"nonsense": f"{wish},rollback raise-runtime"}, backoffLimit=1)
        status = assert_told(cluster, f"a-{number}", "Nonsense InternalError: plugin nonsense ")
        assert "; nonsense could not take back its work: boom" in str(status["reason"])


def test_a_plugin_that_does_not_say_whether_it_is_concerned(cluster: Cluster) -> None:
    """F-53: None is not No, or a forgotten `return` would bind the pod without the plugin."""
    ask(cluster, "a", {"undecided": "yes"})
    text = "plugin undecided returned None from concerns, which is neither True nor False"
    status = cluster.wait_for("a", "Failed")
    assert status["reason"] == f"Undecided InternalError: {text}"
    cluster.assert_unbound("a")


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("reason-of-words", "OutOfLuck: quiet"),
        ("long-reason", "Out"),
        ("message-is-number", "OutOfLuck: 7"),
        ("message-is-unspeakable", "OutOfLuck: a _Unspeakable"),
        ("message-of-lines", "OutOfLuck: one two"),
        ("long-message", "OutOfLuck: xxx"),
    ],
)
def test_reasons_and_messages_are_made_legal(cluster: Cluster, wish: str, reason: str) -> None:
    """F-53"""
    for number, method in enumerate(("prepare", "pre_bind")):
        ask(cluster, f"a-{number}", {"nonsense": f"{method} {wish}"})
        status = cluster.wait_for(f"a-{number}", "Failed")
        assert status["reason"].startswith(f"Nonsense {reason}")
        cluster.wait_for_event(f"a-{number}", status["reason"].split()[1].rstrip(":"), "BindRequest")


def test_a_ready_without_text_is_ready(cluster: Cluster) -> None:
    ask(cluster, "a", {"nonsense": "pre_bind ready-without-text"})
    cluster.wait_for("a", "Succeeded")
    assert cluster.conditions("a")["Nonsense"]["message"] == "None"


@pytest.mark.parametrize("what", RAISED)
def test_nothing_that_follows_a_bind_undoes_it(cluster: Cluster, what: str) -> None:
    """F-53"""
    ask(cluster, "a", {"nonsense": f"post_bind {what}"})
    cluster.wait_for("a", "Succeeded")
    assert (cluster.pod_bound("a") or {})["status"] == "True"


def test_a_plugin_that_changes_what_it_is_given_harms_itself_only(cluster: Cluster) -> None:
    """F-53: the pod is the cache's, and all others go by it."""
    made = ask(cluster, "a", {"vandal": "yes", "optional": "no luck"})
    cluster.wait_for("a", "Succeeded")
    assert cluster.get_pod("a")["metadata"]["uid"] == made["metadata"]["uid"]
    assert cluster.conditions("a")["Optional"]["reason"] == "OutOfLuck", "it ran, after the vandal"


# What they find while they prepare.


def test_annotations_of_plugins_are_written_with_the_binding(cluster: Cluster) -> None:
    ask(cluster, "a", {"prepares": "example.com/colour=blue", "also": "example.com/size=7"})
    cluster.wait_for("a", "Succeeded")
    annotations = cluster.annotations("a")
    assert (annotations["example.com/colour"], annotations["example.com/size"]) == ("blue", "7")
    assert cluster.conditions("a")["Prepares"]["message"] == "found example.com/colour"


def test_a_failed_bind_leaves_no_annotations_of_plugins(cluster: Cluster) -> None:
    ask(cluster, "a", {"prepares": "example.com/colour=blue", "also": "example.com/size=fails"})
    cluster.wait_for("a", "Failed")
    assert not {"example.com/colour", "example.com/size"} & set(cluster.annotations("a"))


def test_the_binders_own_annotations_go_before_those_of_plugins(cluster: Cluster) -> None:
    ask(cluster, "a", {"prepares": "received-resource-type=Fraction"})
    cluster.wait_for("a", "Succeeded")
    assert cluster.annotations("a")["received-resource-type"] == "Regular"


def test_two_plugins_that_want_different_things_of_one_annotation(cluster: Cluster) -> None:
    ask(cluster, "a", {"prepares": "example.com/colour=blue", "also": "example.com/colour=red"})
    status = assert_told(cluster, "a", "Also InternalError:")
    text = "plugin also wants example.com/colour to be 'red', but a plugin before it wants 'blue'"
    assert status["reason"] == f"Also InternalError: {text}"
    ask(cluster, "b", {"prepares": "example.com/colour=blue", "also": "example.com/colour=blue"})
    cluster.wait_for("b", "Succeeded")


# Rollbacks, and waits that end.


@pytest.mark.parametrize(
    ("wish", "limit", "told"),
    [("again", 3, "False False True"), ("again", None, "True"), ("final", 3, "True")],
)
def test_a_rollback_knows_whether_another_attempt_follows(
    cluster: Cluster, wish: str, limit: int | None, told: str
) -> None:
    """F-17"""
    ask(cluster, "a", {"keeps": wish}, **({} if limit is None else {"backoffLimit": limit}))
    cluster.wait_for_attempts("a", limit or 1, within_s=15)
    assert cluster.annotations("a")["example.com/told"].strip() == told


def test_a_pod_that_no_cache_shows_is_not_taken_for_gone(cluster: Cluster) -> None:
    """F-17: the retry comes, so what was kept for it must not be given back before."""
    pod = cluster.pod("a", annotations={"example.com/keeps": "again"}, schedulerName="another")
    cluster.ask("a", cluster.node(), owner=pod, backoffLimit=3)
    cluster.wait_for_attempts("a", 3, within_s=15)
    assert cluster.annotations("a")["example.com/told"].strip() == "False False True"


def test_a_wait_ends_well_when_the_pod_gets_to_its_node(cluster: Cluster) -> None:
    """F-62"""
    ask(cluster, "a", {"waits": "60"})
    wait_until(lambda: cluster.conditions("a"), within_s=10)
    node = cluster.get_request("a")["spec"]["selectedNode"]
    cluster.bind_by_hand("a", node)
    status = cluster.wait_for("a", "Succeeded")
    assert "reason" not in status
    conditions = cluster.conditions("a")
    assert {condition["status"] for condition in conditions.values()} == {"True"}
    assert conditions["Waits"]["reason"] == "AlreadyBound"


def test_the_binder_lives(binder: Binder) -> None:
    """At the end: whatever plugins did, it is one process, and works on."""
    assert binder.running
    assert binder.answers("healthz") == 200
    assert "A bind failed in an unforeseen way" not in binder.log
