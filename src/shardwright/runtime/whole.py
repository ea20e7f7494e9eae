"""Replicas that reduce their whole gradient: reduce-scatter inside the host, then along the rail, and gather the same way back.

Who sends what is known from the plan, so nothing but gradients travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardwright.runtime.buffers import Buffers
from shardwright.runtime.placement import Ints, Placement
from shardwright.runtime.process_groups import Members, Ranks
from shardwright.runtime.replica_sets import WHOLE
from shardwright.runtime.traffic import TrafficMeter
from shardwright.runtime.wire import Label, Rows, Sizes, Wire

_REPLICAS = Label("backward", "replicas")


@dataclass(frozen=True, eq=False)
class _Level:
    """Which of its rows a rank exchanges with each member of a process group, matrix by matrix.

    Attributes:
        wire: the process group.
        theirs: rows that other members own, sorted by member.
        ours: rows that this rank owns, once for each member that has them too.
        sizes: how many; what is sent are theirs.
    """

    wire: Wire
    theirs: Rows
    ours: Rows
    sizes: Sizes


class WholeReplicas:
    """Replicas that reduce the gradient of the whole block."""

    def __init__(
        self, placement: Placement, ranks: Ranks, meter: TrafficMeter, device: torch.device, flags: bool
    ) -> None:
        """Prepare the exchange.

        Args:
            placement: where everything lies.
            ranks: the process groups.
            meter: counts what is sent.
            device: where tensors lie.
            flags: send along which rows were looked up, for optimizers that change a row whose gradient is zero.
        """
        self._flags = flags
        self._matrices = len(placement.groups) * (2 if flags else 1)  # gradients, and flags of one column
        self._widths = [*placement.widths, *([1] * len(placement.groups) if flags else [])]
        self._device, self._buffers = device, Buffers(device)
        self._rows = placement.rows_on(ranks.rank, WHOLE).tolist()
        self.first = (placement.rows_on(ranks.rank) - placement.rows_on(ranks.rank, WHOLE)).tolist()
        shared = [holders for holders, way in zip(placement.sets, placement.exchanges, strict=True) if way == WHOLE]
        self._levels = []
        if any(len(holders.local) > 1 for holders in shared):
            self._levels.append(self._level(placement, ranks.rank, ranks.host, True, meter))
        if any(len(holders.hosts) > 1 for holders in shared):
            self._levels.append(self._level(placement, ranks.rank, ranks.rail, False, meter))

    def agree(self, slots: Rows, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of replicated rows over all replicas.

        Args:
            slots: by group, `(n,)` distinct slots of looked-up rows.
            gradients: by group, `(n, dim)`.

        Returns:
            The same for all rows that change on any replica, equal on all replicas.
        """
        dense = [
            self._buffers.take(number, count, width).zero_()
            for number, (count, width) in enumerate(zip(self._rows * 2, self._widths, strict=False))
        ]
        for group, (index, rows) in enumerate(zip(slots, gradients, strict=True)):
            dense[group].index_copy_(0, index - self.first[group], rows)
            if self._flags:
                dense[len(slots) + group].index_fill_(0, index - self.first[group], 1.0)
        for level in self._levels:
            found = self._send(level.wire, dense, level.theirs, level.sizes)
            _add_by_member(dense, level.ours, found, level.sizes.received)
        for level in reversed(self._levels):
            found = self._send(level.wire, dense, level.ours, level.sizes.back())
            for matrix, index, rows in zip(dense, level.theirs, found, strict=True):
                matrix.index_copy_(0, index, rows)
        marks = dense[len(slots) :] if self._flags else dense
        changed = [mark.ne(0).any(1).nonzero().flatten() for mark in marks]
        return [index + first for index, first in zip(changed, self.first, strict=True)], [
            matrix[index] for matrix, index in zip(dense, changed, strict=False)
        ]

    def _send(self, wire: Wire, dense: Rows, rows: Rows, sizes: Sizes) -> Rows:
        leaving = [matrix.index_select(0, index) for matrix, index in zip(dense, rows, strict=True)]
        arriving = [
            torch.empty(sizes.arriving(number), width, device=self._device) for number, width in enumerate(self._widths)
        ]
        wire.exchange(leaving, arriving, sizes, self._widths, _REPLICAS)
        return arriving

    def _level(self, placement: Placement, rank: int, members: Members, near: bool, meter: TrafficMeter) -> _Level:
        local = placement.plan.task.topology.devices_per_host
        mine = placement.held_by(rank)
        mine = mine[placement.exchanges[placement.ranges[0, mine]] == WHOLE]
        if not near:  # along the rail go the rows that are this local rank's
            mine = mine[placement.owner[mine] % local == rank % local]
        owner = placement.owner[mine] % local if near else placement.owner[mine] // local
        own = mine[owner == members.me]
        theirs = [mine[owner == member] if member != members.me else mine[:0] for member in range(members.size)]
        ours = [
            own[np.isin(own, placement.held_by(other))] if member != members.me else own[:0]
            for member, other in enumerate(members.ranks)
        ]
        (their_rows, sent), (our_rows, received) = (self._indices(placement, rank, ranges) for ranges in (theirs, ours))
        sizes = Sizes(sent, received, np.zeros(self._matrices, dtype=np.int64))
        return _Level(Wire(members, meter), their_rows, our_rows, sizes)

    def _indices(self, placement: Placement, rank: int, ranges: Sequence[Ints]) -> tuple[Rows, Ints]:
        """Rows of ranges, member after member, counted from the first replicated slot; and `(matrices, members)` how many."""
        groups = len(placement.groups)
        counts = np.zeros((groups, len(ranges)), dtype=np.int64)
        rows: list[list[Ints]] = [[np.zeros(0, dtype=np.int64)] for _ in range(groups)]
        for member, numbers in enumerate(ranges):
            for number, slot in zip(numbers.tolist(), placement.slots(numbers, rank).tolist(), strict=True):
                group, size = int(placement.group_of_range[number]), int(placement.ranges[1, number])
                rows[group].append(np.arange(size, dtype=np.int64) + (slot - self.first[group]))
                counts[group, member] += size
        indices = [torch.from_numpy(np.concatenate(some)).to(self._device) for some in rows]
        times = self._matrices // groups
        return indices * times, np.tile(counts, (times, 1))


def _add_by_member(dense: Rows, index: Rows, found: Rows, counts: Ints) -> None:
    """Add what arrived, one member after the other: rows of one member are distinct, so every sum has a fixed order."""
    for matrix, places, rows, sizes in zip(dense, index, found, counts.tolist(), strict=True):
        for where, part in zip(places.split(sizes), rows.split(sizes), strict=True):
            matrix.index_add_(0, where, part)
