"""The tiers of tables whose rows are placed by hotness, and the access curve they cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard


@dataclass(frozen=True)
class Tier:
    """Rows of a table that are placed alike.

    Attributes:
        name: "hot" (a copy on every device), "warm" (a copy on every host), "cold" (one copy), else "2 copies" and so on.
        rows: half-open range of rows, hottest first.
        share: part of the table's lookups that fall on them.
        copies: how many devices hold each of the rows; a mean where they differ.
        blocks: row ranges it is cut into.
    """

    name: str
    rows: tuple[int, int]
    share: float
    copies: float
    blocks: int


def tiered_tables(plan: Plan) -> tuple[str, ...]:
    """Names of the tables whose rows are placed by hotness."""
    return tuple(
        name for name, shards in plan.by_table.items() if any(shard.row_order == "hotness" for shard in shards)
    )


def tiers_of(plan: Plan, table: str) -> tuple[Tier, ...]:
    """The tiers of a table, hottest first; neighbouring blocks without a tier that have as many copies are one."""
    one, topology = plan.task.table_by_name[table], plan.task.topology
    ordered = sorted(plan.by_table[table], key=lambda shard: shard.rows)
    found: list[Tier] = []
    dealt_before = True
    for key, group in groupby(ordered, key=lambda shard: shard.tier or shard.rows):
        shards = list(group)
        rows, blocks, dealt = key, len({shard.rows for shard in shards}), shards[0].tier is not None
        copies = _copies(shards, one.dim * (rows[1] - rows[0]))
        if not (dealt or dealt_before) and found[-1].copies == copies:
            before = found.pop()
            rows, blocks = (before.rows[0], rows[1]), before.blocks + blocks
        name = _name(copies, topology.devices, topology.hosts)
        found.append(Tier(name, rows, one.access.share_of(*rows), copies, blocks))
        dealt_before = dealt
    return tuple(found)


def _copies(shards: Sequence[Shard], area: int) -> float:
    return sum(shard.area * len(shard.devices) for shard in shards) / area


def _name(copies: float, devices: int, hosts: int) -> str:
    names = {
        float(devices): "hot",
        float(hosts): "warm",
        1.0: "cold",
    }  # the last of equal keys wins: one host has no warm rows
    return names.get(copies, f"{copies:g} copies")
