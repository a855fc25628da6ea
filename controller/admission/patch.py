"""The JSON patch (RFC 6902) that makes one pod of another. Pure.

It says no more than what changed, so that it fits what other webhooks do to the same pod.
"""

from collections.abc import Iterator, Mapping, Sequence

from controller.runtime.client import Object


def patch_of(old: Object, new: Object) -> list[Object]:
    """The operations that make `new` of `old`; none if there is no difference.

    Args:
        old: As it is.
        new: A changed copy, which has in common with `old` all parts that were not changed: they are not
            looked into.
    """
    return list(_of_objects("", old, new))


def _of_objects(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[Object]:
    for name in old:
        if name not in new:
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
    for name, value in new.items():
        if name in old:
            yield from _of_values(f"{path}/{_escaped(name)}", old[name], value)
        else:
            yield {"op": "add", "path": f"{path}/{_escaped(name)}", "value": value}


def _of_lists(path: str, old: Sequence[object], new: Sequence[object]) -> Iterator[Object]:
    if len(new) < len(old):
        yield {"op": "replace", "path": path, "value": new}
        return
    for index, value in enumerate(old):
        yield from _of_values(f"{path}/{index}", value, new[index])
    for value in new[len(old) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def _of_values(path: str, old: object, new: object) -> Iterator[Object]:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _of_objects(path, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_lists(path, old, new)
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
