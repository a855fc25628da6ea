"""What is advised: nothing that would harm pods that work, and nothing that objects could smuggle in."""

import pytest

from controller.explain.answer import Answer
from controller.explain.reads import Read
from controller.explain.remedies import WORDS, filled
from controller.kai.reasons import Reason
from tests.unit.explain.objects import (
    answer,
    condition,
    failed,
    pod,
    reasons,
    request,
    reservation,
    shared,
    state,
)

BROKEN = "container resource-reservation: ErrImagePull: no such image"
TIMEOUT = f"reservation pod kai-resource-reservation/gpu-reservation-g reported no GPU within 40 s: {BROKEN}"
RUNNING = {"phase": "Running"}


def steps(of: Answer) -> str:
    """All that is advised."""
    return "\n".join([step for advice in of.advice for step in advice.steps] + [of.then])


def timed_out(*groups: str) -> dict[str, object]:
    """A request that failed since a reservation's image could not be pulled."""
    conditions = (
        condition(type_, "False", "ReservationTimeout", TIMEOUT) for type_ in ("GPUReserved", "Bound")
    )
    return shared(failed(*conditions), *groups)


class TestReservationsThatOthersUse:
    def test_the_image_was_mended_meanwhile(self) -> None:
        used = reservation(status=RUNNING, device="GPU-1")
        found = answer(timed_out(), pod(), reservations=Read((used,)))
        assert reasons(found) == [Reason.RESERVATION_TIMEOUT]
        assert "delete pod" not in steps(found)
        assert "gpu-reservation-g" not in steps(found)

    def test_of_two_groups_the_other_one_had_the_problem(self) -> None:
        used = reservation("h", RUNNING, device="GPU-1")
        found = answer(timed_out("h", "g"), pod(), reservations=Read((used,)))
        assert reasons(found) == ["ImageOfReservation"]
        assert "delete pod" not in steps(found)

    @pytest.mark.parametrize("first", [True, False])
    def test_the_pod_that_shows_the_problem_is_named(self, *, first: bool) -> None:
        broken, used = reservation(status=state("ErrImagePull")), reservation("h", RUNNING, device="GPU-1")
        groups = ("g", "h") if first else ("h", "g")
        found = answer(timed_out(*groups), pod(), reservations=Read((used, broken)))
        assert reasons(found) == ["ImageOfReservation"]
        assert "kubectl delete pod gpu-reservation-g -n kai-resource-reservation" in steps(found)

    def test_of_two_without_a_device_the_one_with_the_problem_is_named(self) -> None:
        broken, slow = reservation(status=state("ErrImagePull")), reservation("f")
        found = answer(timed_out("f", "g"), pod(), reservations=Read((slow, broken)))
        assert "kubectl delete pod gpu-reservation-g -n kai-resource-reservation" in steps(found)
        assert "gpu-reservation-f" not in steps(found)

    @pytest.mark.parametrize("phase", ["Running", "Failed"])
    def test_only_a_pod_that_has_not_started_is_named(self, phase: str) -> None:
        broken = reservation(status={"phase": phase, **state("ErrImagePull")})
        found = answer(timed_out(), pod(), reservations=Read((broken,)))
        assert reasons(found) == ["ImageOfReservation"]
        assert "delete pod" not in steps(found)

    @pytest.mark.parametrize("read", [Read(), Read(problem="may not list pods")])
    def test_there_may_be_none(self, read: Read) -> None:
        found = answer(timed_out(), pod(), reservations=read)
        assert reasons(found) == ["ImageOfReservation"]
        assert "delete pod" not in steps(found)

    def test_a_group_that_starts_by_now_is_slow_only(self) -> None:
        found = answer(timed_out(), pod(), reservations=Read((reservation(),)))
        assert reasons(found) == [Reason.RESERVATION_TIMEOUT]
        assert "kubectl describe pod gpu-reservation-g -n kai-resource-reservation" in steps(found)


SMUGGLED = "n1; rm -rf ~"


class TestCommandsForCopying:
    @pytest.mark.parametrize("node", [SMUGGLED, "$(reboot)", "-A", "a b", "n" * 300])
    def test_a_node_that_is_no_name_stays_out(self, node: str) -> None:
        item = request(failed(condition("Bound", "False", "NodeGone")), selectedNode=node)
        found = answer(item, pod())
        assert reasons(found) == [Reason.NODE_GONE]
        assert node not in steps(found)
        assert "kubectl get node <node>" in steps(found)

    @pytest.mark.parametrize("word", sorted(WORDS))
    def test_no_word_takes_anything(self, word: str) -> None:
        assert filled(f"a <{word}> b", {word: SMUGGLED}) == f"a <{word}> b"
        assert filled(f"a <{word}> b", {word: "good-1"}) == "a good-1 b"

    def test_groups_and_images_have_patterns_of_their_own(self) -> None:
        assert filled("<group>", {"group": "Shared_GPU.1"}) == "Shared_GPU.1"
        image = "registry.example.com:5000/Team/agent_1:v0.17@sha256:0123abcd"
        assert filled("<image>", {"image": image}) == image
        assert filled("<image>", {"image": "a`reboot`"}) == "<image>"
