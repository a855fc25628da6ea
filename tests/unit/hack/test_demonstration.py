"""What the demo leaves out of kubectl's output, and that its table of cases goes with the samples."""

import re
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from demonstration.cases import (
    CLAIM,
    CONTRADICTION,
    CONTRADICTORY,
    EACH_KIND,
    REFUSED,
    SAMPLES,
    Case,
    has_ended,
    samples,
)
from demonstration.play import COMMAND, hints
from demonstration.showing import failure_of, section_of

from controller.explain.options import parse

DESCRIBED = """Name:         a
Status:
  Conditions:
    Last Transition Time:  2026-12-01T02:25:50Z
    Message:               did not run: GPUMemoryLimit failed
    Reason:                Blocked
    Status:                Unknown
    Type:                  GPUReserved
    Last Transition Time:  2026-12-01T02:25:50Z
    Message:               it needs another
    Reason:                DependencyNotMet
    Status:                False
    Type:                  GPUMemoryLimit
    Last Transition Time:  2026-12-01T02:25:50Z
    Message:               GPUMemoryLimit: it needs another
    Reason:                DependencyNotMet
    Status:                False
    Type:                  Bound
  Failed Attempts:         1
  Phase:                   Failed
Events:                    <none>
"""
SHOWN = """Status:
  Conditions:
    Last Transition Time:  2026-12-01T02:25:50Z
    Message:               it needs another
    Reason:                DependencyNotMet
    Status:                False
    Type:                  GPUMemoryLimit
  Failed Attempts:         1
  Phase:                   Failed"""


def requests_in(*paths: str) -> set[str]:
    """Names of the requests in these samples."""
    items = (item for path in paths for item in yaml.safe_load_all((SAMPLES / path).read_text()))
    return {item["metadata"]["name"] for item in items if item["kind"] == "BindRequest"}


def listed() -> list[str]:
    return list(yaml.safe_load((SAMPLES / "kustomization.yaml").read_text())["resources"])


def names(cases: tuple[Case, ...]) -> set[str]:
    return {case.name for case in cases}


def test_of_a_failure_the_step_that_failed_is_shown() -> None:
    assert failure_of(DESCRIBED) == SHOWN


def test_without_a_failed_step_it_is_said() -> None:
    with pytest.raises(StopIteration):
        failure_of(DESCRIBED.replace("False", "True"))


def test_a_section_ends_where_the_next_one_begins() -> None:
    text = 'apiVersion: v1\ndata:\n  A: "1"\n  B:\n    c: d\nkind: ConfigMap\n'
    assert section_of(text, "data") == 'data:\n  A: "1"\n  B:\n    c: d'
    assert section_of('data:\n  A: "1"', "data") == 'data:\n  A: "1"'


def test_every_sample_has_its_case() -> None:
    assert names(EACH_KIND) == requests_in(*listed())
    assert names(CONTRADICTORY) == requests_in(CONTRADICTION.name)
    files = {path.name for path in SAMPLES.iterdir()} - {"kustomization.yaml"}
    assert files == {*listed(), CONTRADICTION.name, REFUSED.name}


def test_without_claims_all_but_that_sample_are_applied_in_their_order() -> None:
    assert samples(claims=True) == ("-k", str(SAMPLES))
    flags, paths = samples(claims=False)[::2], samples(claims=False)[1::2]
    assert set(flags) == {"-f"}
    assert list(paths) == [str(SAMPLES / name) for name in listed() if name != f"{CLAIM}.yaml"]


def test_pods_that_share_a_gpu_are_as_people_write_them() -> None:
    """Only what the webhook does not add: no maps, no variables, no volumes."""
    found = 0
    for path in SAMPLES.glob("*.yaml"):
        for item in yaml.safe_load_all(path.read_text()):
            annotations = item.get("metadata", {}).get("annotations", {})
            if item["kind"] != "Pod" or not annotations:
                continue
            found += 1
            assert len(annotations) == 1
            assert annotations.keys() <= {"gpu-fraction", "gpu-memory"}
            (container,) = item["spec"]["containers"]
            assert container.keys() == {"name", "image", "command"}
            assert item["spec"].keys() == {"schedulerName", "containers"}
    assert found == 6


@pytest.mark.parametrize(
    ("status", "limit", "ended"),
    [
        (None, None, False),
        ({"phase": "Pending"}, None, False),
        ({"phase": "Succeeded"}, 2, True),
        ({"phase": "Failed", "failedAttempts": 1}, None, True),
        ({"phase": "Failed", "failedAttempts": 1}, 2, False),
        ({"phase": "Failed", "failedAttempts": 2}, 2, True),
    ],
)
def test_a_failed_request_has_ended_once_it_is_not_tried_again(
    status: dict[str, object] | None, limit: int | None, ended: bool
) -> None:
    assert has_ended({"spec": {"backoffLimit": limit}, "status": status}) is ended


def test_a_case_of_a_failure_names_the_condition_at_fault() -> None:
    for case in (*EACH_KIND, *CONTRADICTORY):
        assert bool(case.reason) == (case.phase == "Failed")
        assert not case.reason or re.fullmatch(r"\w+ \w+: ", case.reason)


def test_the_verbs_that_are_hinted_at_are_those_of_the_command() -> None:
    programs: Any = SimpleNamespace(metrics_url="", health_url="", binder_log="", webhook_log="")
    containers: Any = SimpleNamespace(log="")
    commands = [shlex.split(command) for command, _ in hints(programs, containers)]
    hinted = [parse(words[1:]) for words in commands if words[0] == COMMAND]
    assert [options.verb for options in hinted] == ["explain", "gpus"]
    assert hinted[0].target in {case.name for case in EACH_KIND}
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(COMMAND).name in scripts
