"""What is written in docs/ is true: each fault has tests, and nothing that we read of KAI is left out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from controller import KAI_VERSIONS
from controller.app import MOST_OF_A_NAMESPACE
from controller.kai.fractions import ENDINGS
from controller.kai.names import (
    CONFIG_MAP_PREFIX,
    CONTAINER_NAME,
    DEVICE_COUNT,
    GPU_FRACTION_LIMIT,
    GPU_MEMORY_LIMIT,
)
from controller.kai.nodepool import WHOLE, NodePool, lease_name_of
from controller.kai.request import MOST_GROUPS, SPEC_FIELDS, ComputeMode
from controller.plugins.registry import BUILT_IN
from controller.runtime.session import MOST_OF_A_PAGE
from controller.setting_texts import rows
from controller.settings import VERBS, load

ROOT = Path(__file__).parents[2]
FAULTS = (ROOT / "docs/faults.md").read_text()
KAI = (ROOT / "docs/kai.md").read_text()
SHARDING = (ROOT / "docs/sharding.md").read_text()
ADMISSION = (ROOT / "docs/admission.md").read_text()
SECURITY = (ROOT / "docs/security.md").read_text()
CODE = set(re.findall(r"`([^`]+)`", KAI))
"""All that stands there as code."""
ROWS = {
    int(number): re.findall(r"`(tests/[\w/.]+)::([\w:]+)`", tests)
    for number, tests in re.findall(r"^\| F-(\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", FAULTS, re.MULTILINE)
}


@cache
def sources_of(path: str) -> dict[str, str]:
    """The tests of a file by name, with their source and the comment above them."""
    text = (ROOT / path).read_text()
    found = {}
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
                found[prefix + function.name] = with_comment(text, function)
    return {name: source for name, source in found.items() if name.split("::")[-1].startswith("test_")}


def with_comment(text: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = text.splitlines()
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first : function.end_lineno])


def test_every_row_is_there() -> None:
    assert list(ROWS) == list(range(1, 69))
    assert FAULTS.count("\n| F-") == len(ROWS), "a row twice, or one that is no row"


@pytest.mark.parametrize("number", ROWS)
def test_every_test_of_a_row_exists_and_carries_its_number(number: int) -> None:
    named = ROWS[number]
    assert named, "a row without a test is not done"
    for path, name in named:
        source = sources_of(path).get(name)
        assert source is not None, f"{path} has no test {name}"
        assert re.search(rf"\bF-{number}\b|def test_f_?0?{number}_", source), f"{path}::{name}"


def test_every_flag_is_said_to_be_kais_or_ours() -> None:
    flags = re.findall(r"`(--[a-z-]+)`", KAI.partition("## Flags")[2].partition("\n## ")[0])
    assert sorted(set(flags)) == sorted(row.flag for row in rows())


def test_every_plugin_and_argument_of_it_is_there() -> None:
    for cls in BUILT_IN:
        arguments = [field.alias or name for name, field in cls.arguments_model.model_fields.items()]
        assert {cls.name, *cls.aliases, *arguments} <= CODE


def test_every_field_that_is_read_is_there() -> None:
    entries = "selectedFractionalGpuGroups."
    named = {name.removeprefix(entries) for name in SPEC_FIELDS - {"receivedGPU"}}
    assert named <= CODE
    assert set(ComputeMode) <= CODE
    assert all(version in KAI for version in KAI_VERSIONS)


def test_every_mode_of_the_operator_is_there() -> None:
    modes = {"NonMemoryEnforced", "HamiCore", "NvFractions", "Disabled"}
    table = KAI.partition("## The operator's modes")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == modes


def test_the_flags_of_shards_are_as_told() -> None:
    table = SHARDING.partition("| `--nodepool-label-key` |")[2].partition("\n\n")[0]
    given = re.findall(
        r"^\| (?:`(.+?)`|\((.+?)\)) \| (?:`(.+?)`|\((.+?)\)) \| (.+?) \|$", table, re.MULTILINE
    )
    assert len(given) == 4
    served = {}
    for key, _, value, without, text in given:
        flags = [f"--nodepool-label-key={key}"] if key else []
        flags += [f"--partition-label-value={value}"] if value or without == "empty" else []
        told = load(flags, {})
        served[text.partition(":")[0]] = NodePool(told.nodepool_label_key, told.partition_label_value)
    pool = NodePool("kai.scheduler/node-pool", "gpu-nodes")
    assert served == {
        "the whole cluster": WHOLE,
        "what has the label with this value": pool,
        "the same": pool,
        "the default shard": NodePool("kai.scheduler/node-pool"),
    }
    assert f"`{lease_name_of('x')[:-1]}<pool>`" in SHARDING
    for path in re.findall(r"-k (config/\S+)", SHARDING):
        assert (ROOT / path / "kustomization.yaml").is_file()


def test_every_annotation_that_the_webhook_judges_is_explained() -> None:
    """Those that the API server asks about, and the endings of what is said of a container."""
    webhooks = (ROOT / "config/admission/webhooks.yaml").read_text()
    (asked,) = set(re.findall(r'key\.matches\("\^\((.+?)\)"\)', webhooks))
    table = ADMISSION.partition("## What it refuses")[2].partition("\n## ")[0]
    names = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    for pattern in asked.split("|"):
        assert pattern.replace("\\\\", "").rstrip("$") in names, pattern
    for ending in ENDINGS:
        assert ending in ADMISSION
    for name in (GPU_FRACTION_LIMIT, GPU_MEMORY_LIMIT, DEVICE_COUNT, CONTAINER_NAME, CONFIG_MAP_PREFIX):
        assert f"| `{name}` |" in table


def test_what_is_said_of_the_webhook_and_the_agent_is_there() -> None:
    flags = {row.flag for verb in VERBS for row in rows(verb)}
    named = set(re.findall(r"`(?:[\w-]+ )*(--[a-z-]+)", ADMISSION))
    assert len(named) > 5
    assert named <= flags
    for path in re.findall(r"`(config/[\w./-]+)`", ADMISSION):
        assert (ROOT / path).exists(), path
    measures = (ROOT / "controller/admission/measures.py").read_text()
    for name in re.findall(r"`kai_binder_admission_(\w+)`", ADMISSION):
        assert name in measures


def test_every_way_of_a_tenant_has_its_test_and_every_test_its_way() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| `(tests/[\w/.]+)::(\w+)` \|$", SECURITY, re.MULTILINE)
    assert len(rows) == SECURITY.count("\n| ") - SECURITY.count("\n| Way |"), "a row without one test"
    assert len(rows) == len(set(rows))
    for path, name in rows:
        assert name in sources_of(path), f"{path} has no test {name}"
    files = sorted((ROOT / "tests/apiserver/hostile").glob("test_*.py"))
    there = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in sources_of(str(file.relative_to(ROOT)))
    }
    assert {way for way in there if way[1] != "test_the_binder_was_never_surprised"} <= set(rows)


def test_the_limits_that_are_named_are_those_of_the_code() -> None:
    named = {
        "of one namespace at most 1,000": MOST_OF_A_NAMESPACE == 1000,
        "no request may name more than 64": MOST_GROUPS == 64,
        "larger than 8 MiB": MOST_OF_A_PAGE == 8 * 1024 * 1024,
    }
    for text, is_so in named.items():
        assert text in " ".join(SECURITY.replace("Of one", "of one").split()), text
        assert is_so, text
    for path in re.findall(r"`(tests/[\w/.]+)`", SECURITY):
        assert (ROOT / path).exists(), path
