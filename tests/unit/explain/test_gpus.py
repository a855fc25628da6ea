"""Who is on which GPU: from nodes, pods and requests to the picture."""

import random
from fractions import Fraction
from typing import Any

import pytest

from controller.explain.gpus.model import SharedGPU, Sight
from controller.explain.gpus.narrowing import narrowed
from controller.runtime.client import Object
from tests.gpus import CARD_MIB, UUID, node, only_node, picture, pod, request, reservation, troubles, user


def gpu_of(*items: Object, **read: Any) -> SharedGPU:  # noqa: ANN401
    """The one shared GPU."""
    (found,) = only_node(picture(*items, **read)).shared
    return found


class TestShared:
    def test_two_pods_share_a_gpu_that_a_reservation_holds(self) -> None:
        gpu = gpu_of(reservation("g"), user("b", "g", "0.25"), user("a", "g"))
        assert (gpu.device, gpu.group) == (UUID.format(1), "g")
        assert [str(use.pod) for use in gpu.uses] == ["team/a", "team/b"]
        assert [use.size.mib for use in gpu.uses] == [8192, 4096]
        assert (gpu.portion, gpu.mib, gpu.findings) == (Fraction(3, 4), 12288, ())
        assert gpu.reservation is not None
        assert (gpu.reservation.mode, gpu.reservation.phase) == ("time-slicing", "Running")

    def test_what_is_left_of_the_node_is_free(self) -> None:
        shown = only_node(picture(reservation("g"), user("a", "g")))
        assert (shown.total, shown.held, shown.taken_whole, shown.free) == (2, 1, 0, 1)

    def test_a_pod_of_several_gpus_has_its_share_on_each(self) -> None:
        several = user("a", "unused", labels={"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"})
        del several["metadata"]["labels"]["runai-gpu-group"]
        shown = only_node(picture(reservation("g"), reservation("h", 2), several))
        assert [(gpu.group, [str(use.pod) for use in gpu.uses]) for gpu in shown.shared] == [
            ("g", ["team/a"]),
            ("h", ["team/a"]),
        ]

    def test_ended_pods_do_not_count_and_those_that_go_do(self) -> None:
        ended = user("ended", "g", phase="Succeeded")
        gpu = gpu_of(reservation("g"), ended, user("going", "g", going=True))
        assert [(str(use.pod), use.pod.phase) for use in gpu.uses] == [("team/going", "Terminating")]

    def test_the_mode_is_that_of_the_reservation(self) -> None:
        mode = {"nvidia.com/container.resource-reservation.gpu-compute.mode": "sm-sharing"}
        found = gpu_of(reservation("g", annotations=mode), user("a", "g")).reservation
        assert found is not None
        assert found.mode == "sm-sharing"


class TestWhoIsAUser:
    """The binder's own rules."""

    def test_a_label_alone_is_a_claim(self) -> None:
        claims = pod("claims", labels={"runai-gpu-group": "g"})
        others = user("others", "g", scheduler="other-scheduler")
        assert gpu_of(reservation("g"), claims, others, user("a", "g")).uses[0].pod.name == "team/a"

    def test_what_the_request_gave_counts_more_than_labels(self) -> None:
        liar = user("liar", "other")
        shown = only_node(picture(reservation("g"), liar, requests=(request(liar, "g"),)))
        assert [(gpu.group, len(gpu.uses)) for gpu in shown.shared] == [("g", 1)]

    def test_the_request_of_an_earlier_pod_of_the_name_tells_nothing(self) -> None:
        now = user("a", "g")
        earlier = {**now, "metadata": {**now["metadata"], "uid": "earlier"}}
        shown = only_node(picture(reservation("g"), now, requests=(request(earlier, "other"),)))
        assert [(gpu.group, len(gpu.uses)) for gpu in shown.shared] == [("g", 1)]

    def test_a_reservation_elsewhere_is_one_if_it_holds_a_whole_gpu(self) -> None:
        elsewhere = reservation("g")
        elsewhere["metadata"]["namespace"] = "elsewhere"
        assert gpu_of(elsewhere, user("a", "g")).reservation is not None

    def test_a_reservation_that_lost_its_label_holds_a_gpu_all_the_same(self) -> None:
        lost = reservation("g")
        lost["metadata"]["labels"] = {}
        shown = only_node(picture(lost))
        assert (shown.held, shown.free, shown.shared[0].group) == (1, 1, "")


class TestSizes:
    @pytest.mark.parametrize(
        ("fraction", "memory", "portion", "expected"),
        [
            ("0.333", None, "0.33", (Fraction(333, 1000), 5455)),
            ("0.9", None, "0.25", (Fraction(1, 4), 4096)),  # changed after the bind
            ("abc", None, "0.25", (Fraction(1, 4), 4096)),
            (None, "5000", "0.31", (Fraction(5000, CARD_MIB), 5000)),
            (None, "16384", "0.31", (Fraction(31, 100), 5079)),  # more than was granted
            (None, "abc", "0.31", (Fraction(31, 100), 5079)),
            (None, "12", "0.00", (Fraction(12, CARD_MIB), 12)),  # too small for two decimals
        ],
    )
    def test_with_the_request(
        self, fraction: str | None, memory: str | None, portion: str, expected: tuple[Fraction, int]
    ) -> None:
        one = user("a", "g", fraction, memory=memory)
        gpu = gpu_of(reservation("g"), one, requests=(request(one, "g", portion=portion),))
        assert (gpu.uses[0].size.portion, gpu.uses[0].size.mib) == expected

    @pytest.mark.parametrize(
        ("fraction", "memory", "expected"),
        [
            (".5", None, (Fraction(1, 2), 8192)),
            (None, "4096", (Fraction(1, 4), 4096)),
            ("2", None, (None, None)),
            ("0", None, (None, None)),
            ("NaN", None, (None, None)),
            (None, "-5", (None, None)),
            (None, "1e3", (None, None)),
        ],
    )
    def test_without_the_request(
        self, fraction: str | None, memory: str | None, expected: tuple[Fraction | None, int | None]
    ) -> None:
        size = gpu_of(reservation("g"), user("a", "g", fraction, memory=memory)).uses[0].size
        assert (size.portion, size.mib) == expected

    def test_by_the_annotation_of_the_binder(self) -> None:
        written = {"nvidia.com/container.main.gpu-memory.request": "4Gi"}
        size = gpu_of(reservation("g"), user("a", "g", None, annotations=written)).uses[0].size
        assert (size.portion, size.mib) == (Fraction(1, 4), 4096)

    def test_a_broken_request_is_not_asked(self) -> None:
        one = user("a", "g")
        broken = request(one, "g", spec={"selectedNode": "n", "receivedGPU": "all"})
        assert gpu_of(reservation("g"), one, requests=(broken,)).uses[0].size.mib == 8192

    def test_without_the_card_only_what_is_written(self) -> None:
        bare = (node(memory=None),)
        gpu = gpu_of(reservation("g"), user("a", "g"), user("b", "g", None, memory="100"), nodes=bare)
        assert [(use.size.portion, use.size.mib) for use in gpu.uses] == [
            (Fraction(1, 2), None),
            (None, 100),
        ]
        assert not gpu.all_known


class TestLimits:
    FROM_MAP = ({"name": "LIMIT", "valueFrom": {"configMapKeyRef": {"name": "a-gpu-0", "key": "KEY"}}},)

    def limit(self, one: Object, *, maps: Any = None, conditions: Any = (), variable: str = "LIMIT") -> str:  # noqa: ANN401
        from controller.explain.gpus.shares import limit_of

        found = limit_of(one, request(one, "g", conditions=list(conditions)), maps, variable)
        return f"{found.source} {found.mib}"

    @pytest.mark.parametrize(
        ("text", "mib"),
        [("4096m", 4096), ("4294967296", 4096), ("4g", 4096), ("512K", 1), ("0", None), ("1M", 1)],
    )
    def test_in_the_map_that_is_read_whole(self, text: str, mib: int | None) -> None:
        assert self.limit(user("a", "g"), maps={"a-gpu-0-evar": {"LIMIT": text}}) == f"ConfigMap {mib}"

    def test_in_the_map_that_the_variable_names(self) -> None:
        maps = {"a-gpu-0": {"KEY": "10m"}, "a-gpu-0-evar": {"LIMIT": "99m"}}
        assert self.limit(user("a", "g", env=self.FROM_MAP), maps=maps) == "ConfigMap 10"

    def test_there_is_none_if_the_maps_have_none(self) -> None:
        assert self.limit(user("a", "g"), maps={"a-gpu-0": {}, "a-gpu-0-evar": {}}) == "ConfigMap None"

    def test_nonsense_is_unknown(self) -> None:
        assert self.limit(user("a", "g"), maps={"a-gpu-0-evar": {"LIMIT": "much"}}) == "Unknown None"

    def test_what_the_container_sets_itself_counts(self) -> None:
        own = user("a", "g", env=[{"name": "LIMIT", "value": "7m"}])
        assert self.limit(own, maps={"a-gpu-0-evar": {"LIMIT": "99m"}}) == "Pod 7"

    def test_a_limiter_that_is_switched_off_limits_nothing(self) -> None:
        off = user("a", "g", env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])
        assert self.limit(off, maps={"a-gpu-0-evar": {"LIMIT": "99m"}}) == "Pod None"

    def test_the_annotation_that_kai_goes_by(self) -> None:
        told = user("a", "g", annotations={"nvidia.com/container.main.gpu-memory.limit": "2Gi"})
        assert self.limit(told) == "Annotation 2048"
        assert self.limit(told, maps={"a-gpu-0-evar": {"LIMIT": "99m"}}) == "ConfigMap 99"

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            ([("GPUMemoryLimit", "True", "4096 MiB, from gpu-memory; …")], "Condition 4096"),
            ([("GPUMemoryLimit", "False", "4096 MiB, …")], "Unknown None"),
            ([("GPUMemoryLimit", "True", "nothing to do")], "Unknown None"),
            ([("GPUSharing", "True", "…"), ("Bound", "True", "…")], "Condition None"),
            ([("Bound", "True", "…")], "Unknown None"),
            ([], "Unknown None"),
        ],
    )
    def test_what_the_request_says_where_maps_are_not_read(self, conditions: Any, expected: str) -> None:  # noqa: ANN401
        written = [dict(zip(("type", "status", "message"), item, strict=True)) for item in conditions]
        assert self.limit(user("a", "g"), conditions=written) == expected


class TestWholeGPUsAndSlices:
    def test_whole_gpus_are_counted(self) -> None:
        shown = only_node(picture(pod("w", limits={"nvidia.com/gpu": "2"}), nodes=(node(gpus="8"),)))
        assert [(str(item.pod), item.count) for item in shown.whole] == [("team/w", 2)]
        assert (shown.taken_whole, shown.free, shown.findings) == (2, 6, ())

    def test_init_containers_count_as_kubernetes_counts_them(self) -> None:
        def wants(count: str, **more: str) -> Object:
            return {"name": count, "resources": {"requests": {"nvidia.com/gpu": count}}, **more}

        once = pod("once", limits={"nvidia.com/gpu": "1"}, init=[wants("3")])
        stays = pod(
            "stays", limits={"nvidia.com/gpu": "1"}, init=[wants("2", restartPolicy="Always"), wants("1")]
        )
        shown = only_node(picture(once, stays, nodes=(node(gpus="8"),)))
        assert [item.count for item in shown.whole] == [3, 3]

    def test_slices_of_each_profile(self) -> None:
        used = pod("m", limits={"nvidia.com/mig-1g.5gb": "2"})
        shown = only_node(picture(used, nodes=(node(gpus=None, **{"1g_5gb": "7", "3g_20gb": "1"}),)))
        assert [(item.profile, item.used, item.total) for item in shown.slices] == [
            ("1g.5gb", 2, 7),
            ("3g.20gb", 0, 1),
        ]

    def test_pods_and_nodes_without_gpus_are_not_there(self) -> None:
        assert picture(pod("cpu", limits={"cpu": "1"}), nodes=(node(gpus="0"),)).nodes == ()


class TestTroubles:
    def test_shares_that_pass_the_card(self) -> None:
        shown = picture(reservation("g"), *(user(name, "g") for name in "abc"))
        assert troubles(shown) == ["OverCommitted"]
        assert shown.findings[0][2].message == (
            "the shares of team/a, team/b, team/c are 150% of the card, 24576 of 16384 MiB"
        )

    def test_shares_that_fill_the_card_do_not_pass_it(self) -> None:
        thirds = [
            user(name, "g", None, memory=str(mib))
            for name, mib in zip("abc", (5461, 5461, 5462), strict=True)
        ]
        assert troubles(picture(reservation("g"), *thirds)) == []

    def test_memory_may_pass_the_card_too(self) -> None:
        both = user("a", "g", None, memory="8192"), user("b", "g", None, memory="8195")
        assert troubles(picture(reservation("g"), *both)) == ["OverCommitted"]

    @pytest.mark.parametrize("card", [None, "16384"])
    def test_rounded_grants_that_fill_the_card_do_not_pass_it(self, card: str | None) -> None:
        sixths = [user(name, "g", None, memory="2730" if card is None else "?") for name in "abcdef"]
        grants = tuple(request(item, "g", portion="0.17") for item in sixths)
        shown = picture(reservation("g"), *sixths, requests=grants, nodes=(node(memory=card),))
        assert only_node(shown).shared[0].portion == Fraction(102, 100)
        assert troubles(shown) == []
        more = user("g", "g", "0.05")
        assert troubles(
            picture(reservation("g"), *sixths, more, requests=grants, nodes=(node(memory=card),))
        ) == ["OverCommitted"]

    @pytest.mark.parametrize("card", [None, "16384"])
    def test_fractions_that_were_cut_off_do_not_pass_it(self, card: str | None) -> None:
        sixths = [user(name, "g", "0.166666667") for name in "abcdef"]
        assert troubles(picture(reservation("g"), *sixths, nodes=(node(memory=card),))) == []
        more = user("g", "g", "0.04")
        assert troubles(picture(reservation("g"), *sixths, more, nodes=(node(memory=card),))) == [
            "OverCommitted"
        ]

    def test_users_without_a_reservation(self) -> None:
        shown = picture(user("a", "g"))
        assert troubles(shown) == ["NoReservation"]
        assert shown.findings[0][2].message == "no reservation pod holds GPU group g on node n for team/a"
        assert only_node(shown).held == 0

    def test_a_reservation_on_another_node_holds_nothing_here(self) -> None:
        shown = picture(reservation("g", on="m"), user("a", "g"), nodes=(node(), node("m")))
        assert sorted(troubles(shown)) == ["NoReservation", "UnusedReservation"]

    def test_a_reservation_without_users(self) -> None:
        assert troubles(picture(reservation("g"))) == ["UnusedReservation"]

    @pytest.mark.parametrize("phase", ["", "Pending"])
    def test_a_request_that_is_being_worked_on_explains_it(self, phase: str) -> None:
        waits = request(user("a", "g"), "g", phase=phase)
        gpu = gpu_of(reservation("g", None), requests=(waits,))
        assert (gpu.awaited, gpu.findings) == (True, ())

    def test_so_does_one_that_ended_after_the_pods_were_read(self) -> None:
        one = user("a", "g")
        assert troubles(picture(reservation("g"), later=(request(one, "g"),))) == []
        ended = request(one, "g")
        assert troubles(picture(reservation("g"), requests=(ended,), later=(ended,))) == ["UnusedReservation"]

    @pytest.mark.parametrize("hidden", [Sight(pods=False), Sight(requests=False)])
    def test_what_may_be_hidden_is_not_wrong(self, hidden: Sight) -> None:
        assert troubles(picture(reservation("g"), sight=hidden)) == []

    def test_nor_is_a_reservation_that_may_be_hidden(self) -> None:
        assert troubles(picture(user("a", "g"), sight=Sight(reservations=False))) == []
        assert troubles(picture(user("a", "g"), nodes=(), sight=Sight(nodes=False))) == ["NoReservation"]

    def test_two_reservations_of_a_group(self) -> None:
        shown = picture(
            reservation("g", 1, "gpu-reservation-1"), reservation("g", 2, "gpu-reservation-2"), user("a", "g")
        )
        assert troubles(shown) == ["DuplicateReservation", "UnusedReservation"]

    def test_users_are_on_the_device_that_they_were_told(self) -> None:
        rivals = reservation("g", 1, "gpu-reservation-1"), reservation("g", 2, "gpu-reservation-2")
        one = user("a", "g")
        maps = {"team-a": {"a-gpu-0-evar": {"NVIDIA_VISIBLE_DEVICES": UUID.format(2)}}}
        shown = only_node(picture(*rivals, one, maps=maps))
        assert [len(gpu.uses) for gpu in shown.shared] == [0, 1]

    def test_two_groups_with_one_device(self) -> None:
        shown = picture(reservation("g"), reservation("h"), user("a", "g"), user("b", "h"))
        assert troubles(shown) == ["DuplicateDevice"]

    def test_a_pod_that_was_told_another_device(self) -> None:
        maps = {"team-a": {"a-gpu-0-evar": {"NVIDIA_VISIBLE_DEVICES": UUID.format(7)}}}
        assert troubles(picture(reservation("g"), user("a", "g"), maps=maps)) == ["OtherDevice"]

    @pytest.mark.parametrize("named", ["k8s.device-plugin.nvidia.com/gpu={}", "{}", "other,{}"])
    def test_a_pod_that_was_told_its_device_in_any_way(self, named: str) -> None:
        maps = {"team-a": {"a-gpu-0-evar": {"NVIDIA_VISIBLE_DEVICES": named.format(UUID.format(1))}}}
        assert troubles(picture(reservation("g"), user("a", "g"), maps=maps)) == []

    @pytest.mark.parametrize("report", ["all", "GPU-1,GPU-2", "\x1b[31mred"])
    def test_a_report_that_is_not_one_device(self, report: str) -> None:
        wrong = reservation("g", annotations={"run.ai/reserve_for_gpu_index": report})
        shown = picture(wrong, user("a", "g"))
        assert troubles(shown) == ["NoDevice"]
        assert only_node(shown).shared[0].device == ""

    def test_users_of_a_silent_reservation(self) -> None:
        assert troubles(picture(reservation("g", None), user("a", "g"))) == ["NoDevice"]

    def test_more_gpus_used_than_there_are(self) -> None:
        shown = picture(reservation("g"), user("a", "g"), pod("w", limits={"nvidia.com/gpu": "2"}))
        assert troubles(shown) == ["TooManyGPUs"]
        assert only_node(shown).free == 0
        slices = pod("m", limits={"nvidia.com/mig-1g.5gb": "1"})
        assert troubles(picture(slices)) == ["TooManyGPUs"]

    @pytest.mark.parametrize("label", ["much", "0", "-5", "1.5", "9" * 40])
    def test_a_label_that_lies(self, label: str) -> None:
        shown = picture(reservation("g"), user("a", "g"), nodes=(node(memory=label),))
        assert troubles(shown) == ["InvalidNodeMemory"]
        assert only_node(shown).card_mib is None

    @pytest.mark.parametrize("gpus", ["many", "-3", True, None, {"a": 1}])
    def test_a_number_of_gpus_that_is_none(self, gpus: object) -> None:
        assert only_node(picture(reservation("g"), user("a", "g"), nodes=(node(gpus=gpus),))).total == 0

    def test_a_node_that_is_gone(self) -> None:
        shown = picture(reservation("g"), user("a", "g"), nodes=())
        assert troubles(shown) == ["NodeGone"]
        assert (only_node(shown).total, only_node(shown).free) == (None, None)


class TestReservationsThatMayNotBeRead:
    HIDDEN = Sight(reservations=False, pods=False)

    def test_a_group_in_use_is_held_all_the_same(self) -> None:
        shown = only_node(picture(user("a", "g"), user("b", "h"), sight=self.HIDDEN))
        assert (shown.held, shown.free) == (2, 0)
        assert shown.findings == ()

    def test_it_might_be_held_by_nobody(self) -> None:
        shown = picture(*(user(name, name) for name in "abc"), sight=self.HIDDEN)
        assert (only_node(shown).held, troubles(shown)) == (3, [])


class TestOfANamespace:
    def test_others_become_one(self) -> None:
        mine, theirs = user("a", "g", "0.25"), [user(name, "g", "0.25", namespace="else") for name in "bc"]
        slices = pod("m", namespace="else", limits={"nvidia.com/mig-1g.5gb": "1"})
        whole = pod("w", namespace="else", limits={"nvidia.com/gpu": "1"})
        nodes = (node(**{"1g_5gb": "7"}), node("elsewhere"))
        shown = only_node(
            narrowed(picture(reservation("g"), mine, *theirs, slices, whole, nodes=nodes), "team")
        )
        (gpu,) = shown.shared
        assert [(str(use.pod), use.size.portion, use.size.mib) for use in gpu.uses] == [
            ("team/a", Fraction(1, 4), 4096),
            ("2 others", Fraction(1, 2), 8192),
        ]
        assert [str(item.pod) for item in (*shown.whole, *shown.slices[0].holdings)] == ["1 other"] * 2

    def test_an_unknown_share_among_others_stays_unknown(self) -> None:
        theirs = [user("b", "g", "0.25", namespace="else"), user("c", "g", "?", namespace="else")]
        shown = narrowed(picture(reservation("g"), user("a", "g"), *theirs), "team")
        (gpu,) = only_node(shown).shared
        assert gpu.uses[1].size.portion is None

    def test_nodes_without_pods_of_it_are_left_out(self) -> None:
        assert narrowed(picture(reservation("g"), user("a", "g")), "other").nodes == ()


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_the_pods(seed: int) -> None:
    """Whatever pods there are: none is lost, none counts twice, and what is left is free."""
    chance = random.Random(seed)  # noqa: S311 -- for repeatable pods
    total = chance.randrange(1, 9)
    pods, portions, held, whole = [], Fraction(0), 0, 0
    for number in range(chance.randrange(0, 6)):
        held += 1
        pods.append(reservation(f"g{number}", number))
        for place in range(chance.randrange(0, 5)):
            hundredths = chance.randrange(1, 100)
            portions += Fraction(hundredths, 100)
            pods.append(user(f"u{number}-{place}", f"g{number}", f"{hundredths / 100:.2f}"))
    for number in range(chance.randrange(0, 4)):
        count = chance.randrange(1, 3)
        whole += count
        pods.append(pod(f"w{number}", limits={"nvidia.com/gpu": str(count)}))
    chance.shuffle(pods)
    shown = only_node(picture(*pods, nodes=(node(gpus=str(total)),)))
    assert sum((gpu.portion for gpu in shown.shared), Fraction(0)) == portions
    assert (shown.held, shown.taken_whole, shown.free) == (held, whole, max(0, total - held - whole))
    names = [str(use.pod) for gpu in shown.shared for use in gpu.uses] + [
        str(item.pod) for item in shown.whole
    ]
    assert len(names) == len(set(names)) == len(pods) - held
    over = {gpu.group for gpu in shown.shared if gpu.portion > 1}
    found = {gpu.group for gpu in shown.shared if any(f.trouble == "OverCommitted" for f in gpu.findings)}
    assert found == over
    assert ("TooManyGPUs" in [f.trouble for f in shown.findings]) == (held + whole > total)


def test_a_gpu_by_an_extended_claim_is_not_the_device_plugins() -> None:
    train = pod("train", limits={"nvidia.com/gpu": "1"})
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    train["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c", "requestMappings": [mapping]}
    assert troubles(picture(train, nodes=(node(gpus=None),))) == []
    mapping["containerName"] = "another"
    assert troubles(picture(train, nodes=(node(gpus=None),))) != []
