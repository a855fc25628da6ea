"""docs/plugins.md is true: its table follows the code, and the plugin that it shows runs."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from controller.kai.request import BindRequest
from controller.planning import plan
from controller.plugins.base import BindContext, Failed, Plugin, Ready
from controller.plugins.registry import BUILT_IN, PlannedPlugin
from controller.settings import load
from tests.binder import run_to_end

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text()
DRIVER = "nvidia.com/cuda.driver.major"


def example(name: str) -> str:
    found = re.findall(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def test_the_table_of_plugins_is_that_of_the_code() -> None:
    for cls in BUILT_IN:
        names = f"`{cls.name}`" + "".join(f" (also `{alias}`)" for alias in cls.aliases)
        arguments = ", ".join(f"`{name}` = `{value}`" for name, value in cls.default_arguments.items())
        enabled = "yes" if cls.enabled else "no"
        row = f"| {names} | `{cls.condition_type}` | {cls.priority} | {enabled} | {arguments} |"
        assert row.replace("|  |", "| |") in PAGE


def test_the_order_is_what_the_command_prints() -> None:
    (shown,) = re.findall(r"<!-- output: print-config -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert shown in run_to_end("--print-config").stdout


def test_the_contract_names_all_that_a_plugin_has() -> None:
    table = PAGE.partition("### The contract")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    public = {name for name in vars(Plugin) if not name.startswith("_")}
    assert named == (public | set(Plugin.__annotations__)) - {"aliases"}, "aliases are for names that KAI has"


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

    (arguments,) = re.findall(r"`(BINDER_PLUGINS__DRIVERCHECK__ARGUMENTS=\S+)`", PAGE)
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
