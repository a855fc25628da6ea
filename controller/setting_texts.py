"""The settings as people read them: the text of ``--help``, the table in the README, ``--print-config``.

Called by ``command`` and ``hack/readme``. Pure; all is read off the classes of settings.
"""

import json
import re
import textwrap
from typing import NamedTuple

from pydantic.fields import FieldInfo

from controller.setting_base import COMMANDS, CommonSettings, group_of
from controller.settings import VERBS, Settings
from controller.sources import flag_of, typed, variable_of

AGENT = "agent"
AGENT_PURPOSE = "says, in a reservation pod, which GPU the pod was given"
_YAML_PLAIN = re.compile(r"[A-Za-z0-9/:][\w./:@-]*")


class SettingRow(NamedTuple):
    """One setting, as the help and the README show it.

    Attributes:
        flag: With its dashes.
        env: The environment variable; empty for the commands, which are flags only.
        default: As a person would type it; empty if nothing is set.
        description: One or two sentences.
        group: The heading under which it is listed.
    """

    flag: str
    env: str
    default: str
    description: str
    group: str


def rows(verb: type[CommonSettings] = Settings) -> list[SettingRow]:
    """Lists all settings of a verb in the order of their groups."""
    return [_row(name, info) for name, info in verb.listed().items()]


def _row(name: str, info: FieldInfo) -> SettingRow:
    group = group_of(info)
    default = info.get_default(call_default_factory=True, validated_data={})
    env = "" if group == COMMANDS else variable_of(name)
    return SettingRow(flag_of(name), env, typed(default), info.description or "", group)


def help_text(verb: type[CommonSettings] = Settings) -> str:
    """Renders the text of ``--help``: each flag with its variable, its default and what it does."""
    lines = [
        f"kai-binder {verb.verb}: {verb.purpose}.",
        "",
        *_verbs(),
        "",
        "Flags win over environment variables, these over defaults. --flag value, --flag=value, -flag value;",
        "a switch is set by --flag alone or --flag=true|false.",
    ]
    group = ""
    for row in rows(verb):
        if row.group != group:
            group = row.group
            lines += ["", f"{group}:"]
        notes = ", ".join(
            filter(None, (row.env, f"default {row.default}" if row.default and row.env else ""))
        )
        lines.append(f"  {row.flag}" + (f"  ({notes})" if notes else ""))
        lines += textwrap.wrap(row.description, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def _verbs() -> list[str]:
    """The verbs with what they do, a line each."""
    purposes = {verb.verb: verb.purpose for verb in VERBS} | {AGENT: AGENT_PURPOSE}
    width = max(map(len, purposes))
    lines = [f"  kai-binder {name:<{width}}  {purpose}" for name, purpose in purposes.items()]
    return ["Verbs, of which run need not be said:", *lines]


def describe(settings: CommonSettings) -> str:
    """Renders the settings in effect as YAML, each value as a person would type it."""
    lines = []
    for name in (name for name, info in settings.listed().items() if _row(name, info).env):
        value = getattr(settings, name)
        text = typed(value)
        if not text or (isinstance(value, str) and not _YAML_PLAIN.fullmatch(text)):
            text = json.dumps(text)
        lines.append(f"{name.replace('_', '-')}: {text}")
    return "\n".join(lines) + "\n"
