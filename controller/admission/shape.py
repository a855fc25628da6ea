"""Whether what came has the shape of a pod, so far as anybody here reads it. Pure.

The API server sends only objects that fit its types; anybody else may send anything. What passes is read
without further looks by all of `controller.kai`.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Any

from msgspec import Struct, field

from controller.runtime.client import Object


class ShapeError(ValueError):
    """Something is not what it must be; the message names its path."""


class _Fields(Struct, frozen=True):
    """An object's fields: what each has to be; what is not named may be anything."""

    optional: Mapping[str, Any] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)


class _ListOf(Struct, frozen=True):
    item: _Fields


class _Texts:
    """A mapping of texts."""


class _Amounts:
    """A mapping of texts or numbers."""


_NAMED = _Fields({"name": str})
_ENTRY = _Fields(
    {
        "value": str,
        "valueFrom": _Fields({"configMapKeyRef": _Fields({"name": str}, {"key": str})}),
    },
    {"name": str},
)
_SOURCE = _Fields({"prefix": str, "configMapRef": _NAMED, "secretRef": _NAMED})
_RESOURCES = _Fields({"limits": _Amounts, "requests": _Amounts})
_CONTAINER = _Fields(
    {"env": _ListOf(_ENTRY), "envFrom": _ListOf(_SOURCE), "resources": _RESOURCES, "restartPolicy": str},
    {"name": str},
)
_METADATA = _Fields(
    {
        "name": str,
        "generateName": str,
        "namespace": str,
        "annotations": _Texts,
        "ownerReferences": _ListOf(_NAMED),
    }
)
_SPEC = _Fields(
    {
        "schedulerName": str,
        "runtimeClassName": str,
        "containers": _ListOf(_CONTAINER),
        "initContainers": _ListOf(_CONTAINER),
        "volumes": _ListOf(_Fields({"configMap": _NAMED}, {"name": str})),
    }
)
_POD = _Fields(required={"metadata": _METADATA, "spec": _SPEC})


def pod_of(value: object, path: str) -> Object:
    """What came, as a pod.

    Args:
        value: Parsed JSON.
        path: Where it stood, for messages.

    Raises:
        ShapeError: It is none.
    """
    _check(value, _POD, path)
    assert isinstance(value, dict)  # noqa: S101 -- just checked
    return value


def _check(value: object, wanted: object, path: str) -> None:
    match wanted:
        case _Fields():
            _check_fields(_of_type(value, dict, "object", path), wanted, path)
        case _ListOf():
            for index, item in enumerate(_of_type(value, list, "list", path)):
                _check(item, wanted.item, f"{path}[{index}]")
        case _ if wanted in (_Texts, _Amounts):
            types = str if wanted is _Texts else str | int | float
            for name, text in _of_type(value, dict, "object", path).items():
                _of_type(text, types, "text", f"{path}[{name}]")
        case _:
            _of_type(value, str, "text", path)


def _check_fields(value: Mapping[str, object], wanted: _Fields, path: str) -> None:
    for name, inner in wanted.required.items():
        _check(value.get(name), inner, f"{path}.{name}")
    for name, inner in wanted.optional.items():
        if value.get(name) is not None:
            _check(value[name], inner, f"{path}.{name}")


def _of_type(value: object, wanted: type | UnionType, word: str, path: str) -> Any:  # noqa: ANN401 -- as `wanted` says
    if not isinstance(value, wanted):
        raise ShapeError(f"{path[:256]} is no {word}")
    return value
