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
                place = place[int(part)] if isinstance(place, list) else place[part]
            _do(step, place, int(last) if isinstance(place, list) and last != "-" else last)
        except (LookupError, TypeError, ValueError) as error:
            raise PatchError(f"{step['op']} {step['path']}: {error!r}") from error
    return changed


def _do(step: Object, place: Any, last: Any) -> None:  # noqa: ANN401 -- a map or a list, and where in it
    match step["op"]:
        case "test":
            found = place.get(last) if isinstance(place, dict) else place[last]
            if found != step["value"]:
                raise PatchError(f"test {step['path']}: {found!r}")
        case "add" if last == "-":
            place.append(step["value"])
        case "add":
            place[last] = step["value"]
        case "replace":
            place[last]  # has to be there
            place[last] = step["value"]
        case "remove":
            del place[last]
        case other:
            raise NotImplementedError(other)


def applied(item: Object, patch: list[Object]) -> Object | None:
    """The object with the patch; None if the server would refuse it."""
    try:
        return patched(item, patch)
    except PatchError:
        return None
