"""The text and the JSON of an answer: narrow terminals, long names, and objects with something to smuggle."""

import json

import pytest

from controller.explain.answer import Answer
from controller.explain.explain import as_text
from controller.explain.reads import Read
from controller.explain.terminal import cells
from tests.unit.explain.objects import answer, condition, failed, pod, request, reservation, shared, text

LONG = ".".join(["n" * 62] * 4)[:253]
NASTY = "\x1b[31m\u202e\x9b\x07evil\n\x1b]0;x\x07"


def crowded(word: str) -> Answer:
    """An answer that has everything, with this word wherever a stranger may write."""
    status = failed(
        condition("GPUReserved", "False", "ReservationTimeout", word), condition(word, "False", word, word)
    )
    item = shared({**status, "reason": word}, word)
    item["spec"]["selectedNode"] = word
    said = {"type": "PodScheduled", "status": word, "reason": word, "message": word}
    waiting = {"name": word, "state": {"waiting": {"reason": word, "message": word}}}
    its_pod = pod({"phase": word, "conditions": [said], "containerStatuses": [waiting]}, schedulerName=word)
    event = {"involvedObject": {"kind": word, "name": word}, "type": word, "reason": word, "message": word}
    other = {**shared(None, word), "metadata": {"name": word, "namespace": word, "uid": "o"}}
    return answer(
        item,
        its_pod,
        missing=[f"may not list {word}"],
        reservations=Read((reservation(word, {"phase": word}),)),
        group_requests=Read((other,)),
        claims={
            word: Read(({"metadata": {"name": word}, "spec": {"storageClassName": word}, "status": {}},))
        },
        node=Read(({"metadata": {"name": word, "labels": {"nvidia.com/gpu.memory": word}}, "status": {}},)),
        lease=Read(({"metadata": {}, "spec": {"holderIdentity": word}},)),
        events=[event],
    )


@pytest.mark.parametrize("columns", [40, 60, 100])
@pytest.mark.parametrize("word", ["short", LONG, "漢字" * 60])
def test_lines_fit_the_terminal(word: str, columns: int) -> None:
    lines = text(crowded(word), columns).splitlines()
    assert max(map(cells, lines)) <= columns
    assert word in "".join("".join(lines).split())


def test_nothing_is_smuggled_to_the_terminal() -> None:
    shown = text(crowded(NASTY))
    assert all(line.isprintable() for line in shown.splitlines())
    assert "\\x1b[31m\\u202e\\x9b\\x07evil" in "".join(shown.split())


def test_nothing_is_smuggled_by_json() -> None:
    shown = as_text(crowded(NASTY))
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.splitlines())
    assert json.loads(shown)["decision"]["node"] == NASTY


def test_the_structure_of_the_json() -> None:
    found = json.loads(as_text(crowded("w")))
    parts = found.items()
    shape = {key: sorted(part) if isinstance(part, dict) else type(part).__name__ for key, part in parts}
    assert shape == {
        "kind": "str",
        "version": "int",
        "verdict": "str",
        "summary": "str",
        "request": ["created", "isDeleting", "name", "namespace", "phase", "reason"],
        "decision": [
            *("claims", "computePortion", "gpuCount", "gpuPortion", "groups", "node", "nodeState", "problem"),
            "type",
        ],
        "steps": "list",
        "attempts": ["failed", "isOver", "last", "limit", "nextInS", "text"],
        "pod": [
            *("exists", "isDeleting", "isKnown", "isOfRequest", "lines", "name", "namespace", "node"),
            *("phase", "scheduler"),
        ],
        "claims": "list",
        "others": "list",
        "requests": "list",
        "leader": ["leads", "text"],
        "events": "list",
        "advice": "list",
        "then": "str",
        "notes": "list",
        "missing": "list",
    }  # fmt: skip
    assert (found["kind"], found["version"], found["verdict"]) == ("Explanation", 1, "notBound")
    assert found["request"]["created"] == "2026-01-01T11:59:00Z"
    assert sorted(found["steps"][0]) == ["isOurs", "isStale", "message", "reason", "since", "status", "type"]
    assert sorted(found["advice"][0]) == ["about", "means", "reason", "steps"]


def test_what_could_not_be_read_is_told() -> None:
    shown = text(answer(request(), pod(), missing=["may not read nodes gpu-1: no"]))
    assert shown.endswith("Not read, so that this may be incomplete\n  - may not read nodes gpu-1: no\n")
