"""Patterns of all tables of a plan, column blocks of sequences in one width.

FBGEMM runs the unpooled tables of one call in one width only, and TorchRec runs all column-wise tables of a module on a rank in one
call. Where a plan cuts the sequences of a module into blocks of several widths, each block becomes as many blocks of their greatest common
divisor, on the same rank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from torchrec.distributed.types import ShardingType

from shardwright.integrations.torchrec.problem import TorchRecProblem
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Pattern, pattern_of

_IN_COLUMNS = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


def patterns_of(plan: Plan, problem: TorchRecProblem) -> dict[str, Pattern]:
    """How each table is sharded, in TorchRec's terms.

    Raises:
        InvalidPlan: TorchRec cannot run the blocks of a table, or its constraints forbid them; the message names it.
    """
    tables, topology = problem.task.table_by_name, problem.task.topology
    found = {
        name: pattern_of(plan.by_table[name], tables[name], topology, place.types)
        for name, place in problem.places.items()
    }
    calls: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, pattern in found.items():
        if pattern.kind in _IN_COLUMNS and not tables[name].pooled:
            calls[problem.places[name].path, pattern.kind].append(name)
    for names in calls.values():
        width = math.gcd(*(stop - start for name in names for _, (start, stop), _ in found[name].blocks))
        found |= {name: _in_width(found[name], width) for name in names}
    return found


def _in_width(pattern: Pattern, width: int) -> Pattern:
    return replace(
        pattern,
        blocks=tuple(
            (rows, (first, first + width), rank)
            for rows, (start, stop), rank in pattern.blocks
            for first in range(start, stop, width)
        ),
    )
