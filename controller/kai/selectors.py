"""Whether selectors of nodes and labels select: the rules of Kubernetes' schedulers. Pure."""

from collections.abc import Mapping

from controller.runtime.client import Object


def node_allowed(volume: Object, node: Object) -> bool:
    """Whether the volume's node affinity allows the node: any term, all of its requirements."""
    return node_selected((volume["spec"].get("nodeAffinity") or {}).get("required"), node)


def node_selected(selector: Object | None, node: Object) -> bool:
    """Whether a v1.NodeSelector selects a node: any term, all of its requirements; none selects all."""
    if selector is None:
        return True
    return any(_term_allows(term, node) for term in selector.get("nodeSelectorTerms") or ())


def node_affinity_text(volume: Object) -> str:
    """What the volume's node affinity asks for, in words; empty if it has none."""
    terms = _affinity_terms(volume)
    if terms is None:
        return ""
    return " or ".join(
        " and ".join(
            " ".join((item["key"], item["operator"], ",".join(item.get("values") or ()))).rstrip()
            for item in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        )
        for term in terms
    )


def _affinity_terms(volume: Object) -> list[Object] | None:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return None if required is None else list(required.get("nodeSelectorTerms") or ())


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
    try:
        have, bound = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else have < bound


def _labels(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}
