"""Where log records go and how they look: one line each, as text for people or as JSON for machines.

``__main__`` calls `configure` once; all others take loguru's ``logger``, write a fixed sentence, bind fields.

Invariant: a message is text, never a format. Braces and percent signs in an object's name or in an answer of
the API server reach the log as they are; line breaks and all else that a terminal would obey are escaped, so
that none can forge another record or change how one looks.
"""

import json
import logging
import re
import sys
import traceback
from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal, TextIO

import orjson
from loguru import logger

from controller.runtime.texts import escaped, in_json

if TYPE_CHECKING:
    from loguru import Message, Record

_LEVELS = {"CRITICAL": "error", "SUCCESS": "info"}
_PLAIN = re.compile(r"[^\s\"=]+")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def configure(level: str, fmt: Literal["text", "json"], sink: TextIO | None = None) -> None:
    """Sends all log records, those of the standard library's ``logging`` from warning on too, to one place.

    Args:
        level: The lowest level shown: trace, debug, info, warning or error.
        fmt: ``text``: time, level, message and ``field=value``, a trace below. ``json``: one object per line
            with ts, level, msg, logger, the bound fields, and error and stacktrace if there is an exception.
        sink: Where to write; by default standard error.
    """
    out = sink or sys.stderr
    render = _as_json if fmt == "json" else _as_text

    def write(message: "Message") -> None:
        out.write(render(message.record) + "\n")

    logger.remove()
    # The empty format keeps loguru from rendering the record as well.
    logger.add(write, level=level.upper(), format=lambda _: "", backtrace=False, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


class _ToLoguru(logging.Handler):
    """Passes on what libraries log by the standard library's means."""

    def emit(self, record: logging.LogRecord) -> None:
        level = next(
            (name for name in ("ERROR", "WARNING", "INFO") if record.levelno >= getattr(logging, name)),
            "DEBUG",
        )
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's wrong format must not cost us the record
            text = f"{record.msg} {record.args}"
        named = logger.patch(lambda into: into.update({"name": record.name})).opt(exception=record.exc_info)
        named.log(level, text)


def _common(record: "Record") -> tuple[str, str]:
    time = record["time"].astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level = record["level"].name
    return time, _LEVELS.get(level, level.lower())


def _error(record: "Record") -> tuple[str, str] | None:
    """The exception of a record: its text and its trace."""
    failure = record["exception"]
    if failure is None or failure.value is None:
        return None
    text = "".join(traceback.format_exception_only(failure.type, failure.value)).strip()
    trace = "".join(traceback.format_exception(failure.type, failure.value, failure.traceback)).rstrip()
    return text, trace


def _as_text(record: "Record") -> str:
    time, level = _common(record)
    line = f"{time} {level:<7} {_visible(record['message'])}"
    for key, value in record["extra"].items():
        text = str(value)
        plain = _PLAIN.fullmatch(text) and text.isprintable()
        line += f" {key}={text if plain else _visible(json.dumps(text, ensure_ascii=False))}"
    error = _error(record)
    if error is None:
        return line
    return "\n".join((line, *map(_visible, error[1].split("\n"))))


def _visible(text: str) -> str:
    """The text with what cannot be seen written out: terminals obey escape sequences."""
    if text.isprintable():
        return text
    return escaped("".join(_ESCAPES.get(character, character) for character in text))


def _as_json(record: "Record") -> str:
    time, level = _common(record)
    fields: dict[str, Any] = {"ts": time, "level": level, "msg": record["message"], "logger": record["name"]}
    fields |= {f"{key}_" if key in fields else key: value for key, value in record["extra"].items()}
    error = _error(record)
    if error is not None:
        fields.setdefault("error", error[0])
        fields["stacktrace"] = error[1]
    try:
        return in_json(orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode())
    except TypeError:  # what orjson refuses: integers over 64 bits, broken surrogates
        return json.dumps({key: str(value) for key, value in fields.items()})
