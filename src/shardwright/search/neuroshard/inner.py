"""NeuroShard's inner search, compiled: a greedy for every bound on the devices' dims, and what its placements cost.

Letters: n pieces, d devices, g bounds, h hidden units of the cost model. A *state* is the sorted rows `(n,)` of the pieces, see `pieces`.
"""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import book_parts, link_times, times_of
from shardwright.search.neuroshard.encoding import TICKS, Floats, Ints
from shardwright.search.neuroshard.pieces import NO_LIMIT, Pieces


@compiled
def greedy(pieces: Pieces, state: Ints, limit: int, device: Ints) -> tuple[int, int]:
    """Place the pieces in order, each on the device that then has the lowest fused time among those with room.

    Args:
        pieces: the arrays of the task.
        state: `(n,)` rows.
        limit: most columns on a device.
        device: `(n,)` filled with the ranks.

    Returns:
        How many pieces found a device, and the most columns on a device after those.
    """
    sums, counts, priced = pieces.sums.copy(), pieces.counts.copy(), pieces.priced.copy()
    dims, used = pieces.fixed_dims.copy(), pieces.used.copy()
    ticks = np.zeros(used.size)  # an empty device runs nothing
    for rank in range(used.size):
        if pieces.occupied[rank]:
            forward, backward = times_of(rank, pieces.once, sums, counts, priced, pieces.mix)
            ticks[rank] = np.rint((forward + backward) * TICKS)
    blocked = pieces.forbidden.copy() if pieces.rivals.size else pieces.forbidden
    for index in range(state.size):
        row = state[index]
        unit = pieces.unit[row]
        best = -1
        for rank in range(used.size):
            if (
                (best < 0 or ticks[rank] < ticks[best])
                and dims[rank] + pieces.dims[row] <= limit
                and used[rank] + pieces.bytes[row] <= pieces.memory[rank]
                and not blocked[unit, rank]
            ):
                best = rank
        if best < 0:
            return index, dims.max()
        device[index] = best
        dims[best] += pieces.dims[row]
        used[best] += pieces.bytes[row]
        book_parts(best, row, 1, pieces.part, pieces.call, pieces.vectors, pieces.base, sums, counts, priced)
        forward, backward = times_of(best, pieces.once, sums, counts, priced, pieces.mix)
        ticks[best] = np.rint((forward + backward) * TICKS)
        if pieces.rivals.size:
            blocked[:, best] |= pieces.rivals[unit]
    return state.size, dims.max()


@compiled
def grid_placements(pieces: Pieces, state: Ints, limits: Ints) -> Ints:
    """The different placements that the greedy finds for `limits` `(g,)`, ascending.

    A run whose devices never hold more than a lower limit would have gone the same way under that limit, so the grid is walked downwards
    and such limits are passed over. Only where no limit lets every piece find a device is one more run made without a limit.

    Returns:
        `(k, n)` ranks, highest limit first; k is 0 where even that run fails.
    """
    found = np.empty((max(limits.size, 1), state.size), dtype=np.int64)
    count = 0
    reached = NO_LIMIT
    for index in range(limits.size - 1, -1, -1):
        if limits[index] < reached:
            placed, reached = greedy(pieces, state, limits[index], found[count])
            count += placed == state.size
    if count == 0:
        placed, reached = greedy(pieces, state, NO_LIMIT, found[0])
        count += placed == state.size
    return found[:count]


@inner
def device_times(pieces: Pieces, state: Ints, device: Ints) -> tuple[Floats, Ints]:
    """`(d, 2)` forward and backward kernel ms, 0 on empty devices, and `(d,)` columns of a placement `(n,)`."""
    sums, counts, priced = pieces.sums.copy(), pieces.counts.copy(), pieces.priced.copy()
    dims = pieces.fixed_dims.copy()
    occupied = pieces.occupied.copy()
    for index in range(state.size):
        rank, row = device[index], state[index]
        occupied[rank] = True
        dims[rank] += pieces.dims[row]
        book_parts(rank, row, 1, pieces.part, pieces.call, pieces.vectors, pieces.base, sums, counts, priced)
    times = np.zeros((dims.size, 2))
    for rank in range(dims.size):
        if occupied[rank]:
            times[rank] = times_of(rank, pieces.once, sums, counts, priced, pieces.mix)
    return times, dims


@compiled
def placement_times(pieces: Pieces, state: Ints, found: Ints) -> tuple[Floats, Ints]:
    """`(k, d, 2)` ms and `(k, d)` columns, as `device_times`, of placements `(k, n)`."""
    times = np.empty((found.shape[0], pieces.used.size, 2))
    dims = np.empty((found.shape[0], pieces.used.size), dtype=np.int64)
    for index in range(found.shape[0]):
        times[index], dims[index] = device_times(pieces, state, found[index])
    return times, dims


@compiled
def step_ticks(pieces: Pieces, state: Ints, device: Ints) -> float:
    """Step time of a placement `(n,)` by the link model: the sum over the four phases of the maximum over devices."""
    near = int(pieces.links[1])
    served = pieces.fixed_served.copy()
    for index in range(state.size):
        for kind in range(2):
            served[device[index], kind] += pieces.served[state[index], kind]
    by_host = np.zeros((served.shape[0] // near, 2))
    for rank in range(served.shape[0]):
        for kind in range(2):
            by_host[rank // near, kind] += served[rank, kind]
    values, ids = by_host[:, 0].sum(), by_host[:, 1].sum()
    times, _ = device_times(pieces, state, device)
    forward, backward = 0.0, 0.0
    for rank in range(served.shape[0]):
        host = rank // near
        there, back = link_times(
            served[rank, 0], served[rank, 1], by_host[host, 0], by_host[host, 1], values, ids,
            pieces.reduced[rank, 0], pieces.reduced[rank, 1], pieces.links,
        )  # fmt: skip
        forward, backward = max(forward, there), max(backward, back)
    return float(np.rint((times[:, 0].max() + forward + backward + times[:, 1].max()) * TICKS))


@compiled
def best_by_links(pieces: Pieces, state: Ints, limits: Ints) -> tuple[float, Ints]:
    """The placement of the grid with the lowest `step_ticks`, the lowest limit among equals; infinite where there is none."""
    found = grid_placements(pieces, state, limits)
    best, chosen = np.inf, np.zeros(0, dtype=np.int64)
    for device in found:
        ticks = step_ticks(pieces, state, device)
        if ticks <= best:
            best, chosen = ticks, device
    return best, chosen
