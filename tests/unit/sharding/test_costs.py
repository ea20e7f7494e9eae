import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.costs import PHASES, DeviceCost, PlanCost

MS = st.floats(0, 1e6)
DEVICES = st.lists(st.builds(DeviceCost, st.just(0), MS, MS, MS, MS, st.just(0)), min_size=1, max_size=4)


def test_a_step_waits_for_the_slowest_device_of_each_phase():
    cost = PlanCost((DeviceCost(0, 1.0, 2.0, 3.0, 4.0, 0), DeviceCost(1, 4.0, 1.0, 1.0, 5.0, 0)))
    assert (cost.step_ms, cost.embedding_cost_ms, cost.compute_ms) == (14.0, 11.0, 9.0)


@given(DEVICES)
def test_no_device_takes_longer_than_the_step_not_even_by_a_rounding(devices):
    cost = PlanCost(tuple(devices))
    assert cost.embedding_cost_ms <= cost.step_ms


@given(DEVICES)
def test_one_device_that_is_the_slowest_in_all_phases_is_the_step(devices):
    slowest = DeviceCost(9, *(max(getattr(device, phase) for device in devices) for phase in PHASES), 0)
    cost = PlanCost((*devices, slowest))
    assert cost.embedding_cost_ms == cost.step_ms == slowest.total_ms


@pytest.mark.parametrize("phase", PHASES)
def test_a_longer_phase_never_shortens_a_step(phase):
    device = DeviceCost(0, 0.1, 0.2, 0.3, 0.7, 0)
    longer = dataclasses.replace(device, **{phase: 0.70000000001})
    assert PlanCost((longer,)).step_ms >= PlanCost((device,)).step_ms
