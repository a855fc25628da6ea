"""Shares of GPUs that a component on the node enforces, set up as KAI v0.18's operator does."""

import json
import time

import pytest

from tests.binder import Binders
from tests.polling import wait_until
from tests.sharing import Sharing, ask_share_of, groups_of, refusal_of

MEMORY = {"nvidia.com/gpu.memory": "15360"}
MAIN = "nvidia.com/container.main."

FRACTIONS = {
    "gpusharing": {"enabled": False},
    "nvfractions": {"enabled": True, "priority": 90, "arguments": {"cdiEnabled": "true"}},
}


@pytest.fixture
def fractions(binders: Binders) -> None:
    """The operator's mode NvFractions (N-25)."""
    binders.start("--plugins", json.dumps(FRACTIONS))


@pytest.mark.usefixtures("fractions", "agents")
class TestNvFractions:
    """Annotations only."""

    def test_a_share_of_two_devices(self, cluster: Sharing) -> None:
        """N-51 to N-53, U-6."""
        node, groups = cluster.node(labels=MEMORY), [cluster.group("g"), cluster.group("h")]
        limit = {"kai.scheduler/container.main.gpu-memory.portion.limit": "0.8"}
        ask_share_of(
            cluster,
            "a",
            node,
            groups_of("sm-sharing", *groups),
            devices="2",
            config_map=None,
            annotations=limit,
        )
        cluster.wait_for("a", "Succeeded")
        annotations = cluster.get_pod("a")["metadata"]["annotations"]
        prefix = "k8s.device-plugin.nvidia.com/gpu="
        assert annotations[f"{MAIN}gpus.devices"] == ",".join(
            prefix + cluster.device(group) for group in groups
        )
        assert annotations[f"{MAIN}gpu-memory.request"] == "7680Mi"
        assert annotations[f"{MAIN}gpu-memory.limit"] == "12Gi"
        assert cluster.all_config_maps() == []
        condition = cluster.conditions("a")["NvFractions"]
        assert (condition["status"], condition["reason"]) == ("True", "Reconciled")

    def test_a_bind_that_fails_leaves_no_annotation(self, cluster: Sharing) -> None:
        """N-56: else the next node's card would be divided by the first one's size."""
        node = cluster.node(labels=MEMORY)
        bad = {"kai.scheduler/container.main.gpu-memory.portion.limit": "0.1"}
        ask_share_of(
            cluster, "a", node, groups_of("sm-sharing", cluster.group()), config_map=None, annotations=bad
        )
        message = refusal_of(cluster, "a", "InvalidGPUConfig")
        assert "may use at most 1536Mi of GPU memory, less than the 7680Mi that it was granted" in message
        names = cluster.get_pod("a")["metadata"]["annotations"]
        assert not [name for name in names if name.startswith("nvidia.com/")]

    def test_without_the_label_no_share_is_bound(self, cluster: Sharing) -> None:
        node = cluster.node()
        ask_share_of(cluster, "a", node, groups_of("sm-sharing", cluster.group()), config_map=None)
        assert f"node {node} has no label nvidia.com/gpu.memory" in refusal_of(cluster, "a", "MemoryUnknown")

    def test_a_pod_that_says_its_memory_only_is_a_user(self, cluster: Sharing) -> None:
        """N-72, F-58: without its request, too, it does not run on once its GPU may be given to others."""
        node, group = cluster.node(labels=MEMORY), cluster.group()
        asks = {f"{MAIN}gpu-memory.request": "7680Mi"}
        spec = groups_of("sm-sharing", group)
        ask_share_of(cluster, "a", node, spec, fraction=None, config_map=None, annotations=asks)
        cluster.wait_for("a", "Succeeded")
        cluster.set_phase("a", "Running")
        cluster.delete_request("a")
        time.sleep(1)
        assert len(cluster.reservations(group)) == 1
        cluster.delete_reservations(group)
        wait_until(lambda: "deletionTimestamp" in cluster.get_pod("a")["metadata"])

    @pytest.mark.parametrize("name", [f"{MAIN}gpus.devices", "nvidia.cdi.k8s.io/container.main"])
    def test_of_two_reservations_the_one_stays_whose_device_annotations_name(
        self, cluster: Sharing, name: str
    ) -> None:
        """D-38: there are no ConfigMaps that say it; the GPU of a running pod must not be given to others."""
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask_share_of(cluster, "a", node, groups_of("time-slicing", group), config_map=None)
        cluster.wait_for("a", "Succeeded")
        former = cluster.reservation(group)["metadata"]["name"]
        cluster.annotate("a", {f"{MAIN}gpus.devices": None})
        cluster.annotate("a", {name: "k8s.device-plugin.nvidia.com/gpu=GPU-used"})
        cluster.make_reservation(f"made-by-others-{group}", node, group, device="GPU-used")
        wait_until(lambda: len(cluster.reservations(group)) == 1)
        assert cluster.reservation(group)["metadata"]["name"] != former
