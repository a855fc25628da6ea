"""The settings as people read them: the text of ``--help``, the table in the README, ``--print-config``.

Called by ``__main__`` and ``hack/readme``. Pure; all is read off the class `Settings`.
"""

import json
import re
import textwrap
from typing import NamedTuple

from pydantic.fields import FieldInfo

from controller.settings import COMMANDS, Settings, group_of
from controller.sources import flag_of, typed, variable_of

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


def rows() -> list[SettingRow]:
    """Lists all settings in the order of their groups."""
    return [_row(name, info) for name, info in Settings.model_fields.items()]


def _row(name: str, info: FieldInfo) -> SettingRow:
    group = group_of(info)
    default = info.get_default(call_default_factory=True, validated_data={})
    env = "" if group == COMMANDS else variable_of(name)
    return SettingRow(flag_of(name), env, typed(default), info.description or "", group)


def help_text() -> str:
    """Renders the text of ``--help``: each flag with its variable, its default and what it does."""
    lines = [
        "kai-binder: binds pods to the nodes and GPUs that the scheduler chose.",
        "",
        "Flags win over environment variables, these over defaults. --flag value, --flag=value, -flag value;",
        "a switch is set by --flag alone or --flag=true|false.",
    ]
    group = ""
    for row in rows():
        if row.group != group:
            group = row.group
            lines += ["", f"{group}:"]
        notes = ", ".join(
            filter(None, (row.env, f"default {row.default}" if row.default and row.env else ""))
        )
        lines.append(f"  {row.flag}" + (f"  ({notes})" if notes else ""))
        lines += textwrap.wrap(row.description, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def describe(settings: Settings) -> str:
    """Renders the settings in effect as YAML, each value as a person would type it."""
    lines = []
    for name in (name for name, info in Settings.model_fields.items() if _row(name, info).env):
        value = getattr(settings, name)
        text = typed(value)
        if not text or (isinstance(value, str) and not _YAML_PLAIN.fullmatch(text)):
            text = json.dumps(text)
        lines.append(f"{name.replace('_', '-')}: {text}")
    return "\n".join(lines) + "\n"
