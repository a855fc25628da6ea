"""Which nodes and labels a selector selects, as Kubernetes reads it."""

import itertools

import pytest

from controller.kai.selectors import label_selected, node_selected, node_selector_text, topology_allowed
from controller.runtime.client import Object

ZONE = "topology.kubernetes.io/zone"


def node(labels: dict[str, str] | None = None, name: str = "n") -> Object:
    return {"metadata": {"name": name} if labels is None else {"name": name, "labels": labels}}


def volume(*terms: Object) -> Object:
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}}}


def node_allowed(volume: Object, found: Object) -> bool:
    """Whether a volume's node affinity allows a node."""
    return node_selected((volume["spec"].get("nodeAffinity") or {}).get("required"), found)


def requirement(key: str, operator: str, *values: str) -> Object:
    found: Object = {"key": key, "operator": operator}
    return {**found, "values": list(values)} if values else found


def labels_of(*requirements: Object) -> Object:
    return {"matchExpressions": list(requirements)}


def fields_of(*requirements: Object) -> Object:
    return {"matchFields": list(requirements)}


def met(labels: dict[str, str], operator: str, *values: str) -> bool:
    return node_allowed(volume(labels_of(requirement("k", operator, *values))), node(labels))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {"nodeAffinity": {"required": None}},
    ],
)
def test_without_an_affinity_every_node_will_do(spec: Object) -> None:
    assert node_allowed({"spec": spec}, node())


@pytest.mark.parametrize("terms", [None, []])
def test_without_a_term_no_node_will_do(terms: list[Object] | None) -> None:
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    assert not node_allowed({"spec": spec}, node())


@pytest.mark.parametrize("term", [{}, labels_of(), {"matchExpressions": None, "matchFields": None}])
def test_an_empty_term_selects_nothing(term: Object) -> None:
    assert not node_allowed(volume(term), node())
    assert node_allowed(volume(term, labels_of(requirement("k", "DoesNotExist"))), node())


@pytest.mark.parametrize(
    ("operator", "values", "allowed"),
    [
        # For a node whose label is absent, empty, "a", "b".
        ("In", ("a",), (False, False, True, False)),
        ("In", ("a", "b"), (False, False, True, True)),
        ("In", ("",), (False, True, False, False)),
        ("In", (), (False, False, False, False)),
        ("NotIn", ("a",), (True, True, False, True)),
        ("NotIn", ("a", "b"), (True, True, False, False)),
        ("NotIn", (), (True, True, True, True)),
        ("Exists", (), (False, True, True, True)),
        ("DoesNotExist", (), (True, False, False, False)),
        ("Gt", ("1",), (False, False, False, False)),
        ("Lt", ("1",), (False, False, False, False)),
        ("in", ("a",), (False, False, False, False)),
        ("", (), (False, False, False, False)),
    ],
)
def test_operators(operator: str, values: tuple[str, ...], allowed: tuple[bool, ...]) -> None:
    nodes: tuple[dict[str, str], ...] = ({}, {"k": ""}, {"k": "a"}, {"k": "b"})
    assert tuple(met(labels, operator, *values) for labels in nodes) == allowed


def test_numbers_are_compared_as_numbers() -> None:
    for have, bound in itertools.product((-10, -1, 0, 2, 9, 10, 100), repeat=2):
        assert met({"k": str(have)}, "Gt", str(bound)) is (have > bound)
        assert met({"k": str(have)}, "Lt", str(bound)) is (have < bound)


@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "0x10", "ten", "1-0"])
def test_what_is_no_number_is_neither_more_nor_less(text: str) -> None:
    for operator in ("Gt", "Lt"):
        assert not met({"k": text}, operator, "1")
        assert not met({"k": "1"}, operator, text)
        assert not met({}, operator, text)


def test_a_comparison_with_nothing_is_not_met() -> None:
    assert not met({"k": "1"}, "Gt")
    assert not met({"k": "1"}, "Lt")


def test_a_node_without_labels() -> None:
    for bare in (node(), {"metadata": {"name": "n", "labels": None}}):
        assert not node_allowed(volume(labels_of(requirement(ZONE, "In", "a"))), bare)
        assert node_allowed(volume(labels_of(requirement(ZONE, "NotIn", "a"))), bare)


def test_a_node_by_its_name() -> None:
    local = volume(fields_of(requirement("metadata.name", "In", "n1", "n2")))
    assert [node_allowed(local, node(name=name)) for name in ("n1", "n2", "n3")] == [True, True, False]
    others = volume(fields_of(requirement("metadata.name", "NotIn", "n1")))
    assert [node_allowed(others, node(name=name)) for name in ("n1", "n2")] == [False, True]


def test_a_name_is_no_label_and_a_label_no_field() -> None:
    labelled = node({"metadata.name": "n1"}, name="n2")
    assert not node_allowed(volume(fields_of(requirement("metadata.name", "In", "n1"))), labelled)
    assert not node_allowed(volume(labels_of(requirement("metadata.name", "In", "n2"))), labelled)
    assert not node_allowed(volume(fields_of(requirement("k", "Exists"))), node({"k": "v"}))


def test_terms_are_alternatives_and_requirements_are_not() -> None:
    wishes = {"zone": ("a", "b"), "disk": ("ssd", "hdd")}
    for zone, disk in itertools.product(*wishes.values()):
        found = node({"zone": zone, "disk": disk})
        in_a, is_ssd = requirement("zone", "In", "a"), requirement("disk", "In", "ssd")
        both = node_allowed(volume(labels_of(in_a, is_ssd)), found)
        either = node_allowed(volume(labels_of(in_a), labels_of(is_ssd)), found)
        assert both is (zone == "a" and disk == "ssd")
        assert either is (zone == "a" or disk == "ssd")


def test_labels_and_name_of_one_term_must_both_fit() -> None:
    term = {**labels_of(requirement("k", "Exists")), **fields_of(requirement("metadata.name", "In", "n"))}
    assert node_allowed(volume(term), node({"k": "v"}, "n"))
    assert not node_allowed(volume(term), node({"k": "v"}, "m"))
    assert not node_allowed(volume(term), node({}, "n"))


def test_neither_volume_nor_node_is_changed() -> None:
    one, other = volume(labels_of(requirement("k", "In", "v"))), node({"k": "v"})
    before = repr((one, other))
    node_allowed(one, other)
    assert repr((one, other)) == before


# The same on a node with several labels.

NODE: Object = {
    "metadata": {
        "name": "n1",
        "labels": {"kubernetes.io/hostname": "n1", "zone": "a", "cores": "8", "bad": "eight"},
    }
}


def label(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "allowed"),
    [
        (label("zone", "In", "a", "b"), True),
        (label("zone", "In", "b"), False),
        (label("none", "In", "a"), False),
        (label("zone", "NotIn", "b"), True),
        (label("zone", "NotIn", "a"), False),
        (label("none", "NotIn", "a"), True),
        (label("zone", "Exists"), True),
        (label("none", "Exists"), False),
        (label("none", "DoesNotExist"), True),
        (label("zone", "DoesNotExist"), False),
        (label("cores", "Gt", "7"), True),
        (label("cores", "Gt", "8"), False),
        (label("cores", "Lt", "9"), True),
        (label("cores", "Lt", "8"), False),
        (label("bad", "Gt", "7"), False),
        (label("cores", "Gt", "seven"), False),
        (label("none", "Lt", "7"), False),
        (label("cores", "Gt"), False),
        (label("zone", "Like", "a"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}, False),
        (
            {**label("zone", "In", "b"), "matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
            False,
        ),
        ({}, False),
    ],
)
def test_a_term_of_node_affinity(term: Object, allowed: bool) -> None:
    assert node_allowed(volume(term), NODE) is allowed


def test_any_term_is_enough_and_all_of_its_requirements_count() -> None:
    both = {
        "matchExpressions": label("zone", "In", "a")["matchExpressions"]
        + label("cores", "Lt", "4")["matchExpressions"]
    }
    assert not node_allowed(volume(both), NODE)
    assert node_allowed(volume(both, label("zone", "In", "a")), NODE)


def test_no_affinity_allows_all_and_no_term_allows_none() -> None:
    assert node_selected(None, NODE)
    assert not node_allowed(volume(), NODE)


def test_an_affinity_can_be_read() -> None:
    terms = [label("zone", "In", "a", "b"), label("ssd", "Exists")]
    assert node_selector_text({"nodeSelectorTerms": terms}) == "zone In a,b or ssd Exists"
    assert node_selector_text(None) == ""


@pytest.mark.parametrize(
    "text",
    [
        "1_0",
        "\u0661\u0660",
        " 10",
        "10 ",
        "10\n",
        "1__0",
        "+-10",
        "99999999999999999999",
        "9223372036854775808",
    ],
)
def test_f_12_a_number_is_what_go_reads_as_one(text: str) -> None:
    """F-12: Gt and Lt read the label `1_0` as ten."""
    for operator, bound in (("Gt", "9"), ("Lt", "11")):
        assert not met({"k": text}, operator, bound)
        assert not met({"k": "10"}, operator, text)
    assert met({"k": "+10"}, "Gt", "9")
    assert met({"k": "9223372036854775807"}, "Gt", "9223372036854775806")
    assert not met({"k": "10"}, "Gt", "1", "2"), "kube-scheduler refuses two values"


# Topologies of storage classes, and labels.


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([], True),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}], True),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}], False),
        ([{"matchLabelExpressions": [{"key": "none", "values": ["a"]}]}], False),
        (
            [
                {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]},
                {"matchLabelExpressions": [{"key": "cores", "values": ["8"]}]},
            ],
            True,
        ),
        (
            [
                {
                    "matchLabelExpressions": [
                        {"key": "zone", "values": ["a"]},
                        {"key": "cores", "values": ["4"]},
                    ]
                }
            ],
            False,
        ),
        ([{}], False),
    ],
)
def test_allowed_topologies(terms: list[Object], allowed: bool) -> None:
    assert topology_allowed({"allowedTopologies": terms}, NODE) is allowed


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "1", "b": "1"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
    ],
)
def test_label_selectors(selector: Object | None, selected: bool) -> None:
    assert label_selected(selector, {"a": "1"}) is selected
