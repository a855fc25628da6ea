"""The README is true: its tables follow the code, its settings are accepted, its plugin runs."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
import readmegen
from controlplane import supported_kubernetes

from controller.kai.names import CLAIM_VERSIONS
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest
from controller.planning import plan
from controller.plugins.base import BindContext, Failed, Ready
from controller.plugins.registry import BUILT_IN, PlannedPlugin
from controller.setting_texts import rows
from controller.settings import VERBS, load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DRIVER = "nvidia.com/cuda.driver.major"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)


def example(name: str) -> str:
    found = re.findall(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert readmegen.with_tables(README) == README, "run hack/readme"


def test_it_names_the_versions_of_kubernetes_that_can_be_chosen() -> None:
    newest, *_, oldest = supported_kubernetes()
    assert f"on Kubernetes {oldest} to {newest}." in README
    for command in (f"hack/demo --kubernetes {oldest}", f"KUBERNETES={oldest} hack/test apiserver"):
        assert f"`{command}`" in README
    assert README.count(f"of {oldest} to {newest}") == 2, "for the demo and for the tests"


def test_the_versions_of_device_claims_are_named_best_first() -> None:
    best, *older = CLAIM_VERSIONS
    assert f"`{best}` since 1.34, before that `{older[0]}`, `{older[1]}` or `{older[2]}`" in README


def test_markdown_does_not_eat_the_text_of_a_setting() -> None:
    shown = "\n".join(readmegen.tables().values()).splitlines()
    for row in {row for verb in VERBS for row in rows(verb)}:
        (line,) = (line for line in shown if f"| `{row.flag}` |" in line)
        assert row.description in re.sub(r"\\(.)", r"\1", line)
        assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_flags_exist() -> None:
    known = {row.flag for verb in VERBS for row in rows(verb)}
    ours = {"--checkout", "--keep", "--kubernetes", "--list", "--upgrade", "--verbose"}
    own_lines = [
        line for line in README.splitlines() if not re.search(r"kubectl|docker|pip |FROM|COPY", line)
    ]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(own_lines)))
    assert named <= known | ours | {"--flag"}


def test_settings_that_are_shown_are_accepted() -> None:
    lines = [word for block in blocks("sh") for word in block.splitlines() if word.startswith("BINDER_")]
    shown = [shlex.split(line, comments=True) for line in lines]
    shown += [[word] for word in re.findall(r"`(BINDER_\w+=[^`{]+)`", README)]
    assert len(shown) >= 6
    for (assignment,) in shown:
        name, _, value = assignment.partition("=")
        settings = load([], {name: value})
        assert settings != load([], {})
        plan(settings)


def test_the_table_of_plugins_is_that_of_the_code() -> None:
    for cls in BUILT_IN:
        names = f"`{cls.name}`" + "".join(f" (also `{alias}`)" for alias in cls.aliases)
        arguments = ", ".join(f"`{name}` = `{value}`" for name, value in cls.default_arguments.items())
        enabled = "yes" if cls.enabled else "no"
        row = f"| {names} | `{cls.condition_type}` | {cls.priority} | {enabled} | {arguments} |"
        assert row.replace("|  |", "| |") in README


def test_every_reason_is_explained_once() -> None:
    table = README.partition("| Reason | Condition |")[2].partition("\n\n")[0]
    rows_of_reasons = re.findall(r"^\| (`.*?) \| (\w+) \| .+ \|$", table, re.MULTILINE)
    explained = [reason for names, _ in rows_of_reasons for reason in re.findall(r"`(\w+)`", names)]
    assert sorted(explained) == sorted(Reason), "explain them in README.md, Read a BindRequest"
    assert {status for _, status in rows_of_reasons} == {"True", "False", "Unknown"}


def test_files_that_are_named_exist() -> None:
    layout = next(block for block in blocks("text") if "__main__.py" in block)
    folders = {-2: ROOT}
    named = 0
    for line in layout.splitlines():
        depth = len(line) - len(line.lstrip())
        name = line.split()[0].rstrip(",")
        folder = folders[max(outer for outer in folders if outer < depth)]
        assert (folder / name).exists(), line
        if name.endswith("/"):
            folders = {outer: path for outer, path in folders.items() if outer < depth} | {
                depth: folder / name
            }
        for other in re.findall(r"\b\w+\.py\b", line):
            assert (folder / other).exists() or (folders[depth] / other).exists(), f"{other} in {line}"
            named += 1
    assert named > 40
    for path in re.findall(r"`((?:config|hack|controller|tests)/[\w./-]+)", README):
        assert (ROOT / path).exists(), path


@pytest.fixture
def driver_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlannedPlugin]:
    """The example, installed as a package is, and found by the binder."""
    (tmp_path / "drivercheck.py").write_text(example("drivercheck.py"))
    project = example("pyproject.toml")
    metadata = tmp_path / "drivercheck-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: drivercheck\nVersion: 1.0\n")
    group, entry = re.findall(r'\[project\.entry-points\."(.+?)"\]\n(\w+ = ".+?")', project)[0]
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    (arguments,) = re.findall(r"`(BINDER_PLUGINS__DRIVERCHECK__ARGUMENTS=\S+)`", README)
    name, _, value = shlex.split(arguments)[0].partition("=")
    planned = plan(load([], {name: value}))
    yield next(item for item in planned if item.cls.name == "drivercheck")
    sys.modules.pop("drivercheck", None)


def context(portion: str | None, **labels: str) -> BindContext:
    request = BindRequest(
        namespace="team",
        name="a",
        uid="u",
        owner_uid=None,
        pod_name="a",
        node_name="gpu-1",
        gpu_portion=portion,
    )
    seen = SimpleNamespace(request=request, node={"metadata": {"name": "gpu-1", "labels": labels}})
    return cast(BindContext, seen)


def test_the_plugin_that_is_shown_works(driver_check: PlannedPlugin) -> None:
    plugin = driver_check.cls(None, driver_check.arguments)  # type: ignore[arg-type] # it needs no client

    assert driver_check.priority == 400
    assert [plugin.concerns(context(portion)) for portion in (None, "0.00", "0.50", "1.00")] == [
        False,
        False,
        True,
        True,
    ]
    cards: tuple[dict[str, str], ...] = ({DRIVER: "575"}, {DRIVER: "535"}, {})
    new, old, none = cards
    assert anyio.run(plugin.pre_bind, context("1.00", **new)) == Ready("driver 575 is at least 570")
    assert anyio.run(plugin.pre_bind, context("1.00", **old)) == Failed(
        "DriverTooOld", f"node gpu-1: {DRIVER} is '535', needed is 570 or more"
    )
    assert isinstance(anyio.run(plugin.pre_bind, context("1.00", **none)), Failed)


def test_the_plugin_that_is_shown_runs_first(driver_check: PlannedPlugin) -> None:
    planned = plan(load([], {}))
    assert planned[0].cls is driver_check.cls
    assert [item.cls.name for item in planned[1:]] == ["volumebinding", "dynamicresources", "gpusharing"]
