"""Tuning by whole steps: which plans are measured, dropped and taken; the times are made up."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.errors import InfeasibleTask, InvalidInput, MeasurementFailed
from shardwright.integrations.torchrec.steps import tuning
from shardwright.integrations.torchrec.steps.phases import PHASES
from shardwright.integrations.torchrec.steps.rank import RankReport
from shardwright.integrations.torchrec.steps.run import Steps
from shardwright.integrations.torchrec.steps.tuning import Difference, next_round, taken, tune_steps
from shardwright.measure.collectives.rank import PlaceInGroup
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.task.sharding_groups import ShardingGroups

pytestmark = pytest.mark.torchrec

SLOW_MINUTES = [1.0, 3.0, 1.2, 0.9, 2.0]  # of the machine, by round


def noisy(step_ms, noise, rounds=5, seed=0):
    """Step ms by round on a machine with slow minutes, which all plans share."""
    own = np.random.default_rng(seed).normal(0, noise, rounds)
    return [step_ms * slow * (1 + error) for slow, error in zip(SLOW_MINUTES, own, strict=False)]


def test_slow_minutes_that_plans_share_are_no_noise():
    difference = Difference.between(noisy(9.0, 0.0), noisy(10.0, 0.0))
    assert difference.share == pytest.approx(-0.1)
    assert difference.faster
    assert not difference.slower
    assert Difference.between(noisy(10.0, 0.0), noisy(9.0, 0.0)).slower


def test_two_rounds_tell_nothing():
    assert not Difference.between(noisy(1.0, 0.0, 2), noisy(10.0, 0.0, 2)).faster
    assert next_round([noisy(10.0, 0.0, 2), noisy(1.0, 0.0, 2)]) == [0, 1]
    assert taken([noisy(10.0, 0.0, 2), noisy(1.0, 0.0, 2)]) == 0


def test_a_plan_that_is_faster_within_the_noise_is_not_taken():
    first, faster = noisy(10.0, 0.03, seed=1), noisy(9.9, 0.03, seed=2)
    assert Difference.between(faster, first).noise > 0.01
    assert taken([first, faster]) == 0
    assert taken([first, noisy(8.0, 0.01, seed=3), noisy(7.0, 0.01, seed=4)]) == 2


def test_slower_plans_are_dropped_and_the_first_one_stays():
    rounds = [noisy(14.0, 0.01), noisy(10.0, 0.05, seed=1), noisy(10.1, 0.05, seed=2), noisy(15.0, 0.01, seed=3)]
    assert next_round(rounds) == [0, 1, 2]
    after = [*rounds[:3], rounds[3][:4]]
    assert next_round(after) == [0, 1, 2]
    assert taken(after) in (1, 2)


def test_a_dropped_plan_does_not_come_back():
    assert taken([noisy(10.0, 0.0), noisy(1.0, 0.0, 4)]) == 0


def test_rounds_end_when_they_would_change_nothing():
    assert next_round([noisy(10.0, 0.0, 1)]) == []
    assert next_round([noisy(10.0, 0.001), noisy(12.0, 0.001, seed=1)]) == []
    assert next_round([noisy(10.0, 0.0001), noisy(10.0, 0.0001, seed=1)]) == []
    assert next_round([noisy(10.0, 0.05), noisy(10.0, 0.05, seed=1)]) == [0, 1]


TABLES = [
    Table("large", 40_000, 32, 8.0),
    Table("middle", 20_000, 32, 4.0),
    Table("small", 500, 16, 2.0),
    Table("clicks", 8_000, 16, 4.0, pooled=False),
]
TASK = Task(TABLES, Topology(devices_per_host=2, memory="100 MB"), 256)


class Ranks:
    """Ranks with made-up times: `step_ms` of a plan, how many plans each call asked for, and the rounds of the calls."""

    def __init__(self, step_ms):
        self.step_ms, self.asked, self.rounds = step_ms, [], []

    @contextmanager
    def __call__(self, plans, world, place, **_):
        def measure(plans, rounds):
            self.asked.append(len(plans))
            self.rounds.append(rounds.seed)
            report = {"phases": {phase: [0.0] for phase in PHASES}, "weights_bytes": 0, "optimizer_bytes": 0}
            return [Steps(plan, [[RankReport(step_ms=[self.step_ms(plan)], **report)] * world]) for plan in plans]

        yield measure


@pytest.fixture
def ranks(monkeypatch):
    """Takes ranks in place of processes, and a plan by size in place of that of TorchRec's planner, which is another process."""
    find = tuning.find_plan

    def find_plan(task, *, strategy, **options):
        return find(task, strategy="size" if strategy == "torchrec" else strategy, **options)

    def install(step_ms):
        made = Ranks(step_ms)
        monkeypatch.setattr(tuning, "ranks", made)
        return made

    monkeypatch.setattr(tuning, "find_plan", find_plan)
    return install


def test_the_plan_of_torchrecs_planner_is_taken_if_faster(ranks):
    ranks(lambda plan: 5.0 if plan.strategy == "size" else 10.0)
    tuned = tune_steps(TASK)
    assert "torchrec" in tuned.name
    assert tuned.plan.strategy == "size"
    assert tuned.plan.task is TASK
    assert tuned.against_first(tuned.name).share == pytest.approx(-0.5)
    assert tuned.stopped == "settled"
    assert tuned.first.plan.strategy != "size"


def test_candidates_differ_and_keep_the_tasks_constraints(ranks):
    rounds = ranks(lambda plan: 10.0).rounds
    constraints = Constraints({"large": TableConstraint(("row_wise",)), "clicks": TableConstraint(devices=(1,))})
    task = replace(TASK, constraints=constraints)
    tuned = tune_steps(task)
    plans = [steps.plan for steps in tuned.candidates.values()]
    assert len({frozenset(plan.shards) for plan in plans}) == len(plans) == rounds.count(0) > 1
    for plan in plans:
        plan.check()
        assert plan.task is task
        assert plan.sharding_type("clicks") != "data_parallel"
    of_small = tuned.candidates[next(name for name in tuned.candidates if "small tables everywhere" in name)].plan
    assert of_small.sharding_type("small") == "data_parallel"
    assert next(iter(tuned.candidates)).startswith("default")
    assert tuned.plan is plans[0]


def test_the_default_plan_keeps_its_bound(ranks):
    ranks(lambda plan: 10.0)
    assert tune_steps(replace(TASK, tables=TABLES[:3])).first.plan.bound_ms is not None


@pytest.mark.filterwarnings("ignore:no two plans can be compared")
def test_without_time_the_default_plan_and_torchrecs_are_measured_once_and_the_default_one_is_taken(ranks):
    rounds = ranks(lambda plan: np.random.default_rng(len(plan.shards)).random()).rounds
    tuned = tune_steps(TASK, minutes=1e-9)
    assert all({"default", "torchrec"} & set(name.split(" = ")) for name in tuned.candidates)
    assert set(rounds) == {0}
    assert tuned.plan is tuned.first.plan
    assert sum("to leave time for measuring" in text for text in tuned.notes) == 4


def test_other_ranks_measure_until_rank_0_has_no_more_plans(ranks, monkeypatch):
    asked = ranks(lambda plan: 10.0).asked
    monkeypatch.setattr(tuning, "place_of_this_process", lambda: PlaceInGroup(1, 2, 1, 2))
    assert tune_steps(TASK) is None
    assert asked == [0]
    monkeypatch.setattr(tuning, "place_of_this_process", lambda: PlaceInGroup(0, 2, 0, 2))
    tune_steps(TASK)
    assert asked[-1] == 0


@pytest.mark.parametrize("rounds", [2, 4])
def test_ctrl_c_keeps_the_fastest_plan_once_there_are_enough_rounds(ranks, rounds):
    rng = np.random.default_rng(0)

    def step_ms(plan):
        if made.rounds[-1] >= rounds:
            raise KeyboardInterrupt
        return 10.0 + 5 * rng.random()

    made = ranks(step_ms)
    if rounds < 3:
        with pytest.raises(KeyboardInterrupt):
            tune_steps(TASK)
    else:
        assert tune_steps(TASK).stopped == "interrupted"


@pytest.mark.parametrize("round_", [0, 2])
def test_a_candidate_that_ends_its_ranks_is_left_out(ranks, round_):
    def step_ms(plan):
        if plan.strategy == "size" and made.rounds[-1] == round_:
            raise MeasurementFailed("rank 1 ended")
        return 10.0 + 0.1 * np.random.default_rng(made.rounds[-1] + len(plan.shards)).random()

    made = ranks(step_ms)
    tuned = tune_steps(TASK)
    assert all("torchrec" not in name for name in tuned.candidates)
    assert any("torchrec" in note and "rank 1 ended" in note for note in tuned.notes)
    assert len({len(steps.reports) for steps in tuned.candidates.values()}) == 1


def test_the_default_plan_has_to_run(ranks):
    def step_ms(plan):
        if plan.strategy != "size":
            raise MeasurementFailed("rank 1 ended")
        return 10.0

    ranks(step_ms)
    with pytest.raises(MeasurementFailed, match="rank 1 ended"):
        tune_steps(TASK)


def test_plans_that_cannot_be_tuned_are_refused(ranks):
    ranks(lambda plan: 10.0)
    with pytest.raises(InvalidInput, match="minutes is 0"):
        tune_steps(TASK, minutes=0)
    with pytest.raises(InvalidInput, match="would be tuned on cpu"):
        tune_steps(replace(TASK, topology=Topology(devices_per_host=2, device="h100")), device="cpu")
    with pytest.raises(InvalidInput, match="leave sharding_groups out"):
        tune_steps(replace(TASK, groups=ShardingGroups(2, 1, 4)))
    with pytest.raises(InfeasibleTask):
        tune_steps(replace(TASK, topology=Topology(devices_per_host=2, memory="1 MB")))
