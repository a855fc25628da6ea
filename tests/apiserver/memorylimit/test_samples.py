"""The samples for the memory limit, applied as a person would, end as they say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from controlplane import ControlPlane, RequestError

from tests.binder import Binders
from tests.cluster import ROOT
from tests.limits import ENABLED, LIMIT, Limits
from tests.polling import wait_until
from tests.sharing import Agents

SAMPLES = ROOT / "config/samples"
GROUP = "c1e6d1f4-7b0a-4f0e-9d0b-52c8a7f3e9d1"


@pytest.fixture
def cluster(control_plane: ControlPlane, kubelet: Agents) -> Limits:
    """The namespace of the samples, with the ServiceAccount without which no pod can be created in it."""
    account = "/api/v1/namespaces/default/serviceaccounts/default"

    def exists() -> bool:
        try:
            return bool(control_plane.request("GET", account))
        except RequestError as error:
            if error.status != 404:
                raise
            return False

    wait_until(exists, within_s=30)
    return Limits(control_plane, "default")


@contextmanager
def applied(cluster: Limits, *names: str) -> Iterator[None]:
    """Has samples in the cluster for the block."""
    files = [f"--filename={SAMPLES / name}.yaml" for name in names]
    cluster.plane.kubectl("apply", *files)
    try:
        yield
    finally:
        cluster.plane.kubectl("delete", "--force", "--wait=false", "--ignore-not-found", *files)
        for name in cluster.all_config_maps():
            if name.endswith(("shared-gpu-0", "shared-gpu-0-evar")):
                cluster.plane.kubectl("delete", "--ignore-not-found", "configmap", name)


def test_two_pods_share_a_gpu_with_limits(cluster: Limits, binders: Binders) -> None:
    binders.start(env=ENABLED)
    with applied(cluster, "node", "shared-gpu-limits", "memory-limit"):
        for name in ("half-a", "half-b", "memory-limit"):
            cluster.wait_for(name, "Succeeded", within_s=30)
            assert cluster.node_of(name) == "gpu-node-1"
        device = cluster.device(GROUP)
        for name in ("half-a", "half-b"):
            assert cluster.data(f"{name}-a1b2c3d-shared-gpu-0") == {
                "CUDA_DEVICE_MEMORY_LIMIT": "7680m",
                "GPU_PORTION": "0.50",
                "NVIDIA_VISIBLE_DEVICES": device,
                "RUNAI_NUM_OF_GPUS": "0.50",
            }
            assert cluster.data(f"{name}-a1b2c3d-shared-gpu-0-evar") == {}
        maps = ("memory-limit-a1b2c3d-shared-gpu-0", "memory-limit-a1b2c3d-shared-gpu-0-evar")
        assert [cluster.data(name)[LIMIT] for name in maps if LIMIT in cluster.data(name)] == ["4096m"]


def test_the_limit_without_sharing(cluster: Limits, binders: Binders) -> None:
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"})
    with applied(cluster, "node", "limit-without-sharing", "shared-gpu-limits"):
        for name in ("limit-without-sharing", "half-a", "half-b"):
            assert "gpumemorylimit needs gpusharing" in cluster.refusal(name, "DependencyNotMet")
        cluster.wait_for("cpu-beside", "Succeeded")
        assert cluster.reservations(GROUP) == []
