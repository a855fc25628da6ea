"""The two places where settings are given: the command line and the environment.

Called by ``settings`` only, which knows what the values mean. Here they stay text (of plugins: JSON). Each
keeps the name under which it was given, so that a complaint names what the person typed.

Invariant: a problem is noted and the reading goes on, so that a person learns of all of them at once.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.plugins.config import PluginConfig

PREFIX = "BINDER_"

# The kubelet puts these into every pod beside a Service called "binder" or "binder-…"; they are no settings.
_SERVICE_LINK = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)


def parse_json_object(value: object) -> object:
    """Turns JSON text into an object; empty text and ``null`` mean that nothing is set, as in Go."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value) if value.strip() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object; it is no JSON: {error}") from None
    if parsed is not None and not isinstance(parsed, dict):
        raise ValueError("must be a JSON object, in braces")
    return parsed


def typed(value: object) -> str:
    """Writes a value as a person would type it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return str(int(value) if value.is_integer() else value)
        case dict():
            plain = {
                key: item.model_dump(by_alias=True, exclude_none=True)
                if isinstance(item, PluginConfig)
                else item
                for key, item in value.items()
            }
            return json.dumps(plain, separators=(",", ":")) if plain else ""
        case _:
            return str(value)


def flag_of(field: str) -> str:
    """Names the flag of a field."""
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """Names the environment variable of a field."""
    return PREFIX + field.upper()


_VALUE = re.compile(r"[^-]|-\d")
"""Begins what cannot be a flag."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ends a complaint with the closest known word, if one is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def read_flags(
    argv: Sequence[str],
    fields: Mapping[str, bool],
    problems: list[str],
    ignored: list[str],
    *,
    strict: str,
) -> dict[str, str]:
    """Splits the command line into field -> text; the last of several wins.

    Takes what Go's flag package takes, one dash or two, since that is what existing Deployments hold.

    Args:
        argv: The command line without the name of the program.
        fields: All fields; whether each is a switch, which needs no value.
        problems: Problems are added here.
        ignored: What is not known and may come from a newer operator is added here.
        strict: Begins flags that no operator passes: one that is not known is a problem.
    """
    by_flag = {flag_of(field): field for field in fields} | {"--h": "help"}
    given: dict[str, str] = {}
    words = list(reversed(argv))
    while words:
        word = words.pop()
        head, equals, value = word.partition("=")
        flag = head if head.startswith("--") else f"-{head}"
        field = by_flag.get(flag)
        if not head.startswith("-") or not head.strip("-"):
            problems.append(f"{word!r} is no flag; a switch is turned off by --flag=false")
        elif field is None:
            unknown = f"{head} is no known flag{did_you_mean(flag, by_flag)}"
            (problems if flag.startswith(strict) else ignored).append(unknown)
            if not equals and words and _VALUE.match(words[-1]):
                words.pop()
        elif equals:
            given[field] = value
        elif fields[field]:
            given[field] = "true"
        elif not words or words[-1].startswith("--"):
            problems.append(f"{head} needs a value")
        else:
            given[field] = words.pop()
    return given


def read_environment(
    environ: Mapping[str, str], fields: Iterable[str], all_fields: Iterable[str], problems: list[str]
) -> dict[tuple[str, ...], tuple[str, str]]:
    """Picks our variables: path in lower case -> (variable, text).

    An unknown one is a problem, as a typing error in it could leave a pod without its memory limit.

    Args:
        environ: All variables.
        fields: The fields that can be set in the environment.
        all_fields: Those and the ones of other verbs, which may stand there and say nothing to this one.
        problems: Problems are added here.
    """
    known = {variable_of(field): field for field in all_fields}
    wanted = {*fields}
    given = {}
    for variable, text in sorted(environ.items()):
        first, *nested = variable.upper().split("__")
        of_plugin = first == variable_of("plugins") and nested
        if (of_plugin and len(nested) <= 2 and all(nested)) or (first in known and not nested):
            if known[first] in wanted:
                given[(known[first], *(step.lower() for step in nested))] = (variable, text)
        elif of_plugin and nested[1:2] == ["ARGUMENTS"]:
            problems.append(
                f"{variable}: set all arguments as one JSON object in {first}__{nested[0]}__ARGUMENTS"
            )
        elif first.startswith(PREFIX) and not _SERVICE_LINK.search(variable.upper()):
            problems.append(f"{variable} is no known variable{did_you_mean(first, known)}")
    return given


STRICT_PLUGINS = frozenset({"gpumemorylimit", "hamicore"})
"""Names of the plugin in whose setting a typing error could leave a pod without its memory limit."""

# Go reads JSON keys in any case, and variables have only one.
_PLUGIN_KEYS = {name.replace("_", ""): info.alias or name for name, info in PluginConfig.model_fields.items()}


def one_name(*places: Iterable[tuple[str, object]]) -> dict[str, str]:
    """How to call the memory limit's plugin where one place says ``hamicore`` and another our name for it.

    KAI's operator names ``hamicore`` in each ``--plugins``, even if it is off; what is said of the plugin
    elsewhere, by either name, is of the same one. Two names stay two, which is a problem, in one place, and
    where one is on and the other off: nobody knows what is meant, and a pod could be left without its limit.

    Args:
        places: What each place says of plugins, name and settings; highest precedence first.

    Returns:
        Name -> the name to use; empty where all agree.
    """
    said = [[(name, config) for name, config in place if name in STRICT_PLUGINS] for place in places]
    states = {
        str(typed(value)).lower() for place in said for _, config in place for value in _enabled_in(config)
    }
    if any(len({name for name, _ in place}) > 1 for place in said) or len(states) > 1:
        return {}
    names = list(dict.fromkeys(name for place in said for name, _ in place))
    return dict.fromkeys(names[1:], names[0]) if names else {}


def _enabled_in(config: object) -> list[object]:
    """What settings of a plugin, parsed or not, say of whether it is on."""
    try:
        parsed = parse_json_object(config)
    except ValueError:
        return []  # that is told elsewhere
    told = parsed.items() if isinstance(parsed, dict) else ()
    return [value for key, value in told if _plugin_key(key) == "enabled" and value is not None]


def _plugin_key(given: str) -> str:
    """The key of a plugin's settings that is meant, or what was given if it is none."""
    return _PLUGIN_KEYS.get(given.replace("_", "").lower(), given)


class Found:
    """Collects what was set, lowest precedence first, and remembers under which name a person set it."""

    def __init__(self, problems: list[str], ignored: list[str]) -> None:
        self.problems = problems
        self.ignored = ignored
        self.values: dict[str, Any] = {}
        self._sources: dict[tuple[str, ...], str] = {}

    def put(self, source: str, path: tuple[str, ...], value: object) -> None:
        """Sets one value, over what was set before; who set it otherwise is told that it does not count."""
        place = self.values
        for step in path[:-1]:
            place = place.setdefault(step, {})
        before = self._sources.get(path, source)
        if before != source and typed(place[path[-1]]) != typed(value):
            what = f"{_where(before, path)}{_shown(place[path[-1]])}"
            self.ignored.append(f"{what} gives way to {_shown(value)} of {source}")
        place[path[-1]] = value
        self._sources[path] = source

    def json_object(self, source: str, what: str, value: object) -> dict[str, Any]:
        """Parses a JSON object, given as text or parsed before; a problem reads as nothing set."""
        try:
            parsed = parse_json_object(value)
        except ValueError as error:
            self.problems.append(f"{source}: {what}{_shown(value)} {error}")
            return {}
        if parsed is not None and not isinstance(parsed, dict):
            self.problems.append(f"{source}: {what}{_shown(parsed)} must be a JSON object, in braces")
            return {}
        return parsed or {}

    def plugin(self, source: str, name: str, config: object) -> None:
        """Sets what is given for one plugin, key by key; null means not given, as in Go."""
        for given, value in self.json_object(source, f"{name}: ", config).items():
            key = _plugin_key(given)
            path = ("plugins", name, key)
            if key not in _PLUGIN_KEYS.values() and source == "--plugins" and name not in STRICT_PLUGINS:
                self.ignored.append(f"--plugins: {name}.{given} is no known key")
                continue
            if key != "arguments" and value is not None:
                self.put(source, path, value)
            elif value is not None:
                arguments = self.json_object(source, f"{name}.arguments: ", value)
                self.values.setdefault("plugins", {}).setdefault(name, {}).setdefault(key, {})
                for argument, text in arguments.items():
                    self.put(source, (*path, argument), text)
        self.values.setdefault("plugins", {}).setdefault(name, {})

    def explain(self, location: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
        """Words one complaint of pydantic under the name that the person typed."""
        path = tuple(str(step) for step in location)
        source = next(
            (self._sources[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._sources), None
        )
        where = _where(source or flag_of(path[0]), path)
        if kind == "extra_forbidden":
            known = list(_PLUGIN_KEYS.values())
            return f"{where}is no known key; known are {', '.join(known)}{did_you_mean(path[-1], known)}"
        message = (
            message.removeprefix("Value error, ")
            .replace("Input should", "must")
            .replace("must be a valid", "must be a")
        )
        return f"{where}{_shown(value)} {message}"


def _where(source: str, path: Sequence[str]) -> str:
    """Begins what is said of one value: who set it, and of a plugin which."""
    return f"{source}: " + (f"{'.'.join(path[1:])} " if path[1:] else "")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=typed)
    return text if len(text) <= 200 else text[:200] + "…"
