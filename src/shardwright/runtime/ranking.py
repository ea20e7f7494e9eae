"""From ids to keys: the rank maps of all tables as one set of bits, so that a few vector operations serve all lookups of a step.

One bit per row marks the hottest rows of a table. One number per 64 rows counts the hottest rows before them. Together
they give a row's place among the hottest faster than a search, in a quarter of a byte a row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput
from shardwright.runtime.placement import Placement
from shardwright.sharding.rank_map import RankMap


def chosen_maps(placement: Placement, given: Mapping[str, RankMap] | None) -> dict[str, RankMap]:
    """Return the rank map of each table: the given one or the plan's for tables in order of hotness, else the identity.

    Raises:
        InvalidInput: a rank map and its table differ in their number of rows, or it belongs to no table.
    """
    known = placement.plan.rank_maps if given is None else given
    for name in known:
        if name not in placement.plan.by_table:
            raise InvalidInput(f"rank map for table '{name}', which is not in the plan; name a table of the plan")
    ordered = {shard.table for shard in placement.shards if shard.row_order == "hotness"}
    maps: dict[str, RankMap] = {}
    for table, _ in placement.parts:
        chosen = known.get(table.name) if table.name in ordered else None
        maps[table.name] = RankMap.identity(table.rows) if chosen is None else chosen
        if maps[table.name].rows != table.rows:
            raise InvalidInput(
                f"table '{table.name}' has {table.rows} rows, but its rank map is of {maps[table.name].rows}; make the map for this table"
            )
    return maps


class Ranking:
    """Rank maps of the parts of a placement, on one torch device.

    Attributes:
        maps: rank maps by table.
        arrays: base, bits, before, ranked and stops, in the order of `_engine.find_codes`.
    """

    def __init__(self, placement: Placement, maps: Mapping[str, RankMap], device: torch.device) -> None:
        self.maps = maps
        own = [maps[table.name] for table, _ in placement.parts]
        bases = placement.base[:-1]
        hottest = np.concatenate([ranked.ascending + start for ranked, start in zip(own, bases, strict=True)])
        ranks = np.concatenate([ranked.order + start for ranked, start in zip(own, bases, strict=True)])
        stops = np.cumsum([ranked.hottest.size for ranked in own])
        self.arrays = (placement.base, *_directory(hottest, int(placement.base[-1])), ranks, stops)
        self._base, self._bits, self._before, self._keys, self._stops = (
            torch.from_numpy(array).to(device) for array in self.arrays
        )

    def keys(self, ids: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(n,)` keys of `(n,)` ids, `(parts,)` of them for each part, and whether any id is out of range; it gets the key of row 0."""
        size = ids.numel()
        rows = torch.repeat_interleave(self._base.diff(), counts, output_size=size)
        wrong = (ids < 0) | (ids >= rows)
        some_wrong = wrong.any()
        if ids.is_cuda or some_wrong:
            ids = ids.masked_fill(wrong, 0)
        keys = ids + torch.repeat_interleave(self._base[:-1], counts, output_size=size)
        if self._keys.numel() == 0:
            return keys, some_wrong
        block, place = keys >> 6, keys & 63
        bits = self._bits[block]
        before = _ones(bits & ((1 << place) - 1)).add_(self._before[block])
        ranked = self._keys[before.clamp(max=self._keys.numel() - 1)]
        cold = keys.add_(torch.repeat_interleave(self._stops, counts, output_size=size)).sub_(before)
        return torch.where((bits >> place) & 1 != 0, ranked, cold), some_wrong

    def ids(self, placement: Placement, part: int, keys: Ints) -> Ints:
        """`(n,)` ids of `(n,)` keys, all of one part."""
        return self.maps[placement.parts[part].table.name].ids(keys - placement.base[part])


def _directory(hottest: Ints, rows: int) -> tuple[Ints, Ints]:
    """For each 64 rows, return which are among the `(n,)` ascending hottest keys, as bits, and how many of these keys come before."""
    blocks = rows // 64 + 1
    bits = np.zeros(blocks, dtype=np.uint64)
    if hottest.size:
        block = hottest >> 6
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        bits[block[starts]] = np.bitwise_or.reduceat(np.uint64(1) << (hottest & 63).astype(np.uint64), starts)
    return bits.view(np.int64), np.searchsorted(hottest, np.arange(blocks) * 64).astype(np.int64)


def _ones(words: torch.Tensor) -> torch.Tensor:
    """`(n,)` number of bits set in `(n,)` words of 63 bits, by sums over ever wider fields."""
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (words * 0x0101010101010101) >> 56
