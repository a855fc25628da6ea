"""Public reports about the memory of shared GPUs and about portions that are none."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from controlplane import ControlPlane, RequestError

from tests.binder import Binder, Binders
from tests.limits import CARD, ENABLED, LIMIT, Limits
from tests.sharing import Agents, PodOptions, playing_agents

ACCOUNT = ("kai-scheduler", "binder")
FALLBACK = {"BINDER_PLUGINS__GPUMEMORYLIMIT__ARGUMENTS": '{"fallbackMemoryMiB":"124610"}'}


@pytest.fixture(scope="module")
def kubelet(control_plane: ControlPlane) -> Iterator[Agents]:
    with playing_agents(control_plane) as agents:
        yield agents


@pytest.fixture
def cluster(control_plane: ControlPlane, kubelet: Agents) -> Limits:
    return Limits.beside(control_plane, kubelet)


@contextmanager
def started(plane: ControlPlane, directory: Path, env: Mapping[str, str]) -> Iterator[Binder]:
    """A binder for the block; each serves the whole server, so there is one at a time."""
    made = Binders(directory, plane.service_account_kubeconfig(*ACCOUNT))
    try:
        yield made.start(env=env)
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="class")
def binder(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Binder]:
    """One with the memory limit turned on, for all tests that need no other settings."""
    with started(control_plane, tmp_path_factory.mktemp("gpu-memory"), ENABLED) as running:
        yield running


def all_are_bound(cluster: Limits, limits: dict[str, str]) -> None:
    """Each pod ends on its node, with this limit."""
    for name in limits:
        cluster.wait_for(name, "Succeeded", within_s=30)
    assert {name: cluster.limit(name) for name in limits} == limits
    assert all(cluster.node_of(name) for name in limits)


@pytest.mark.usefixtures("binder")
class TestWithDefaults:
    """The limit is on, with no arguments."""

    def test_kai_2157_no_pod_runs_uncapped_for_want_of_a_label(self, cluster: Limits) -> None:
        group = cluster.group()
        cluster.limited("a", cluster.card(None), group)
        message = cluster.refusal("a", "MemoryUnknown")
        assert "has no label nvidia.com/gpu.memory" in message
        cluster.assert_nothing_left("a", group)

    def test_kai_1967_and_706_unified_memory_has_no_label(self, cluster: Limits) -> None:
        node = cluster.node(labels={"nvidia.com/gpu.product": "NVIDIA-GB10", "nvidia.com/gpu.count": "1"})
        cluster.limited("a", node)
        message = cluster.refusal("a", "MemoryUnknown")
        assert "the argument fallbackMemoryMiB is not set" in message

    def test_kai_1367_the_limit_is_what_was_asked_for_not_the_rounded_share(self, cluster: Limits) -> None:
        cluster.limited("a", cluster.card("15360"), pod={"memory": "4096"}, portion="0.27")
        all_are_bound(cluster, {"a": "4096m"})
        assert cluster.data("a-shared-gpu-0")["GPU_PORTION"] == "0.27"
        message = cluster.conditions("a")["GPUMemoryLimit"]["message"]
        assert message == "4096 MiB, from gpu-memory; the card has 15360 MiB by its label"

    def test_hami_pr_2156_and_hami_core_pr_190_a_zero_is_never_written(self, cluster: Limits) -> None:
        large, card = cluster.card("81920"), cluster.card("15360")
        cluster.limited("case-a", large, pod={"memory": "300"}, portion="0.00")
        # Our table of cases calls this less than 1 MiB; by the rule that decides, floor(0.001 x 81920), it
        # is 81.
        cluster.limited("case-b", large, pod={"fraction": "0.001"}, portion="0.00")
        group = cluster.group()
        cluster.limited("case-c", card, group, pod={"fraction": None}, portion="0.00006")
        tiny = cluster.group()
        cluster.limited("smaller", large, tiny, pod={"fraction": "0.00001"}, portion="0.00")
        all_are_bound(cluster, {"case-a": "300m", "case-b": "81m"})
        for name, left in (("case-c", group), ("smaller", tiny)):
            assert "less than 1 MiB" in cluster.refusal(name, "MemoryTooSmall")
            assert cluster.reservations(left) == []
        written = cluster.plane.request("GET", cluster.config_maps)["items"]
        values = [item["data"][LIMIT] for item in written if LIMIT in (item.get("data") or {})]
        assert sorted(values) == ["300m", "81m"]

    def test_kai_1798_odd_portions_fail_alone_and_the_worker_lives(self, cluster: Limits) -> None:
        node = cluster.card()
        portions = [
            *("NaN", "nan", "inf", "-inf", "Infinity", "-0.5", "0", "0.0", "0.00", "1.5", "1.01", "+0.5"),
            *(" 0.5 ", "0_5", "0,5", "50%", "500m", "\u0660.\u0665", "\uff10.\uff15", "", "1e-1", "0x1p-1"),
            *(".5", "0.5.0", "half", "None", "%s%n", "0." + "5" * 5000),
        ]
        names = [f"bad-{number}" for number in range(len(portions))]
        for name, portion in zip(names, portions, strict=True):
            cluster.limited(name, node, portion=portion)
        cluster.limited("good", node)
        all_are_bound(cluster, {"good": "7680m"})
        for name, portion in zip(names, portions, strict=True):
            message = cluster.refusal(name, "InvalidPortion", "GPUSharing")
            shown = repr(portion[:64])[1:-1]
            assert f"spec.receivedGPU.portion is '{shown}" in message
            cluster.assert_unbound(name)
        assert len(cluster.all_config_maps()) == 2

    def test_kai_1798_a_portion_that_is_missing(self, cluster: Limits) -> None:
        made, node = cluster.shared_pod("a"), cluster.card()
        for number, gpu in enumerate(({"count": 1}, {}, None)):
            cluster.request(
                f"a-{number}",
                {
                    "podName": "a",
                    "selectedNode": node,
                    "receivedResourceType": "Fraction",
                    "receivedGPU": gpu,
                    "selectedGPUGroups": [cluster.group()],
                },
                made,
            )
            status = cluster.wait_for(f"a-{number}", "Failed")
            assert status["reason"].startswith(
                "GPUSharing InvalidPortion: spec.receivedGPU.portion is missing"
            )
        cluster.assert_unbound("a")

    def test_kai_1798_odd_fractions_of_the_pod_itself(self, cluster: Limits) -> None:
        node = cluster.card()
        fractions = ["NaN", "inf", "-0.5", " 0.5 ", "0_5", "0,5", "50%", "500m", "\u0660.\u0665", "0x1p-1"]
        names = [f"bad-{number}" for number in range(len(fractions))]
        for name, fraction in zip(names, fractions, strict=True):
            cluster.limited(name, node, pod={"fraction": fraction})
        cluster.limited("good", node, pod={"fraction": "5e-1"})
        all_are_bound(cluster, {"good": "7680m"})
        for name, fraction in zip(names, fractions, strict=True):
            message = cluster.refusal(name, "InvalidPortion")
            assert f"annotation gpu-fraction of pod {cluster.namespace}/{name} is {fraction!r}" in message

    def test_kai_416_mib_in_mib_out(self, cluster: Limits) -> None:
        expected = {  # worked out by hand from the exact decimals, rounded down
            "46068": {"0.50": "23034m", "0.33": "15202m", "0.07": "3224m"},
            "15109": {"0.50": "7554m", "0.33": "4985m", "0.07": "1057m"},
            "81559": {"0.50": "40779m", "0.33": "26914m", "0.07": "5709m"},
            "24258": {"0.50": "12129m", "0.33": "8005m", "0.07": "1698m"},
        }
        limits = {}
        for label, by_portion in expected.items():
            node, group = cluster.card(label), cluster.group()
            for portion, limit in by_portion.items():
                name = f"of-{label}-{portion.replace('.', '-')}"
                cluster.limited(name, node, group, portion=portion, pod={"fraction": portion.rstrip("0")})
                limits[name] = limit
        all_are_bound(cluster, limits)

    def test_hami_website_pr_714_units_in_the_annotation(self, cluster: Limits) -> None:
        node = cluster.card()
        memories = ["16Gi", "8000Mi", "2000mb", "4096M", "4Gi", "4096.5", "1e3", "-1", "0", "\u0664\u0660"]
        names = [f"bad-{number}" for number in range(len(memories))]
        for name, memory in zip(names, memories, strict=True):
            cluster.limited(name, node, pod={"memory": memory}, portion="0.27")
        cluster.limited("empty", node, pod={"annotations": {"gpu-memory": ""}})
        cluster.limited("good", node, pod={"memory": "2000"}, portion="0.14")
        all_are_bound(cluster, {"good": "2000m"})
        for name, memory in zip((*names, "empty"), (*memories, ""), strict=True):
            message = cluster.refusal(name, "InvalidGPUMemory")
            assert message == (
                f"annotation gpu-memory of pod {cluster.namespace}/{name} is {memory!r}; "
                "it must be a whole number of MiB, such as 4096"
            )

    def test_kai_257_the_value_under_the_name_of_the_label(self, cluster: Limits) -> None:
        # On the pod nobody reads it: the share counts, and no limit comes from there.
        cluster.limited("a", cluster.card(), pod={"annotations": {CARD: "8000"}})
        all_are_bound(cluster, {"a": "7680m"})

    def test_hami_website_pr_714_units_in_the_label(self, cluster: Limits) -> None:
        for number, label in enumerate(("8000Mi", "16Gi", "0", "-1", "", "15360.0", "1e4")):
            try:
                node = cluster.card(label)
            except RequestError as error:  # the server takes no such text for a label
                if error.status != 422:
                    raise
                continue
            cluster.limited(f"a-{number}", node)
            message = cluster.refusal(f"a-{number}", "InvalidNodeMemory")
            assert message == (
                f"label nvidia.com/gpu.memory of node {node} is {label!r}; it must be a whole number of MiB"
            )

    def test_kai_257_bytes_in_the_label(self, cluster: Limits) -> None:
        node = cluster.card("17179869184")
        cluster.limited("half", node)
        cluster.limited("memory", node, pod={"memory": "16384"}, portion="1.00")
        cluster.limited("excess", node, pod={"memory": "16385"}, portion="1.00")
        all_are_bound(cluster, {"half": "8192m", "memory": "16384m"})
        message = cluster.conditions("half")["GPUMemoryLimit"]["message"]
        assert "16384 MiB by its label (17179869184 bytes)" in message
        assert "16385 MiB" in cluster.refusal("excess", "MemoryExceedsCard")

    def test_hami_website_pr_722_a_label_that_comes_later(self, cluster: Limits) -> None:
        node = cluster.card(None)
        cluster.limited("a", node, backoffLimit=6)
        cluster.wait_for_attempts("a", 1)
        cluster.label(node, "15360")
        cluster.wait_for("a", "Succeeded", within_s=40)
        assert cluster.limit("a") == "7680m"

    def test_hami_website_pr_722_a_label_that_changes_between_attempts(self, cluster: Limits) -> None:
        node = cluster.card("15360")
        with cluster.bindings_denied():
            cluster.limited("a", node, backoffLimit=8)
            cluster.wait_for_attempts("a", 1)
            cluster.label(node, "16384")
        cluster.wait_for("a", "Succeeded", within_s=60)
        assert cluster.limit("a") == "8192m"

    def test_hami_core_prs_81_82_and_hami_1370_the_ends_of_the_range(self, cluster: Limits) -> None:
        node = cluster.card("15360")
        for memory in ("15360", "345", "346", "1"):
            cluster.limited(f"of-{memory}", node, pod={"memory": memory}, portion="1.00")
        two: PodOptions = {"memory": "15360"}
        cluster.limited("two-of-15360", node, cluster.group(), cluster.group(), pod=two, portion="1.00")
        for memory in ("15361", "20000"):
            cluster.limited(f"of-{memory}", node, pod={"memory": memory}, portion="1.00")
        excess: PodOptions = {"memory": "15361"}
        cluster.limited("two-of-15361", node, cluster.group(), cluster.group(), pod=excess, portion="1.00")
        all_are_bound(
            cluster,
            {
                "of-15360": "15360m",
                "of-345": "345m",
                "of-346": "346m",
                "of-1": "1m",
                "two-of-15360": "15360m",  # of each device
            },
        )
        for name, warned in (("of-1", True), ("of-345", True), ("of-346", False), ("of-15360", False)):
            message = cluster.conditions(name)["GPUMemoryLimit"]["message"]
            assert ("CUDA does not start with 345 MiB or less" in message) is warned
        for name, memory in (("of-15361", "15361"), ("of-20000", "20000"), ("two-of-15361", "15361")):
            message = cluster.refusal(name, "MemoryExceedsCard")
            assert f"asks for {memory} MiB" in message
            assert "15360 MiB by its label" in message
            assert node in message


class TestWithTheFallback:
    """The argument fallbackMemoryMiB is set."""

    def test_kai_1967_and_706_unified_memory_with_the_fallback(
        self, cluster: Limits, control_plane: ControlPlane, tmp_path: Path
    ) -> None:
        bare = cluster.node(labels={"nvidia.com/gpu.product": "NVIDIA-GB10", "nvidia.com/gpu.count": "1"})
        labelled, wrong = cluster.card("15360"), cluster.card("unknown")
        with started(control_plane, tmp_path, {**ENABLED, **FALLBACK}):
            cluster.limited("half", bare)
            cluster.limited("memory", bare, pod={"memory": "4096"}, portion="0.04")
            cluster.limited("excess", bare, pod={"memory": "124611"}, portion="1.00")
            cluster.limited("labelled", labelled)
            cluster.limited("wrong", wrong)
            all_are_bound(cluster, {"half": "62305m", "memory": "4096m", "labelled": "7680m"})
            message = cluster.conditions("half")["GPUMemoryLimit"]["message"]
            assert message.endswith("the card is taken to have 124610 MiB, by fallbackMemoryMiB")
            assert "124610 MiB" in cluster.refusal("excess", "MemoryExceedsCard")
            # The fallback is for nodes that say nothing, not for those that say something wrong.
            assert "'unknown'" in cluster.refusal("wrong", "InvalidNodeMemory")
