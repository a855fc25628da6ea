"""Binder and webhook judge alike: what the webhook lets pass, the binder's plugins can prepare."""

import itertools
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

import anyio
import pytest

from controller.admission.review import mutate, validate
from controller.admission.rules import Rules
from controller.kai.outcome import Failed
from controller.kai.request import BindRequest, ComputeMode
from controller.plugins.base import BindContext
from controller.plugins.config import PluginConfig
from controller.plugins.registry import BUILT_IN, resolve
from controller.runtime.changes import Changes
from controller.runtime.client import Client, Object
from tests.unit.admission.reviews import (
    LIMITING,
    NVFRACTIONS,
    RULES,
    operations,
    patched_as_told,
    pod,
    response,
    review,
)

NO_CLIENT = cast(Client, None)  # nothing here sends a request
NODE: Object = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": "15360"}}}
ASKS = ({"gpu-fraction": "0.5"}, {"gpu-fraction": "0.5 "}, {"gpu-memory": "7680"}, {"gpu-memory": "7680Mi"})
TARGETS: tuple[dict[str, str], ...] = (
    {},
    {"gpu-fraction-container-name": "side"},
    {"gpu-fraction-container-name": "warm"},
    {"gpu-fraction-container-name": "nobody"},
    {"runai/shared-gpu-configmap": "mine"},
    {"runai/shared-gpu-configmap": "Mine"},
    {"nvidia.com/container.side.gpu-compute.mode": "sm-sharing"},
    {"nvidia.com/container.side.gpu-compute": "sm-sharing"},
)
CONTAINERS: tuple[Object, ...] = (
    {},
    {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]},
    {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "1"}]},
    {"env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "99g"}]},
    {"env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT_1", "value": "99g"}]},
    {"envFrom": [{"configMapRef": {"name": "mine-0-evar"}}, {"secretRef": {"name": "s"}}]},
    {"envFrom": [{"secretRef": {"name": "s"}}]},
)


def context(item: Object) -> BindContext:
    request = BindRequest(
        namespace="team",
        name="web",
        uid="2",
        owner_uid="1",
        pod_name="web",
        node_name="n",
        resource_type="Fraction",
        gpu_portion="0.50",
        gpu_groups=("g",),
        compute_modes=(ComputeMode.TIME_SLICING,),
    )

    def waiting(_what: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    return BindContext(request=request, pod=item, node=NODE, waiting=waiting, changes=cast(Changes, None))


def obstacles(item: Object, rules: Rules) -> list[str]:
    """Why the binder's plugins cannot prepare a pod."""
    settings = {cls.name: PluginConfig(enabled=cls.name in rules.plugins) for cls in BUILT_IN}
    found = []
    for planned in resolve(BUILT_IN, settings):
        if planned.cls.name in ("gpusharing", "nvfractions", "gpumemorylimit"):
            outcome = anyio.run(planned.cls(NO_CLIENT, planned.arguments).prepare, context(item))
            if isinstance(outcome, Failed):
                found.append(outcome.message)
    return found


@pytest.mark.parametrize("rules", [RULES, LIMITING, NVFRACTIONS], ids=["sharing", "limit", "nvfractions"])
def test_what_passes_can_be_prepared_and_what_could_not_be_does_not_pass(rules: Rules) -> None:
    passed = stopped = 0
    for ask, target, fields in itertools.product(ASKS, TARGETS, CONTAINERS):
        item = pod(
            ask | target,
            containers=[{"name": "main", **fields}, {"name": "side"}],
            initContainers=[{"name": "warm"}],
        )
        first = response(mutate(review(item), rules))
        new = patched_as_told(item, operations(first))
        allowed = first["allowed"] and response(validate(review(new), rules))["allowed"]
        passed, stopped = passed + allowed, stopped + (not allowed)
        new["metadata"]["uid"] = "1"
        assert not allowed or obstacles(new, rules) == [], item
        if "gpu-fraction" not in ask or ask["gpu-fraction"] == "0.5":
            invalid_memory = ask.get("gpu-memory", "").endswith("Mi")
            assert allowed or invalid_memory or obstacles(new, rules) != [], item
    assert passed > 50
    assert stopped > 50
