"""Whether selectors of nodes and labels select: the rules of Kubernetes' schedulers. Pure."""

import re
from collections.abc import Mapping, Sequence

from controller.runtime.client import Object

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_MAX_INTEGER = 2**63 - 1


def node_selected(selector: Object | None, node: Object) -> bool:
    """Whether a core/v1 NodeSelector selects a node: any term, all of its requirements; None selects all."""
    return selector is None or any(_term_allows(term, node) for term in _terms(selector))


def node_selector_text(selector: Object | None) -> str:
    """What a NodeSelector asks for, in words; empty for None."""
    if selector is None:
        return ""
    return " or ".join(
        " and ".join(
            " ".join((item["key"], item["operator"], ",".join(item.get("values") or ()))).rstrip()
            for item in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        )
        for term in _terms(selector)
    )


def _terms(selector: Object) -> Sequence[Object]:
    return selector.get("nodeSelectorTerms") or ()


def _term_allows(term: Object, node: Object) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    by_labels, by_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not by_labels and not by_fields:
        return False  # an empty term selects nothing
    return all(_met(item, _labels(node)) for item in by_labels) and all(
        _met(item, fields) for item in by_fields
    )


def topology_allowed(storage_class: Object, node: Object) -> bool:
    """Whether a class may provision for a node: any of its allowedTopologies, if it has some."""
    terms = storage_class.get("allowedTopologies") or ()
    labels = _labels(node)
    return not terms or any(
        term.get("matchLabelExpressions")
        and all(labels.get(item["key"]) in item["values"] for item in term["matchLabelExpressions"])
        for term in terms
    )


def label_selected(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a metav1.LabelSelector selects these labels; none, or an empty one, selects all."""
    if selector is None:
        return True
    exact = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        _met(item, labels) for item in selector.get("matchExpressions") or ()
    )


def _met(requirement: Object, values: Mapping[str, str]) -> bool:
    """Whether a requirement of a node or label selector is met; an unknown operator never is."""
    value = values.get(requirement["key"])
    wanted: list[str] = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, wanted, operator)
        case _:
            return False


def _compares(value: str | None, wanted: list[str], operator: str) -> bool:
    """Whether a label is more, or less, than the one value; both have to be integers of 64 bits."""
    have, bound = _integer(value), _integer(wanted[0] if len(wanted) == 1 else None)
    if have is None or bound is None:
        return False
    return have > bound if operator == "Gt" else have < bound


def _integer(text: str | None) -> int | None:
    """A whole number as Go reads it: Python's `int` would take `1_0`, blanks and other scripts' digits."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_MAX_INTEGER - 1 <= number <= _MAX_INTEGER else None


def _labels(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}
