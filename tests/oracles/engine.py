"""The engine's results in plain Python: the price of every device, and of every change to a solution."""

from __future__ import annotations

import numpy as np

from shardwright._engine import Solution
from shardwright.search.engine.catalog import EngineArrays
from tests.oracles.communication import beside_dense


def times_of(arrays: EngineArrays, solution: Solution) -> np.ndarray:
    """`(d, 4)` ms of the phases, summed anew from the pieces and spreads that lie somewhere."""
    devices, near = arrays.links.devices, arrays.links.per_host
    calls = [{} for _ in range(devices)]
    served, apart = np.zeros((devices, 3)), np.zeros((devices, 2))

    def add(device, added, row):
        for part in range(*added.part[row : row + 2]):
            kind = int(added.call[part])
            calls[device][kind] = calls[device].get(kind, arrays.head.base) + added.vectors[part]

    for form, width, device in zip(solution.form, solution.width, solution.device, strict=True):
        if device >= 0:
            row = arrays.first[form] + width - 1
            add(device, arrays.added, row)
            served[device] += arrays.served[row][[0, 0, 1]]
    spreads = arrays.spreads
    for spread in solution.spread_of[solution.spread_of >= 0]:
        for device in spreads.device[slice(*spreads.range[spread])]:
            add(device, spreads.added, spread)
            served[device] += spreads.served[spread]
            apart[device] += spreads.apart[spread]
    times = np.zeros((devices, 4))
    for device in range(devices):
        times[device, [0, 3]] = arrays.head.once
        for sums in calls[device].values():
            times[device, [0, 3]] += np.maximum(arrays.head.mix @ np.maximum(sums[:-2], 0.0) + sums[-2:], 0.0)
            for shards, *extra in sums[-2 - 3 * arrays.head.gates : -2].reshape(-1, 3):
                times[device, [0, 3]] += extra if shards > 0.5 else [0.0, 0.0]
        here = device // near * near
        times[device, 1:3] = _links(arrays.links, served, device, slice(here, here + near), apart[device])
    return times


def _links(links, served, device, host, apart) -> np.ndarray:
    """Forward and backward ms of a device's collectives beside dense layers; of all-to-alls the busier direction of the slower link."""
    devices, peers = links.devices, np.array([links.per_host - 1, links.devices - links.per_host])
    theirs = np.array([served[host].sum(axis=0) - served[device], served.sum(axis=0) - served[host].sum(axis=0)])
    out, into = np.outer(peers, served[device]) / devices, theirs / devices
    values_out, values_in = np.diag(out[:, :2]), np.diag(into[:, :2])
    of_mean = links.mean.reshape(2, 2)
    if links.per_host > 1:  # of the host's mean device
        mean_out = np.outer(peers, served[host].mean(axis=0)) / devices
        mean_in = np.array([mean_out[0], into[1]])
    else:
        mean_out = mean_in = np.outer(peers, served.mean(axis=0)) / devices
    mean_values = np.diag(mean_out[:, :2]), np.diag(mean_in[:, :2])
    both, values, ids = (
        max((np.maximum(*own) * links.forward).max(), (np.maximum(*mean) * of_mean[0]).max())
        for own, mean in (
            (
                (values_out + into[:, 2], values_in + out[:, 2]),
                (mean_values[0] + mean_in[:, 2], mean_values[1] + mean_out[:, 2]),
            ),
            ((values_out, values_in), mean_values),
            ((into[:, 2], out[:, 2]), (mean_in[:, 2], mean_out[:, 2])),
        )
    )
    backward = (np.maximum(values_out, values_in) * links.backward).max()
    backward = max(backward, (np.maximum(*mean_values) * of_mean[1]).max()) + apart[1]
    return beside_dense((values + apart[0], ids, both + apart[0], backward), links.hidden)


def waits_of(arrays: EngineArrays, solution: Solution) -> float:
    """Ms of the latencies of all sets of collectives in use."""
    placed = arrays.item[solution.form[solution.device >= 0]]
    used = [*arrays.sets[placed], *arrays.spreads.sets[solution.spread_of[solution.spread_of >= 0]]]
    return float(sum(ms for bit, ms in enumerate(arrays.set_ms) if any(int(sets) >> bit & 1 for sets in used)))


def all_changes(arrays: EngineArrays, solution: Solution, one: int, target: int) -> list[Solution]:
    """The solutions after each move of a piece from one device to another, and each trade, that memory and rules allow."""
    solutions = []
    mine, theirs = (np.flatnonzero(solution.device == device).tolist() for device in (one, target))
    for piece in mine:
        form, width = int(solution.form[piece]), int(solution.width[piece])
        after = solution.copy()
        after.transfer(piece, form, width, target)
        solutions.append(after)
        for other in theirs:
            if arrays.item[form] != arrays.item[solution.form[other]]:
                after = solution.copy()
                after.swap(piece, other)
                solutions.append(after)
    return [after for after in solutions if (after.used <= arrays.memory).all() and _legal(arrays, after)]


def _legal(arrays: EngineArrays, solution: Solution) -> bool:
    rows = arrays.first[solution.form] + solution.width - 1
    pairs = list(zip(arrays.item[solution.form].tolist(), solution.device.tolist(), strict=True))
    return bool(arrays.legal[rows].all()) and len(set(pairs)) == len(pairs)
