"""Whatever comes in: an answer, or BadReview."""

import string
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from controller.admission.review import BadReview, mutate, validate
from controller.runtime.client import Object
from tests.unit.admission.reviews import LIMITING, NRI, NVFRACTIONS, OFF, mutated, pod, review

RULES = (
    replace(LIMITING, block_visible_devices=True, runtime_class_name="nvidia"),
    replace(LIMITING, plugins=("gpusharing", "nvfractions", "gpumemorylimit")),
    replace(LIMITING, unmet={"gpumemorylimit": "gpusharing runs after it"}),
    NVFRACTIONS,
    replace(NRI, block_visible_devices=True),
    OFF,
)
KEYS = (
    *("gpu-fraction", "gpu-memory", "gpu-fraction.limit", "gpu-memory.limit", "gpu-fraction-num-devices"),
    *("gpu-fraction-container-name", "runai/shared-gpu-configmap", "nvidia.com/container.", "nvidia.com/gpu"),
    *("nvidia.com/container.main.gpu-memory.request", "nvidia.com/container.main.gpu-memory.limit"),
    *("nvidia.com/container.main.gpus.devices", "nvidia.com/container.gpus.devices", "nvidia.cdi.k8s.io/"),
    *(
        "kai.scheduler/container.main.gpu-memory.portion.limit",
        "kai.scheduler/container..gpu-memory.portion.limit",
    ),
    *("name", "env", "envFrom", "valueFrom", "configMapKeyRef", "configMapRef", "secretRef", "prefix", "key"),
    *("containers", "initContainers", "volumes", "annotations", "metadata", "spec", "resources", "limits"),
)
TEXTS = (
    *(
        "",
        "main",
        "side",
        "0.5",
        "4096",
        "NaN",
        "1e999999999",
        "-1",
        "all",
        "void",
        "é",
        "\x00",
        "\u2028",
        "٣",
    ),
    *("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DISABLE_CONTROL", "GPU_PORTION", "a" * 300),
)
START = (
    pod({"gpu-fraction": "0.5"}),
    mutated(pod({"gpu-memory": "4096", "gpu-fraction-container-name": "main"}), LIMITING),
    pod(
        {"nvidia.com/container.main.gpu-memory.request": "4Gi"},
        containers=[{"name": "main", "env": [{"name": "A", "value": "b"}]}, {"name": "side"}],
        initContainers=[{"name": "warm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    ),
)


def anything(chance: Random, depth: int = 0) -> Any:  # noqa: ANN401
    match chance.randrange(9 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return chance.choice((True, False, 0, -1, 2**63, 1e308, 0.5))
        case 2 | 3 | 4:
            return chance.choice(TEXTS)
        case 5:
            return "".join(chance.choices(string.printable, k=chance.randrange(80)))
        case 6:
            return [anything(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            keys = [chance.choice((*KEYS, *TEXTS)) for _ in range(chance.randrange(4))]
            return {key: anything(chance, depth + 1) for key in keys}


def spoiled(value: Any, chance: Random, rate: float) -> Any:  # noqa: ANN401
    """The value, with some of its parts replaced, dropped or added."""
    if chance.random() < rate:
        return anything(chance)
    if isinstance(value, dict):
        kept = {key: spoiled(item, chance, rate) for key, item in value.items() if chance.random() > rate / 2}
        if chance.random() < rate * 2:
            kept[chance.choice(KEYS)] = anything(chance, 2)
        return kept
    if isinstance(value, list):
        kept_items = [spoiled(item, chance, rate) for item in value if chance.random() > rate / 2]
        return kept_items + ([anything(chance, 2)] if chance.random() < rate else [])
    return value


def answered(body: bytes, number: int) -> int:
    """How many of both webhooks had an answer, which must be well-formed."""
    count = 0
    for hook in (mutate, validate):
        try:
            found = orjson.loads(hook(body, RULES[number % len(RULES)]))
        except BadReview:
            continue
        inner: Object = found["response"]
        assert isinstance(inner["allowed"], bool)
        assert inner["allowed"] or inner["status"]["message"]
        assert all(0 < len(text) <= 256 for text in inner.get("warnings", ()))
        count += 1
    return count


@pytest.mark.parametrize("seed", range(8))
def test_pods_with_spoiled_parts(seed: int) -> None:
    chance, count = Random(seed), 0  # noqa: S311
    for number in range(400):
        rate = chance.choice((0.005, 0.02, 0.1))
        old, new = (spoiled(chance.choice(START), chance, rate) for _ in range(2))
        operation = chance.choice(("CREATE", "CREATE", "UPDATE"))
        count += answered(review(new, operation=operation, oldObject=old), number)
    assert count > 100


@pytest.mark.parametrize("seed", range(4))
def test_reviews_with_spoiled_parts(seed: int) -> None:
    chance, count = Random(1000 + seed), 0  # noqa: S311
    whole = orjson.loads(review(START[1], operation="UPDATE", oldObject=START[0]))
    for number in range(200):
        count += answered(orjson.dumps(spoiled(whole, chance, 0.01)), number)
    assert count > 50


@pytest.mark.parametrize("seed", range(2))
def test_bytes_that_are_flipped_cut_or_doubled(seed: int) -> None:
    chance = Random(2000 + seed)  # noqa: S311
    whole = review(START[1])
    for number in range(300):
        body = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[at] = chance.randrange(256)
                case 1:
                    del body[at : at + chance.randrange(20)]
                case _:
                    body[at:at] = body[at : at + chance.randrange(20)]
        answered(bytes(body), number)


@pytest.mark.parametrize("depth", [100, 250, 500, 900, 1000, 1010, 1020, 2000])
@pytest.mark.parametrize(
    "place", [b'"x"', b'"env"', b'"resources"', b'"nvidia.com/gpu"', b'"gpu-fraction"', b'"valueFrom"']
)
def test_any_depth(depth: int, place: bytes) -> None:
    """The parser takes a thousand levels; nothing behind it walks down what it does not read."""
    item = pod(
        {"gpu-fraction": "0.5"},
        containers=[
            {
                "name": "main",
                "resources": {"limits": {"nvidia.com/gpu": "@"}},
                "env": [{"name": "GPU_PORTION", "valueFrom": {"x": "@"}}, {"name": "A", "x": "@"}],
                "envFrom": [{"x": "@"}],
            }
        ],
        x="@",
    )
    whole = review(item)
    for nested in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        answered(whole.replace(b'"@"', nested), 0)
        answered(whole.replace(place + b':"@"', place + b":" + nested).replace(b'"@"', b"1"), 0)
