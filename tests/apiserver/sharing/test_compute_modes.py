"""Shares as KAI v0.18's scheduler asks for them: groups with a mode, and annotations for the node's own component."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.binder import Binders
from tests.sharing import Sharing

MODE = "nvidia.com/container.resource-reservation.gpu-compute.mode"
MEMORY = {"nvidia.com/gpu.memory": "15360"}
MAIN = "nvidia.com/container.main."

Ask = Callable[..., None]


def groups_of(mode: str | None, *groups: str) -> dict[str, Any]:
    """Both fields, as the scheduler writes them (N-1)."""
    entries = [{"id": group, **({} if mode is None else {"computeSharingMode": mode})} for group in groups]
    return {"selectedGPUGroups": list(groups), "selectedFractionalGpuGroups": entries}


def ask(cluster: Sharing, name: str, node: str, spec: dict[str, Any], **options: Any) -> None:  # noqa: ANN401
    pod = cluster.shared_pod(name, **options)
    given = {"count": max(1, len(spec["selectedGPUGroups"])), "portion": "0.50"}
    cluster.ask(name, node, owner=pod, receivedResourceType="Fraction", receivedGPU=given, **spec)


@pytest.mark.usefixtures("binder")
class TestGroups:
    """With the default plugins."""

    @pytest.mark.parametrize(
        ("mode", "written"),
        [
            ("sm-sharing", "sm-sharing"),
            ("time-slicing", "time-slicing"),
            (None, "time-slicing"),
            ("", "time-slicing"),
        ],
    )
    def test_the_reservation_carries_the_mode(self, cluster: Sharing, mode: str | None, written: str) -> None:
        """N-13, U-10."""
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask(cluster, "a", node, groups_of(mode, group))
        cluster.wait_for("a", "Succeeded")
        assert cluster.reservation(group)["metadata"]["annotations"][MODE] == written
        assert cluster.group_labels("a") == {"runai-gpu-group": group}

    def test_before_v018_nothing_is_new(self, cluster: Sharing) -> None:
        node, group = cluster.node(labels=MEMORY), cluster.group()
        made = cluster.share("a", node, group)
        cluster.wait_for("a", "Succeeded")
        assert MODE not in cluster.reservation(group)["metadata"]["annotations"]
        annotations = cluster.get_pod("a")["metadata"]["annotations"]
        assert annotations == {**made["metadata"]["annotations"], "received-resource-type": "Fraction"}

    def test_the_newer_field_is_followed_where_they_differ(self, cluster: Sharing) -> None:
        """N-5."""
        node, group, other = cluster.node(labels=MEMORY), cluster.group(), cluster.group("other")
        ask(cluster, "a", node, {**groups_of("sm-sharing", group), "selectedGPUGroups": [other]})
        cluster.wait_for("a", "Succeeded")
        assert cluster.group_labels("a") == {"runai-gpu-group": group}
        assert cluster.reservations(other) == []

    def test_a_request_with_the_newer_field_alone_is_bound_and_not_deleted(self, cluster: Sharing) -> None:
        """N-5, B-36."""
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask(cluster, "a", node, {**groups_of("time-slicing", group), "selectedGPUGroups": []})
        cluster.wait_for("a", "Succeeded")

    def test_another_mode_than_the_groups_is_refused(self, cluster: Sharing) -> None:
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask(cluster, "a", node, groups_of("sm-sharing", group))
        cluster.wait_for("a", "Succeeded")
        name = f"kai-resource-reservation/{cluster.reservation(group)['metadata']['name']}"
        for pod, spec in (("b", groups_of("time-slicing", group)), ("c", {"selectedGPUGroups": [group]})):
            ask(cluster, pod, node, spec)
            message = cluster.refusal(pod, "ComputeModeConflict")
            assert f"reserved for sm-sharing by pod {name}, and the request is for time-slicing" in message
            assert "nodeName" not in cluster.get_pod(pod)["spec"]
        ask(cluster, "d", node, groups_of("sm-sharing", group))
        cluster.wait_for("d", "Succeeded")

    def test_a_reservation_of_an_older_binder_is_for_time_slicing(self, cluster: Sharing) -> None:
        node, group = cluster.node(labels=MEMORY), cluster.group()
        cluster.share("old", node, group)
        cluster.wait_for("old", "Succeeded")
        ask(cluster, "a", node, groups_of("time-slicing", group))
        cluster.wait_for("a", "Succeeded")
        ask(cluster, "b", node, groups_of("sm-sharing", group))
        assert "reserved for time-slicing" in cluster.refusal("b", "ComputeModeConflict")

    @pytest.mark.parametrize(
        ("entries", "reason", "words"),
        [
            ([{}], "InvalidGPUGroup", "GPU group ''"),
            (
                [{"id": "x", "computeSharingMode": "sm-sharing"}, {"id": "x"}],
                "InvalidGPUGroup",
                "more than once",
            ),
            (
                [{"id": "x", "computeSharingMode": "mps"}],
                "InvalidRequest",
                "computeSharingMode is 'mps', not",
            ),
        ],
    )
    def test_bad_groups_are_named_and_the_request_stays(
        self, cluster: Sharing, entries: list[dict[str, str]], reason: str, words: str
    ) -> None:
        node = cluster.node(labels=MEMORY)
        ask(cluster, "a", node, {"selectedGPUGroups": [], "selectedFractionalGpuGroups": entries})
        assert words in cluster.refusal("a", reason)

    def test_the_memory_that_was_granted_goes_onto_the_pod(self, cluster: Sharing) -> None:
        """N-43: exact where the pod is exact, and only with the Binding."""
        node = cluster.node(labels=MEMORY)
        for name, options in (("half", {}), ("exact", {"memory": "4096"})):
            ask(cluster, name, node, groups_of("time-slicing", cluster.group(name)), **options)
            cluster.wait_for(name, "Succeeded")
        assert cluster.get_pod("half")["metadata"]["annotations"][f"{MAIN}gpu-memory.request"] == "7680Mi"
        assert cluster.get_pod("exact")["metadata"]["annotations"][f"{MAIN}gpu-memory.request"] == "4Gi"

    def test_memory_that_is_not_known_keeps_nobody_from_running(self, cluster: Sharing) -> None:
        """N-44 as decided: the condition says so."""
        node = cluster.node()
        ask(cluster, "a", node, groups_of("time-slicing", cluster.group()))
        cluster.wait_for("a", "Succeeded")
        message = cluster.conditions("a")["GPUSharing"]["message"]
        assert f"its memory is not known: node {node} has no label nvidia.com/gpu.memory" in message
        assert f"{MAIN}gpu-memory.request" not in cluster.get_pod("a")["metadata"]["annotations"]

    def test_annotations_that_make_no_sense_refuse_only_what_knows_of_them(self, cluster: Sharing) -> None:
        """N-41 as decided."""
        node, stray = cluster.node(labels=MEMORY), {"nvidia.com/container.main.colour": "red"}
        cluster.share("old", node, cluster.group("old"), pod={"annotations": stray})
        cluster.wait_for("old", "Succeeded")
        ask(cluster, "a", node, groups_of("time-slicing", cluster.group()), annotations=stray)
        assert "annotation nvidia.com/container.main.colour is not" in cluster.refusal(
            "a", "InvalidGPUConfig"
        )

    def test_numa_memory_groups_go_onto_the_pod(self, cluster: Sharing) -> None:
        """N-46: an empty list, too; what an earlier bind left is taken off."""
        node, key = cluster.node(labels=MEMORY), "kai.scheduler/numa-memory-groups-predicted"
        group = {"memoryNodes": ["0", "1"], "amount": {"memory": "8Gi"}}
        for name, field in (("a", [group]), ("b", []), ("c", None)):
            pod = cluster.pod(name)
            spec = {} if field is None else {"predictedNUMAMemoryGroups": field}
            if name == "c":
                cluster.annotate(name, {key: "[]"})
            cluster.ask(name, node, owner=pod, **spec)
            cluster.wait_for(name, "Succeeded")
            found = cluster.get_pod(name)["metadata"]["annotations"].get(key)
            assert found == (None if field is None else json.dumps(field, separators=(",", ":")))


FRACTIONS = {
    "gpusharing": {"enabled": False},
    "nvfractions": {"enabled": True, "priority": 90, "arguments": {"cdiEnabled": "true"}},
}


@pytest.fixture
def fractions(binders: Binders) -> Iterator[None]:
    """The operator's mode NvFractions (N-25)."""
    binders.start("--plugins", json.dumps(FRACTIONS))
    yield


@pytest.mark.usefixtures("fractions", "agents")
class TestNvFractions:
    """Annotations only."""

    def test_a_share_of_two_devices(self, cluster: Sharing) -> None:
        """N-51 to N-53, U-6."""
        node, groups = cluster.node(labels=MEMORY), [cluster.group("g"), cluster.group("h")]
        limit = {"kai.scheduler/container.main.gpu-memory.portion.limit": "0.8"}
        ask(
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
        ask(cluster, "a", node, groups_of("sm-sharing", cluster.group()), config_map=None, annotations=bad)
        message = cluster.refusal("a", "InvalidGPUConfig")
        assert "may use at most 1536Mi of GPU memory, less than the 7680Mi that it was granted" in message
        names = cluster.get_pod("a")["metadata"]["annotations"]
        assert not [name for name in names if name.startswith("nvidia.com/")]

    def test_without_the_label_no_share_is_bound(self, cluster: Sharing) -> None:
        node = cluster.node()
        ask(cluster, "a", node, groups_of("sm-sharing", cluster.group()), config_map=None)
        assert f"node {node} has no label nvidia.com/gpu.memory" in cluster.refusal("a", "MemoryUnknown")
