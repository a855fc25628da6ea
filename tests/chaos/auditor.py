"""Judges a run by its history and by what there was in the end, and shows people what it finds.

Each rule is a pure function of the two. Invariant: nothing of the run itself is asked, neither its plan nor
the binder's logs, so that whatever can be judged here can be judged of any cluster's audit log.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.history import BINDER, Entry, History, Key, Object, State, clock
from tests.chaos.rules.endings import (
    attempts_count_up,
    bound_pods_are_on_their_nodes,
    no_request_is_lost,
    pods_are_told,
    requests_end_as_they_should,
    status_is_consistent,
)
from tests.chaos.rules.lease import only_the_leader_writes
from tests.chaos.rules.sharing import (
    a_group_is_one_card,
    a_pod_has_one_node,
    pods_are_bound_as_decided,
    pods_are_bound_with_their_limit,
    reservations_have_users,
    users_have_one_reservation,
)
from tests.chaos.rules.traces import (
    no_claim_is_left,
    no_config_map_is_left,
    no_finalizer_is_left,
    no_label_is_left,
    nothing_used_is_deleted,
)
from tests.chaos.rules.words import Rule

RULES: tuple[Rule, ...] = (
    requests_end_as_they_should,
    no_request_is_lost,
    bound_pods_are_on_their_nodes,
    attempts_count_up,
    status_is_consistent,
    pods_are_told,
    users_have_one_reservation,
    reservations_have_users,
    a_group_is_one_card,
    a_pod_has_one_node,
    pods_are_bound_as_decided,
    pods_are_bound_with_their_limit,
    no_config_map_is_left,
    no_label_is_left,
    no_claim_is_left,
    no_finalizer_is_left,
    nothing_used_is_deleted,
    only_the_leader_writes,
)

OF_THE_END: tuple[Rule, ...] = (
    pods_are_told,
    users_have_one_reservation,
    reservations_have_users,
    no_config_map_is_left,
    no_label_is_left,
    no_claim_is_left,
    no_finalizer_is_left,
)
"""Those that the state alone can break, and that are broken in between, until all have done their part."""

SHOWN_PARTS = 6
SHOWN_CHARACTERS = 300
REPEATED = re.compile(r"^  \S+|renewTime=\S+")
"""Of a line what may differ although the same is done again."""
UNSHOWN = frozenset({"resourceVersion", "managedFields", "lastTransitionTime", "creationTimestamp"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken.

    Attributes:
        rule: Its name.
        text: What is wrong.
        keys: The objects concerned.
    """

    rule: str
    text: str
    keys: tuple[Key, ...]


def judge(history: History, state: State, rules: Sequence[Rule] = RULES) -> list[Violation]:
    """All that is wrong, rule by rule."""
    return [
        Violation(rule.__name__, text, tuple(dict.fromkeys(keys)))
        for rule in rules
        for text, keys in rule(history, state)
    ]


def told(violation: Violation, history: History) -> str:
    """A violation with the history of its objects: when, who, what, how it was answered, what changed."""
    lines = [f"{violation.rule}: {violation.text}"]
    entries = history.about(*violation.keys)
    before: dict[Key, Object] = {}
    for entry in entries:
        line = f"  {clock(entry.at_s)} {_who(entry)} {entry.verb} {'/'.join(filter(None, entry.key))}"
        line += f"/{entry.subresource}" if entry.subresource else ""
        lines.append(f"{line} -> {entry.code or '?'} {_what(entry, before)}".rstrip())
        if entry.object is not None:
            before[entry.key] = entry.object
    return "\n".join(_shortened(lines))


def _shortened(lines: list[str]) -> list[str]:
    """Without what only repeats the line before, such as the renewals of a lease."""
    kept, last, more = lines[:1], "", 0
    for line in [*lines[1:], ""]:
        what = REPEATED.sub("", line)
        if line and what == last:
            more += 1
            continue
        if more:
            kept.append(f"  … {more} more like this")
        kept += [line] if line else []
        last, more = what, 0
    return kept


def _who(entry: Entry) -> str:
    """A process as people tell it: binders by their pid, others by their program."""
    if entry.agent.startswith(BINDER):
        return "binder " + entry.agent.rpartition("; ")[2].rstrip(")")
    return entry.agent.partition("/")[0].partition(" ")[0] or "admin"


def _what(entry: Entry, before: dict[Key, Object]) -> str:
    """What a write changed; of one that was refused, why."""
    if not entry.succeeded:
        return str(entry.got.get("message", ""))[:SHOWN_CHARACTERS]
    if entry.subresource == "binding":
        return f"to {entry.sent['target']['name']}"
    if entry.object is None:
        return ""
    old = before.get(entry.key)
    if old is None:
        return _text({"spec": entry.object.get("spec"), "data": entry.object.get("data")})
    changes = list(_changes(old, entry.object, ""))
    more = f" and {len(changes) - SHOWN_PARTS} more" if len(changes) > SHOWN_PARTS else ""
    return "; ".join(changes[:SHOWN_PARTS]) + more


def _changes(old: object, new: object, path: str) -> Iterator[str]:
    """Where two objects differ, each place once."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new} - UNSHOWN):
            yield from _changes(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path}={_text(new)}"


def _text(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
