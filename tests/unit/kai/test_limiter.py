"""The limit against a model of the kubelet: whatever others say, no container that sees the GPU is without.

The model is written from the kubelet's rules alone: sources in order, then entries in order, optional keys
that are missing leave what was there. Other people's maps hold everything harmful that their prefix allows,
or nothing.
"""

from collections.abc import Iterator, Mapping
from random import Random

import pytest

from controller.kai.limiter import SWITCHES, Way, way_to
from controller.kai.outcome import Failed
from controller.kai.sharing import Target
from controller.plugins.gpusharing import contents_of
from controller.runtime.client import Object

LIMIT, DEVICES = "CUDA_DEVICE_MEMORY_LIMIT", "NVIDIA_VISIBLE_DEVICES"
MAP, WHOLE = "m-0", "m-0-evar"
VALUE, GIVEN = "4096m", "GPU-given"
NAMES = (LIMIT, f"{LIMIT}_0", f"{LIMIT}_1", DEVICES, "CUDA_DISABLE_CONTROL", "CUDA_REDIRECT", "OTHER")
PREFIXES = ("", "", "", "CUDA_", "NVIDIA_", LIMIT, f"{LIMIT}_", "MY_")
EVIL = "evil"

Maps = Mapping[str, Mapping[str, str]]


def environment(container: Object, maps: Maps, *, evil: bool) -> dict[str, str]:
    """What the kubelet gives a container, where others' maps hold everything harmful, or nothing."""
    result: dict[str, str] = {}
    for source in container["envFrom"]:
        prefix = source.get("prefix", "")
        ref = source.get("configMapRef") or source["secretRef"]
        data = maps.get(ref["name"])
        if data is None:  # somebody else's
            names = NAMES if evil else ()
            data = {name[len(prefix) :]: EVIL for name in names if name.startswith(prefix) and name != prefix}
        result |= {f"{prefix}{key}": value for key, value in data.items()}
    for entry in container["env"]:
        if "valueFrom" not in entry:
            result[entry["name"]] = entry.get("value", "")
            continue
        (ref,) = entry["valueFrom"].values()
        data = maps.get(ref["name"], {ref["key"]: EVIL} if evil else {})
        if ref["key"] in data:
            result[entry["name"]] = data[ref["key"]]
    return result


def is_limited(found: Mapping[str, str], devices: int) -> bool:
    """As HAMi-core reads it."""
    each = [found.get(f"{LIMIT}_{number}") or found.get(LIMIT) for number in range(devices)]
    on = all(found.get(name, "") in harmless for name, harmless in SWITCHES.items())
    return on and each == [VALUE] * devices


def some_container(random: Random, name: str) -> Object:
    env: list[Object] = []
    for _ in range(random.choice((0, 1, 2, 2, 3))):
        variable = random.choice((LIMIT, LIMIT, DEVICES, DEVICES, *NAMES))
        kind = random.choice(("ours", "ours", "ours", "theirs", "secret", "value"))
        key = random.choice((variable, variable, variable, DEVICES, "GPU_PORTION", "RUNAI-VISIBLE-DEVICES"))
        ref = {"name": MAP if kind == "ours" else "mine", "key": key, "optional": True}
        source = "secretKeyRef" if kind == "secret" else "configMapKeyRef"
        if kind == "value":
            env.append(
                {"name": variable, "value": random.choice(("all", "void", "true", "false", "", VALUE))}
            )
        else:
            env.append({"name": variable, "valueFrom": {source: ref}})
    env_from: list[Object] = []
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        kind, ref_name = random.choice(
            (
                ("configMapRef", WHOLE),
                ("configMapRef", WHOLE),
                ("configMapRef", MAP),
                ("configMapRef", "mine"),
                ("secretRef", "hidden"),
            )
        )
        made: Object = {kind: {"name": ref_name}}
        prefix = random.choice(PREFIXES)
        env_from.append({**made, "prefix": prefix} if prefix else made)
    return {"name": name, "env": env, "envFrom": env_from}


def cases(seed: int, count: int) -> Iterator[tuple[Object, Target, int]]:
    random = Random(seed)  # noqa: S311 -- no secret
    for _ in range(count):
        main = some_container(random, "main")
        others = [some_container(random, f"other-{number}") for number in range(random.choice((0, 0, 1, 2)))]
        spec = random.choice(
            ({"containers": [main, *others]}, {"initContainers": others, "containers": [main]})
        )
        pod = {"metadata": {"name": "p", "namespace": "team"}, "spec": spec}
        yield pod, Target(main, MAP, WHOLE), random.choice((1, 2))


@pytest.mark.parametrize("seed", range(8))
def test_no_container_that_sees_the_gpu_is_without_the_limit(seed: int) -> None:
    """F-31, F-32."""
    bound = 0
    for pod, target, devices in cases(seed, 4000):
        way = way_to(pod, target, LIMIT, VALUE, devices)
        if isinstance(way, Failed):
            continue
        contents = contents_of(target, GIVEN, "0.50", {LIMIT: VALUE, **way.variables})
        assert not isinstance(contents, Failed), contents
        single, whole = contents
        # The key of old is kept up where a map had it.
        maps = {MAP: {"RUNAI-VISIBLE-DEVICES": GIVEN, **single.data}, WHOLE: whole.data}
        for evil in (True, False):
            found = environment(target.container, maps, evil=evil)
            assert is_limited(found, devices), (pod, found)
            assert found.get(DEVICES, "") in (GIVEN, "", "void"), (pod, found)
            for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
                seen = environment(container, maps, evil=evil)
                if seen.get(DEVICES) == GIVEN:
                    assert is_limited(seen, devices), (pod, seen)
        bound += 1
    assert bound > 100, "the model refuses everything, which proves nothing"


def test_a_pod_as_kais_webhook_makes_it_needs_nothing_more() -> None:
    env = [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": MAP, "key": name}}}
        for name in (DEVICES, "RUNAI_NUM_OF_GPUS", "GPU_PORTION", LIMIT)
    ]
    main = {"name": "main", "env": env, "envFrom": [{"configMapRef": {"name": WHOLE}}]}
    sidecar = {"name": "sidecar", "env": [{"name": DEVICES, "value": "void"}], "envFrom": []}
    pod = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": [main, sidecar]}}
    assert way_to(pod, Target(main, MAP, WHOLE), LIMIT, VALUE, 2) == Way({}, ())
