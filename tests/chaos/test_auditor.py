"""The auditor sees: each rule catches a history that breaks it, and that one breaks no other."""

from datetime import UTC, datetime

import pytest

from tests.chaos.auditor import RULES, judge, told
from tests.chaos.doctors import DOCTORED, Doctor, pod, request
from tests.chaos.history import Entry
from tests.chaos.rules.words import DEVICES, LEASE, LIMIT, RESERVATIONS
from tests.chaos.story import ADMIN, FIRST, SECOND, TEAM, Story, clean


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
