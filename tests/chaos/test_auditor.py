"""The auditor sees: each rule catches a history that breaks it, and that one breaks no other."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.chaos.auditor import RULES, judge, told
from tests.chaos.history import Entry
from tests.chaos.rules.words import DEVICES, GROUP_LABEL, LEASE, LIMIT, RESERVATIONS
from tests.chaos.story import ADMIN, FIRST, SECOND, TEAM, Story, clean

Doctor = Callable[[Story], None]


def request(name: str) -> tuple[str, str, str]:
    return "bindrequests", TEAM, name


def pod(name: str) -> tuple[str, str, str]:
    return "pods", TEAM, name


def never_ends(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1")


def fails_without_a_reason(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1")
    story.fail(SECOND, "d", "NodeGone")


def is_bound_though_bad(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1", expected="InvalidRequest")
    story.bind(SECOND, "d", "n1")
    story.succeed(SECOND, "d")


def is_refused_by_rights_only(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1")
    message = {"message": 'pods "d" is forbidden: User "binder" cannot create resource "pods/binding"'}
    story.write(SECOND, "create", pod("d"), subresource="binding", code=403, got=message)
    story.fail(SECOND, "d", "Forbidden")


def stays_though_broken(story: Story) -> None:
    story.request("d", "n1", expected="Deleted")
    story.fail(SECOND, "d", "Deleted")


def vanishes(story: Story) -> None:
    story.vanish(request("bad"))


def succeeds_without_a_pod(story: Story) -> None:
    story.request("d", "n1")
    conditions = [{"type": "Bound", "status": "True", "reason": "Reconciled"}]
    status = {"phase": "Succeeded", "observedGeneration": 1, "conditions": conditions}
    story.change(SECOND, request("d"), status=status)


def counts_down(story: Story) -> None:
    story.change(SECOND, request("bad"), status={"failedAttempts": 1})
    story.change(SECOND, request("bad"), status={"failedAttempts": 2})


def counts_twice(story: Story) -> None:
    story.request("d", "nowhere", expected="NodeGone", limit=4)
    for attempts in (1, 3, 4):
        story.fail(SECOND, "d", "NodeGone", attempts)


def tries_too_often(story: Story) -> None:
    story.fail(SECOND, "bad", "NodeGone", 3)


def takes_success_back(story: Story) -> None:
    done = story.get(request("plain"))["status"]
    story.change(SECOND, request("plain"), status={"phase": "Pending"})
    story.change(SECOND, request("plain"), status=done)


def conditions_contradict(story: Story) -> None:
    bound = {"type": "Bound", "status": "Unknown", "reason": "Waiting"}
    story.change(SECOND, request("plain"), status={"conditions": [bound]})


def speaks_of_another_spec(story: Story) -> None:
    story.change(SECOND, request("plain"), status={"observedGeneration": 7})


def pod_is_told_nothing(story: Story) -> None:
    story.change(SECOND, pod("plain"), status={"conditions": []})


def pod_is_told_a_lie(story: Story) -> None:
    story.event(SECOND, "bad")


def reservation_is_missing(story: Story) -> None:
    story.vanish(("pods", RESERVATIONS, "reservation-g"))


def reservation_is_doubled(story: Story) -> None:
    story.reserve(SECOND, "g", "n1", "GPU-1", "another")


def reservation_has_no_user(story: Story) -> None:
    story.reserve(SECOND, "i", "n1", "GPU-9")


def two_cards_for_a_group(story: Story) -> None:
    story.share(SECOND, "d", "n1", "g", "GPU-7")


def two_groups_on_a_card(story: Story) -> None:
    story.reserve(SECOND, "i", "n1", "GPU-1")
    story.share(SECOND, "d", "n1", "i", "GPU-1")


def card_of_another_node(story: Story) -> None:
    key = story.reserve(SECOND, "i", "n2", "GPU-8")
    story.share(SECOND, "d", "n1", "i", "GPU-8")
    story.delete(ADMIN, key)
    story.reserve(SECOND, "i", "n1", "GPU-9", "later")


def bound_twice(story: Story) -> None:
    story.bind(SECOND, "plain", "n1")


def bound_to_another_node(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1")
    story.bind(SECOND, "d", "n2")
    story.get(pod("d"))["spec"]["nodeName"] = "n1"  # which no other rule would notice
    story.succeed(SECOND, "d")


def bound_without_a_request(story: Story) -> None:
    story.pod("d")
    story.bind(SECOND, "d", "n2")


def bound_without_its_limit(story: Story) -> None:
    story.pod("d", limit="100m")
    story.request("d", "n1", "g")
    story.config_map(SECOND, "d", {DEVICES: "GPU-1"})
    story.bind(SECOND, "d", "n1", "g")
    story.succeed(SECOND, "d")


def bound_before_its_limit(story: Story) -> None:
    story.pod("d", limit="100m")
    story.request("d", "n1", "g")
    story.bind(SECOND, "d", "n1", "g")
    story.config_map(SECOND, "d", {DEVICES: "GPU-1", LIMIT: "100m"})
    story.succeed(SECOND, "d")


def map_is_left(story: Story) -> None:
    story.config_map(SECOND, "bad", {LIMIT: "1m"})


def label_is_left(story: Story) -> None:
    story.change(SECOND, pod("bad"), metadata={"labels": {GROUP_LABEL: "g"}})


def claim_is_left(story: Story) -> None:
    uid = story.get(pod("bad"))["metadata"]["uid"]
    status = {"reservedFor": [{"name": "bad", "uid": uid}]}
    story.put(SECOND, ("resourceclaims", TEAM, "other"), {"status": status})


def devices_are_left(story: Story) -> None:
    story.put(SECOND, ("resourceclaims", TEAM, "other"), {"status": {"allocation": {"devices": {}}}})


def finalizer_is_left(story: Story) -> None:
    protection = {"finalizers": ["resource.kubernetes.io/delete-protection"]}
    story.put(SECOND, ("resourceclaims", TEAM, "other"), {"metadata": protection})


def hangs_in_its_deletion(story: Story) -> None:
    when = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"]}
    story.put(SECOND, ("persistentvolumeclaims", TEAM, "disk"), {"metadata": when})


def reservation_goes_under_its_user(story: Story) -> None:
    story.delete(SECOND, ("pods", RESERVATIONS, "reservation-g"))
    story.reserve(SECOND, "g", "n1", "GPU-1", "again")


def pod_goes_though_its_gpu_is_held(story: Story) -> None:
    story.delete(SECOND, pod("a"))
    story.delete(ADMIN, ("configmaps", TEAM, "a-map"))
    story.delete(ADMIN, request("a"))


def map_goes_under_its_pod(story: Story) -> None:
    story.delete(SECOND, ("configmaps", TEAM, "a-map"))


def request_goes(story: Story) -> None:
    story.delete(SECOND, request("bad"))


def former_leader_writes(story: Story) -> None:
    story.pod("d")
    story.request("d", "n1")
    story.bind(FIRST, "d", "n1")
    story.succeed(SECOND, "d")


def writes_without_the_lease(story: Story) -> None:
    story.write(FIRST.replace("pid 1", "pid 3"), "patch", pod("plain"))


def writes_after_its_release(story: Story) -> None:
    story.put(SECOND, LEASE, {"spec": {"holderIdentity": ""}})
    story.write(SECOND, "patch", pod("plain"))


DOCTORED: dict[str, tuple[Doctor, ...]] = {
    "requests_end_as_they_should": (
        never_ends,
        fails_without_a_reason,
        is_bound_though_bad,
        is_refused_by_rights_only,
        stays_though_broken,
    ),
    "no_request_is_lost": (vanishes,),
    "bound_pods_are_on_their_nodes": (succeeds_without_a_pod,),
    "attempts_count_up": (counts_down, counts_twice, tries_too_often, takes_success_back),
    "status_is_consistent": (conditions_contradict, speaks_of_another_spec),
    "pods_are_told": (pod_is_told_nothing, pod_is_told_a_lie),
    "users_have_one_reservation": (reservation_is_missing, reservation_is_doubled),
    "reservations_have_users": (reservation_has_no_user,),
    "a_group_is_one_card": (two_cards_for_a_group, two_groups_on_a_card),
    "a_pod_has_one_node": (card_of_another_node, bound_twice),
    "pods_are_bound_as_decided": (bound_to_another_node, bound_without_a_request),
    "pods_are_bound_with_their_limit": (bound_without_its_limit, bound_before_its_limit),
    "no_config_map_is_left": (map_is_left,),
    "no_label_is_left": (label_is_left,),
    "no_claim_is_left": (claim_is_left, devices_are_left),
    "no_finalizer_is_left": (finalizer_is_left, hangs_in_its_deletion),
    "nothing_used_is_deleted": (
        reservation_goes_under_its_user,
        pod_goes_though_its_gpu_is_held,
        map_goes_under_its_pod,
        request_goes,
    ),
    "only_the_leader_writes": (former_leader_writes, writes_without_the_lease, writes_after_its_release),
}


def test_a_clean_history_breaks_no_rule() -> None:
    story = clean()
    assert [told(found, story.history) for found in judge(story.history, story.state)] == []


def test_every_rule_is_proved() -> None:
    assert list(DOCTORED) == [rule.__name__ for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "doctor"),
    [(rule, doctor) for rule, doctors in DOCTORED.items() for doctor in doctors],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_doctored_history_breaks_this_rule_only(rule: str, doctor: Doctor) -> None:
    story = clean()
    doctor(story)
    found = judge(story.history, story.state)
    assert {violation.rule for violation in found} == {rule}, [violation.text for violation in found]


def test_a_violation_shows_the_history_of_its_objects() -> None:
    story = clean()
    story.delete(SECOND, ("pods", RESERVATIONS, "reservation-g"))
    story.reserve(SECOND, "g", "n1", "GPU-1", "again")
    found = judge(story.history, story.state)
    lines = told(found[0], story.history).splitlines()
    text = "nothing_used_is_deleted: reservation reservation-g was deleted while pod a used its GPU"
    assert lines[0] == text
    rows = [line.split(" ", 3)[3] for line in lines[1:]]
    assert rows[0].startswith(f"binder pid 1 create pods/{RESERVATIONS}/reservation-g -> 200 ")
    assert "binder pid 1 create pods/team/a/binding -> 201 to n1" in rows
    assert rows[-1] == f"binder pid 2 delete pods/{RESERVATIONS}/reservation-g -> 200"
    assert any(row.startswith("python patch") and 'reserve_for_gpu_index":"GPU-1"' in row for row in rows)


def test_what_is_only_repeated_is_counted() -> None:
    story = clean()
    for second in range(5):
        story.put(SECOND, LEASE, {"spec": {"holderIdentity": SECOND, "renewTime": str(second)}})
    story.write(FIRST, "patch", pod("plain"))
    (violation,) = judge(story.history, story.state)
    lines = told(violation, story.history).splitlines()
    assert "  … 4 more like this" in lines
    assert len([line for line in lines if LEASE[2] in line]) == 3


def test_what_befell_a_request_explains_its_end() -> None:
    """Each of these would be a violation without what came before."""
    story = clean()
    story.node("n3")
    for name in ("gone", "refused", "deleted"):
        story.pod(name)
        story.request(name, "n3" if name == "gone" else "n1")
    story.delete(ADMIN, ("nodes", "", "n3"))
    story.fail(SECOND, "gone", "NodeGone")
    denied = {"message": 'pods "refused" is forbidden: exceeded quota: none'}
    story.write(SECOND, "create", pod("refused"), subresource="binding", code=403, got=denied)
    story.fail(SECOND, "refused", "Forbidden")
    story.delete(ADMIN, pod("deleted"))
    story.fail(SECOND, "deleted", "PodNotFound")
    assert [told(found, story.history) for found in judge(story.history, story.state)] == []


@pytest.mark.parametrize("lives_on", [False, True])
def test_what_a_dead_process_left_for_a_deleted_request_is_nobodys_fault(*, lives_on: bool) -> None:
    story = Story()
    story.pod("d")
    story.request("d", "n1", "g")
    story.config_map(FIRST, "d", {LIMIT: "1m"})
    story.delete(ADMIN, request("d"))
    story.lead(FIRST)
    story.now_s += 30
    story.lead(FIRST if lives_on else SECOND)
    found = [violation.rule for violation in judge(story.history, story.state)]
    assert found == (["no_config_map_is_left"] if lives_on else [])


def test_a_pod_knows_the_devices_of_the_attempt_that_bound_it() -> None:
    story = clean()
    story.pod("d", limit="100m")
    story.request("d", "n1", "g")
    story.delete(SECOND, story.config_map(SECOND, "d", {DEVICES: "GPU-0", LIMIT: "100m"}))
    story.config_map(SECOND, "d", {DEVICES: "GPU-1", LIMIT: "100m"})
    story.bind(SECOND, "d", "n1", "g")
    story.succeed(SECOND, "d")
    assert [told(found, story.history) for found in judge(story.history, story.state)] == []


def test_a_write_whose_answer_was_lost_may_have_happened() -> None:
    """The server was killed while it deleted the pod: its reservation may be deleted from there on."""
    story = clean()
    for name in ("a", "b"):
        story.write(ADMIN, "delete", pod(name), code=0, done_s=float("inf"))
        story.vanish(pod(name))
        story.delete(ADMIN, request(name))
        story.delete(ADMIN, ("configmaps", TEAM, f"{name}-map"))
    story.delete(SECOND, ("pods", RESERVATIONS, "reservation-g"))
    assert [told(found, story.history) for found in judge(story.history, story.state)] == []


def test_a_request_whose_making_is_not_in_the_log_says_itself_when_that_was() -> None:
    story = clean()
    story.pod("d")
    story.request("d", "n1")
    made = story.entries.pop()
    lost = Entry(agent=ADMIN, verb="create", key=made.key, at_s=made.at_s, done_s=float("inf"))
    story.entries.append(lost)
    when = datetime.fromtimestamp(made.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    story.get(request("d"))["metadata"]["creationTimestamp"] = when
    story.bind(SECOND, "d", "n1")
    story.succeed(SECOND, "d")
    assert [told(found, story.history) for found in judge(story.history, story.state)] == []


def test_entries_are_in_the_order_of_their_arrival() -> None:
    story = clean()
    late, early = story.entries[-1], story.entries[0]
    entries: list[Entry] = [late, early]
    assert list(type(story.history)(entries).entries) == [early, late]
