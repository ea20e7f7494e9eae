"""How the replicas of a row agree on its gradient.

Every row has one owner among its holders. Gradients are summed inside each host at the holder with the owner's local rank, then along the
rail at the owner, and go back the same way: so each sum is made in one place, and all replicas get the same bits.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from shardwright.runtime.hop import Hop
from shardwright.runtime.placement import Ints, Placement
from shardwright.runtime.process_groups import Members, Ranks
from shardwright.runtime.replica_sets import TOUCHED
from shardwright.runtime.sums import sum_equal
from shardwright.runtime.traffic import TrafficMeter
from shardwright.runtime.wire import Label, Rows

_NOWHERE = -1
_REPLICAS = Label("backward", "replicas")


class TouchedReplicas:
    """Replicas that tell each other the gradients of the rows that were looked up."""

    def __init__(
        self, placement: Placement, ranks: Ranks, bits: int, meter: TrafficMeter, device: torch.device
    ) -> None:
        self._groups, self._bits = len(placement.groups), bits
        kinds = placement.exchanges == TOUCHED
        shared = [holders for holders, touched in zip(placement.sets, kinds, strict=True) if touched]
        levels = [
            (members, near, Hop(members, placement.widths, bits, meter, device, dedupe=False))
            for members, near, used in (
                (ranks.host, True, any(len(holders.local) > 1 for holders in shared)),
                (ranks.rail, False, any(len(holders.hosts) > 1 for holders in shared)),
            )
            if used
        ]
        mine = placement.held_by(ranks.rank)
        mine = mine[placement.exchanges[placement.ranges[0, mine]] == TOUCHED]
        mine = mine[placement.ranges[1, mine] > 0]
        first = (placement.group_of_range[mine] << bits) + placement.slots(mine, ranks.rank)
        mine, first = mine[np.argsort(first)], np.sort(first)
        self._starts = torch.from_numpy(first).to(device)
        self._up = [
            (hop, torch.from_numpy(_owner_codes(placement, mine, members, near, hop)).to(device))
            for members, near, hop in levels
        ]
        self._down = [
            (hop, torch.from_numpy(_holder_codes(placement, mine, members, hop)).to(device))
            for members, _, hop in reversed(levels)
        ]

    def agree(self, slots: Rows, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of touched rows over all replicas.

        Args:
            slots: by group, `(n,)` distinct slots of touched rows, ascending.
            gradients: by group, `(n, dim)`.

        Returns:
            The same for the rows that any replica's host has touched, equal on all replicas.
        """
        for hop, codes in self._up:
            ranges, rows = self._locate(slots)
            slots, gradients = self._relay(hop, codes[ranges] + rows, slots, gradients)
            pairs = [sum_equal(*pair) for pair in zip(slots, gradients, strict=True)]
            slots, gradients = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        for hop, table in self._down:
            ranges, rows = self._locate(slots)
            copies = table[ranges]
            item, member = (copies != _NOWHERE).nonzero(as_tuple=True)  # item by item, so group by group
            copied = item.split([int((item < end).sum()) - int((item < start).sum()) for start, end in _bounds(slots)])
            own = [index - start for index, (start, _) in zip(copied, _bounds(slots), strict=True)]
            spread = [matrix[index] for matrix, index in zip(gradients, own, strict=True)]
            slots, gradients = self._relay(hop, copies[item, member] + rows[item], own, spread)
        return slots, gradients

    def _locate(self, slots: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """`(n,)` which of this rank's ranges the slots of all groups lie in, and `(n,)` their rows there."""
        places = torch.cat([one + (group << self._bits) for group, one in enumerate(slots)])
        ranges = torch.searchsorted(self._starts, places, right=True) - 1
        return ranges, places - self._starts[ranges]

    def _relay(self, hop: Hop, codes: torch.Tensor, items: Rows, rows: Rows) -> tuple[Rows, Rows]:
        """Send each row, with its slot there, to where its code says."""
        bounds = [0, *(stop for _, stop in _bounds(items))]
        route = hop.ask(codes, bounds, _REPLICAS)
        found = hop.give_back(route, hop.taker(route, rows), _REPLICAS)
        return route.asked, [matrix.clone() for matrix in found]


def _bounds(parts: Rows) -> list[tuple[int, int]]:
    """Where each group's part of all of them starts and stops."""
    ends = np.cumsum([0, *(part.shape[0] for part in parts)]).tolist()
    return list(pairwise(ends))


def _owner_codes(placement: Placement, ranges: Ints, members: Members, near: bool, hop: Hop) -> Ints:
    """`(n,)` code of the first row of each range at the member with its owner's local rank (`near`), or on its owner's host."""
    local = placement.plan.task.topology.devices_per_host
    owners = placement.owner[ranges]
    member = owners % local if near else owners // local
    slots = placement.slots(ranges, np.array(members.ranks, dtype=np.int64)[member])
    return hop.codes.of(placement.group_of_range[ranges], member, slots)


def _holder_codes(placement: Placement, ranges: Ints, members: Members, hop: Hop) -> Ints:
    """`(n, members)` code of the first row of each range at every member that holds it, elsewhere -1."""
    codes = np.full((ranges.size, members.size), _NOWHERE, dtype=np.int64)
    for member, rank in enumerate(members.ranks):
        held = np.flatnonzero(np.isin(ranges, placement.held_by(rank)))
        codes[held, member] = hop.codes.of(
            placement.group_of_range[ranges[held]], np.full(held.size, member), placement.slots(ranges[held], rank)
        )
    return codes
