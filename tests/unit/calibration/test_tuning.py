from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from shardwright.calibration import tuning
from shardwright.calibration.moves import Moves
from shardwright.calibration.tuning import Tuner
from shardwright.calibration.visits import Candidate, Comparison, pace_by
from shardwright.cost.score import scored
from shardwright.errors import MeasurementFailed
from shardwright.measure import campaign
from shardwright.measure.device_work import Visit
from shardwright.measure.pace import VisitSeconds
from shardwright.measure.store import SampleStore
from shardwright.measure.visits import control_works
from shardwright.search import plan
from shardwright.sharding.checking import check_plan
from shardwright.task import Table, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import tables
from tests.unit.calibration.machines import HiddenMachine
from tests.unit.measure.rows import HERE


def a_task(seed: int, devices: int = 3) -> Task:
    same = [Table(t.name, t.rows, t.dim, t.pooling, access=t.access) for t in tables(14, seed=seed)]
    return Task(same, Topology(devices_per_host=devices, memory="4 GB"), 1024)


def comparison(machine, store=None, seconds=8.0) -> Comparison:
    return Comparison(
        machine,
        (),
        store,
        rng=np.random.default_rng(0),
        until=time.monotonic() + seconds,
        pace=pace_by(machine.base, "cpu"),
    )


def a_tuner(task, machine, measured, seconds=8.0, **more) -> Tuner:
    return Tuner(
        task, "shardwright", machine.base, measured, seed=0, seconds=seconds, keep=more.pop("keep", lambda _: None),
        **more,
    )  # fmt: skip


def true_step(one: Candidate, machine: HiddenMachine) -> float:
    return float(one.step_ms(np.array([machine.truth(work) for work in one.works])))


@pytest.mark.slow
def test_the_best_measured_plan_beats_the_first_if_the_model_is_wrong():
    gains = []
    for seed in range(2):
        machine = HiddenMachine(seed)
        tuner = a_tuner(a_task(seed), machine, comparison(machine))
        tuner.run()
        tuned = tuner.result()
        assert tuned.measured_ms <= tuned.first_ms
        assert tuned.interval_ms[0] <= tuned.measured_ms <= tuned.interval_ms[1]
        assert tuned.floor_ms <= tuned.measured_ms * (1 + 1e-9)
        assert tuned.history[0].round == 0
        assert tuned.history[0].accepted
        tuner.best.plan.check()
        gains.append(true_step(tuner.best, machine) / true_step(tuner.first, machine))
    assert max(gains) < 1.01  # noise of 1%
    assert min(gains) < 0.99


class SlowMachine(HiddenMachine):
    """A machine on whose own clock a visit takes ten times the first guess."""

    now = 0.0

    def visit(self, work):
        visit = super().visit(work)
        took = 10 * float(VisitSeconds().expected([work], [sum(visit.times_ms)])[0])
        self.now += took
        return replace(visit, spent={"runs": took})


def test_too_little_time_for_a_plan_corrects_the_model_and_states_what_fits(monkeypatch):
    machine, task = SlowMachine(0), a_task(0, devices=12)
    for module in (tuning, campaign):
        monkeypatch.setattr(module, "monotonic", lambda: machine.now)
    controls = control_works("cpu", task.optimizer)
    rng = np.random.default_rng(0)
    measured = Comparison(machine, controls, rng=rng, until=30.0, pace=pace_by(machine.base, "cpu"))
    tuner = a_tuner(task, machine, measured, seconds=30.0, began=0.0)
    with pytest.warns(
        UserWarning, match=r"of the 12 devices of the first plan can be measured in 30 s: .* give --minutes 0\.\d"
    ):
        tuner.run()
    assert machine.now <= 30.5
    assert tuner.stopped == "time"
    assert tuner.result() is None
    assert tuner.best is tuner.first
    devices = [work for work in machine.visited if work not in controls]
    assert 0 < len(devices) < 12
    assert tuner.model.scale.mean() > 1.1  # the machine is 30% slower


def test_without_time_nothing_is_visited_but_the_controls():
    machine = HiddenMachine(0)
    tuner = a_tuner(a_task(0), machine, comparison(machine, seconds=0.0), seconds=1e-6)
    with pytest.warns(UserWarning, match="about 0 of the 3 devices"):
        tuner.run()
    assert tuner.model is None
    assert not machine.visited


@pytest.mark.slow
def test_a_first_plan_that_cannot_be_measured_is_an_error():
    machine = HiddenMachine(0, broken_above=0)
    with pytest.raises(MeasurementFailed, match="the first plan cannot be measured: the kernel failed"):
        a_tuner(a_task(0), machine, comparison(machine)).run()


@pytest.mark.slow
def test_ctrl_c_returns_the_best_plan_so_far():
    machine = HiddenMachine(0)
    measured = comparison(machine)

    def interrupt() -> None:
        if len(machine.visited) == 15:
            raise KeyboardInterrupt

    measured.told = interrupt
    tuner = a_tuner(a_task(0), machine, measured)
    tuner.run()
    assert tuner.stopped == "interrupted"
    assert tuner.result().measured_ms <= tuner.result().first_ms


@pytest.mark.slow
def test_earlier_measurements_are_not_repeated(tmp_path):
    task, machine, again = a_task(1), HiddenMachine(1), HiddenMachine(1)
    with SampleStore(tmp_path, HERE) as store:
        first = a_tuner(task, machine, comparison(machine, store))
        first.run()
    with SampleStore(tmp_path, HERE) as store:
        second = a_tuner(task, again, comparison(again, store), earlier=first.best.plan)
        second.run()
    assert not set(again.visited) & {work for work in machine.visited if machine.visited.count(work) > 4}
    assert len(again.visited) < len(machine.visited)
    assert second.result().measured_ms <= first.result().measured_ms * 1.02


def test_chances_count_shared_devices_for_both_plans_alike():
    task, machine = a_task(2), HiddenMachine(2, noise=0.0)
    measured = comparison(machine)
    one, other = (
        Candidate.of(name, plan(task, strategy=name, cost_model=machine.base), 1.0) for name in ("greedy", "size")
    )
    measured.visit([*one.works, *other.works], 2)
    assert measured.chance(one, one) == 0.0
    slower, faster = sorted((one, other), key=lambda c: -true_step(c, machine))
    assert measured.chance(faster, slower) + measured.chance(slower, faster) == pytest.approx(1.0, abs=0.01)
    assert measured.step_ms(one) == pytest.approx(true_step(one, machine))


def test_a_disturbed_visit_is_made_again():
    class Disturbed(HiddenMachine):
        def visit(self, work):
            visit = super().visit(work)
            burst = self.visited.count(work) == 1
            return Visit(visit.forward_ms * (2 if burst else 1), visit.backward_ms, 5, 3.0 if burst else 1.0, 1.0, 0.0)

    machine = Disturbed(0, noise=0.0)
    measured = comparison(machine)
    one = Candidate.of("greedy", plan(a_task(0), strategy="greedy", cost_model=machine.base), 1.0)
    measured.visit(one.works, 1)
    assert measured.step_ms(one) == pytest.approx(true_step(one, machine))


def test_moves_keep_plans_valid_and_promise_the_predicted_difference():
    task, model = a_task(3), SimpleCostModel()
    start = scored(plan(task, strategy="size", cost_model=model), model)
    kernels = np.array([(device.forward_ms, device.backward_ms) for device in start.cost.devices])
    moves = Moves(task, model, start.shards, kernels)
    before = moves.promised_ms(start.shards)
    assert before == pytest.approx(start.cost.step_ms)
    last = before
    for count in (1, 3, 6):
        shards = moves.best(count)
        check_plan(task, shards)
        assert moves.promised_ms(shards) < before
        assert moves.promised_ms(shards) <= last * 1.01
        last = moves.promised_ms(shards)
