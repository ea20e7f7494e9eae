"""The two passes over a step's lookups, compiled, for tensors in main memory: whom to ask for each, and all in order of whom to ask.

They do what `Ranking`, `Router` and a stable sort do with a few dozen vector operations.
"""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled
from shardwright.runtime.placement import Ints


@compiled
def find_codes(
    ids: Ints,
    ends: Ints,
    base: Ints,
    bits: Ints,
    before: Ints,
    ranked: Ints,
    stops: Ints,
    firsts: Ints,
    starts: Ints,
    parts: Ints,
    ranges: Ints,
    first_codes: Ints,
    codes: Ints,
) -> bool:
    """Write the `(n,)` codes of `(n,)` ids, and say whether an id is out of range; its code is that of row 0.

    Args:
        ids: table after table.
        ends: `(tables + 1,)` where the lookups of each table start.
        base: `(tables + 1,)` first key of each table.
        bits: by 64 keys, which of them are hottest.
        before: by 64 keys, how many hottest keys come before.
        ranked: key by rank of each hottest key.
        stops: `(tables,)` hottest keys of each table and those before it.
        firsts: `(tables + 1,)` first segment of each table.
        starts: first key of each segment.
        parts: ranges that each segment is dealt to.
        ranges: first range of each segment.
        first_codes: code of the first row of each range.
        codes: is written.
    """
    wrong = False
    for table in range(ends.size - 1):
        rows = base[table + 1] - base[table]
        low, high = firsts[table], firsts[table + 1] - 1
        step = (high - low + 1) / rows  # segments a row: blocks of equal size are found at once
        mapped = stops[table] > (stops[table - 1] if table else 0)
        for index in range(ends[table], ends[table + 1]):
            own = ids[index]
            if own < 0 or own >= rows:
                wrong = True
                own = 0
            key = base[table] + own
            if mapped:
                word = bits[key >> 6]
                place = key & 63
                count = before[key >> 6] + _ones(word & ((np.int64(1) << place) - 1))
                key = ranked[count] if (word >> place) & 1 else key + stops[table] - count
            segment = min(low + int((key - base[table]) * step), high)
            while starts[segment] > key:
                segment -= 1
            while segment < high and starts[segment + 1] <= key:
                segment += 1
            row, dealt = key - starts[segment], parts[segment]
            if dealt == 1:
                codes[index] = first_codes[ranges[segment]] + row
            else:
                quotient = row // dealt
                codes[index] = first_codes[ranges[segment] + row - quotient * dealt] + quotient
    return wrong


@compiled
def sort_by_place(codes: Ints, bits: int, counts: Ints, order: Ints, inverse: Ints, questions: Ints) -> None:
    """Sort `(n,)` codes by what stands above their lowest bits, keeping equal ones in order.

    Args:
        codes: the codes.
        bits: how many lowest bits.
        counts: `(places,)` zeros; is written: codes of each place.
        order: `(n,)`, is written: which code comes first, second, …
        inverse: `(n,)`, is written: where each code comes.
        questions: `(n,)`, is written: the lowest bits, sorted.
    """
    for code in codes:
        counts[code >> bits] += 1
    ends = np.cumsum(counts) - counts
    mask = (np.int64(1) << bits) - 1
    for index in range(codes.size):
        place = codes[index] >> bits
        position = ends[place]
        ends[place] = position + 1
        order[position] = index
        inverse[index] = position
        questions[position] = codes[index] & mask


@compiled
def _ones(word: int) -> int:
    """How many of the lower 63 bits are set."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (word * 0x0101010101010101) >> 56
