"""The whole programme of a task, and what its solution says about plans."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.search.exact.pieces import Way
from shardwright.search.exact.placement import Placement, add_memory, add_order, add_placement, add_relations
from shardwright.search.exact.program import Program
from shardwright.search.exact.times import add_kernels, add_links, add_phases, merging_pays
from shardwright.search.exact.ways import column_units, ways_of
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

_ROUNDS = 4
_SMALLEST = 1e-6


@dataclass(frozen=True)
class Effort:
    """How long the solver may take.

    Attributes:
        deadline: `time.monotonic()` at which it has to end; None for no limit.
        max_nodes: most nodes of its search tree; None for no limit.
        tolerance: relative gap at which it stops.
    """

    deadline: float | None
    max_nodes: int | None
    tolerance: float

    @property
    def seconds(self) -> float | None:
        """What is left until the deadline, at least 0."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Answer:
    """What is known of the best plan.

    Attributes:
        shards: of the best plan found; None if there is none.
        bound_ms: no plan made of these ways takes less; infinite if there is none.
    """

    shards: list[Shard] | None
    bound_ms: float


def all_ways(task: Task, cost_model: CostModel, units_per_table: int | None) -> list[Way]:
    """The ways of all tables, with at most `units_per_table` column units each."""
    ways = []
    for table in task.tables:
        units = column_units(table, task.constraints.of(table.name), units_per_table)
        ways += ways_of(task, table, units, merging_pays(task, table, units, cost_model))
    return ways


def solve(task: Task, cost_model: CostModel, ways: Sequence[Way], effort: Effort) -> Answer:
    """The best plan made of these ways.

    The solver keeps memory up to its tolerance only. A plan that takes a few bytes too many is given back so many fewer to try again;
    the bound of the first try stays valid.
    """
    if len({way.table.name for way in ways}) < len(task.tables):
        return Answer(None, np.inf)
    if effort.seconds == 0:
        return Answer(None, -np.inf)
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    unit_ms = _unit_ms(task, cost_model, ways)
    if unit_ms == np.inf:
        return Answer(None, np.inf)
    allowed, bound_ms = memory.copy(), None
    for _ in range(_ROUNDS):
        program, placement = _programme(task, cost_model, ways, allowed.tolist(), unit_ms)
        solution = program.solve(seconds=effort.seconds, nodes=effort.max_nodes, tolerance=effort.tolerance)
        bound_ms = solution.bound * unit_ms if bound_ms is None else bound_ms
        if solution.values is None:
            return Answer(None, bound_ms)
        shards = placement.shards(solution.values)
        excess = np.maximum(memory_account(task, shards).total - memory, 0)
        if not excess.any():
            return Answer(shards, bound_ms)
        allowed = np.maximum(allowed - excess, 1)
    return Answer(None, -np.inf if bound_ms is None else bound_ms)


def _programme(
    task: Task, cost_model: CostModel, ways: Sequence[Way], memory: Sequence[int], unit_ms: float
) -> tuple[Program, Placement]:
    program = Program()
    placement = add_placement(program, task, ways)
    add_memory(program, placement, memory)
    add_relations(program, task, placement)
    add_order(program, task, placement)
    phases = add_phases(program)
    add_kernels(program, task, cost_model, placement, phases, unit_ms)
    add_links(program, task, placement, phases, unit_ms)
    return program, placement


def _unit_ms(task: Task, cost_model: CostModel, ways: Sequence[Way]) -> float:
    """What to count time in, as the solver's tolerances are absolute: the step where nothing need be whole; infinite if there is none.

    That is found with another unit first, the step of whole tables dealt out in turn, which may be many times too large.
    """
    dealt = [Shard.whole(table, turn % task.topology.devices) for turn, table in enumerate(task.tables)]
    first = score(task, dealt, cost_model).step_ms or 1.0
    program, _ = _programme(task, cost_model, ways, task.topology.memory_bytes, first)
    return max(program.relaxed(), _SMALLEST) * first
