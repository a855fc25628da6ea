"""Shares as KAI v0.18's scheduler asks for them: groups with a mode, annotations for the node."""

import json

import pytest

from tests.sharing import Sharing, ask_share_of, groups_of, refusal_of

MODE = "nvidia.com/container.resource-reservation.gpu-compute.mode"
MEMORY = {"nvidia.com/gpu.memory": "15360"}
MAIN = "nvidia.com/container.main."


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
        ask_share_of(cluster, "a", node, groups_of(mode, group))
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
        ask_share_of(cluster, "a", node, {**groups_of("sm-sharing", group), "selectedGPUGroups": [other]})
        cluster.wait_for("a", "Succeeded")
        assert cluster.group_labels("a") == {"runai-gpu-group": group}
        assert cluster.reservations(other) == []

    def test_a_request_with_the_newer_field_alone_is_bound_and_not_deleted(self, cluster: Sharing) -> None:
        """N-5, B-36."""
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask_share_of(cluster, "a", node, {**groups_of("time-slicing", group), "selectedGPUGroups": []})
        cluster.wait_for("a", "Succeeded")

    def test_another_mode_than_the_groups_is_refused(self, cluster: Sharing) -> None:
        node, group = cluster.node(labels=MEMORY), cluster.group()
        ask_share_of(cluster, "a", node, groups_of("sm-sharing", group))
        cluster.wait_for("a", "Succeeded")
        name = f"kai-resource-reservation/{cluster.reservation(group)['metadata']['name']}"
        for pod, spec in (("b", groups_of("time-slicing", group)), ("c", {"selectedGPUGroups": [group]})):
            ask_share_of(cluster, pod, node, spec)
            message = refusal_of(cluster, pod, "ComputeModeConflict")
            assert f"reserved for sm-sharing by pod {name}, and the request is for time-slicing" in message
            assert "nodeName" not in cluster.get_pod(pod)["spec"]
        ask_share_of(cluster, "d", node, groups_of("sm-sharing", group))
        cluster.wait_for("d", "Succeeded")

    def test_a_reservation_of_an_older_binder_is_for_time_slicing(self, cluster: Sharing) -> None:
        node, group = cluster.node(labels=MEMORY), cluster.group()
        cluster.share("old", node, group)
        cluster.wait_for("old", "Succeeded")
        ask_share_of(cluster, "a", node, groups_of("time-slicing", group))
        cluster.wait_for("a", "Succeeded")
        ask_share_of(cluster, "b", node, groups_of("sm-sharing", group))
        assert "reserved for time-slicing" in refusal_of(cluster, "b", "ComputeModeConflict")

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
        ask_share_of(cluster, "a", node, {"selectedGPUGroups": [], "selectedFractionalGpuGroups": entries})
        assert words in refusal_of(cluster, "a", reason)

    def test_the_memory_that_was_granted_goes_onto_the_pod(self, cluster: Sharing) -> None:
        """N-43: exact where the pod is exact, and only with the Binding."""
        node = cluster.node(labels=MEMORY)
        for name, options in (("half", {}), ("exact", {"memory": "4096"})):
            ask_share_of(cluster, name, node, groups_of("time-slicing", cluster.group(name)), **options)
            cluster.wait_for(name, "Succeeded")
        assert cluster.get_pod("half")["metadata"]["annotations"][f"{MAIN}gpu-memory.request"] == "7680Mi"
        assert cluster.get_pod("exact")["metadata"]["annotations"][f"{MAIN}gpu-memory.request"] == "4Gi"

    def test_memory_that_is_not_known_keeps_nobody_from_running(self, cluster: Sharing) -> None:
        """N-44 as decided: the condition says so."""
        node = cluster.node()
        ask_share_of(cluster, "a", node, groups_of("time-slicing", cluster.group()))
        cluster.wait_for("a", "Succeeded")
        message = cluster.conditions("a")["GPUSharing"]["message"]
        assert f"its memory is not known: node {node} has no label nvidia.com/gpu.memory" in message
        assert f"{MAIN}gpu-memory.request" not in cluster.get_pod("a")["metadata"]["annotations"]

    def test_annotations_that_make_no_sense_refuse_only_what_knows_of_them(self, cluster: Sharing) -> None:
        """N-41 as decided."""
        node, stray = cluster.node(labels=MEMORY), {"nvidia.com/container.main.colour": "red"}
        cluster.share("old", node, cluster.group("old"), pod={"annotations": stray})
        cluster.wait_for("old", "Succeeded")
        ask_share_of(cluster, "a", node, groups_of("time-slicing", cluster.group()), annotations=stray)
        assert "annotation nvidia.com/container.main.colour is not" in refusal_of(
            cluster, "a", "InvalidGPUConfig"
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
            assert (None if found is None else json.loads(found)) == field
