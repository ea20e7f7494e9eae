"""The integer program of a task: the times of the four phases as inequalities, exactly as `cost.score` computes them.

Kernels. A fused call takes max(0, Σ_h mix_h · max(0, a_h) + linear · z + bias). Here z is the sum of its pieces' encodings, and
a = hidden · z + hidden_bias. With mix ≥ 0 a minimum lies on the epigraph: u_h ≥ 0, u_h ≥ a_h, call ≥ mix · u + linear · z + bias,
call ≥ 0, and phase ≥ the sum of a device's calls. Hidden units that cannot change sign over all placements need no variable. A call without
a piece costs nothing: its row is lifted by the head's value at a sum of zero. No lift is needed if devices make one call at most and
every piece adds time to it: an empty call is then never the slowest.

Gates. A gate adds extra · z if some piece of the call opens it, else nothing. This is not convex, so each gate of a call has a binary w,
1 if such a piece is taken: extra ms ≥ extra · z - most · (1 - w), and ≥ 0, where `most` is the most that extra · z can be.

Links. On each device a pass takes the time of its all-to-alls over the slower link class in the busier direction, plus that of its other
collectives, linear in the pieces. In addition, every device pays the latencies of the sets of collectives in use: a variable for each set,
at least 1 if a table is made in a way that needs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.blocks import check_finite
from shardwright.cost.collectives import prices_of, set_of
from shardwright.cost.flows import traffic_by_kind, value_bytes
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.score import passes_of, score
from shardwright.linear_programs import Program
from shardwright.search.exact.placement import (
    PlacementVariables,
    Way,
    add_memory,
    add_order,
    add_placement,
    add_present,
    add_relations,
    column_units,
    ways_of,
)
from shardwright.sharding.costs import KERNELS, LINKS
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import numbered_calls, shard_work
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_ROUNDING = 1e-12


EACH_PHASE = ((0,), (1,), (2,), (3,))
"""The objective of a plan: the sum over phases of the maximum over devices."""


def add_phases(program: Program, devices: int, maxima: Sequence[Sequence[int]] = EACH_PHASE) -> Ints:
    """Add variables above the times of phases; the program minimises their sum. Times are in multiples of a unit.

    Args:
        program: the program.
        devices: how many devices there are.
        maxima: groups of phases; each counts as the maximum over devices of its sum. Fewer groups make a weaker objective; without groups
            it is the mean device's. Such objectives show how much a stronger bound could gain.

    Returns:
        `(devices, 4)` a variable for each device and phase, in the order of `sharding.costs.PHASES`.
    """
    phases = len(EACH_PHASE)
    if maxima == EACH_PHASE:
        return np.tile(program.variables(np.full(phases, np.inf), cost=1.0), (devices, 1))
    mean = 0.0 if maxima else 1.0 / devices
    times = program.variables(np.full(devices * phases, np.inf), cost=mean).reshape(devices, phases)
    for group in maxima:
        (largest,) = program.variables([np.inf], cost=1.0)
        for of_device in times[:, list(group)]:
            program.row([largest, *of_device], [1.0, *-np.ones(len(group))], low=0.0)
    return times


def add_kernels(
    program: Program, task: Task, cost_model: CostModel, placement: PlacementVariables, times: Ints, unit_ms: float
) -> None:
    """Add rows for the forward and backward kernels of every device.

    Raises:
        ShardwrightError: the cost model gave numbers that are not finite.
    """
    works = [shard_work(task, piece.shard) for piece in placement.pieces]
    latents, call = cost_model.encode(works) / unit_ms, np.array(numbered_calls(works))
    check_finite(latents, cost_model)
    pricing = _in_units(cost_model.pricing, unit_ms)
    empty = np.maximum(pricing.mix @ np.maximum(pricing.hidden_bias, 0.0) + pricing.bias, 0.0)
    several = bool((call > 0).any())
    lifted = empty.any() and (several or not _only_grows(pricing, latents))
    for rank in range(task.topology.devices):
        on_device, of_calls = placement.on(rank), []
        for kind in np.unique(call[on_device]):
            held = on_device[call[on_device] == kind]
            sums = program.variables(np.full(latents.shape[1], np.inf), low=-np.inf)
            for column, variable in enumerate(sums):
                program.row([*placement.taken[held], variable], [*latents[held, column], -1.0], 0.0, 0.0)
            units = latents[held] @ pricing.hidden.T
            low, high = _ranges(placement, held, units)
            lift = (add_present(program, placement, held), empty) if lifted else None
            of_calls.append(program.variables(np.full(2, np.inf)))
            _add_head(program, pricing, sums, (low, high), of_calls[-1], lift)
            for gate in range(len(units.T) - 3 * pricing.gates, len(units.T), 3):
                of_calls.append(
                    _add_gate(program, placement, held, units[:, gate : gate + 3], high[gate + 1 : gate + 3])
                )
        for kind, phase in enumerate(times[rank, KERNELS]):
            calls = [variables[kind] for variables in of_calls]
            program.row([phase, *calls], [1.0, *-np.ones(len(calls))], low=pricing.once[kind])


def merging_pays(task: Task, table: Table, units: int, cost_model: CostModel) -> bool:
    """Whether two column blocks of a table on one device never cost less than one as wide as both.

    Times only grow with the pre-activations and the linear parts, so it is enough that none of these is smaller for the two blocks.
    Memory and traffic never are. For sequence tables this does not hold: blocks of different dims are in different fused calls.
    """
    if not table.pooled:
        return units == 1
    pricing = cost_model.pricing
    blocks = [Shard(table.name, (0, table.rows), (0, table.dim * n // units), (0,)) for n in range(1, units + 1)]
    latents = cost_model.encode([shard_work(task, block) for block in blocks])
    parts = np.hstack([latents @ pricing.hidden[pricing.matters].T, latents @ pricing.linear.T])
    slack = _ROUNDING * np.abs(parts).max(axis=0)
    return all(
        bool((parts[width:] <= parts[: units - width] + parts[width - 1] + slack).all())
        for width in range(1, units // 2 + 1)
    )


def add_links(program: Program, task: Task, placement: PlacementVariables, times: Ints, unit_ms: float) -> None:
    """Add rows for the forward and backward collectives of every device."""
    topology, prices = task.topology, prices_of(task)
    if topology.devices == 1:
        return
    each, apart = _link_ms(program, task, placement)
    each, apart = each / unit_ms, apart / unit_ms
    used, waits = _add_sets(program, placement), np.column_stack([prices.sets, prices.inputs]) / unit_ms
    slower = prices.mean[0] / prices.forward  # if all devices send
    for phase, kinds, hidden_ms in _lines(task):
        of_kinds, of_others, of_sets = (
            part @ kinds for part in (np.moveaxis(each, 1, -1), np.moveaxis(apart, 1, -1), waits)
        )

        peers, devices = _peers(topology), topology.devices
        loads = [(rank, of_kinds[:, way, link, rank]) for link, way, rank in np.ndindex(2, 2, devices) if peers[link]]
        for way, link, rank in np.ndindex(2, 2, devices):
            if slower[link] > 1.0 and peers[link]:
                group = topology.devices_per_host if topology.devices_per_host > 1 else devices
                first = rank // group * group
                mean = of_kinds[:, way, link, first : first + group].mean(axis=1)
                loads.append((rank, mean * slower[link]))
        for rank, load in loads:
            of_pieces = load + of_others[:, rank]
            some = np.flatnonzero(of_pieces)
            columns = [*placement.taken[some], times[rank, LINKS][phase], *used.values()]
            program.row(columns, [*-of_pieces[some], 1.0, *(-of_sets[kind] for kind in used)], low=-hidden_ms / unit_ms)


def _lines(task: Task) -> list[tuple[int, tuple[float, float, float], float]]:
    """Lower limits of each pass: the pass, shares of the traffic forward, backward and of ids, and ms behind dense layers."""
    hidden = task.exchange.hidden
    lines = [(0, (1.0, 0.0, 0.0), hidden.values + hidden.ids), (1, (0.0, 1.0, 0.0), hidden.gradients)]
    if hidden.values:
        lines.append((0, (0.0, 0.0, 1.0), hidden.ids))
    if hidden.ids:
        lines.append((0, (1.0, 0.0, -1.0), hidden.values))
    return lines


def _link_ms(program: Program, task: Task, placement: PlacementVariables) -> tuple[Floats, Floats]:
    """`(pieces, 3, ways, links, devices)` ms of all-to-alls, sent and received, and `(pieces, 3, devices)` ms of the others.

    These are forward, backward, and of the ids alone.
    """
    topology, prices = task.topology, prices_of(task)
    bandwidth = np.array(topology.alone_of(task.exchange.collective))[:, None] / 1e3
    each, apart = [], []
    for way in placement.ways:
        for piece in way.pieces:
            program.check_time()
            flows = traffic_by_kind(task, [piece.shard])
            left = {"row_wise": [0.0, 0.0], "table_row_wise": [0.0, 1.0 / topology.devices_per_host]}.get(way.outputs)
            if left is not None:
                for key in (("forward", "values"), ("backward", "gradients")):
                    flows[key].sent *= np.array(left)[:, None]
                    flows[key].received *= np.array(left)[:, None]
            passes = (*passes_of(task, flows), flows["forward", "ids"])
            each.append([[flow.sent / bandwidth, flow.received / bandwidth] for flow in passes])
            others = np.stack([flow.apart for flow in passes])
            if left is not None:
                values = value_bytes(task, shard_work(task, piece.shard))
                others[:2, piece.shard.devices[0]] += values * prices.dealt[int(way.outputs == "table_row_wise")]
            apart.append(others)
    return np.array(each), np.array(apart)


def _in_units(pricing: Pricing, unit_ms: float) -> Pricing:
    return Pricing(
        pricing.hidden,
        pricing.hidden_bias / unit_ms,
        pricing.mix,
        pricing.linear,
        pricing.bias / unit_ms,
        pricing.once / unit_ms,
        pricing.gates,
    )


def _only_grows(pricing: Pricing, latents: Floats) -> bool:
    """Whether every piece adds time to any device, so that an empty device is never the slowest."""
    return bool((latents @ pricing.hidden[pricing.matters].T >= 0).all() and (latents @ pricing.linear.T >= 0).all())


def _ranges(placement: PlacementVariables, held: Ints, vectors: Floats) -> tuple[Floats, Floats]:
    """`(h,)` least and greatest sums of `(held, h)` vectors in a device's call over all placements, table by table."""
    shares = np.array([placement.pieces[i].share for i in held])
    per_table = (
        vectors / shares[:, None]
    )  # parts scaled up to the whole table: the shares of a table add up to 1 at most
    low, high = np.zeros((2, vectors.shape[1]))
    names = [placement.pieces[i].shard.table for i in held]
    for name in dict.fromkeys(names):
        mine = per_table[[other == name for other in names]]
        low += np.minimum(mine.min(axis=0), 0.0)
        high += np.maximum(mine.max(axis=0), 0.0)
    return low, high


def _add_head(
    program: Program,
    pricing: Pricing,
    sums: Ints,
    ranges: tuple[Floats, Floats],
    times: Ints,
    lift: tuple[int, Floats] | None,
) -> None:
    """Add rows that keep `times` `(2,)` above the head on a call's sums; `lift`: variable of the call's presence, cost of an empty call."""
    low, high = (side + pricing.hidden_bias for side in ranges)
    bends = np.flatnonzero((low < 0) & (high > 0))
    always = low >= 0
    active = program.variables(np.full(bends.size, np.inf))
    for unit, variable in zip(bends, active, strict=True):
        program.row([variable, *sums], [1.0, *-pricing.hidden[unit]], low=pricing.hidden_bias[unit])
    for kind, variable in enumerate(times):
        mix = pricing.mix[kind]
        slope = pricing.linear[kind] + (mix * always) @ pricing.hidden
        constant = pricing.bias[kind] + (mix * always) @ pricing.hidden_bias
        columns, values = [variable, *active, *sums], [1.0, *-mix[bends], *-slope]
        if lift is not None and lift[1][kind] > 0:
            columns, values = [*columns, lift[0]], [*values, -lift[1][kind]]
            constant -= lift[1][kind]
        program.row(columns, values, low=constant)


def _add_gate(program: Program, placement: PlacementVariables, held: Ints, units: Floats, most: Floats) -> Ints:
    """Add `(2,)` variables of the forward and backward ms that a gate adds to a call.

    Args:
        program: the program.
        placement: its pieces.
        held: indices of the pieces that may be in the call.
        units: `(held, 3)` addition of each to the gate's units.
        most: `(2,)` most ms that they can add together.
    """
    (opened,) = program.variables([1.0], integer=True)
    for piece in held[units[:, 0] > 0]:
        program.row([opened, placement.taken[piece]], [float(placement.pieces[piece].most), -1.0], low=0.0)
    extra = program.variables(np.full(2, np.inf))
    for phase, variable in enumerate(extra):
        columns, values = [variable, *placement.taken[held], opened], [1.0, *-units[:, 1 + phase], -most[phase]]
        program.row(columns, values, low=-most[phase])
    return extra


def _add_sets(program: Program, placement: PlacementVariables) -> dict[int, int]:
    """Add a variable for each set of collectives, which is 1 if a table is made in a way that needs it."""
    used: dict[int, int] = {}
    needs: dict[tuple[int, str], list[int]] = {}
    for variable, way in zip(placement.chosen.tolist(), placement.ways, strict=True):
        needs.setdefault((set_of(way.outputs, way.table.pooled), way.table.name), []).append(variable)
    for (kind, _), chosen in needs.items():
        if kind not in used:
            used[kind] = int(program.variables([1.0])[0])
        program.row([used[kind], *chosen], [1.0, *-np.ones(len(chosen))], low=0.0)
    return used


def _peers(topology: Topology) -> tuple[int, int]:
    return topology.devices_per_host - 1, topology.devices - topology.devices_per_host


_ROUNDS = 4
_SMALLEST = 1e-6


@dataclass(frozen=True)
class Effort:
    """Limits of the solver.

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
        """Seconds left until the deadline, at least 0; None for no limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Answer:
    """The best plan found, and the bound.

    Attributes:
        shards: of the best plan found; None if there is none.
        bound_ms: no plan made of these ways takes less; infinite if there is no such plan.
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


def solve(
    task: Task,
    cost_model: CostModel,
    ways: Sequence[Way],
    effort: Effort,
    maxima: Sequence[Sequence[int]] = EACH_PHASE,
) -> Answer:
    """The best plan made of these ways; with other `maxima`, by the weaker objective of `add_phases`.

    The solver keeps memory only up to its tolerance. If a plan takes a few bytes too many, the solver tries again with limits that are
    lower by as many; the bound of the first try stays valid.
    """
    if len({way.table.name for way in ways}) < len(task.tables):
        return Answer(None, np.inf)
    try:
        return _solved(task, cost_model, ways, effort, maxima)
    except TimeoutError:  # while the program was built
        return Answer(None, -np.inf)


def _solved(
    task: Task, cost_model: CostModel, ways: Sequence[Way], effort: Effort, maxima: Sequence[Sequence[int]]
) -> Answer:
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    unit_ms = _unit_ms(task, cost_model, ways, effort)
    if not np.isfinite(unit_ms):
        return Answer(None, unit_ms)
    allowed, bound_ms = memory.copy(), None
    for _ in range(_ROUNDS):
        program, placement = _program(task, cost_model, ways, allowed.tolist(), unit_ms, effort, maxima)
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


def _program(
    task: Task,
    cost_model: CostModel,
    ways: Sequence[Way],
    memory: Sequence[int],
    unit_ms: float,
    effort: Effort,
    maxima: Sequence[Sequence[int]] = EACH_PHASE,
) -> tuple[Program, PlacementVariables]:
    program = Program(effort.deadline)
    placement = add_placement(program, task, ways)
    add_memory(program, placement, memory)
    add_relations(program, task, placement)
    add_order(program, task, placement)
    times = add_phases(program, task.topology.devices, maxima)
    add_kernels(program, task, cost_model, placement, times, unit_ms)
    add_links(program, task, placement, times, unit_ms)
    return program, placement


def _unit_ms(task: Task, cost_model: CostModel, ways: Sequence[Way], effort: Effort) -> float:
    """The unit of time, as the solver's tolerances are absolute: the step of the relaxed program.

    The unit is infinite if that program has no solution, and minus infinity if none was found in time. The relaxed program is solved in
    another unit, the step of whole tables dealt out in turn, which may be many times too large.
    """
    dealt = [Shard.whole(table, turn % task.topology.devices) for turn, table in enumerate(task.tables)]
    first = score(task, dealt, cost_model).step_ms or 1.0
    program, _ = _program(task, cost_model, ways, task.topology.memory_bytes, first, effort)
    bound = program.relaxed(effort.seconds).bound
    return max(bound, _SMALLEST) * first if bound > -np.inf else bound
