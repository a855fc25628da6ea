"""How a status is written into a request that may not be any more what it was when it was read. Pure.

`telling` sends what is made here. Invariant: a status is never written into another request of the same name,
and no condition that somebody else has put there since is lost.
"""

from collections.abc import Collection

from controller.binder.status import of_others
from controller.kai.reasons import ConditionType
from controller.kai.request import BindStatus
from controller.runtime.client import Object


def bare(status: Object) -> Object:
    """A status that a server refuses as it is, without what only people read."""
    kept = ("phase", "reason", "failedAttempts")
    return {name: status[name] for name in kept if name in status}


def refreshed(status: Object, order: Collection[str], item: Object) -> Object:
    """A status that could not be written, with the conditions of others as the request has them now.

    Args:
        status: What is to be written.
        order: Condition types of all steps.
        item: The request as it is now.
    """
    types = {*order, ConditionType.BOUND}
    ours = [condition for condition in status["conditions"] if condition["type"] in types]
    return {**status, "conditions": ours + of_others(BindStatus.of(item), types)}


def json_patch(item: Object, status: Object) -> list[Object]:
    """A JSON patch that writes `status` into this very request.

    The scheduler deletes a failed request and makes another of the same name within a second. A merge patch
    of a custom resource's status applies to that one too, whatever uid it carries (seen on v1.36); a `test`
    does not (422). Fields of others are left alone; if the object has changed such that the patch does not
    fit, it is refused as well.

    Args:
        item: The request as last seen.
        status: Fields of the status; None for one that is to go.
    """
    patch: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": item["metadata"]["uid"]}]
    present = item.get("status")
    if not isinstance(present, dict):
        patch.append({"op": "test", "path": "/status", "value": present})
        fields = {name: value for name, value in status.items() if value is not None}
        return [*patch, {"op": "add", "path": "/status", "value": fields}]
    if "conditions" in present and "conditions" in status:
        # The list is written whole: what others have put there since must not be lost.
        patch.append({"op": "test", "path": "/status/conditions", "value": present["conditions"]})
    for name, value in status.items():
        if value is not None:
            patch.append({"op": "add", "path": f"/status/{name}", "value": value})
        elif name in present:
            patch.append({"op": "remove", "path": f"/status/{name}"})
    return patch
