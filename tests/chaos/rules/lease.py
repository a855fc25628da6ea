"""The rule of the leader's lease."""

from collections.abc import Iterator

from tests.chaos.history import Entry, History, State
from tests.chaos.rules.words import LEASE, Finding, spec_of


def only_the_leader_writes(history: History, state: State) -> Iterator[Finding]:
    """No binder writes before it has the lease, nor after somebody else has certainly got it.

    Without a lease in the history there was no election, and nothing to judge.
    """
    turns = [entry for entry in history.entries if entry.key == LEASE and entry.succeeded]
    if not turns:
        return
    for entry in history.entries:
        if not entry.by_binder or entry.key == LEASE:
            continue
        problem = _problem(turns, entry)
        if problem:
            where = f"{entry.verb} {entry.key[0]} {entry.key[1]}/{entry.key[2]}"
            yield f"{entry.agent} wrote {problem}: {where}", (entry.key, LEASE)


def _problem(turns: list[Entry], entry: Entry) -> str:
    """Why a process did not have the lease when its write came in; empty if it may have had it."""
    own = [turn for turn in turns if turn.agent == entry.agent and turn.at_s < entry.at_s and _holder(turn)]
    if not own:
        return "before it ever had the lease"
    later = [turn for turn in turns if own[-1].done_s < turn.at_s and turn.done_s < entry.at_s]
    if later and later[-1].agent != entry.agent:
        return f"after {_holder(later[-1]) or 'nobody'} had got the lease"
    if later and not _holder(later[-1]):
        return "after it had given the lease up"
    return ""


def _holder(turn: Entry) -> str:
    return str(spec_of(turn.got).get("holderIdentity") or "")
