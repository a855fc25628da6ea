"""What the API server makes of a JSON patch, as far as the binder's patches go (RFC 6902)."""

from typing import Any

import orjson

from controller.runtime.client import Object


def applied(item: Object, patch: list[Object]) -> Object | None:
    """The object with the patch; None if a test in it fails, or a path leads nowhere (422)."""
    item = orjson.loads(orjson.dumps(item))
    for op in patch:
        *way, last = op["path"].strip("/").split("/")
        place: Any = item
        for name in way:
            place = place.get(name) if isinstance(place, dict) else None
        if op["op"] == "test":
            if not isinstance(place, dict) or place.get(last) != op["value"]:
                return None
        elif not isinstance(place, dict) or (op["op"] == "remove" and last not in place):
            return None
        elif op["op"] == "add":
            place[last] = op["value"]
        else:
            del place[last]
    return item
