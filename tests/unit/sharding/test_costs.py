import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.report.document import tuning_data
from shardwright.sharding import Plan
from shardwright.sharding.costs import PHASES, DeviceCost, PlanCost, Trial, Tuning, expected_slowest
from tests.unit.report.plans import mixed_plan

MS = st.floats(0, 1e6)
DEVICES = st.lists(st.builds(DeviceCost, st.just(0), MS, MS, MS, MS, st.just(0)), min_size=1, max_size=4)


def test_a_step_waits_for_the_slowest_device_of_each_phase():
    cost = PlanCost((DeviceCost(0, 1.0, 2.0, 3.0, 4.0, 0), DeviceCost(1, 4.0, 1.0, 1.0, 5.0, 0)))
    assert (cost.step_ms, cost.embedding_cost_ms, cost.compute_ms) == (14.0, 11.0, 9.0)


@pytest.mark.parametrize(("devices", "deviations"), [(1, 0.0), (2, 0.564), (4, 1.029), (8, 1.424), (128, 2.646)])
def test_the_slowest_of_equal_devices_is_the_one_with_the_largest_error(devices, deviations):
    """`deviations` is the known mean of the largest of n standard normal numbers."""
    assert expected_slowest(np.full(devices, 10.0), 0.05) == pytest.approx(10 * (1 + 0.05 * deviations), rel=2e-3)
    cost = PlanCost((DeviceCost(0, 2.0, 9.0, 9.0, 3.0, 0),) * devices)
    error = 0.05 * np.sqrt(2 / np.pi)  # mean absolute
    assert cost.expected_compute_ms(error) == pytest.approx(5 * (1 + 0.05 * deviations), rel=2e-3)


@given(st.lists(MS, min_size=1, max_size=9), st.floats(0, 0.3))
def test_errors_never_make_the_slowest_device_quicker(times, error):
    ms = np.array(times)
    assert expected_slowest(ms, 0.0) == pytest.approx(ms.max())
    assert expected_slowest(ms, error) >= ms.max() * (1 - 1e-9)
    assert expected_slowest(np.append(ms, 10 * ms.max()), 0.05) == pytest.approx(10 * ms.max())


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


def tuned_plan(**fields) -> Plan:
    trials = (Trial(0, "certified", 1.0, 1.3, True), Trial(1, "2 moves", 1.25, 1.2, True))
    tuning = Tuning(1.2, (1.1, 1.3), 1.3, (1.25, 1.4), 1.15, (0.5,) * 4, (0.7,) * 4, trials)
    return replace(mixed_plan(), tuning=replace(tuning, **fields))


def test_a_plan_file_keeps_what_was_measured(tmp_path):
    path = tmp_path / "plan.json"
    tuned_plan().save(path)
    assert Plan.load(path).tuning == tuned_plan().tuning
    assert tuned_plan().tuning.above_floor == pytest.approx(1.2 / 1.15 - 1)
    mixed_plan().save(path)
    assert Plan.load(path).tuning is None
    assert "tuning" not in json.loads(path.read_text())


def test_a_report_has_every_trial():
    data = tuning_data(tuned_plan())
    assert data["trials"] == [["certified", 0, 1.0, 1.3, 1], ["2 moves", 1, 1.25, 1.2, 1]]
    assert data["intervalMs"] == [1.1, 1.3]
    assert tuning_data(mixed_plan()) is None
