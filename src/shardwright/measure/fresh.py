"""How many batches a measurement goes through, so that no run finds its own rows in a cache.

In training every step looks up other rows. The hot ones are in a cache as they were looked up a step ago; the others come from memory. A
measurement that repeats one batch finds all of them in the caches, as far as they fit. So it goes through as many batches as it takes for
their distinct rows to fill the last-level cache twice. Tables that fit the cache altogether stay there in training as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.sharding.work import ShardWork
from shardwright.task.table import row_bytes

FEWEST, MOST = 2, 128
_MOST_LOOKUPS = 2e6  # of all batches together: what drawing them may take
_OF_CACHE, _OF_TABLES = 2.0, 0.9
_LINE = 64


def fresh_batches(works: Sequence[ShardWork], cache_bytes: int) -> int:
    """How many batches it takes for their distinct rows to fill a cache twice, or to be nearly all rows of the tables.

    Args:
        works: the shards of one device.
        cache_bytes: bytes of the last-level cache.
    """
    lines = [-(-row_bytes(work.dtype, work.dim) // _LINE) * _LINE for work in works]
    total = sum(work.rows * size for work, size in zip(works, lines, strict=True))
    if total <= cache_bytes:
        return FEWEST
    wanted = min(_OF_CACHE * cache_bytes, _OF_TABLES * total)
    lookups = sum(work.lookups for work in works)
    most = int(min(MOST, max(FEWEST, _MOST_LOOKUPS / max(lookups, 1.0))))

    def distinct(batches: int) -> float:
        rows = (work.access.distinct_rows(work.lookups * batches) for work in works)
        return sum(count * size for count, size in zip(rows, lines, strict=True))

    low, high = FEWEST - 1, FEWEST
    while high < most and distinct(high) < wanted:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if distinct(middle) >= wanted else (middle, high)
    return high
