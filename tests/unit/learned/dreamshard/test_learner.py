"""Training: it learns, it resumes to the same bits, and it stops with its state saved if costs are not numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.dreamshard.buffer import variants_of
from shardwright.learned.dreamshard.policy import Policy
from shardwright.learned.records import TrainingRecord
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld, step_ms
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import constrained_task, tables
from tests.unit.learned.dreamshard.policies import BRIEF, cost_errors, training_set, whole_tables

pytestmark = pytest.mark.usefixtures("one_thread")

WORLD = SimulatedWorld(SimpleCostModel())


def mean_step(policy, tasks):
    placed = []
    for task in tasks:
        arrays = PlacementArrays.of(task)
        placed.append((arrays, policy.place(policy.encode(arrays))))
    return float(np.mean([step_ms(costs) for costs in WORLD.costs(placed)]))


@pytest.mark.slow
def test_learning_improves_the_policy_on_unseen_tasks_and_the_estimates():
    options = replace(
        BRIEF,
        iterations=6,
        collected=20,
        cost_updates=60,
        cost_batch=32,
        policy_updates=15,
        episodes=8,
    )
    record = TrainingRecord()
    learned = learn(training_set(20), WORLD, options, record=record)
    untrained = learn(
        training_set(20),
        WORLD,
        replace(options, iterations=1, cost_updates=1, policy_updates=1, cost_rate=1e-9, policy_rate=1e-9),
    )
    unseen = training_set(10, first_seed=1000)
    assert mean_step(Policy(learned), unseen) < 0.9 * mean_step(Policy(untrained), unseen)
    assert record.rows[-1]["cost_error"] < 0.5 * record.rows[0]["cost_error"]
    assert {"reward", "entropy", "latency_ms", "cost_error_forward"} <= set(record.rows[-1])
    errors = cost_errors(learned, unseen, WORLD)
    assert set(errors) == {"forward", "backward", "backward_communication", "overall"}
    assert max(errors.values()) < min(1.0, max(cost_errors(untrained, unseen, WORLD).values()))


def test_tasks_of_different_sizes_with_little_memory_train_together():
    mixed = [*training_set(2), *training_set(2, size=4, devices=5), *training_set(1, size=15, devices=2)]
    drawn = tables(12, 5)
    total = sum(table.rows * table.dim * 4 for table in drawn)
    tight = whole_tables(drawn, 3, memory=int(total / 3 * 1.6))
    learned = learn([*mixed, tight], WORLD, BRIEF)
    assert learned.metadata["world"] == WORLD.name
    for task in [*mixed, *training_set(1, size=30, devices=9)]:  # more devices than any in training
        arrays = PlacementArrays.of(task)
        placed = Policy(learned).place(Policy(learned).encode(arrays))
        assert placed.min() >= 0


def test_the_objective_changes_what_is_learned():
    step, embedding = (
        learn(training_set(3), WORLD, replace(BRIEF, iterations=1, objective=objective))
        for objective in ("step", "embedding")
    )
    assert embedding.metadata["objective"] == "embedding"
    assert embedding.weights["cost.scale"][3] < step.weights["cost.scale"][3]


def test_variants_hold_some_tables_of_their_task_changed_in_rows_pooling_and_access_only():
    tasks = [*training_set(2), constrained_task()]
    variants = variants_of(tasks, 5, 0)
    assert len(variants) == 15
    for arrays, task in zip(variants, [task for task in tasks for _ in range(5)], strict=True):
        originals = {table.name: table for table in task.tables}
        assert min(task.topology.devices, len(task.tables)) <= len(arrays.task.tables) <= len(task.tables)
        for table in arrays.task.tables:
            original = originals[table.name]
            assert replace(table, rows=original.rows, pooling=original.pooling, access=original.access) == original
            assert abs(np.log(table.rows / original.rows)) < 1.01 + 1 / original.rows
            assert task.constraints.of(table.name) == arrays.task.constraints.of(table.name)
    assert len({len(arrays.task.tables) for arrays in variants}) > 3
    assert [arrays.task for arrays in variants_of(tasks, 5, 0)] == [arrays.task for arrays in variants]


def test_variants_of_which_a_table_fits_no_device_are_left_out():
    task = training_set(1, size=5)[0]
    largest = int(PlacementArrays.of(task).bytes.max())
    assert 0 < len(variants_of([whole_tables(task.tables, 2, memory=largest)], 20, 0)) < 20
