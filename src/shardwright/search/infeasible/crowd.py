"""More bytes confined to a set of devices than these have.

By Hall's theorem for divisible goods (Gale, "A theorem on flows in networks", 1957) it is enough to look at one set: the source side of a
minimum cut between tables, with what they need, and devices, with what they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible.groups import Group
from shardwright.search.infeasible.where import Mask, Places, Where, compared, inside
from shardwright.task.task import Task

_MOST_EDGES = 300_000  # of the network; larger ones are checked set by set only
_CAPACITY = 2**30  # of the whole network, whose capacities are 32 bits wide


def check_crowds(task: Task, groups: Sequence[Group]) -> None:
    """Check that the groups confined to any set of devices fit its memory together.

    Raises:
        InfeasibleTask: those of one set do not.
    """
    sets = list(dict.fromkeys(group.where for group in groups))
    everywhere = Places(task).of(np.ones(task.topology.devices, dtype=bool))
    _check(task, groups, everywhere)
    need = dict.fromkeys(sets, 0)
    for group in groups:
        need[group.where] += group.bytes
    needs = list(need.values())
    for where, within in zip(sets, inside(sets), strict=True):
        if sum(needs[index] for index in within) > where.total:
            _check(task, groups, where)
    if len(sets) > 1 and sum(where.count for where in sets) <= _MOST_EDGES:
        crowded = _cut(task, sets, needs)
        if crowded.any():
            _check(task, groups, Places(task).of(crowded))


def _check(task: Task, groups: Sequence[Group], where: Where) -> None:
    """Check one set of devices, to the byte."""
    confined = groups if where.everywhere else [g for g in groups if not (g.where.mask & ~where.mask).any()]
    need = sum(group.bytes for group in confined)
    if need <= where.total:
        return
    needed, present = compared(need, where.total)
    if where.everywhere:
        devices = -(-need * where.count // where.total)
        raise InfeasibleTask(
            f"the tables need {needed} of weights, optimizer state and buffers, {where} together have "
            f"{present}: "
            f"use at least {devices} such devices, fp16 weights, an optimizer with less state, or a smaller batch"
        )
    names = [name for group in confined for name in group.tables]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise InfeasibleTask(
        f"tables {shown} may only use {where} and need {needed} there, which have {present} together: let "
        "some of them use other devices, or use devices with more memory"
    )


def _cut(task: Task, sets: Sequence[Where], needs: Sequence[int]) -> Mask:
    """`(devices,)` the devices of a set that what is confined to it overfills, as far as 32 bits can tell; none if there is no such set."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    memory, devices = task.topology.memory_bytes, task.topology.devices
    unit = -(-max(sum(memory), sum(needs)) // _CAPACITY)
    source, sink = len(sets) + devices, len(sets) + devices + 1
    demand = [need // unit for need in needs]  # rounded so that nothing is called too full that is not
    room = [-(-size // unit) for size in memory]
    tails, heads, capacity = [source] * len(sets), list(range(len(sets))), list(demand)
    for index, where in enumerate(sets):
        ranks = np.flatnonzero(where.mask)
        tails += [index] * ranks.size
        heads += (len(sets) + ranks).tolist()
        capacity += [demand[index]] * ranks.size
    tails += list(range(len(sets), len(sets) + devices))
    heads += [sink] * devices
    capacity += room
    network = csr_array((np.array(capacity, dtype=np.int32), (tails, heads)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(network, source, sink)
    if flow.flow_value >= sum(demand):
        return np.zeros(devices, dtype=bool)
    left = csr_array(network - flow.flow)
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    mask = np.zeros(devices, dtype=bool)
    mask[[node - len(sets) for node in reached if len(sets) <= node < source]] = True
    return mask
