"""What a container's environment means, and which GPUs it makes the container see."""

import random
from collections.abc import Sequence

import pytest

from controller.kai.environment import (
    Rivals,
    Sight,
    Source,
    config_map_key,
    containers_of,
    entry_of,
    key_in,
    pared,
    place_of,
    rivals_of,
    sources_of,
    value_of,
    view_of,
)
from controller.kai.sharing import Target
from controller.runtime.client import Object

DEVICES = "NVIDIA_VISIBLE_DEVICES"


def entry(name: str, config_map: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": key}}}


def whole(name: str, **fields: object) -> Object:
    return {"configMapRef": {"name": name}, **fields}


def container(name: str = "main", env: Sequence[Object] = (), env_from: Sequence[Object] = ()) -> Object:
    return {"name": name, "env": list(env), "envFrom": list(env_from)}


def target(of: Object) -> Target:
    return Target(of, "m-0", "m-0-evar")


def test_the_last_entry_of_a_variable_counts() -> None:
    made = {"env": [entry("X", "a", "k"), {"name": "Y", "value": "1"}, entry("X", "b", "k")]}
    found = entry_of(made, "X")
    assert found is not None
    assert config_map_key(found) == ("b", "k")
    assert entry_of(made, "Z") is None
    assert entry_of({}, "X") is None
    assert config_map_key({"name": "Y", "value": "1"}) is None
    assert config_map_key({"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}) is None


@pytest.mark.parametrize(
    ("made", "value"),
    [
        ({"name": "X"}, ""),
        ({"name": "X", "value": ""}, ""),
        ({"name": "X", "value": "1", "valueFrom": None}, "1"),
        ({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, None),
        (entry("X", "a", "k"), None),
    ],
)
def test_the_plain_value_of_an_entry(made: Object, value: str | None) -> None:
    assert value_of(made) == value


def test_the_key_of_our_map() -> None:
    made = container(env=[entry("X", "m-0", "k"), entry("Y", "other", "k"), {"name": "Z", "value": "1"}])
    assert [key_in(target(made), made, name) for name in "XYZV"] == ["k", None, None, None]


def test_what_is_read_whole() -> None:
    made = container(
        env_from=[
            whole("a"),
            {"secretRef": {"name": "b"}, "prefix": "P_"},
            whole("c", prefix=None),
            {"prefix": "of a kind that we do not know"},
        ]
    )
    assert list(sources_of(made)) == [
        Source("ConfigMap", "a", ""),
        Source("Secret", "b", "P_"),
        Source("ConfigMap", "c", ""),
    ]
    assert list(sources_of({})) == []
    assert str(Source("Secret", "b", "P_")) == "Secret b"


@pytest.mark.parametrize(
    ("prefix", "could"),
    [("", True), ("C", True), ("CUDA_", True), ("CUDA_X", False), ("c", False), ("X", False)],
)
def test_what_a_source_could_set(prefix: str, could: bool) -> None:
    """A key is never empty, so a prefix alone makes no variable."""
    assert Source("Secret", "s", prefix).could_set("CUDA_X") is could


FOREIGN, SECRET, OURS = whole("mine"), {"secretRef": {"name": "s"}}, whole("m-0-evar")
MINE, HIDDEN = Source("ConfigMap", "mine", ""), Source("Secret", "s", "")


@pytest.mark.parametrize(
    ("env_from", "rivals"),
    [
        ([], Rivals(read=False, before=None, after=None)),
        ([OURS], Rivals(read=True, before=None, after=None)),
        ([FOREIGN], Rivals(read=False, before=None, after=MINE)),
        ([FOREIGN, OURS], Rivals(read=True, before=MINE, after=None)),
        ([OURS, FOREIGN], Rivals(read=True, before=None, after=MINE)),
        ([FOREIGN, OURS, SECRET], Rivals(read=True, before=MINE, after=HIDDEN)),
        ([FOREIGN, OURS, SECRET, OURS], Rivals(read=True, before=HIDDEN, after=None)),
        ([FOREIGN, OURS, OURS], Rivals(read=True, before=MINE, after=None)),
        ([whole("m-0-evar", prefix="X")], Rivals(read=False, before=None, after=None)),
        ([OURS, whole("mine", prefix="Y")], Rivals(read=True, before=None, after=None)),
    ],
)
def test_rivals(env_from: list[Object], rivals: Rivals) -> None:
    made = container(env_from=env_from)
    assert rivals_of(target(made), made, "X") == rivals


@pytest.mark.parametrize(
    ("env", "env_from", "sight", "why"),
    [
        ([entry(DEVICES, "m-0", "any")], [], Sight.SHARE, ""),
        ([], [OURS], Sight.SHARE, ""),
        ([], [FOREIGN, OURS], Sight.SHARE, ""),
        ([{"name": DEVICES, "value": "all"}], [OURS], Sight.OTHERS, "itself to 'all'"),
        ([{"name": DEVICES, "value": "all"}, entry(DEVICES, "m-0", "k")], [], Sight.SHARE, ""),
        (
            [entry(DEVICES, "m-0", "k"), {"name": DEVICES, "value": "7"}],
            [OURS],
            Sight.OTHERS,
            "itself to '7'",
        ),
        ([{"name": DEVICES, "value": "void"}], [OURS], Sight.NOTHING, "sees no GPU"),
        ([{"name": DEVICES}], [OURS], Sight.NOTHING, "sees no GPU"),
        ([entry(DEVICES, "other", "k")], [OURS], Sight.OTHERS, "from ConfigMap other, not from m-0"),
        ([], [FOREIGN], Sight.OTHERS, "and does not read m-0-evar whole"),
        ([], [OURS, SECRET], Sight.OTHERS, "reads Secret s after m-0-evar"),
        ([], [], Sight.UNKNOWN, "its image decides"),
        ([], [whole("m-0-evar", prefix="X_")], Sight.UNKNOWN, "its image decides"),
    ],
)
def test_what_the_container_with_the_share_sees(
    env: list[Object], env_from: list[Object], sight: Sight, why: str
) -> None:
    """F-32."""
    made = container(env=env, env_from=env_from)
    view = view_of(target(made), made)
    assert view.sight is sight
    assert why in view.why
    assert bool(why) == bool(view.why)


@pytest.mark.parametrize(
    ("env", "env_from", "sight"),
    [
        ([], [], Sight.UNKNOWN),
        ([], [FOREIGN], Sight.UNKNOWN),  # anything may be in there, as in the image
        ([], [OURS], Sight.UNKNOWN),  # without the devices, which stand in the other map
        ([entry(DEVICES, "m-0", DEVICES)], [], Sight.SHARE),
        ([entry(DEVICES, "m-0", "GPU_PORTION")], [], Sight.OTHERS),
        ([entry(DEVICES, "mine", DEVICES)], [], Sight.OTHERS),
        ([{"name": DEVICES, "value": "none"}], [], Sight.NOTHING),
        ([{"name": DEVICES, "value": "all"}], [], Sight.OTHERS),
    ],
)
def test_what_another_container_sees(env: list[Object], env_from: list[Object], sight: Sight) -> None:
    of = target(container(env=[entry(DEVICES, "m-0", DEVICES)]))
    assert view_of(of, container("other", env, env_from)).sight is sight


def test_another_container_that_reads_the_devices_whole() -> None:
    of = target(container(env_from=[OURS]))
    assert view_of(of, container("other", env_from=[OURS])).sight is Sight.SHARE
    assert view_of(of, container("other", env_from=[FOREIGN, OURS])).sight is Sight.SHARE
    # Either those of the share or others: it sees some.
    assert view_of(of, container("other", env_from=[OURS, FOREIGN])).sight is Sight.OTHERS


@pytest.mark.parametrize(
    ("env_from", "sight"),
    [
        ([whole("m-0")], Sight.UNKNOWN),  # its keys are taken as they are
        ([whole("m-0", prefix="NVIDIA_")], Sight.SHARE),
        ([whole("m-0", prefix="NVIDIA_"), OURS], Sight.SHARE),
        ([FOREIGN, whole("m-0", prefix="NVIDIA_")], Sight.SHARE),
        ([whole("m-0", prefix="NVIDIA_"), SECRET], Sight.OTHERS),
    ],
)
def test_another_container_that_reads_the_map_that_holds_the_devices(
    env_from: list[Object], sight: Sight
) -> None:
    of = target(container(env=[entry(DEVICES, "m-0", "VISIBLE_DEVICES")]))
    assert view_of(of, container("other", env_from=env_from)).sight is sight


def test_all_containers() -> None:
    spec = {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}
    assert [item["name"] for item in containers_of({"spec": spec})] == ["i", "a", "b"]
    assert list(containers_of({"spec": {"containers": None}})) == []


def test_what_is_pared_says_the_same() -> None:
    """By chance: every container is judged as it would be with all that it has."""
    chance = random.Random(1)  # noqa: S311 -- no secret
    variables = ("X", DEVICES)
    maps = ("m-0-evar", "m-0", "a", "b")
    keys = (DEVICES, "VISIBLE_DEVICES", "k")
    for _ in range(3000):
        sources = [
            {
                chance.choice(("configMapRef", "secretRef")): {"name": chance.choice(maps)},
                "prefix": chance.choice(("", "", "N", "NVIDIA_", "Y", "X")),
            }
            for _ in range(chance.randrange(7))
        ]
        entries = [
            chance.choice((entry(name, "m-0", "k"), {"name": name, "value": "v"}))
            for name in chance.choices(("X", "Y", "X_1", "Z"), k=chance.randrange(5))
        ]
        whole_one = container(chance.choice(("main", "other")), entries, sources)
        looks = chance.choice(([], [entry(DEVICES, "m-0", chance.choice(keys))]))
        of = target(whole_one if whole_one["name"] == "main" else container(env=looks))
        less = pared(of, whole_one, variables, "X")
        for variable in variables:
            found, expected = rivals_of(of, less, variable), rivals_of(of, whole_one, variable)
            assert (found.read, found.after) == (expected.read, expected.after), sources
            if place_of(of, variable) == ("m-0-evar", variable):  # only there somebody asks
                assert found.before == expected.before, sources
            assert entry_of(less, variable) == entry_of(whole_one, variable)
        assert view_of(of, less) == view_of(of, whole_one)
        assert entry_of(less, "X_1") in (next((e for e in entries if e["name"] == "X_1"), None),)


def test_what_is_pared_is_small() -> None:
    made = container(
        env=[{"name": f"E{number}"} for number in range(5000)],
        env_from=[whole("m-0-evar" if number % 3 else f"a{number}") for number in range(5000)],
    )
    less = pared(target(made), made, (DEVICES,), "X")
    assert len(less["env"]) + len(less["envFrom"]) <= 3
