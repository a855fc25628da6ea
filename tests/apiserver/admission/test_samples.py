"""The samples, applied as a person would: through webhook, agent and binder they end as they say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from containers import Containers
from controlplane import ControlPlane, RequestError
from kubelet import Kubelet

from tests.binder import Binders
from tests.certificates import Mount
from tests.cluster import ROOT
from tests.limits import ENABLED, LIMIT, Limits
from tests.polling import wait_until
from tests.webhook import Keys, Webhooks, installed

SAMPLES = ROOT / "config/samples"
GROUP = "c1e6d1f4-7b0a-4f0e-9d0b-52c8a7f3e9d1"
OTHER_GROUP = "3f0c9a52-6d1e-4b7c-8a55-1e9d2c704b6f"
PREFIX = "runai/shared-gpu-configmap"


@pytest.fixture(scope="module")
def containers(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Our agent runs in reservation pods, with the rights that we ship."""
    made = Containers(control_plane, tmp_path_factory.mktemp("containers"))
    try:
        with Kubelet(control_plane, containers=made):
            yield made
    finally:
        made.stop()


@pytest.fixture(scope="module", autouse=True)
def webhook(control_plane: ControlPlane, webhooks: Webhooks, keys: Keys, mount: Mount) -> Iterator[None]:
    """One webhook that knows of the memory limit."""
    made = webhooks.make("--binder-metrics-url=", mount=mount, env=ENABLED).start()
    with installed(made, control_plane, keys.authority):
        yield


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Limits:
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


def map_of(cluster: Limits, pod: str) -> str:
    """The capabilities map of a pod."""
    return f"{cluster.annotations(pod)[PREFIX]}-0"


def test_pods_share_gpus_with_limits(cluster: Limits, binders: Binders, containers: Containers) -> None:
    binders.start(env=ENABLED)
    with applied(cluster, "node", "shared-gpu", "shared-gpu-limits", "memory-limit"):
        for name in ("half-a", "half-b", "shared-gpu", "memory-limit"):
            cluster.wait_for(name, "Succeeded", within_s=30)
            assert cluster.node_of(name) == "gpu-node-1"
        for name, group, portion, limit in (
            ("half-a", GROUP, "0.50", "7680m"),
            ("half-b", GROUP, "0.50", "7680m"),
            ("shared-gpu", OTHER_GROUP, "0.50", "7680m"),
            ("memory-limit", OTHER_GROUP, "0.27", "4096m"),
        ):
            assert cluster.data(map_of(cluster, name)) == {
                LIMIT: limit,
                "GPU_PORTION": portion,
                "NVIDIA_VISIBLE_DEVICES": cluster.device(group),
                "RUNAI_NUM_OF_GPUS": portion,
            }
            assert cluster.data(f"{map_of(cluster, name)}-evar") == {}
        assert cluster.device(GROUP) != cluster.device(OTHER_GROUP)
        names = {cluster.reservation(group)["metadata"]["name"] for group in (GROUP, OTHER_GROUP)}
        assert names <= containers.running()
        told = [f"says {cluster.device(group)} now" for group in (GROUP, OTHER_GROUP)]
        wait_until(lambda: all(words in containers.log.read_text() for words in told))
    cluster.wait_until_freed(GROUP, OTHER_GROUP, within_s=30)
    wait_until(lambda: not names & containers.running())


def test_the_limit_without_sharing(cluster: Limits, binders: Binders) -> None:
    binders.start(env={**ENABLED, "BINDER_PLUGINS__GPUSHARING__ENABLED": "false"})
    with applied(cluster, "node", "limit-without-sharing", "shared-gpu-limits"):
        for name in ("limit-without-sharing", "half-a", "half-b"):
            assert "gpumemorylimit needs gpusharing" in cluster.refusal(name, "DependencyNotMet")
        cluster.wait_for("cpu-beside", "Succeeded")
        assert cluster.reservations(GROUP) == []


def test_the_one_that_is_refused(cluster: Limits) -> None:
    said = cluster.plane.kubectl("apply", "-f", str(SAMPLES / "refused.yaml"), check=False)
    assert "denied the request: metadata.annotations[gpu-fraction]: Invalid value: '1.5'" in said
    assert "above 0 and below 1" in said
