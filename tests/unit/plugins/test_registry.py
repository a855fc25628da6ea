"""Which plugins run and in which order: defaults, merge, ties, arguments, needs, entry points (T-18)."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from controller.plugins.base import BindContext, Outcome, Plugin, Ready
from controller.plugins.config import PluginConfig
from controller.plugins.registry import (
    BUILT_IN,
    PlannedPlugin,
    PluginConfigError,
    installed,
    resolve,
)

INT64 = 2**63


class _Plugin(Plugin):
    def concerns(self, context: BindContext) -> bool:
        return True

    async def pre_bind(self, context: BindContext) -> Outcome:
        return Ready()


def plugin(name: str, /, **attributes: object) -> type[Plugin]:
    return type(name, (_Plugin,), {"name": name, "condition_type": name.title(), **attributes})


def plan(
    settings: dict[str, PluginConfig] | None = None, classes: tuple[type[Plugin], ...] = BUILT_IN
) -> tuple[PlannedPlugin, ...]:
    return resolve(classes, settings or {})


def names(planned: tuple[PlannedPlugin, ...]) -> list[str]:
    return [item.cls.name for item in planned]


def problems(
    settings: dict[str, PluginConfig] | None = None, classes: tuple[type[Plugin], ...] = BUILT_IN
) -> tuple[str, ...]:
    with pytest.raises(PluginConfigError) as caught:
        resolve(classes, settings or {})
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def arguments(planned: tuple[PlannedPlugin, ...], name: str) -> dict[str, object]:
    return next(item for item in planned if item.cls.name == name).arguments.model_dump(by_alias=True)


# Defaults and merge


def test_the_defaults() -> None:
    planned = plan()
    assert [(item.cls.name, item.priority, item.failure_policy) for item in planned] == [
        ("volumebinding", 300, "Fail"),
        ("dynamicresources", 200, "Fail"),
        ("gpusharing", 100, "Fail"),
    ]
    assert arguments(planned, "volumebinding")["bindTimeoutSeconds"] == 120
    assert arguments(planned, "dynamicresources")["bindTimeoutSeconds"] == 120
    assert arguments(planned, "gpusharing")["cdiEnabled"] is False
    assert all(item.unmet is None for item in planned)


def test_the_memory_limit_runs_last_once_enabled() -> None:
    planned = plan({"gpumemorylimit": PluginConfig(enabled=True)})
    assert names(planned)[-2:] == ["gpusharing", "gpumemorylimit"]
    assert planned[-1].priority == 50
    assert planned[-1].unmet is None


def test_hamicore_is_another_name_for_it() -> None:
    assert plan({"hamicore": PluginConfig(enabled=True)}) == plan(
        {"gpumemorylimit": PluginConfig(enabled=True)}
    )


def test_each_setting_is_merged_by_itself() -> None:
    planned = plan(
        {
            "volumebinding": PluginConfig(priority=1),
            "gpusharing": PluginConfig(enabled=True),
            "dynamicresources": PluginConfig(failurePolicy="Ignore"),
        }
    )
    assert [(item.cls.name, item.priority, item.failure_policy) for item in planned] == [
        ("dynamicresources", 200, "Ignore"),
        ("gpusharing", 100, "Fail"),
        ("volumebinding", 1, "Fail"),
    ]
    assert arguments(planned, "volumebinding")["bindTimeoutSeconds"] == 120


def test_an_empty_setting_changes_nothing() -> None:
    assert plan(dict.fromkeys(("volumebinding", "gpusharing"), PluginConfig())) == plan()


def test_a_disabled_plugin_does_not_run() -> None:
    assert names(plan({"volumebinding": PluginConfig(enabled=False)})) == ["dynamicresources", "gpusharing"]


def test_everything_can_be_turned_off() -> None:
    assert plan({cls.name: PluginConfig(enabled=False) for cls in BUILT_IN}) == ()


def test_arguments_that_are_given_replace_all_defaults() -> None:
    given = PluginConfig(arguments={"bindTimeoutSeconds": "7"})
    assert arguments(plan({"volumebinding": given}), "volumebinding")["bindTimeoutSeconds"] == 7

    assert problems({"volumebinding": PluginConfig(arguments={})}) == (
        "plugins: volumebinding: argument 'bindTimeoutSeconds' is missing; "
        "arguments that are given replace all defaults",
    )


def test_a_plugin_without_settings_has_priority_0_and_runs() -> None:
    planned = plan(classes=(*BUILT_IN, plugin("quota")))
    assert names(planned)[-1] == "quota"
    assert planned[-1].priority == 0


# Order


def test_ties_go_by_name() -> None:
    same = {cls.name: PluginConfig(enabled=True, priority=5) for cls in BUILT_IN}
    assert names(plan(same)) == [
        *("dynamicresources", "gpumemorylimit", "gpusharing", "nvfractions", "volumebinding")
    ]


def test_the_order_does_not_depend_on_the_order_of_anything_else() -> None:
    classes = (plugin("b"), plugin("a"), plugin("c", priority=-5), plugin("d", priority=7))
    settings = {"a": PluginConfig(priority=7), "c": PluginConfig(), "d": PluginConfig()}
    for shuffled in itertools.permutations(classes):
        for given in itertools.permutations(settings.items()):
            assert names(resolve(shuffled, dict(given))) == ["a", "d", "b", "c"]


@pytest.mark.parametrize("priority", [-(2**40), -1, 0, 2**40])
def test_priorities_may_be_any_number(priority: int) -> None:
    planned = plan({"gpusharing": PluginConfig(priority=priority)})
    assert names(planned)[0 if priority > 300 else -1] == "gpusharing"


# Names


@pytest.mark.parametrize("first", ["gpumemorylimit", "hamicore"])
def test_both_names_of_a_plugin_are_too_many(first: str) -> None:
    second = "hamicore" if first == "gpumemorylimit" else "gpumemorylimit"
    settings = {first: PluginConfig(enabled=True), second: PluginConfig(enabled=True)}
    assert problems(settings) == (
        "plugins: 'gpumemorylimit' and 'hamicore' are names of one plugin; keep one of them",
    )


def test_two_aliases_of_a_plugin_are_too_many() -> None:
    cls = plugin("quota", aliases=("old", "older"))
    assert problems({"old": PluginConfig(), "older": PluginConfig()}, (cls,)) == (
        "plugins: 'old' and 'older' are names of one plugin; keep one of them",
    )


@pytest.mark.parametrize("enabled", [True, None])
def test_an_unknown_plugin_is_refused(enabled: bool | None) -> None:
    assert problems({"gpusharign": PluginConfig(enabled=enabled)}) == (
        "plugins: there is no plugin 'gpusharign'; "
        "there are dynamicresources, gpumemorylimit, gpusharing, nvfractions, volumebinding",
    )


def test_an_unknown_plugin_that_is_off_is_fine() -> None:
    assert plan({"gone": PluginConfig(enabled=False, arguments={"x": "y"})}) == plan()


def test_names_are_lower_case() -> None:
    assert len(problems({"GPUSharing": PluginConfig()})) == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"name": "gpusharing"},
        {"name": "hamicore"},
        {"aliases": ("gpusharing",)},
        {"condition_type": "GPUSharing"},
    ],
)
def test_two_plugins_with_something_in_common_are_refused(attributes: dict[str, object]) -> None:
    rival = plugin("rival", **attributes)
    (problem,) = problems(classes=(*BUILT_IN, rival))
    assert "have a name or condition type in common" in problem
    assert "GPUSharing" in problem or "GPUMemoryLimit" in problem
    assert f"{rival.__module__}.rival" in problem


@pytest.mark.parametrize("condition_type", ["Bound", "GPUReserved"])
def test_the_binders_own_condition_types_are_taken(condition_type: str) -> None:
    (problem,) = problems(classes=(plugin("quota", condition_type=condition_type),))
    assert problem.endswith(f"quota: the condition type {condition_type} is the binder's own")


# Arguments


@pytest.mark.parametrize("name", ["volumebinding", "dynamicresources"])
@pytest.mark.parametrize(
    "value", ["", "abc", "1.5", "0x10", "1s", "--1", "1 2", "NaN", str(INT64), str(-INT64 - 1)]
)
def test_a_timeout_that_is_no_int64_is_refused(name: str, value: str) -> None:
    (problem,) = problems({name: PluginConfig(arguments={"bindTimeoutSeconds": value})})
    assert problem.startswith(f"plugins: {name}: argument 'bindTimeoutSeconds' is {value!r}: ")


@pytest.mark.parametrize("value", ["0", "1", "120", "+5", "007", str(INT64 - 1)])
def test_a_timeout_that_is_an_int64_is_taken(value: str) -> None:
    for name in ("volumebinding", "dynamicresources"):
        planned = plan({name: PluginConfig(arguments={"bindTimeoutSeconds": value})})
        assert arguments(planned, name)["bindTimeoutSeconds"] == int(value)


def test_only_volumebinding_refuses_a_negative_timeout() -> None:
    negative = PluginConfig(arguments={"bindTimeoutSeconds": "-1"})
    assert len(problems({"volumebinding": negative})) == 1
    assert arguments(plan({"dynamicresources": negative}), "dynamicresources")["bindTimeoutSeconds"] == -1


@pytest.mark.parametrize("value", ["", "yes", "no", "on", "2", "tRUE", " true", "y", "None"])
def test_cdi_that_is_no_boolean_of_go_is_refused(value: str) -> None:
    (problem,) = problems({"gpusharing": PluginConfig(arguments={"cdiEnabled": value})})
    assert problem == f"plugins: gpusharing: argument 'cdiEnabled' is {value!r}: true or false is allowed"


def test_cdi_is_read_as_go_reads_it() -> None:
    for truth, spellings in {True: "1 t T TRUE true True", False: "0 f F FALSE false False"}.items():
        for value in spellings.split():
            planned = plan({"gpusharing": PluginConfig(arguments={"cdiEnabled": value})})
            assert arguments(planned, "gpusharing")["cdiEnabled"] is truth


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("volumebinding", "bindTimeoutSeconds"),
        ("dynamicresources", "bindTimeoutSeconds"),
        ("gpusharing", "cdiEnabled"),
    ],
)
def test_a_missing_and_an_unknown_argument_are_named_together(name: str, needed: str) -> None:
    found = problems({name: PluginConfig(arguments={"tpyo": "1"})})
    assert len(found) == 2
    assert any(f"plugins: {name}: argument {needed!r} is missing" in problem for problem in found)
    assert any(
        f"plugins: {name}: argument 'tpyo' is unknown; there are: " in problem and needed in problem
        for problem in found
    )


def test_arguments_of_a_plugin_that_has_none() -> None:
    assert problems({"quota": PluginConfig(arguments={"x": "1"})}, (plugin("quota"),)) == (
        "plugins: quota: argument 'x' is unknown; this plugin has no arguments",
    )


def test_the_arguments_of_a_disabled_plugin_are_not_looked_at() -> None:
    off = PluginConfig(enabled=False, arguments={"bindTimeoutSeconds": "abc"})
    assert names(plan({"volumebinding": off})) == ["dynamicresources", "gpusharing"]


def test_arguments_of_a_plugin_from_outside() -> None:
    class Arguments(BaseModel):
        model_config = ConfigDict(extra="forbid")
        limit_mib: int = Field(alias="limitMiB", gt=0)

    cls = plugin("quota", arguments_model=Arguments, default_arguments={"limitMiB": "5"})
    assert arguments(plan(classes=(cls,)), "quota") == {"limitMiB": 5}
    given = {"quota": PluginConfig(arguments={"limitMiB": "0"})}
    assert problems(given, (cls,)) == (
        "plugins: quota: argument 'limitMiB' is '0': Input should be greater than 0",
    )


def test_all_problems_are_named_at_once() -> None:
    found = problems(
        {
            "nosuch": PluginConfig(),
            "volumebinding": PluginConfig(arguments={"bindTimeoutSeconds": "x"}),
            "gpusharing": PluginConfig(arguments={"cdiEnabled": "x"}),
            "hamicore": PluginConfig(),
            "gpumemorylimit": PluginConfig(),
        }
    )
    assert len(found) == 4


# Needs


def unmet(planned: tuple[PlannedPlugin, ...], name: str = "gpumemorylimit") -> str:
    found = next(item for item in planned if item.cls.name == name).unmet
    assert found is not None
    assert all(item.unmet is None for item in planned if item.cls.name != name)
    return found


LIMITED = PluginConfig(enabled=True)


def test_a_need_that_is_disabled() -> None:
    planned = plan({"gpumemorylimit": LIMITED, "gpusharing": PluginConfig(enabled=False)})
    assert names(planned) == ["volumebinding", "dynamicresources", "gpumemorylimit"]
    assert unmet(planned) == (
        "gpumemorylimit needs gpusharing, which is disabled; set BINDER_PLUGINS__GPUSHARING__ENABLED=true"
    )


def test_a_need_that_is_not_installed() -> None:
    without = tuple(cls for cls in BUILT_IN if cls.name != "gpusharing")
    assert unmet(plan({"gpumemorylimit": LIMITED}, without)) == (
        "gpumemorylimit needs the plugin gpusharing, which is not installed"
    )


@pytest.mark.parametrize("priority", [50, 49, -1])
def test_a_need_that_runs_later(priority: int) -> None:
    # At 50 both have the same priority, and the name decides.
    planned = plan({"gpumemorylimit": LIMITED, "gpusharing": PluginConfig(priority=priority)})
    assert unmet(planned) == (
        "gpumemorylimit needs gpusharing to run before it, but gpusharing runs after it; "
        "give gpusharing a higher priority than gpumemorylimit (BINDER_PLUGINS__GPUSHARING__PRIORITY)"
    )


def test_a_need_with_the_same_priority_that_runs_first_by_name_is_met() -> None:
    classes = (plugin("b", requires=("a",)), plugin("a"))
    assert all(item.unmet is None for item in plan(classes=classes))


def test_needs_hold_for_every_plugin_and_every_name() -> None:
    classes = (plugin("quota", requires=("volumebinding", "gpusharing")), *BUILT_IN)
    assert all(item.unmet is None for item in plan(classes=classes))
    off = {"volumebinding": PluginConfig(enabled=False)}
    assert "needs volumebinding, which is disabled" in unmet(plan(off, classes), "quota")
    early = {"quota": PluginConfig(priority=200)}
    assert "needs gpusharing to run before it" in unmet(plan(early, classes), "quota")


def test_a_need_may_be_named_by_an_alias() -> None:
    classes = (plugin("quota", requires=("old",), priority=1), plugin("new", aliases=("old",), priority=2))
    assert all(item.unmet is None for item in plan(classes=classes))
    off = {"old": PluginConfig(enabled=False)}
    assert unmet(plan(off, classes), "quota") == (
        "quota needs new, which is disabled; set BINDER_PLUGINS__NEW__ENABLED=true"
    )


def test_plugins_that_need_each_other_never_run() -> None:
    planned = plan(classes=(plugin("a", requires=("b",)), plugin("b", requires=("a",))))
    assert planned[0].unmet is not None
    assert plan(classes=(plugin("a", requires=("a",)),))[0].unmet is not None


# Entry points

OUTSIDE = """
from controller.plugins.base import BindContext, Outcome, Plugin, Ready

A_FUNCTION = print

class Outside(Plugin):
    name = "outside"
    condition_type = "Outside"

    def concerns(self, context):
        return True

    async def pre_bind(self, context):
        return Ready()

class Nameless(Outside):
    name = ""

class Typeless(Plugin):
    name = "typeless"
    concerns, pre_bind = Outside.concerns, Outside.pre_bind

class Unfinished(Plugin):
    name = "unfinished"
    condition_type = "Unfinished"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with one plugin; its argument is what the entry point names."""

    def install(value: str, code: str = OUTSIDE) -> None:
        (tmp_path / "outside_plugin.py").write_text(code)
        metadata = tmp_path / "outside_plugin-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-plugin\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[kai_binder.plugins]\noutside = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("outside_plugin", None)


def refused() -> str:
    with pytest.raises(PluginConfigError) as caught:
        installed()
    (problem,) = caught.value.problems
    return problem


def test_the_built_in_plugins_are_installed() -> None:
    assert installed() == BUILT_IN


def test_a_plugin_of_another_package_is_found_and_runs(package: Callable[[str], None]) -> None:
    package("outside_plugin:Outside")
    found = installed()
    assert [cls.name for cls in found] == [*(cls.name for cls in BUILT_IN), "outside"]
    assert names(resolve(found, {}))[-1] == "outside"
    assert names(resolve(found, {"outside": PluginConfig(priority=400)}))[0] == "outside"


@pytest.mark.parametrize("value", ["no_such_module:Outside", "outside_plugin:NoSuchClass"])
def test_an_entry_point_that_leads_nowhere(package: Callable[[str], None], value: str) -> None:
    package(value)
    assert refused().startswith(f"plugin outside ({value}) cannot be loaded: ")


@pytest.mark.parametrize("code", ["raise RuntimeError('boom')", "import no_such_library", "def"])
def test_a_module_that_cannot_be_imported(package: Callable[..., None], code: str) -> None:
    package("outside_plugin:Outside", code)
    assert refused().startswith("plugin outside (outside_plugin:Outside) cannot be loaded: ")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("outside_plugin", "is no subclass of Plugin"),
        ("outside_plugin:A_FUNCTION", "is no subclass of Plugin"),
        ("outside_plugin:Nameless", "has no name"),
        ("outside_plugin:Typeless", "has no condition_type"),
        ("outside_plugin:Unfinished", "lacks concerns, pre_bind"),
        ("outside_plugin:Plugin", "has no name"),
    ],
)
def test_an_entry_point_that_names_no_plugin(package: Callable[[str], None], value: str, why: str) -> None:
    package(value)
    assert refused() == f"plugin outside ({value}) {why}"


# What a newer KAI may say


def test_what_a_newer_operator_says_of_plugins_is_left_out() -> None:
    """N-23, N-28, N-30."""
    ignored: list[str] = []
    settings = {
        "timemachine": PluginConfig(enabled=True, priority=7),
        "gpusharing": PluginConfig(arguments={"cdiEnabled": "true", "newArgument": "x"}),
        "volumebinding": PluginConfig(arguments={"bindTimeoutSeconds": "7"}),
    }
    planned = resolve(BUILT_IN, settings, lenient=frozenset(settings), ignored=ignored)
    assert names(planned) == ["volumebinding", "dynamicresources", "gpusharing"]
    assert arguments(planned, "gpusharing")["cdiEnabled"] is True
    assert ignored == [
        "--plugins: there is no plugin 'timemachine'",
        "--plugins: gpusharing has no argument 'newArgument'",
    ]


def test_a_value_that_is_wrong_is_a_problem_wherever_it_stands() -> None:
    settings = {"gpusharing": PluginConfig(arguments={"cdiEnabled": "perhaps"})}
    with pytest.raises(PluginConfigError, match="cdiEnabled"):
        resolve(BUILT_IN, settings, lenient=frozenset(settings))


def test_arguments_of_plugins_from_outside_are_never_left_out() -> None:
    settings = {"quota": PluginConfig(arguments={"limit": "1"})}
    with pytest.raises(PluginConfigError, match="limit"):
        resolve((*BUILT_IN, plugin("quota")), settings, lenient=frozenset(settings))
