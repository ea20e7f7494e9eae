"""Do the blocks of a table tile it exactly? One sweep over the row cuts, O(n log n) comparisons for n blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

from shardwright.errors import InvalidPlan
from shardwright.sharding.layout import dealt_ranges
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table


def check_tiling(table: Table, shards: Sequence[Shard]) -> None:
    """Check that the blocks lie inside the table, do not overlap, and leave nothing out.

    Raises:
        InvalidPlan: one of these rules is broken; the message names the table and the blocks.
    """
    if not shards:
        raise InvalidPlan(f"table '{table.name}' is missing from the plan; every table must be tiled exactly")
    if len({shard.row_order for shard in shards}) > 1:
        raise InvalidPlan(
            f"table '{table.name}': its shards mix row orders; all must count rows by id, or all by hotness"
        )
    for shard in shards:
        if shard.rows[1] > table.rows or shard.columns[1] > table.dim:
            raise InvalidPlan(f"{_block(shard)} reaches beyond the table's {table.rows} rows × {table.dim} columns")
    _check_disjoint(shards)
    missing = table.rows * table.dim - sum(shard.area for shard in shards)
    if missing:
        raise InvalidPlan(
            f"table '{table.name}': {missing} of its {table.rows * table.dim} elements lie in no shard; blocks must tile the table"
        )
    _check_tiers(table, shards)


def _check_tiers(table: Table, shards: Sequence[Shard]) -> None:
    """A tier is dealt out to all its blocks, so they alone fill it, are cut at the same rows in all columns, and are as even as cards.

    Whether blocks fill a tier follows from the tiling, once no other block reaches into it.
    """
    tiers = sorted({shard.tier for shard in shards if shard.tier is not None})
    for one, other in pairwise(tiers):
        if other[0] < one[1]:
            raise InvalidPlan(
                f"table '{table.name}': its tiers {list(one)} and {list(other)} overlap; a row belongs to one tier"
            )
    for start, stop in tiers:
        inside = [shard for shard in shards if start < shard.rows[1] and shard.rows[0] < stop]
        alien = next((shard for shard in inside if shard.tier != (start, stop)), None)
        if alien is not None:
            raise InvalidPlan(
                f"{_block(alien)} reaches into the tier [{start}, {stop}) without being dealt from it; name the tier"
            )
        found = {shard.rows for shard in inside}
        if found != set(dealt_ranges((start, stop), len(found))):
            raise InvalidPlan(
                f"table '{table.name}': the {len(found)} row ranges of its tier [{start}, {stop}) must differ by one row at most, "
                f"the larger ones first, and be the same in all columns; found {sorted(found)[:4]}"
            )


def _check_disjoint(shards: Sequence[Shard]) -> None:
    """Sweep over rows; among the blocks alive, columns are kept sorted, so only neighbours need comparing."""
    order = sorted(range(len(shards)), key=lambda i: shards[i].rows[0])
    ending = sorted(range(len(shards)), key=lambda i: shards[i].rows[1])
    alive: list[tuple[int, int]] = []  # (first column, index of the shard)
    finished = 0
    for index in order:
        shard = shards[index]
        while shards[ending[finished]].rows[1] <= shard.rows[0]:
            gone = ending[finished]
            alive.pop(bisect_left(alive, (shards[gone].columns[0], gone)))
            finished += 1
        place = bisect_left(alive, (shard.columns[0], index))
        for _, other in alive[max(place - 1, 0) : place + 1]:
            if shard.overlap(shards[other]):
                raise InvalidPlan(
                    f"{_block(shard)} overlaps {_block(shards[other])}; blocks of a table must not overlap"
                )
        insort(alive, (shard.columns[0], index))


def _block(shard: Shard) -> str:
    rows, columns = shard.rows, shard.columns
    return f"table '{shard.table}': block rows [{rows[0]}, {rows[1]}) × columns [{columns[0]}, {columns[1]})"
