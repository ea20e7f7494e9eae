"""The shipped search returns the plan of the oracle, keeps every rule, and ends when it has to."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shardwright.cost import cost_model_for, score
from shardwright.errors import InfeasibleTask
from shardwright.search.neuroshard import Beam, Cuts, NeuroShard, make_pieces
from shardwright.search.units import take_apart
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, impossible_task, task_of
from tests.oracles.neuroshard import Oracle
from tests.unit.search.neuroshard.tasks import FakeNeuroShardModel, constrained, equal_tables, random_task

MODELS = {"simple": SimpleCostModel(), "bundled": cost_model_for("cpu"), "networks": FakeNeuroShardModel()}
SMALL = {"tables_tried": 4, "beam_width": 2, "most_splits": 4}


def shards_of(task: Task, model, **options) -> list:
    plan = NeuroShard(**options).search(task, model, seed=0, deadline=None)
    plan.check()
    return sorted(map(repr, plan.shards))


def assert_as_the_oracle(task: Task, model, **options) -> None:
    renamed = {"score": "score_by", "free_cuts": "cut_large"}
    expected = Oracle(task, model, **{renamed.get(name, name): value for name, value in options.items()}).search()
    if expected is None:
        with pytest.raises(InfeasibleTask):
            NeuroShard(**options).search(task, model, seed=0, deadline=None)
    else:
        assert shards_of(task, model, **options) == sorted(map(repr, expected))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_same_plan_as_the_oracle(seed, devices, model):
    assert_as_the_oracle(random_task(seed, 14, devices), model, **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("room", [1.02, 1.1, 1.4])
def test_same_plan_as_the_oracle_in_tight_memory(room, model):
    assert_as_the_oracle(random_task(7, 12, 4, room=room), model, **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("score", ["embedding", "step"])
def test_same_plan_as_the_oracle_by_either_score(score, model):
    task = random_task(5, 14, 2, hosts=2)
    assert_as_the_oracle(task, model, score=score, **SMALL)


@pytest.mark.parametrize("room", [1.1, 1.4])
def test_same_plan_as_the_oracle_without_free_cuts(room):
    assert_as_the_oracle(random_task(7, 12, 4, room=room), MODELS["bundled"], free_cuts=False, **SMALL)


def test_without_free_cuts_the_beam_halves_what_fits_no_device():
    """One table of twice a device's memory: it is cut before the search, or by its first step, or not at all."""
    wide = Table("wide", rows=100_000, dim=64)
    task = Task([wide, Table("small", rows=1000, dim=16)], Topology(devices_per_host=4, memory="16 MB"), batch_size=64)
    cut = NeuroShard(free_cuts=False).search(task, SimpleCostModel(), seed=0, deadline=None)
    cut.check()
    assert {shard.dim for shard in cut.by_table["wide"]} <= {8, 16, 32}
    assert NeuroShard(most_splits=0).search(task, SimpleCostModel(), seed=0, deadline=None).by_table["wide"]
    with pytest.raises(InfeasibleTask, match="table 'wide'"):
        NeuroShard(free_cuts=False, most_splits=0).search(task, SimpleCostModel(), seed=0, deadline=None)


def test_each_score_finds_the_better_plan_by_itself():
    """Over several tasks, since the greedy inside asks for neither."""
    tasks = [random_task(seed, 30, 4) for seed in range(6)]
    model = MODELS["bundled"]
    costs = {
        by: [
            score(task, NeuroShard(score=by).search(task, model, seed=0, deadline=None).shards, model) for task in tasks
        ]
        for by in ("embedding", "step")
    }
    embedding, step = (
        np.array([[one.embedding_cost_ms, one.step_ms] for one in costs[by]]).sum(axis=0) for by in costs
    )
    assert embedding[0] < step[0]
    assert step[1] < embedding[1]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_same_plan_as_the_oracle_under_constraints(seed, model):
    task = constrained(random_task(seed, 13, 2, hosts=2), seed)
    assert_as_the_oracle(task, model, **SMALL)


@pytest.mark.parametrize("what", conformance_tasks())
def test_same_plan_as_the_oracle_on_the_conformance_tasks(what):
    assert_as_the_oracle(conformance_tasks()[what], SimpleCostModel(), **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_same_plan_as_the_oracle_if_everything_ties(model):
    assert_as_the_oracle(equal_tables(9, 4), model, **SMALL)


@pytest.mark.parametrize("seed", range(2))
def test_same_plan_as_the_oracle_with_the_papers_settings(seed):
    assert_as_the_oracle(random_task(seed, 12, 4), MODELS["bundled"])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_conformance(model):
    check_strategy(NeuroShard(), model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_same_plan_on_one_and_two_threads(model):
    task = random_task(3, 30, 4)
    assert shards_of(task, model, threads=1) == shards_of(task, model, threads=2) == shards_of(task, model, threads=5)


def test_splitting_pays_if_one_table_dominates():
    """One table costs as much as all others: two devices halve the step only if it is cut."""
    heavy = Table("heavy", rows=1000, dim=64, pooling=60.0)
    light = [Table(f"light_{i}", rows=1000, dim=16, pooling=20.0) for i in range(4)]
    task = Task([heavy, *light], Topology(devices_per_host=2), batch_size=4096)
    whole = NeuroShard(most_splits=0).search(task, SimpleCostModel(), seed=0, deadline=None)
    cut = NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None)
    assert {shard.dim for shard in whole.by_table["heavy"]} == {64}
    assert len(cut.by_table["heavy"]) > 1
    assert score(task, cut.shards, SimpleCostModel()).step_ms < score(task, whole.shards, SimpleCostModel()).step_ms


def test_memory_that_only_halves_fit():
    """Three tables of one size on two devices that hold one and a half each: whole they fit nowhere, halved they do."""
    task = replace(impossible_task(), constraints=Constraints())
    memory = task.topology.memory_bytes[0] + 100_000  # ids and offsets of the further piece
    roomier = replace(task, topology=replace(task.topology, memory=memory))
    plan = NeuroShard().search(roomier, SimpleCostModel(), seed=0, deadline=None)
    plan.check()
    assert len(plan.shards) == 4


def test_a_task_that_no_bound_of_the_grid_places_is_tried_without_one():
    """One wide table on two devices: its dim is twice the mean, beyond every bound up to 1.5."""
    task = Task([Table("only", rows=100, dim=12)], Topology(devices_per_host=2), batch_size=16)
    assert len(NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None).shards) == 1


def test_nothing_to_place():
    """If the constraints settle every block, there is nothing to search."""
    limits = {f"t{i}": TableConstraint(sharding_types=("row_wise",)) for i in range(3)}
    task = replace(equal_tables(3, 4), constraints=Constraints(limits))
    assert len(NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None).shards) == 12


def test_infeasible_names_a_table_and_a_remedy():
    with pytest.raises(
        InfeasibleTask, match=r"no device is left for table 'table_2', which needs .* allow column_wise"
    ):
        NeuroShard().search(impossible_task(), SimpleCostModel(), seed=0, deadline=None)


def test_a_deadline_in_the_past_still_gives_a_plan():
    task = task_of(12, 4)
    plan = NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=time.monotonic() - 1)
    plan.check()
    assert sorted(map(repr, plan.shards)) == shards_of(task, SimpleCostModel(), most_splits=0)


@dataclass(frozen=True)
class NegativeHead(SimpleCostModel):
    @property
    def pricing(self):
        return replace(super().pricing, linear=-super().pricing.linear)


def test_negative_predictions_count_as_nothing():
    """All devices look free: the plan is poor, legal, and the oracle's."""
    assert_as_the_oracle(random_task(1, 10, 4), NegativeHead(), **SMALL)


def cuts_of(*dims: int, limits: dict | None = None) -> Cuts:
    """Tables t0, t1, … of these dims, each looked up less than the one before it."""
    tables = [Table(f"t{i}", rows=1000, dim=dim, pooling=1000.0 / 10**i) for i, dim in enumerate(dims)]
    task = Task(tables, Topology(devices_per_host=2), 256, constraints=Constraints(limits or {}))
    return make_pieces(task, take_apart(task), SimpleCostModel())[1]


def run(cuts: Cuts, costs, *, tried=10, kept=3, steps=10, threads=1) -> tuple[Beam, list]:
    """Search with the cost of a state given by its tables' piece counts; also the states priced, as piece counts."""
    seen = []

    def inner(state):
        counts = tuple(np.bincount(cuts.table[state]).tolist())
        seen.append(counts)
        return float(costs(counts)), state

    beam = Beam(NeuroShard(tried, kept, steps, threads=threads), cuts, inner, None)
    beam.search()
    return beam, seen


def counts_of(cuts: Cuts, beam: Beam) -> list[int]:
    return np.bincount(cuts.table[beam.best.state]).tolist()


def test_it_keeps_the_best_seen_not_the_last():
    cuts = cuts_of(64, 64)
    beam, seen = run(cuts, sum)
    assert counts_of(cuts, beam) == [1, 1]
    assert max(map(sum, seen)) == 12  # all ten steps were made


def test_a_state_is_priced_once_however_it_was_reached():
    cuts = cuts_of(8, 8, 8)
    _, seen = run(cuts, sum)
    assert len(seen) == len(set(seen)) == 8


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ctrl_c_gives_the_best_so_far(threads):
    cuts = cuts_of(64, 64, 64)
    calls = []

    def costs(counts):
        calls.append(counts)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return 100 - sum(counts)

    beam, seen = run(cuts, costs, threads=threads)
    assert 4 <= sum(counts_of(cuts, beam)) <= 6
    assert len(seen) < 30


def test_ctrl_c_before_any_placement_ends_the_search():
    cuts = cuts_of(64, 64)

    def costs(counts):
        if sum(counts) > 3:
            raise KeyboardInterrupt
        return np.inf

    with pytest.raises(KeyboardInterrupt):
        run(cuts, costs)
