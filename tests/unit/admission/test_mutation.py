"""What becomes of new pods that ask for a share."""

from typing import Any

import pytest
from msgspec.structs import replace

from controller.admission.gpusharing import base_of, random_suffix
from controller.admission.review import mutate
from controller.admission.rules import Rules
from controller.kai.names import is_object_name
from controller.kai.sharing import Target, target_of
from controller.runtime.client import Object
from tests.unit.admission.reviews import (
    LIMITING,
    NRI,
    NVFRACTIONS,
    OFF,
    RULES,
    mutated,
    operations,
    pod,
    refusal,
    response,
    review,
    warnings,
)

MAP = "web-x7k2q9b-shared-gpu-0"
HALF = {"gpu-fraction": "0.5"}
ALL = replace(LIMITING, block_visible_devices=True, runtime_class_name="nvidia")


def entry(variable: str, config_map: str = MAP, **fields: object) -> Object:
    return {
        "name": variable,
        "valueFrom": {"configMapKeyRef": {"name": config_map, "key": variable, **fields}},
    }


ENTRIES = [entry("NVIDIA_VISIBLE_DEVICES"), entry("RUNAI_NUM_OF_GPUS"), entry("GPU_PORTION")]
LIMIT = entry("CUDA_DEVICE_MEMORY_LIMIT", optional=True)
WHOLE = {"configMapRef": {"name": f"{MAP}-evar", "optional": False}}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def containers(*names: str, **fields: object) -> list[Object]:
    return [{"name": name, **fields} for name in names]


def test_the_simplest_pod() -> None:
    """B-113…B-116; the container is named, so that the share stays with it."""
    new = mutated(pod(HALF))
    assert new["metadata"]["annotations"] == {
        **HALF,
        "gpu-fraction-container-name": "main",
        "runai/shared-gpu-configmap": "web-x7k2q9b-shared-gpu",
    }
    assert new["spec"] == {
        "schedulerName": "kai-scheduler",
        "containers": [{"name": "main", "image": "busybox", "env": ENTRIES, "envFrom": [WHOLE]}],
        "volumes": [{"name": f"{MAP}-vol", "configMap": {"name": MAP}}],
    }


def test_the_limit_is_one_entry_more() -> None:
    """N-74; opt-in."""
    plain, limited = mutated(pod(HALF)), mutated(pod(HALF), LIMITING)
    assert limited["spec"]["containers"][0]["env"] == [*ENTRIES, LIMIT]
    limited["spec"]["containers"][0]["env"].pop()
    assert limited == plain


def test_another_limiter_reads_another_variable() -> None:
    rules = replace(LIMITING, limit_variable="GPU_MEMORY_LIMIT")
    env = mutated(pod(HALF), rules)["spec"]["containers"][0]["env"]
    assert env == [*ENTRIES, entry("GPU_MEMORY_LIMIT", optional=True)]


def test_a_limit_whose_needs_are_not_met_changes_nothing() -> None:
    rules = replace(LIMITING, unmet={"gpumemorylimit": "gpusharing runs after it"})
    assert mutated(pod(HALF), rules) == mutated(pod(HALF))


@pytest.mark.parametrize("rules", [RULES, LIMITING, NRI, NVFRACTIONS, ALL, replace(ALL, nri=True)])
@pytest.mark.parametrize(
    "ask", [HALF, {"gpu-memory": "4096"}, {"gpu-memory": "100", "gpu-memory.limit": "1Gi"}]
)
def test_a_second_time_changes_nothing(rules: Rules, ask: dict[str, str]) -> None:
    once = mutated(pod(ask, containers=containers("main", "side"), initContainers=containers("warm")), rules)
    found = response(mutate(review(once), rules))
    assert operations(found) == []
    assert "warnings" not in found
    # As the API server has filled it in meanwhile.
    for volume in once["spec"].get("volumes", []):
        volume["configMap"]["defaultMode"] = 420
    assert operations(response(mutate(review(once), rules))) == []


@pytest.mark.parametrize(
    ("target", "place", "index"),
    [(None, ("containers", 0), "0"), ("b", ("containers", 1), "1"), ("warm", ("initContainers", 1), "i1")],
)
def test_the_container_with_the_share(target: str | None, place: tuple[str, int], index: str) -> None:
    named = {} if target is None else {"gpu-fraction-container-name": target}
    old = pod(HALF | named, containers=containers("a", "b"), initContainers=containers("up", "warm"))
    new = mutated(old, LIMITING)
    name = f"web-x7k2q9b-shared-gpu-{index}"
    got = new["spec"][place[0]][place[1]]
    assert got["envFrom"] == [{"configMapRef": {"name": f"{name}-evar", "optional": False}}]
    assert {item["valueFrom"]["configMapKeyRef"]["name"] for item in got["env"]} == {name}
    assert new["spec"]["volumes"] == [{"name": f"{name}-vol", "configMap": {"name": name}}]
    others = [
        item for group in ("initContainers", "containers") for item in new["spec"][group] if item is not got
    ]
    assert len(others) == 3
    assert all(item == {"name": item["name"], "env": [VOID]} for item in others)
    found = target_of(new)
    assert isinstance(found, Target)
    assert (found.config_map, found.env_config_map) == (name, f"{name}-evar")


@pytest.mark.parametrize("ending", ["gpu-memory.request", "gpu-memory.limit"])
def test_annotations_of_a_container_ask_for_a_share_too(ending: str) -> None:
    """N-72, N-40."""
    asks = {f"nvidia.com/container.b.{ending}": "4Gi"}
    new = mutated(pod(asks, containers=containers("a", "b")))
    assert "env" not in new["spec"]["containers"][0]
    assert new["metadata"]["annotations"] == {
        **asks, "runai/shared-gpu-configmap": "web-x7k2q9b-shared-gpu"
    }  # fmt: skip
    assert refusal(pod(asks, containers=containers("a", "b")), LIMITING) == ""


def test_its_own_entries_are_replaced_where_they_stand_and_its_author_is_told() -> None:
    own = [
        {"name": "GPU_PORTION", "value": "1"},
        {"name": "A", "value": "$(GPU_PORTION)"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
    ]
    old = pod(HALF, containers=containers("main", env=own))
    assert mutated(old, LIMITING)["spec"]["containers"][0]["env"] == [
        ENTRIES[2], own[1], ENTRIES[0], LIMIT, ENTRIES[1]
    ]  # fmt: skip
    told = warnings(old, LIMITING)
    assert [text.split(";")[0] for text in told] == [
        f"container main of pod team/web sets {name} itself"
        for name in ("NVIDIA_VISIBLE_DEVICES", "GPU_PORTION", "CUDA_DEVICE_MEMORY_LIMIT")
    ]


def test_our_map_is_read_last() -> None:
    own = [{"secretRef": {"name": "mine"}}, {"prefix": "X_", "configMapRef": {"name": f"{MAP}-evar"}}]
    new = mutated(pod(HALF, containers=containers("main", envFrom=own)))
    assert new["spec"]["containers"][0]["envFrom"] == [*own, WHOLE]


def test_our_map_is_not_optional() -> None:
    annotations = {**HALF, "runai/shared-gpu-configmap": "web-x7k2q9b-shared-gpu"}
    own = [{"configMapRef": {"name": f"{MAP}-evar", "optional": True}}, {"secretRef": {"name": "mine"}}]
    new = mutated(pod(annotations, containers=containers("main", envFrom=own)))
    assert new["spec"]["containers"][0]["envFrom"] == [WHOLE, own[1]]


def test_volumes_of_its_own_stay() -> None:
    own = [{"name": "data", "emptyDir": {}}]
    assert [item["name"] for item in mutated(pod(HALF, volumes=own))["spec"]["volumes"]] == [
        "data",
        f"{MAP}-vol",
    ]


def test_nri_gives_the_devices_otherwise() -> None:
    """N-73; and no runtime class (N-71)."""
    new = mutated(pod(HALF), replace(NRI, runtime_class_name="nvidia"))
    assert new["spec"]["containers"][0]["env"] == ENTRIES[1:]
    assert "runtimeClassName" not in new["spec"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, "nvidia"), ({"runtimeClassName": ""}, "nvidia"), ({"runtimeClassName": "mine"}, "mine")],
)
def test_the_runtime_class(spec: Object, expected: str) -> None:
    """B-117."""
    rules = replace(RULES, runtime_class_name="nvidia")
    assert mutated(pod(HALF, **spec), rules)["spec"]["runtimeClassName"] == expected
    assert mutated(pod(**spec), rules) == pod(**spec)


# gpu-memory


@pytest.mark.parametrize(
    ("mib", "amount"),
    [("4096", "4Gi"), ("2000", "2000Mi"), ("7680", "7680Mi"), ("1048576", "1Ti"), ("0100", "100Mi")],
)
@pytest.mark.parametrize("rules", [RULES, NVFRACTIONS])
def test_memory_is_said_for_the_container_too(rules: Rules, mib: str, amount: str) -> None:
    """N-73, N-75."""
    new = mutated(pod({"gpu-memory": mib}), rules)
    assert new["metadata"]["annotations"]["nvidia.com/container.main.gpu-memory.request"] == amount
    assert refusal(pod({"gpu-memory": mib}), rules) == ""


def test_the_same_amount_in_other_words() -> None:
    key = "nvidia.com/container.main.gpu-memory.request"
    asks = pod({"gpu-memory": "4096", key: "4096Mi"})
    assert mutated(asks)["metadata"]["annotations"][key] == "4Gi"
    text = f"annotation gpu-memory conflicts with annotation {key}: that is '4096Mi'"
    assert text in refusal(asks, NVFRACTIONS)  # N-76


@pytest.mark.parametrize("rules", [RULES, NVFRACTIONS])
def test_another_amount_is_refused(rules: Rules) -> None:
    key = "nvidia.com/container.main.gpu-memory.request"
    told = refusal(pod({"gpu-memory": "4096", key: "8Gi"}), rules)
    assert (
        f"metadata.annotations[{key}]: Invalid value: '8Gi': must be what gpu-memory says, 4096 MiB" in told
    )


def test_a_long_name_has_no_room_for_the_amount() -> None:
    """gpusharing does without it, nvfractions cannot."""
    fits, long = "c" * 34, "c" * 35
    key = f"nvidia.com/container.{fits}.gpu-memory.request"
    memory = {"gpu-memory": "4096"}
    assert key in mutated(pod(memory, containers=containers(fits)))["metadata"]["annotations"]
    asks = pod(memory, containers=containers(long))
    assert set(mutated(asks)["metadata"]["annotations"]) == {
        *("gpu-memory", "gpu-fraction-container-name", "runai/shared-gpu-configmap")
    }
    assert [text for text in warnings(asks) if "has more than the 34 characters" in text]
    assert "has more than the 34 characters" in refusal(asks, NVFRACTIONS)
    assert refusal(asks, NVFRACTIONS).count("34") == 1


# nvfractions


def test_nvfractions_writes_annotations_only() -> None:
    """N-75."""
    old = pod({"gpu-memory": "4096", "gpu-memory.limit": "8192Mi"}, containers=containers("a", "b"))
    new = mutated(old, NVFRACTIONS)
    assert new["spec"] == old["spec"]
    assert new["metadata"]["annotations"] == {
        "gpu-memory": "4096",
        "gpu-memory.limit": "8192Mi",
        "gpu-fraction-container-name": "a",
        "nvidia.com/container.a.gpu-memory.request": "4Gi",
        "nvidia.com/container.a.gpu-memory.limit": "8192Mi",
    }
    assert refusal(old, NVFRACTIONS) == ""


def test_nvfractions_and_a_limit_as_a_fraction() -> None:
    old = pod(
        {**HALF, "gpu-fraction.limit": "0.75", "gpu-fraction-container-name": "b"},
        containers=containers("a", "b"),
    )
    added = {"kai.scheduler/container.b.gpu-memory.portion.limit": "0.75"}
    assert mutated(old, NVFRACTIONS)["metadata"]["annotations"] == old["metadata"]["annotations"] | added
    assert refusal(old, NVFRACTIONS) == ""


@pytest.mark.parametrize(
    ("source", "text", "key", "there"),
    [
        ("gpu-memory.limit", "8Gi", "nvidia.com/container.main.gpu-memory.limit", "8192Mi"),
        ("gpu-fraction.limit", "0.75", "kai.scheduler/container.main.gpu-memory.portion.limit", "0.750"),
    ],
)
def test_nvfractions_overwrites_nothing(source: str, text: str, key: str, there: str) -> None:
    """N-76."""
    base = {"gpu-memory": "4096"} if source == "gpu-memory.limit" else HALF
    told = refusal(pod({**base, source: text, key: there}), NVFRACTIONS)
    assert f"annotation {source} conflicts with annotation {key}: that is {there!r}" in told
    assert refusal(pod({**base, source: text, key: text}), NVFRACTIONS) == ("")


def test_both_at_once() -> None:
    rules = replace(NVFRACTIONS, plugins=("gpusharing", "nvfractions"))
    new = mutated(pod({"gpu-memory": "4096"}), rules)
    assert new["spec"]["containers"][0]["env"] == ENTRIES
    assert new["metadata"]["annotations"]["nvidia.com/container.main.gpu-memory.request"] == "4Gi"


# deviceaccess


def test_containers_without_a_gpu_see_none() -> None:
    """B-118."""
    rules = replace(RULES, block_visible_devices=True)
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    mig = {"resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}}}
    none = {"resources": {"limits": {"nvidia.com/gpu": "0", "cpu": "1"}}}
    own = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}
    whole = pod(
        containers=[
            {"name": "gpu", **gpu},
            {"name": "mig", **mig},
            {"name": "a", **none},
            {"name": "b", **own},
        ]
    )
    new = mutated(whole, rules)["spec"]["containers"]
    assert new == [
        *whole["spec"]["containers"][:2],
        {"name": "a", **none, "env": [VOID]},
        {"name": "b", **own},
    ]
    share = pod(HALF, containers=containers("main", "side"), initContainers=containers("warm"))
    new = mutated(share, rules)
    assert new["spec"]["containers"][0]["env"] == ENTRIES
    assert new["spec"]["containers"][1]["env"] == new["spec"]["initContainers"][0]["env"] == [VOID]
    assert refusal(share, rules) == ""


@pytest.mark.parametrize("group", ["containers", "initContainers"])
@pytest.mark.parametrize(
    "source", [{"configMapRef": {"name": "mine"}}, {"prefix": "NVIDIA_", "secretRef": {"name": "mine"}}]
)
def test_no_container_gets_past_the_limit_by_what_it_reads_whole(group: str, source: Object) -> None:
    """What the ConfigMap holds may change at any time."""
    other: Object = {"name": "other", "envFrom": [source]}
    spec: dict[str, Any] = {"containers": [{"name": "main"}], "initContainers": []}
    spec[group] = [*spec[group], other]
    asks = pod(HALF, **spec)
    new = mutated(asks, LIMITING)
    assert new["spec"][group][-1] == {**other, "env": [VOID]}
    assert refusal(asks, LIMITING) == ""
    assert warnings(asks, LIMITING) == []
    assert mutated(asks, RULES)["spec"][group][-1] == other
    asks["metadata"]["annotations"] = {}
    assert mutated(asks, LIMITING) == asks


def test_the_limit_leaves_slices_of_a_gpu_and_own_entries_alone() -> None:
    mig: Object = {"name": "mig", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
    own: Object = {"name": "own", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}
    new = mutated(pod(HALF, containers=[{"name": "main"}, mig, own]), LIMITING)
    assert new["spec"]["containers"][1:] == [mig, own]


# Names


NAMES = [
    ({"name": "web"}, "web"),
    ({"name": "a.b.c"}, "a.b.c"),
    ({"name": "a" * 253}, "a" * 33),
    ({"name": f"{'a' * 32}.{'b' * 220}"}, "a" * 32),
    ({"name": f"{'a' * 31}-.{'b' * 220}"}, "a" * 31 + ".b"),
    ({"generateName": "job-"}, "job"),
    ({"generateName": "a." * 100}, "a." * 16 + "a"),
    ({"name": "", "generateName": "job-"}, "job"),
    ({"name": "web-1", "ownerReferences": [{"name": "set"}, {"name": "other"}]}, "set"),
    ({"name": "web-1", "ownerReferences": [{"name": "Role:admin/X_1"}]}, "role-admin-x-1"),
    ({"name": "web-1", "ownerReferences": [{"name": "..--"}]}, "web-1"),
    ({"name": "web-1", "ownerReferences": [{"name": "Ä"}]}, "web-1"),
    ({"name": "web-1", "ownerReferences": [{}]}, "web-1"),
    ({"name": "web-1", "ownerReferences": []}, "web-1"),
    ({"generateName": "-"}, "pod"),
    ({}, "pod"),
    ({"name": None, "generateName": None, "ownerReferences": None}, "pod"),
]  # fmt: skip


@pytest.mark.parametrize(("metadata", "base"), NAMES, ids=lambda value: str(value)[:40])
def test_the_maps_have_legal_names_however_odd_that_of_the_pod(metadata: Object, base: str) -> None:
    """B-114, D-35."""
    old = pod(HALF, metadata={"annotations": HALF, **metadata})
    if "name" not in metadata:
        del old["metadata"]["name"]
    new = mutated(old, LIMITING)
    prefix = new["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    assert prefix == f"{base}-x7k2q9b-shared-gpu"
    target = target_of(new)
    assert isinstance(target, Target)
    for name in (target.config_map, target.env_config_map):
        assert is_object_name(name)
        assert len(name) <= 63
    (volume,) = new["spec"]["volumes"]
    assert len(volume["name"]) <= 63
    assert "." not in volume["name"]
    assert is_object_name(volume["name"])
    assert refusal(old, LIMITING) == ""


@pytest.mark.parametrize(("index", "longest"), [("0", 33), ("10", 32), ("i0", 32), ("i10", 31)])
def test_the_index_takes_its_room(index: str, longest: int) -> None:
    assert base_of({"metadata": {"name": "a" * 253}}, index) == "a" * longest


def test_a_name_that_is_there_stays() -> None:
    annotations = {**HALF, "runai/shared-gpu-configmap": f"{'a' * 240}.b"}
    new = mutated(pod(annotations))
    assert new["metadata"]["annotations"] == annotations | {"gpu-fraction-container-name": "main"}
    assert new["spec"]["volumes"][0]["configMap"]["name"] == f"{'a' * 240}.b-0"
    assert new["spec"]["volumes"][0]["name"] == f"{'a' * 59}-vol"
    assert refusal(pod(annotations)) == ""


def test_an_empty_name_is_none() -> None:
    new = mutated(pod({**HALF, "runai/shared-gpu-configmap": ""}))
    assert new["metadata"]["annotations"]["runai/shared-gpu-configmap"] == "web-x7k2q9b-shared-gpu"


def test_what_is_random_is_as_kubernetes_makes_it() -> None:
    found = {random_suffix() for _ in range(50)}
    assert len(found) == 50
    assert {len(text) for text in found} == {7}
    assert set("".join(found)) <= set("bcdfghjklmnpqrstvwxz2456789")


# Many containers, and none


def test_a_hundred_containers() -> None:
    names = [f"c{number}" for number in range(100)]
    asks = pod({**HALF, "gpu-fraction-container-name": "c99"}, containers=containers(*names))
    new = mutated(asks, ALL)
    assert [item["name"] for item in new["spec"]["containers"]] == names
    assert new["spec"]["containers"][99]["envFrom"] == [
        {"configMapRef": {"name": "web-x7k2q9b-shared-gpu-99-evar", "optional": False}}
    ]
    assert refusal(asks, ALL) == ""


@pytest.mark.parametrize("rules", [RULES, LIMITING, NVFRACTIONS, OFF, ALL])
@pytest.mark.parametrize("none", [[], None])
def test_no_containers_are_refused_in_words(rules: Rules, none: list[Object] | None) -> None:
    asks = pod(HALF)
    asks["spec"]["containers"] = none
    assert "pod team/web has no container" in refusal(asks, rules)
