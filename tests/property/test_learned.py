"""The environment of policies: it keeps every rule, batches and padding change nothing, and its costs equal those of plans."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.environment import UNPLACED, Environment, PlacementBatch
from shardwright.learned.worlds import SimulatedWorld, step_ms
from shardwright.search.units import PartialPlan
from shardwright.sharding.memory import shard_bytes
from shardwright.testing.model import SimpleCostModel
from tests.strategies import tasks

MODEL = SimpleCostModel()


@st.composite
def placeable(draw: st.DrawFn, tight: bool = True) -> PlacementArrays:
    """A constrained task as arrays; if memory is tight, not every order and choice places all of it."""
    task = roomy = draw(tasks(max_tables=7, constrained=True))
    if tight:
        need = sum(shard_bytes(task, sw.Shard.whole(table, 0)) for table in task.tables)
        memory = max(1, int(need * draw(st.floats(0.3, 3)) / task.topology.devices))
        task = replace(task, topology=replace(task.topology, memory=memory))
    try:
        arrays = PlacementArrays.of(task)
        PartialPlan(task, arrays.units)
    except InfeasibleTask:  # without limits there is always room
        arrays = PlacementArrays.of(replace(roomy, constraints=sw.Constraints()))
    assume(len(arrays))
    return arrays


def orders(batch: PlacementBatch, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    order = np.zeros((batch.episodes, batch.units), dtype=np.int64)
    for row, arrays in zip(order, batch.tasks, strict=True):
        row[: len(arrays)] = rng.permutation(len(arrays))
    return torch.from_numpy(order)


def choose(mask: torch.Tensor, seed: int, step: int) -> torch.Tensor:
    """For each episode one of its possible devices; the choice depends on neither batch nor padding."""
    chosen = [np.flatnonzero(row) for row in mask.numpy()]
    numbers = [np.random.default_rng([seed, step, episode]).integers(1 << 30) for episode in range(len(chosen))]
    return torch.tensor([int(one[n % len(one)]) if len(one) else 0 for one, n in zip(chosen, numbers, strict=True)])


@given(placeable(), st.integers(0, 1000))
@settings(max_examples=40)
def test_a_rollout_keeps_every_rule(arrays, seed):
    """The mask has the devices that the reference placement finds eligible, and a placement of all units is a valid plan."""
    batch = PlacementBatch.of([arrays])
    order = orders(batch, seed)
    environment, reference = Environment(batch, order), PartialPlan(arrays.task, arrays.units)
    while not environment.done:
        unit = arrays.units.free[int(environment.current_e[0])]
        mask = environment.mask()
        try:
            eligible = reference.eligible(unit).tolist()
        except InfeasibleTask:
            eligible = []
        assert np.flatnonzero(mask[0].numpy()).tolist() == eligible
        device = choose(mask, seed, environment.step_index)
        assert bool(environment.step(device, mask)) == bool(eligible)
        if eligible:
            reference.place(unit, int(device))
        assert (environment.used_ed <= batch.memory_ed).all()
    assignment = environment.assignment_eu[0].numpy()
    assert bool(environment.excess_e[0] > 0) == bool((assignment == UNPLACED).any())
    if environment.excess_e[0] == 0:
        plan = arrays.plan(assignment, "random", seed)
        plan.check()
        np.testing.assert_array_equal(environment.used_ed[0].numpy(), plan.memory.total)


@given(st.lists(placeable(), min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=25)
def test_a_batch_is_as_placing_one_task_after_another(found, seed):
    """Padding, order of the batch and the other tasks in it change nothing."""
    batch = PlacementBatch.of(found)
    order = orders(batch, seed)
    together = Environment(batch, order)
    alone = [Environment(PlacementBatch.of([one]), order[e : e + 1, : len(one)]) for e, one in enumerate(found)]
    for step in range(batch.units):
        mask = together.mask()
        device = choose(mask, seed, step)
        placed = together.step(device, mask)
        for e, environment in enumerate(alone):
            if environment.done:
                assert not mask[e].any()
                continue
            own = environment.mask()
            assert torch.equal(mask[e, : own.shape[1]], own[0])
            assert not mask[e, own.shape[1] :].any()
            assert environment.step(device[e : e + 1], own).item() == placed[e]
    for e, environment in enumerate(alone):
        units, devices = environment.batch.units, environment.batch.devices
        assert torch.equal(together.assignment_eu[e, :units], environment.assignment_eu[0])
        assert (together.assignment_eu[e, units:] == UNPLACED).all()
        assert torch.equal(together.used_ed[e, :devices], environment.used_ed[0])
        torch.testing.assert_close(together.excess_e[e], environment.excess_e[0])


@given(st.lists(placeable(), min_size=1, max_size=3), st.integers(0, 1000))
@settings(max_examples=40)
def test_sums_of_a_padded_batch_are_those_of_each_task(found, seed):
    """The networks' inputs, sums of a task's features by unit and device, do not depend on the batch."""
    batch = PlacementBatch.of(found)
    rng = np.random.default_rng(seed)
    assignment = torch.from_numpy(rng.integers(-1, 1, size=(batch.episodes, batch.units)))
    units = batch.by_unit(batch.features_ebf)
    sums = batch.sums(units, assignment) + batch.by_device(batch.fixed_ecf)
    for e, one in enumerate(found):
        single = PlacementBatch.of([one])
        own_units = single.by_unit(single.features_ebf)
        own = single.sums(own_units, assignment[e : e + 1, : len(one)]) + single.by_device(single.fixed_ecf)
        torch.testing.assert_close(units[e, : len(one)], own_units[0])
        torch.testing.assert_close(sums[e, : one.devices], own[0])
        assert not units[e, len(one) :].any()


@given(st.lists(placeable(tight=False), min_size=1, max_size=3), st.integers(0, 1000))
@settings(max_examples=30)
def test_the_simulated_world_costs_what_the_plan_costs(found, seed):
    """With colocated, separated, cut and replicated tables, in one call for several tasks and again."""
    rng = np.random.default_rng(seed)
    placed = [(one, np.array([rng.choice(np.flatnonzero(row)) for row in one.allowed])) for one in found]
    world = SimulatedWorld(MODEL)
    world.costs(placed[::-1])
    for (arrays, assignment), phases in zip(placed, world.costs(placed), strict=True):
        expected = score(arrays.task, arrays.plan(assignment, "random", 0).shards, MODEL)
        columns = [
            [one.forward_ms, one.forward_communication_ms, one.backward_communication_ms, one.backward_ms]
            for one in expected.devices
        ]
        np.testing.assert_allclose(phases, columns, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(step_ms(phases), expected.step_ms, rtol=1e-9)
