"""What a watcher tells: a vocabulary of five words, and the one parser of watch lines. Pure."""

from enum import StrEnum

from msgspec import Struct

from controller.runtime import errors
from controller.runtime.client import Listed, Object
from controller.runtime.parsing import loads


class State(StrEnum):
    """What the machine does next."""

    LIST = "list"
    """Read the whole: no version is known, or the server does not know it."""
    WATCH = "watch"
    """Follow what happens after the version."""
    CHECK = "check"
    """Ask for the server's own version: after a restore of etcd it may be behind ours, and watches silent."""


class Changed(Struct, frozen=True):
    """An object is there, new or changed."""

    item: Object


class Deleted(Struct, frozen=True):
    """An object is no more, or matches the selectors no more; `item` is as the server last saw it."""

    item: Object


class Advanced(Struct, frozen=True):
    """All that happened up to this version is told, and the watch is up."""

    version: str


class Refused(Struct, frozen=True):
    """The server denies us the kind, or does not know it.

    Attributes:
        error: What it said.
        state: What was refused: LIST or WATCH.
        lasted_s: Seconds since the first refusal after which no watch was granted.
    """

    error: errors.StatusError
    state: State
    lasted_s: float


Event = Listed | Changed | Deleted | Advanced | Refused
"""What is told. `Listed` holds all objects that there are: who is not among them is gone."""


class UnreadableError(errors.NoAnswerError):
    """A line of a watch is no event: what it would have told is lost."""


def parse(line: bytes, request: str) -> Changed | Deleted | Advanced:
    """Reads one line of a watch.

    Args:
        line: As it came.
        request: What was asked, for the error.

    Raises:
        UnreadableError: It is no event.
        errors.StatusError: It is the server's word that the watch cannot go on.
    """
    try:
        event = loads(line)
        kind, item = str(event["type"]), event["object"]
        if kind == "ERROR":
            raise errors.from_status(request, int(item.get("code") or 500), item, "")
        version = str(item["metadata"]["resourceVersion"])
        int(version)
        if kind != "BOOKMARK":
            _ = item["metadata"]["name"], item["metadata"]["uid"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableError(request, f"a line is no event: {type(error).__name__}: {error}") from error
    match kind:
        case "ADDED" | "MODIFIED":
            return Changed(item)
        case "DELETED":
            return Deleted(item)
        case _:
            return Advanced(version)
