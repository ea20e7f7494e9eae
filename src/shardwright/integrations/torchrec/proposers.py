"""A proposer for TorchRec's planner: dynamic programming over the memory of all devices together, as in TorchEasyRec.

Written anew after `DynamicProgrammingProposer` in `tzrec/utils/plan_util.py` of alibaba/TorchEasyRec. `python -m benchmarks.rival_sources`
compares the proposals of both. TorchRec's class of that name does the same in plain Python, and also proposes shards that fit no device.
Host memory is ignored, because no task here has tables there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torchrec.distributed.planner.types import Enumerator, Proposer, ShardingOption, Storage, Topology

from shardwright.arrays import Floats, Ints

_BINS_PER_DEVICE = 100

Options = tuple[Floats, Floats]
"""Bytes and ms of each option of a table, summed over its shards."""


class DynamicProgramming(Proposer):
    """For each bin of total memory the options with the least sum of costs, most memory first; before that, the smallest options."""

    def __init__(self) -> None:
        self._options: list[list[ShardingOption]] = []
        self._proposals: list[list[ShardingOption]] | None = None

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Take every table's options, smallest first."""
        by_name: dict[str, list[ShardingOption]] = {}
        for option in sorted(search_space, key=lambda option: _bytes(option.total_storage)):
            by_name.setdefault(option.fqn, []).append(option)
        self._options, self._proposals = list(by_name.values()), None

    def propose(self) -> list[ShardingOption] | None:
        """The next proposal; None if there is none."""
        if self._proposals is None:
            return [options[0] for options in self._options]
        return self._proposals[0] if self._proposals else None

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Go to the next proposal; the first answer also gives the memory."""
        if self._proposals is not None:
            self._proposals = self._proposals[1:]
            return
        assert storage_constraint is not None
        memory = [_bytes(device.storage) for device in storage_constraint.devices]
        usable = [
            [option for option in options if max(_bytes(shard.storage) for shard in option.shards) <= max(memory)]
            for options in self._options
        ]
        tables = [
            (
                np.array([_bytes(option.total_storage) for option in options], dtype=np.float64),
                np.array([option.total_perf for option in options]),
            )
            for options in usable
        ]
        chosen = cheapest_by_memory(tables, float(sum(memory)), _BINS_PER_DEVICE * len(memory))
        self._proposals = [[options[index] for options, index in zip(usable, each, strict=True)] for each in chosen]


def _bytes(storage: Storage) -> int:
    """Memory of the device: that of the host for CPUs, which have no other."""
    return int(storage.hbm or storage.ddr)


def cheapest_by_memory(tables: Sequence[Options], memory: float, bins: int) -> list[list[int]]:
    """For each bin of memory, the options of all tables with the least total cost, most memory first.

    A bin keeps the exact bytes of its cheapest choice, so that rounding does not add up.

    Args:
        tables: options of each table.
        memory: bytes of all devices together.
        bins: number of bins of that memory.
    """
    used, cost = np.zeros(1), np.zeros(1)
    back: list[tuple[Ints, Ints]] = []
    for bytes_, ms in tables:
        then = (used[:, None] + bytes_ * (bins / memory)).ravel()
        total = (cost[:, None] + ms).ravel()
        fits = np.flatnonzero(then < bins)
        order = fits[np.lexsort((total[fits], then[fits].astype(np.int64)))]
        cells = then[order].astype(np.int64)
        first = order[np.flatnonzero(np.diff(cells, prepend=-1))]
        used, cost = then[first], total[first]
        back.append((first // max(len(ms), 1), first % max(len(ms), 1)))
    proposals = []
    for cell in range(len(used) - 1, -1, -1):
        at, choice = cell, []
        for before, option in reversed(back):
            choice.append(int(option[at]))
            at = int(before[at])
        proposals.append(choice[::-1])
    return proposals
