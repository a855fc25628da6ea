"""What the API server makes of a JSON patch (RFC 6902), as far as the patches of this project go."""

from typing import Any

import orjson

from controller.runtime.client import Object


class PatchError(AssertionError):
    """The server would refuse the patch (422)."""


def patched(item: Object, patch: list[Object]) -> Object:
    """The object with the patch.

    Raises:
        PatchError: A test in it fails, or a path leads nowhere.
    """
    changed: Object = orjson.loads(orjson.dumps(item))
    for step in patch:
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
        place: Any = changed
        try:
            for part in way:
                place = place[_index(part)] if isinstance(place, list) else place[part]
            if isinstance(place, list):
                _do_in_list(step, place, len(place) if last == "-" else _index(last))
            else:
                _do(step, place, last)
        except (LookupError, TypeError, ValueError) as error:
            raise PatchError(f"{step['op']} {step['path']}: {error!r}") from error
    return changed


def _index(part: str) -> int:
    if not part.isdecimal():
        raise ValueError(f"{part} is no index")
    return int(part)


def _do(step: Object, place: Object, name: str) -> None:
    if not isinstance(place, dict):
        raise TypeError("it is no map")
    match step["op"]:
        case "test":
            _test(place.get(name), step)
        case "add":
            place[name] = step["value"]
        case "replace" if name in place:
            place[name] = step["value"]
        case _:
            _remove(step, place, name)


def _do_in_list(step: Object, place: list[Any], index: int) -> None:
    match step["op"]:
        case "test":
            _test(place[index], step)
        case "add" if index <= len(place):
            place.insert(index, step["value"])
        case "replace" if index < len(place):
            place[index] = step["value"]
        case _:
            _remove(step, place, index)


def _test(found: object, step: Object) -> None:
    if found != step["value"]:
        raise PatchError(f"test {step['path']}: {found!r}")


def _remove(step: Object, place: Any, where: Any) -> None:  # noqa: ANN401 -- a map or a list, and where in it
    if step["op"] != "remove":
        raise LookupError("it leads nowhere")
    del place[where]


def applied(item: Object, patch: list[Object]) -> Object | None:
    """The object with the patch; None if the server would refuse it."""
    try:
        return patched(item, patch)
    except PatchError:
        return None
