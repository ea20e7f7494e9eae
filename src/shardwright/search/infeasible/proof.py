"""Proofs that a task has no plan, by three rules; `prove_infeasible` checks the cheap ones first.

*Cliques.* Two groups cannot share a device if constraints keep them apart, or if both must stay whole and each takes more than half of the
largest memory. A greedy finds sets in which no two groups can share a device. Each group of such a set needs separate devices, so there
must be a matching of groups to devices.

*Crowds.* A set of devices has less memory than is confined to it. By Hall's theorem for divisible goods (Gale, "A theorem on flows in
networks", 1957) it is enough to look at one set: the source side of a minimum cut between tables, with their needs, and devices, with their
memory. The same cut gives the number of groups of a clique that find devices (König).

*Packing.* Groups that must each stay on one device may be too many for the devices. Two bounds of bin packing decide:

Counting, for bins of any sizes. A device with memory m takes at most ⌊m / b⌋ groups of b bytes or more.

L2 (Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990), for bins of one size C and any a ≤ C / 2:
a group above C − a leaves no room for a group of a or more, and groups above C / 2 lie on separate devices. A smaller device
counts as one of size C that holds an item of the missing bytes: what fits on the small device fits beside that item.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import neg

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.errors import InfeasibleTask, some_of
from shardwright.linear_programs import Program
from shardwright.search.infeasible.needs import Group, Places, Where, compared, groups_of, inside
from shardwright.task.quantities import format_bytes
from shardwright.task.task import Task

_MOST_STARTS = 500


def check_cliques(task: Task, groups: Sequence[Group]) -> None:
    """Check that groups that cannot share devices find enough devices.

    Raises:
        InfeasibleTask: they find too few.
    """
    index_of = {name: index for index, group in enumerate(groups) for name in group.tables}
    apart = [sorted({index_of[name] for name in names}) for names in task.constraints.apart]
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    half = max(task.topology.memory_bytes) / 2
    large = [index for index, group in enumerate(groups) if group.single and group.bytes > half]
    rivals = _rivals(apart, large)
    seen: set[frozenset[int]] = set()
    for start in [large, *apart][:_MOST_STARTS]:
        clique = _extended(start, rivals)
        if len(clique) > 1 and clique not in seen:
            seen.add(clique)
            _check_clique(groups, sorted(clique), memory)


def _rivals(apart: Iterable[Sequence[int]], large: Sequence[int]) -> dict[int, set[int]]:
    """For each group, by index, the groups it cannot share a device with; only groups that are kept apart from another are named."""
    rivals: dict[int, set[int]] = defaultdict(set)
    for names in apart:
        for group in names:
            rivals[group] |= set(names) - {group}
    both = set(large) & rivals.keys()
    for group in both:
        rivals[group] |= set(large) - {group}
    return rivals


def _extended(start: Sequence[int], rivals: dict[int, set[int]]) -> frozenset[int]:
    """The clique with further groups that rival all of it, those with most rivals first."""
    clique = set(start)
    common = set.intersection(*(rivals.get(group, set()) for group in start)) - clique if start else set()
    while common:
        chosen = max(sorted(common), key=lambda group: len(rivals[group]))
        clique.add(chosen)
        common &= rivals[chosen]
    return frozenset(clique)


def _check_clique(groups: Sequence[Group], clique: Sequence[int], memory: Ints) -> None:
    """Check that each group of a clique finds as many separate devices as it needs."""
    members = [groups[index] for index in clique]
    needed = sum(group.fewest for group in members)
    options = [group.where.mask & (memory >= (group.bytes if group.single else 0)) for group in members]
    if min(int(mask.sum()) for mask in options) >= needed:
        return
    wanted = np.array([mask for mask, group in zip(options, members, strict=True) for _ in range(group.fewest)])
    crowded = _most_crowded(wanted, np.ones(needed), np.ones(memory.size))
    confined = int((~(wanted & ~crowded).any(axis=1)).sum())
    matched = needed - max(0, confined - int(crowded.sum()))  # the largest matching, by König's theorem
    if matched < needed:
        raise InfeasibleTask(
            f"no two of these {len(members)} tables or colocated groups may share a device, being kept apart or too large: "
            f"{_some(members, 8)}; they need {needed} devices of their own, but only {matched} can be assigned: allow at least as many "
            "devices, drop a constraint, or allow column_wise or row_wise for the large ones"
        )


_MOST_EDGES = 300_000  # edges of the network; larger networks are checked set by set only


def check_crowds(task: Task, groups: Sequence[Group]) -> None:
    """Check that the groups confined to any set of devices fit its memory together.

    Raises:
        InfeasibleTask: the groups of one set do not fit.
    """
    sets = list(dict.fromkeys(group.where for group in groups))
    everywhere = Places(task).of(np.ones(task.topology.devices, dtype=bool))
    _check_crowd(task, groups, everywhere)
    need = dict.fromkeys(sets, 0)
    for group in groups:
        need[group.where] += group.bytes
    needs = list(need.values())
    for where, within in zip(sets, inside(sets), strict=True):
        if sum(needs[index] for index in within) > where.total:
            _check_crowd(task, groups, where)
    if len(sets) > 1 and sum(where.count for where in sets) <= _MOST_EDGES:
        masks = np.array([where.mask for where in sets])
        crowded = _most_crowded(
            masks, np.array(needs, dtype=np.float64), np.array(task.topology.memory_bytes, dtype=np.float64)
        )
        if crowded.any():
            _check_crowd(task, groups, Places(task).of(crowded))


def _check_crowd(task: Task, groups: Sequence[Group], where: Where) -> None:
    """Check one set of devices, to the byte."""
    confined = groups if where.everywhere else [g for g in groups if not (g.where.mask & ~where.mask).any()]
    need = sum(group.bytes for group in confined)
    if need <= where.total:
        return
    needed, present = compared(need, where.total)
    if where.everywhere:
        devices = -(-need * where.count // where.total)
        holders = f"{where} together have" if where.count > 1 else "the only device has"
        raise InfeasibleTask(
            f"the tables need {needed} of weights, optimizer state and buffers, {holders} {present}: "
            f"use at least {devices} such devices, fp16 weights, an optimizer with less state, or a smaller batch"
        )
    names = [name for group in confined for name in group.tables]
    raise InfeasibleTask(
        f"tables {some_of(names)} may only use {where} and need {needed} there, which have {present} together: let "
        "some of them use other devices, or use devices with more memory"
    )


def _most_crowded(masks: Bools, needs: Floats, room: Floats) -> Bools:
    """`(devices,)` the devices that the tables confined to them overfill most; none if all fits.

    Solves a program of sets and devices, in which a set counts only if all of its devices do. Its vertices are integral. The program is
    solved in floating point, so the caller checks the result to the byte.

    Args:
        masks: `(sets, devices)` the devices of each set.
        needs: `(sets,)` bytes confined to each set.
        room: `(devices,)` bytes of each device.
    """
    unit = max(needs.max(), room.max())
    sets, same_set = np.unique(masks, axis=0, return_inverse=True)
    kinds, same_device = np.unique(sets, axis=1, return_inverse=True)
    program = Program()
    devices = program.variables(np.ones(kinds.shape[1]), cost=np.bincount(same_device.ravel(), room) / unit)
    counted = program.variables(np.ones(len(sets)), cost=-np.bincount(same_set.ravel(), needs) / unit)
    for index, kind in np.argwhere(kinds):
        program.row([counted[index], devices[kind]], [1.0, -1.0], high=0.0)
    values = program.relaxed().values
    chosen: Bools = np.zeros(room.size, dtype=bool) if values is None else (values[devices] > 0.5)[same_device.ravel()]
    return chosen


_MOST_SETS = 50


def check_packing(groups: Sequence[Group]) -> None:
    """Check that groups that must each stay on one device may fit the devices they are confined to.

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
            f"{len(sizes)} tables or colocated groups, {_some(confined)}, must each stay on one device. They would fill {devices} devices "
            f"of {format_bytes(where.memory[0])} memory (space that smaller devices lack counts as filled), but may use {where}: {remedy}"
        )


def too_many(sizes: Sequence[int], memory: Sequence[int]) -> tuple[int, int] | None:
    """Least n such that the bins cannot take n items of the n-th largest item's size, and the number that they take; None if there is no n.

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
    """The L2 bound: the fewest bins of the largest size that the items need. The space that smaller bins lack counts as items.

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
    alone = bisect_left(items, threshold - largest, 0, halves, key=neg)  # those that leave no room for the threshold
    free = (halves - alone) * largest - (before[halves] - before[alone])
    small = before[stop] - before[halves]
    return halves + max(0, -(-(small - free) // largest))


def _some(groups: Sequence[Group], most: int = 5) -> str:
    return some_of([" + ".join(group.tables) for group in groups], most)


def prove_infeasible(task: Task) -> str | None:
    """The proof that no plan of the task exists; None if no proof was found.

    A proof holds for every plan that the checker accepts, from any strategy, so no search is needed. If the result is None, a plan may or
    may not exist: packing is hard, and only bounds are checked.

    1. Some table's smallest allowed block fits no device that the table may use, or no allowed way to shard it exists.
    2. Colocated tables need more devices than one of them may be spread over, or more memory than one device has.
    3. Tables confined to some devices need more memory than these have together.
    4. Tables that must stay whole do not fit the devices one by one.
    5. Tables that cannot share devices find too few devices.

    Returns:
        An error with the broken rule, the numbers and a remedy.
    """
    try:
        groups = groups_of(task)
        check_crowds(task, groups)
        check_packing(groups)
        check_cliques(task, groups)
    except InfeasibleTask as proof:
        return str(proof)
    return None
