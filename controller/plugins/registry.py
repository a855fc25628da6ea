"""Which plugins run, in which order, and whether what they need runs before them. Pure, but for `installed`.

The defaults of the plugins and the user's settings are merged (B-48), ordered (B-49) and checked. A plugin
whose need is not met still is in the plan: it refuses the requests that concern it, and only those.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points

from msgspec import Struct
from pydantic import BaseModel, ValidationError

from controller.kai.reasons import ConditionType
from controller.plugins.base import Plugin
from controller.plugins.claims.plugin import DynamicResources
from controller.plugins.config import FailurePolicy, PluginConfig
from controller.plugins.gpusharing import GPUSharing
from controller.plugins.memorylimit import GPUMemoryLimit
from controller.plugins.nvfractions import NvFractions
from controller.plugins.volumes.plugin import VolumeBinding

ENTRY_POINT_GROUP = "kai_binder.plugins"
BUILT_IN: tuple[type[Plugin], ...] = (
    VolumeBinding,
    DynamicResources,
    GPUSharing,
    NvFractions,
    GPUMemoryLimit,
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?")
_CONDITION_TYPE = re.compile(
    r"(?=.{1,316}\Z)([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
)
"""What the schema of conditions allows: with any other, no status could be written."""


class PluginConfigError(ValueError):
    """The plugins setting cannot be followed; `problems` has a sentence for each fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class PlannedPlugin(Struct, frozen=True):
    """A plugin that runs.

    Attributes:
        cls: Its class.
        priority: Higher runs earlier.
        failure_policy: Whether the bind goes on without it.
        arguments: Checked, an instance of the class's arguments_model.
        unmet: Why its needs are not met and what to set, or None.
    """

    cls: type[Plugin]
    priority: int
    failure_policy: FailurePolicy
    arguments: BaseModel
    unmet: str | None


def installed() -> tuple[type[Plugin], ...]:
    """The built-in plugins, and those of packages installed beside us.

    Raises:
        PluginConfigError: A package's plugin cannot be loaded, or is none.
    """
    found = list(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            cls = entry.load()
        except (Exception, SystemExit) as error:
            raise PluginConfigError(
                [f"plugin {entry.name} ({entry.value}) cannot be loaded: {error!r}"]
            ) from error
        fault = _fault(cls)
        if fault is not None:
            raise PluginConfigError([f"plugin {entry.name} ({entry.value}) {fault}"])
        found.append(cls)
    return tuple(found)


def resolve(
    classes: Iterable[type[Plugin]],
    settings: Mapping[str, PluginConfig],
    *,
    lenient: frozenset[str] = frozenset(),
    ignored: list[str] | None = None,
) -> tuple[PlannedPlugin, ...]:
    """Merges, orders and checks.

    Args:
        classes: All plugins there are.
        settings: The user's settings by plugin name or alias.
        lenient: Names in the settings that may be a newer KAI's: what of them is not known is left out.
        ignored: What was left out is added here, in words.

    Returns:
        The enabled plugins in the order in which they run.

    Raises:
        PluginConfigError: With all problems found.
    """
    problems: list[str] = []
    by_name = _by_name(classes, problems)
    left_out: list[str] = [] if ignored is None else ignored
    configs = _configs(by_name, _known(by_name, settings, lenient, left_out), problems)
    enabled = [cls for cls in by_name.values() if _is_enabled(cls, configs)]
    enabled.sort(key=lambda cls: (-_priority(cls, configs), cls.name))
    order = [cls.name for cls in enabled]
    plan = []
    for cls in enabled:
        config = configs.get(cls.name, PluginConfig())
        if cls.name in lenient and cls in BUILT_IN:
            config = _without_unknown_arguments(cls, config, left_out)
        arguments = _arguments(cls, config, problems)
        if arguments is not None:
            unmet = _unmet(cls, order, by_name)
            policy = config.failure_policy or "Fail"
            plan.append(PlannedPlugin(cls, _priority(cls, configs), policy, arguments, unmet))
    if problems:
        raise PluginConfigError(problems)
    return tuple(plan)


def _known(
    by_name: Mapping[str, type[Plugin]],
    settings: Mapping[str, PluginConfig],
    lenient: frozenset[str],
    left_out: list[str],
) -> dict[str, PluginConfig]:
    """The settings without plugins that are not known and need not be."""
    strangers = sorted(lenient & settings.keys() - _names(by_name).keys())
    left_out += [f"--plugins: there is no plugin {word!r}" for word in strangers]
    return {word: config for word, config in settings.items() if word not in strangers}


def _without_unknown_arguments(cls: type[Plugin], config: PluginConfig, left_out: list[str]) -> PluginConfig:
    known = {field.alias or key for key, field in cls.arguments_model.model_fields.items()}
    unknown = sorted((config.arguments or {}).keys() - known)
    left_out += [f"--plugins: {cls.name} has no argument {name!r}" for name in unknown]
    kept = {name: value for name, value in (config.arguments or {}).items() if name in known}
    return config.model_copy(update={"arguments": kept}) if unknown else config


def _fault(cls: object) -> str | None:
    """Why something is no complete plugin class; None if it is one."""
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        return "is no subclass of Plugin"
    for attribute, legal in (("name", _NAME), ("condition_type", _CONDITION_TYPE)):
        value: object = getattr(cls, attribute, "")
        if not value:
            return f"has no {attribute}"
        if not isinstance(value, str) or not legal.fullmatch(value):
            return f"has the {attribute} {value!r}, which is not legal"
    for attribute, is_legal, what in _ATTRIBUTES:
        value = getattr(cls, attribute)
        if not is_legal(value):
            return f"has {value!r} as its {attribute}, which is not {what}"
    if inspect.isabstract(cls):
        return f"lacks {', '.join(sorted(cls.__abstractmethods__))}"
    if inspect.iscoroutinefunction(cls.concerns):
        return "has a concerns that is async, which it must not be"
    return None


def _are_names(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


def _are_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(part, str) for pair in value.items() for part in pair
    )


_ATTRIBUTES: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("requires", _are_names, "a tuple of names"),
    ("aliases", _are_names, "a tuple of names"),
    ("priority", lambda value: type(value) is int, "a whole number"),
    ("enabled", lambda value: isinstance(value, bool), "True or False"),
    ("default_arguments", _are_texts, "a mapping of texts"),
    (
        "arguments_model",
        lambda value: isinstance(value, type) and issubclass(value, BaseModel),
        "a model of pydantic's",
    ),
)
"""Class attributes with a default, and what they have to be."""


def _by_name(classes: Iterable[type[Plugin]], problems: list[str]) -> dict[str, type[Plugin]]:
    by_name: dict[str, type[Plugin]] = {}
    taken: dict[str, type[Plugin]] = {}
    for cls in classes:
        if cls.condition_type in list(ConditionType):
            problems.append(
                f"plugin {_path(cls)}: the condition type {cls.condition_type} is the binder's own"
            )
        words = [cls.name, *cls.aliases, cls.condition_type]
        rival = next((taken[word] for word in words if word in taken), None)
        if rival is not None:
            problems.append(
                f"plugins {_path(rival)} and {_path(cls)} have a name or condition type in common"
            )
            continue
        taken.update(dict.fromkeys(words, cls))
        by_name[cls.name] = cls
    return by_name


def _configs(
    by_name: Mapping[str, type[Plugin]], settings: Mapping[str, PluginConfig], problems: list[str]
) -> dict[str, PluginConfig]:
    """The settings under the plugins' own names."""
    names = _names(by_name)
    configs: dict[str, PluginConfig] = {}
    words: dict[str, str] = {}
    for word, config in settings.items():
        name = names.get(word)
        if name is None:
            if config.enabled is not False:  # a plugin that is off need not exist (B-50)
                known = ", ".join(sorted(by_name))
                problems.append(f"plugins: there is no plugin {word!r}; there are {known}")
        elif name in configs:
            one, other = sorted((words[name], word))
            problems.append(f"plugins: {one!r} and {other!r} are names of one plugin; keep one of them")
        else:
            configs[name], words[name] = config, word
    return configs


def _names(by_name: Mapping[str, type[Plugin]]) -> dict[str, str]:
    """Name or alias -> name."""
    return {word: cls.name for cls in by_name.values() for word in (cls.name, *cls.aliases)}


def _is_enabled(cls: type[Plugin], configs: Mapping[str, PluginConfig]) -> bool:
    config = configs.get(cls.name)
    return cls.enabled if config is None or config.enabled is None else config.enabled


def _priority(cls: type[Plugin], configs: Mapping[str, PluginConfig]) -> int:
    config = configs.get(cls.name)
    return cls.priority if config is None or config.priority is None else config.priority


def _arguments(cls: type[Plugin], config: PluginConfig, problems: list[str]) -> BaseModel | None:
    values = cls.default_arguments if config.arguments is None else config.arguments
    try:
        return cls.arguments_model.model_validate(dict(values))
    except ValidationError as error:
        for fault in error.errors():
            name = ".".join(str(part) for part in fault["loc"])
            match fault["type"]:
                case "extra_forbidden":
                    known = ", ".join(
                        field.alias or key for key, field in cls.arguments_model.model_fields.items()
                    )
                    text = f"is unknown; {f'there are: {known}' if known else 'this plugin has no arguments'}"
                case "missing":
                    text = "is missing; arguments that are given replace all defaults"
                case _:
                    text = f"is {fault['input']!r}: {fault['msg'].removeprefix('Value error, ')}"
            problems.append(f"plugins: {cls.name}: argument {name!r} {text}")
    except Exception as error:  # noqa: BLE001 -- a check of somebody else's
        problems.append(f"plugins: {cls.name}: its arguments cannot be checked: {error!r}")
    return None


def _unmet(cls: type[Plugin], order: Sequence[str], by_name: Mapping[str, type[Plugin]]) -> str | None:
    """Why a plugin that this one needs does not run before it, and what to set."""
    names = _names(by_name)
    for word in cls.requires:
        if word not in names:
            return f"{cls.name} needs the plugin {word}, which is not installed"
        name = names[word]
        variable = f"BINDER_PLUGINS__{name.upper()}"
        if name not in order:
            return f"{cls.name} needs {name}, which is disabled; set {variable}__ENABLED=true"
        if order.index(name) >= order.index(cls.name):
            return (
                f"{cls.name} needs {name} to run before it, but {name} runs after it; "
                f"give {name} a higher priority than {cls.name} ({variable}__PRIORITY)"
            )
    return None


def _path(cls: type[Plugin]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
