"""The plan follows from its seed."""

import pytest

from tests.chaos.plan import KINDS, LANES, MOST_REQUESTS, make_plan


def test_a_seed_makes_the_same_plan_again() -> None:
    assert make_plan(7, 60) == make_plan(7, 60)
    assert make_plan(7, 60) != make_plan(8, 60)


@pytest.mark.parametrize("seed", range(20))
def test_all_kinds_come_and_all_faults(seed: int) -> None:
    plan = make_plan(seed, 240)
    assert {ask.kind for ask in plan.asks} == set(KINDS)
    assert len(plan.asks) == MOST_REQUESTS == len({ask.name for ask in plan.asks})
    assert [ask.at_s for ask in plan.asks] == sorted(ask.at_s for ask in plan.asks)
    for lane, faults in LANES.items():
        assert {trouble.fault for trouble in plan.lanes[lane]} == set(faults)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_a_lane_follow_each_other(seed: int) -> None:
    plan = make_plan(seed, 60)
    for troubles in plan.lanes.values():
        ends_s = 0.0
        for trouble in troubles:
            assert trouble.at_s > ends_s
            ends_s = trouble.at_s + trouble.lasts_s
        assert ends_s <= plan.length_s


def test_a_calm_plan_has_no_faults() -> None:
    assert not any(make_plan(1, 60, calm=True).lanes.values())
