"""The agreement of a row's replicas on its gradient.

Every row has one owner among its holders. Inside each host, the holder with the owner's local rank sums the gradients. The owner then sums
them along the rail. The sums go back the same way, so each is computed in one place, and all replicas get the same bits.

Replicas exchange either the gradients of the looked-up rows, or the gradient of the whole block. In the latter case the plan
determines the rows that each rank sends, so only gradients travel: a reduce-scatter inside the host, one along the rail, and gathers back.
If bytes cost less than the waits of so many exchanges, each holder sends its gradient to all others at once, and all add in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from shardwright.arrays import Ints
from shardwright.runtime.hop import Hop, bounds_of, sum_equal
from shardwright.runtime.placement import TOUCHED, WHOLE, Placement
from shardwright.runtime.process_groups import Members, Ranks
from shardwright.runtime.wire import Buffers, Label, Rows, Sizes, TrafficMeter, Wire

_NOWHERE = -1
_REPLICAS = Label("backward", "replicas")


class TouchedReplicas:
    """Replicas that exchange the gradients of the looked-up rows."""

    def __init__(self, placement: Placement, ranks: Ranks, meter: TrafficMeter) -> None:
        self._bits, device = placement.slot_bits, ranks.device
        mine = placement.held_by(ranks.rank, TOUCHED)
        mine = mine[placement.ranges[1, mine] > 0]
        first = (placement.group_of_range[mine] << self._bits) + placement.slots(mine, ranks.rank)
        mine, first = mine[np.argsort(first)], np.sort(first)
        self._starts = torch.from_numpy(first).to(device)
        carried = [group._replace(sums=False) for group in placement.groups]  # gradients travel row by row
        self._up: list[tuple[Hop, torch.Tensor]] = []
        self._down: list[tuple[Hop, torch.Tensor]] = []
        for members, owners in _levels(placement, ranks, TOUCHED):
            hop = Hop(members, carried, self._bits, meter, device, dedupe=False)
            up = _codes(placement, hop, mine, owners[mine], np.array(members.ranks, dtype=np.int64)[owners[mine]])
            down = np.full((mine.size, members.size), _NOWHERE, dtype=np.int64)
            for member, rank in enumerate(members.ranks):
                held = np.flatnonzero(np.isin(mine, placement.held_by(rank)))
                down[held, member] = _codes(placement, hop, mine[held], np.full(held.size, member), rank)
            self._up.append((hop, torch.from_numpy(up).to(device)))
            self._down.insert(0, (hop, torch.from_numpy(down).to(device)))

    def agree(self, slots: Rows, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of touched rows over all replicas.

        Args:
            slots: by group, `(n,)` distinct slots of touched rows, ascending.
            gradients: by group, `(n, dim)`.

        Returns:
            Slots and summed gradients of the rows that have a gradient on any replica; equal on all replicas.
        """
        for hop, codes in self._up:
            ranges, rows = self._locate(slots)
            slots, gradients = sum_equal(*self._relay(hop, codes[ranges] + rows, slots, gradients))
        for hop, table in self._down:
            ranges, rows = self._locate(slots)
            copies = table[ranges]
            item, member = (copies != _NOWHERE).nonzero(as_tuple=True)  # sorted by item, so also by group
            bounds = bounds_of([its.numel() for its in slots])
            ends = torch.searchsorted(item, torch.tensor(bounds, device=item.device)).tolist()
            own = [item[a:b] - start for (a, b), start in zip(pairwise(ends), bounds, strict=False)]
            spread = [matrix[index] for matrix, index in zip(gradients, own, strict=True)]
            slots, gradients = self._relay(hop, copies[item, member] + rows[item], own, spread)
        return slots, gradients

    def _locate(self, slots: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the slots of all groups: `(n,)` indices of this rank's ranges, and `(n,)` rows within them."""
        places = torch.cat([its + (group << self._bits) for group, its in enumerate(slots)])
        ranges = torch.searchsorted(self._starts, places, right=True) - 1
        return ranges, places - self._starts[ranges]

    def _relay(self, hop: Hop, codes: torch.Tensor, items: Rows, rows: Rows) -> tuple[Rows, Rows]:
        """Send each row to the member and slot in its code; returns the slots and rows that arrive."""
        route = hop.ask(codes, bounds_of([its.numel() for its in items]), _REPLICAS)
        arrived = hop.give_back(route, rows, _REPLICAS)
        return route.asked, [matrix.clone() for matrix in arrived]


@dataclass(frozen=True, eq=False)
class _Level:
    """The rows that a rank exchanges with each member of a process group, matrix by matrix.

    Attributes:
        wire: collectives of the process group.
        theirs: rows that other members own, sorted by member.
        ours: rows that this rank owns, once for each other member that holds them.
        sizes: numbers of rows; `theirs` are sent.
    """

    wire: Wire
    theirs: Rows
    ours: Rows
    sizes: Sizes


class WholeReplicas:
    """Replicas that reduce the gradient of the whole block."""

    def __init__(self, placement: Placement, ranks: Ranks, meter: TrafficMeter) -> None:
        # Adam changes a looked-up row even if its gradient is zero, so a column after those of the gradient flags such rows.
        self._flags = placement.plan.task.optimizer == "adam"
        self._groups = np.unique(placement.group_of_range[placement.exchanges[placement.ranges[0]] == WHOLE]).tolist()
        self._widths = [placement.groups[group].dim + self._flags for group in self._groups]
        self._device, self._buffers = ranks.device, Buffers(ranks.device)
        rows = placement.rows_on(ranks.rank, WHOLE)
        self._rows = rows[self._groups].tolist()
        self._first = (placement.rows_on(ranks.rank) - rows).tolist()
        self._at_once = _at_once(placement)
        levels = [(ranks.world, None)] if self._at_once else _levels(placement, ranks, WHOLE)
        self._levels = [self._level(placement, ranks, members, owners, meter) for members, owners in levels]

    def agree(self, slots: Rows, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum gradients as `TouchedReplicas.agree` does; returns all rows that change on any replica."""
        dense = [
            self._buffers.take(number, count, width).zero_()
            for number, (count, width) in enumerate(zip(self._rows, self._widths, strict=True))
        ]
        for place, group in enumerate(self._groups):
            index, rows = slots[group] - self._first[group], gradients[group]
            if self._flags:
                rows = torch.cat([rows, rows.new_ones((rows.shape[0], 1))], 1)
            dense[place].index_copy_(0, index, rows)
        for level in self._levels:
            arrived = self._send(level.wire, dense, level.theirs, level.sizes)
            for matrix in dense if self._at_once else ():
                matrix.zero_()  # arriving rows include this rank's own, in the order of ranks
            _add_by_member(dense, level.ours, arrived, level.sizes.received)
        for level in () if self._at_once else reversed(self._levels):
            arrived = self._send(level.wire, dense, level.ours, level.sizes.back())
            for matrix, index, rows in zip(dense, level.theirs, arrived, strict=True):
                matrix.index_copy_(0, index, rows)
        all_slots, all_sums = [matrix[:0] for matrix in slots], [matrix[:0] for matrix in gradients]
        for group, matrix in zip(self._groups, dense, strict=True):
            marks = matrix[:, -1:] if self._flags else matrix
            changed = marks.ne(0).any(1).nonzero().flatten()
            all_slots[group] = changed + self._first[group]
            all_sums[group] = matrix[:, : gradients[group].shape[1]].index_select(0, changed)
        return all_slots, all_sums

    def _send(self, wire: Wire, dense: Rows, rows: Rows, sizes: Sizes) -> Rows:
        return wire.exchange(lambda group: dense[group].index_select(0, rows[group]), sizes, self._widths, _REPLICAS)

    def _level(
        self, placement: Placement, ranks: Ranks, members: Members, owners: Ints | None, meter: TrafficMeter
    ) -> _Level:
        mine, others = placement.held_by(ranks.rank, WHOLE), range(members.size)
        if members is ranks.rail:  # only rows whose host sums lie on this local rank
            mine = mine[np.isin(placement.owner[mine], members.ranks)]
        own = mine if owners is None else mine[owners[mine] == members.me]
        ours = [own[np.isin(own, placement.held_by(members.ranks[member]))] for member in others]
        theirs = ours if owners is None else [mine[owners[mine] == member] for member in others]
        if owners is not None:
            ours[members.me] = theirs[members.me] = mine[:0]
        their_rows, sent = self._indices(placement, ranks.rank, theirs)
        our_rows, received = self._indices(placement, ranks.rank, ours)
        return _Level(Wire(members, meter, self._device), their_rows, our_rows, Sizes(sent, received))

    def _indices(self, placement: Placement, rank: int, ranges: Sequence[Ints]) -> tuple[Rows, Ints]:
        """Rows of ranges, member after member, counted from the first replicated slot; and `(matrices, members)` numbers of rows."""
        counts = np.zeros((len(placement.groups), len(ranges)), dtype=np.int64)
        rows: list[list[Ints]] = [[np.zeros(0, dtype=np.int64)] for _ in placement.groups]
        for member, numbers in enumerate(ranges):
            for number, slot in zip(numbers.tolist(), placement.slots(numbers, rank).tolist(), strict=True):
                group, size = int(placement.group_of_range[number]), int(placement.ranges[1, number])
                rows[group].append(np.arange(size, dtype=np.int64) + (slot - self._first[group]))
                counts[group, member] += size
        indices = [torch.from_numpy(np.concatenate(rows[group])).to(self._device) for group in self._groups]
        return indices, counts[self._groups]


def _at_once(placement: Placement) -> bool:
    """Whether the bytes that all holders send to all others take less time than the exchanges that this saves."""
    topology = placement.plan.task.topology
    whole = np.flatnonzero(placement.exchanges == WHOLE)
    size = sum(4 * shard.row_count * shard.dim for shard in (placement.shards[index] for index in whole))
    far = int(topology.hosts > 1)
    ranks_of_link = topology.devices_per_host if far else 1
    more_ms = 1e3 * size * max(topology.devices - 3, 0) / topology.bandwidth_of("all_to_all")[far]
    saved = 2 * (far + (topology.devices_per_host > 1)) - 1
    return more_ms * ranks_of_link <= saved * topology.latency_of("all_to_all")[far]


def _levels(placement: Placement, ranks: Ranks, exchange: int) -> list[tuple[Members, Ints]]:
    """The host and the rail, each only if some replicas share it; with the `(ranges,)` member that is the owner or leads to it."""
    per_host = placement.plan.task.topology.devices_per_host
    replicated = [placement.shards[index].devices for index in np.flatnonzero(placement.exchanges == exchange)]
    hosts = [[rank // per_host for rank in devices] for devices in replicated]
    levels = []
    if any(len(set(its)) < len(its) for its in hosts):
        levels.append((ranks.host, placement.owner % per_host))
    if any(len(set(its)) > 1 for its in hosts):
        levels.append((ranks.rail, placement.owner // per_host))
    return levels


def _codes(placement: Placement, hop: Hop, ranges: Ints, members: Ints, ranks: Ints | int) -> Ints:
    """`(n,)` codes of the first row of each range at a member that holds it."""
    return hop.codes(placement.group_of_range[ranges], members, placement.slots(ranges, ranks))


def _add_by_member(dense: Rows, index: Rows, arrived: Rows, counts: Ints) -> None:
    """Add arriving rows, one member after the other: the rows of one member are distinct, so every sum has a fixed order."""
    for matrix, places, rows, sizes in zip(dense, index, arrived, counts.tolist(), strict=True):
        for where, part in zip(places.split(sizes), rows.split(sizes), strict=True):
            matrix.index_add_(0, where, part)
