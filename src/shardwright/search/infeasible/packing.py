r"""Groups that must stay on one device each, and devices that cannot take them all: bounds of bin packing.

Counting, for bins of any sizes. A device with memory m takes at most ⌊m / b⌋ groups of b bytes or more.

L2 (Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990), for bins of one size C and any a ≤ C / 2:
groups above C − a leave no room for groups of a or more; groups above C / 2 lie on a device of their own. Smaller devices count as
devices of size C that hold an item of the missing bytes, one each: what fits them fits these too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible.groups import Group
from shardwright.search.infeasible.where import Where, inside
from shardwright.task.units import format_bytes

_MOST_SETS = 50


def check_packing(groups: Sequence[Group]) -> None:
    """Check that groups that stay on one device each may fit the devices they are confined to.

    Raises:
        InfeasibleTask: they cannot.
    """
    by_set: dict[Where, list[Group]] = {}
    for group in groups:
        if group.single:
            by_set.setdefault(group.where, []).append(group)
    sets = sorted(by_set, key=lambda where: -where.count)[:_MOST_SETS]
    for where, within in zip(sets, inside(sets) if sets else [], strict=True):
        confined = [group for index in within for group in by_set[sets[index]]]
        _check_set(where, sorted(confined, key=lambda group: -group.bytes))


def _check_set(where: Where, confined: Sequence[Group]) -> None:
    sizes = [group.bytes for group in confined]
    remedy = "allow column_wise or row_wise for some of them, or use more devices or devices with more memory"
    crowded = too_many(sizes, where.memory)
    if crowded is not None:
        count, room = crowded
        raise InfeasibleTask(
            f"{count} tables or colocated groups, {_some(confined[:count])}, must each stay on one device and take at least "
            f"{format_bytes(sizes[count - 1])}, and {where} take at most {room} of that size: {remedy}"
        )
    devices = fewest_bins(sizes, where.memory)
    if devices > where.count:
        raise InfeasibleTask(
            f"{len(sizes)} tables or colocated groups, {_some(confined)}, must each stay on one device; of the largest memory, "
            f"{format_bytes(where.memory[0])}, they would fill {devices} devices, what smaller ones lack counted in, and may use {where}: "
            f"{remedy}"
        )


def too_many(sizes: Sequence[int], memory: Sequence[int]) -> tuple[int, int] | None:
    """The fewest largest items that are more than what the bins take of items of their size, and how many that is; None if there are none.

    Args:
        sizes: of the items, largest first.
        memory: of the bins.
    """
    bins = Counter(memory)
    for index, size in enumerate(sizes):
        room = sum(count * (room // size) for room, count in bins.items())
        if room <= index:
            return index + 1, room
    return None


def fewest_bins(sizes: Sequence[int], memory: Sequence[int]) -> int:
    """The L2 bound: bins of the largest size that the items need at the least, what smaller bins lack counted as items.

    Args:
        sizes: of the items, none larger than the largest bin.
        memory: of the bins.
    """
    largest = max(memory)
    items = sorted([*sizes, *(largest - room for room in memory if room < largest)], reverse=True)
    before = [0, *accumulate(items)]
    halves = sum(2 * item > largest for item in items)
    best = -(-before[-1] // largest)
    least = len(items)  # items below the threshold begin here
    for index in range(len(items) - 1, halves - 1, -1):
        threshold = items[index]
        if index + 1 < len(items) and items[index + 1] == threshold:
            continue
        least = index + 1
        best = max(best, _bins_above(items, before, halves, least, threshold, largest))
    return max(best, halves)


def _bins_above(
    items: Sequence[int], before: Sequence[int], halves: int, stop: int, threshold: int, largest: int
) -> int:
    """L2 of the first `stop` items, those of at least `threshold`; the first `halves` are more than half a bin."""
    alone = _first_at_most(items, largest - threshold, halves)
    free = (halves - alone) * largest - (before[halves] - before[alone])
    small = before[stop] - before[halves]
    return halves + max(0, -(-(small - free) // largest))


def _first_at_most(items: Sequence[int], size: int, stop: int) -> int:
    """How many of the first `stop` items, largest first, are larger than `size`."""
    low, high = 0, stop
    while low < high:
        middle = (low + high) // 2
        if items[middle] > size:
            low = middle + 1
        else:
            high = middle
    return low


def _some(groups: Sequence[Group]) -> str:
    names = [" + ".join(group.tables) for group in groups]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
