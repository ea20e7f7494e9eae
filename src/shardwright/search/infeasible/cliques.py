"""Tables of which no two may share a device, and too few devices for them.

Two groups cannot share a device where constraints keep them apart, or where both must stay whole and each takes more than half of the
largest memory. Sets of groups that pairwise cannot share are found greedily; each group then needs devices of its own: a matching of
groups to devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible.groups import Group
from shardwright.search.infeasible.where import Mask
from shardwright.task.task import Task

_MOST_STARTS = 500


def check_cliques(task: Task, groups: Sequence[Group]) -> None:
    """Check that groups that cannot share devices find enough of them.

    Raises:
        InfeasibleTask: they do not.
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
            _check(groups, sorted(clique), memory)


def _rivals(apart: Iterable[Sequence[int]], large: Sequence[int]) -> dict[int, set[int]]:
    """Which groups, by index, a group cannot share a device with; only groups that are kept apart from another are named."""
    rivals: dict[int, set[int]] = defaultdict(set)
    for names in apart:
        for one in names:
            rivals[one] |= set(names) - {one}
    both = set(large) & rivals.keys()
    for one in both:
        rivals[one] |= set(large) - {one}
    return rivals


def _extended(start: Sequence[int], rivals: dict[int, set[int]]) -> frozenset[int]:
    """The clique with further groups that rival all of it, those with most rivals first."""
    clique = set(start)
    common = set.intersection(*(rivals.get(one, set()) for one in start)) - clique if start else set()
    while common:
        chosen = max(sorted(common), key=lambda one: len(rivals[one]))
        clique.add(chosen)
        common &= rivals[chosen]
    return frozenset(clique)


def _check(groups: Sequence[Group], clique: Sequence[int], memory: npt.NDArray[np.int64]) -> None:
    """Check that the groups of a clique can each lie on as many devices of its own as it needs."""
    members = [groups[index] for index in clique]
    needed = sum(group.fewest for group in members)
    options = [group.where.mask & (memory >= (group.bytes if group.single else 0)) for group in members]
    if min(int(mask.sum()) for mask in options) >= needed:
        return
    found = _matched([mask for mask, group in zip(options, members, strict=True) for _ in range(group.fewest)])
    if found < needed:
        names = [" + ".join(group.tables) for group in members]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InfeasibleTask(
            f"no two of these {len(names)} tables or colocated groups may share a device, being kept apart or too large: {shown}; they "
            f"need {needed} devices of their own, and the devices they may use allow for {found}: allow at least as many devices, drop a "
            "constraint, or allow column_wise or row_wise for the large ones"
        )


def _matched(options: Sequence[Mask]) -> int:
    """How many rows of options can each have a device of their own."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return int((maximum_bipartite_matching(csr_array(np.array(options)), perm_type="column") >= 0).sum())
