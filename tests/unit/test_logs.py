"""Log lines as text and as JSON: fields, exceptions, records of libraries, texts that look like formats."""

import asyncio
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Literal

import pytest
from loguru import logger

from controller import logs

HOSTILE = 'pod {0} {name} {{x}} <red>%s %d</red> "q" é\u2028'


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    logger.remove()


@pytest.fixture
def sink() -> io.StringIO:
    return io.StringIO()


def records(sink: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_text_has_time_level_message_and_fields(sink: io.StringIO) -> None:
    logs.configure("info", "text", sink)
    logger.bind(pod="team-a/train", attempt=2, reason="two words", empty="").info("bound the pod")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    bound the pod "
        r'pod=team-a/train attempt=2 reason="two words" empty=""\n',
        sink.getvalue(),
    )


def test_json_is_one_flat_object_per_line(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    logger.bind(pod="team-a/train", attempt=2, groups=["a"]).info("bound the pod")
    (record,) = records(sink)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(record.pop("ts")))
    assert record == {
        "level": "info",
        "msg": "bound the pod",
        "logger": __name__,
        "pod": "team-a/train",
        "attempt": 2,
        "groups": ["a"],
    }


def test_fields_of_a_context_are_there_and_cannot_replace_the_record(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    with logger.contextualize(request="a", level="high"):
        logger.info("hello")
    (record,) = records(sink)
    assert (record["request"], record["level"], record["level_"]) == ("a", "info", "high")


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("trace", ["trace", "debug", "info", "warning", "error"]),
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels(sink: io.StringIO, level: str, shown: list[str]) -> None:
    logs.configure(level, "json", sink)
    for method in (logger.trace, logger.debug, logger.info, logger.warning, logger.error):
        method("hello")
    assert [record["level"] for record in records(sink)] == shown


def test_loguru_levels_that_others_do_not_know(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    logger.success("hello")
    logger.critical("hello")
    assert [record["level"] for record in records(sink)] == ["info", "error"]


def test_a_message_is_never_a_format(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    logger.bind(pod=HOSTILE).info(HOSTILE)
    logging.getLogger("aiohttp").warning(HOSTILE)
    first, second = (json.loads(line) for line in sink.getvalue().split("\n")[:-1])
    assert first["msg"] == first["pod"] == second["msg"] == HOSTILE


def test_text_cannot_forge_a_record(sink: io.StringIO) -> None:
    logs.configure("info", "text", sink)
    logger.bind(pod="a\nb=c").info("one\r\n2026-01-01T00:00:00.000Z error forged {x}")
    (line,) = sink.getvalue().rstrip("\n").split("\n")
    assert "one\\r\\n2026" in line
    assert r'pod="a\nb=c"' in line


def test_what_a_terminal_would_obey_is_written_out(sink: io.StringIO) -> None:
    """F-55: ESC and its kin, in messages, values and traces."""
    logs.configure("info", "text", sink)
    hostile = "a\x1b[31mb\x9bc\u202ed\x7f"
    try:
        raise ValueError(hostile)
    except ValueError as error:
        logger.bind(pod=hostile, spaced=f"x {hostile}").opt(exception=error).info(f"m {hostile}\tend é")
    text = sink.getvalue()
    assert all(character == "\n" or character.isprintable() for character in text)
    shown = r"a\x1b[31mb\x9bc\u202ed\x7f"
    first, *trace = text.splitlines()
    assert f"m {shown}\\tend é" in first
    assert r'pod="a\u001b[31mb\x9bc\u202ed\x7f"' in first
    assert trace[-1] == f"ValueError: {shown}"


@pytest.mark.parametrize("format_", ["json", "text"])
def test_an_unforeseen_end_is_a_record_like_others(
    sink: io.StringIO, format_: Literal["json", "text"]
) -> None:
    """F-55: a bare traceback is no line of JSON."""
    logs.configure("info", format_, sink)
    try:
        fail()
    except ValueError as error:
        logger.opt(exception=ExceptionGroup("several", [error])).critical("The end")
    if format_ == "text":
        first, *trace = sink.getvalue().splitlines()
        assert first.endswith("error   The end")
        assert any("ValueError: no {such} %s pod" in line for line in trace)
        return
    (record,) = records(sink)
    assert record["level"] == "error"
    assert record["msg"] == "The end"
    assert "ValueError: no {such} %s pod" in str(record["stacktrace"])


@pytest.mark.parametrize("value", [2**70, "\ud800", {1: object()}, {(1, 2): 3}])
def test_a_value_that_json_does_not_know_costs_no_record(sink: io.StringIO, value: object) -> None:
    logs.configure("info", "json", sink)
    logger.bind(odd=value).info("hello")
    (record,) = records(sink)
    assert record["msg"] == "hello"
    assert record["odd"]


def fail() -> None:
    raise ValueError("no {such} %s pod")


def test_an_exception_in_json(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    try:
        fail()
    except ValueError:
        logger.exception("binding failed")
    (record,) = records(sink)
    assert record["level"] == "error"
    assert record["error"] == "ValueError: no {such} %s pod"
    assert "in fail" in str(record["stacktrace"])


def test_an_exception_in_text(sink: io.StringIO) -> None:
    logs.configure("info", "text", sink)
    try:
        fail()
    except ValueError as error:
        logger.opt(exception=error).warning("binding failed")
    lines = sink.getvalue().splitlines()
    assert lines[0].endswith("warning binding failed")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: no {such} %s pod"


def test_libraries_are_heard_from_warning_on(sink: io.StringIO) -> None:
    logs.configure("trace", "json", sink)
    for name in ("aiohttp.access", "httpx", "asyncio"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("%s is odd", name)
    assert [(record["logger"], record["level"], record["msg"]) for record in records(sink)] == [
        (name, "warning", f"{name} is odd") for name in ("aiohttp.access", "httpx", "asyncio")
    ]


def test_a_library_exception_and_a_wrong_format(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    log = logging.getLogger("lib")
    try:
        fail()
    except ValueError:
        log.exception("oops")
    log.error("%d apples", "no")
    first, second = records(sink)
    assert first["error"] == "ValueError: no {such} %s pod"
    assert "%d apples" in str(second["msg"])


def test_warnings_and_the_event_loop_keep_to_the_format(sink: io.StringIO) -> None:
    logs.configure("info", "json", sink)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    loop = asyncio.new_event_loop()
    loop.call_exception_handler({"message": "task was lost"})
    loop.close()
    first, second = records(sink)
    assert (first["logger"], second["logger"]) == ("py.warnings", "asyncio")
    assert "old" in str(first["msg"])


def test_configuring_again_replaces_the_first(sink: io.StringIO) -> None:
    first = io.StringIO()
    logs.configure("info", "text", first)
    logs.configure("info", "text", sink)
    logger.info("hello")
    assert first.getvalue() == ""
    assert len(sink.getvalue().splitlines()) == 1


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logger.info("hello")
    captured = capsys.readouterr()
    assert captured.err.endswith("info    hello\n")
    assert captured.out == ""


def test_json_has_printable_characters_only(sink: io.StringIO) -> None:
    """C1 controls and marks of direction are obeyed by terminals, and JSON lets them pass."""
    logs.configure("info", "json", sink)
    text = "\x9b31m \x7f \u202e \u2028 \U000e0041 é"
    logger.bind(name_=text).info(text)
    line = sink.getvalue().rstrip("\n")
    assert line.isprintable()
    (record,) = records(sink)
    assert (record["msg"], record["name_"]) == (text, text)
