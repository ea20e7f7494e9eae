"""What moves when one plan replaces another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwright.errors import InvalidPlan
from shardwright.sharding.memory import optimizer_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.table import DTYPE_BYTES, Table


@dataclass(frozen=True)
class Move:
    """What one device must fetch of one table.

    Attributes:
        table: the table.
        device: the rank that receives.
        elements: weights it holds in the newer plan but not in the older one.
        bytes: bytes of these weights and their optimizer state.
    """

    table: str
    device: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class PlanDiff:
    """Difference of two plans of the same tables.

    Attributes:
        moves: what each device fetches, in the newer plan's order of tables and ranks.
        added: tables only the newer plan has; they are initialised, not moved.
        removed: tables only the older plan has.
    """

    moves: tuple[Move, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes over all moves."""
        return sum(move.bytes for move in self.moves)

    @property
    def moved_tables(self) -> tuple[str, ...]:
        """Tables of which anything moves."""
        return tuple(dict.fromkeys(move.table for move in self.moves))


def diff_plans(older: Plan, newer: Plan) -> PlanDiff:
    """What each device must fetch when `newer` replaces `older`.

    Blocks counted in different row orders share no rows as far as the plans can tell, so such a table moves whole.

    Raises:
        InvalidPlan: a table differs in rows, dim or dtype between the two plans.
    """
    before, after = older.task.table_by_name, newer.task.table_by_name
    moves: list[Move] = []
    for name, table in after.items():
        if name not in before:
            continue
        _check_same_table(before[name], table)
        held = _by_device(older.by_table[name])
        moves += _table_moves(table, held, _by_device(newer.by_table[name]), newer.task.optimizer)
    added = tuple(name for name in after if name not in before)
    removed = tuple(name for name in before if name not in after)
    return PlanDiff(tuple(moves), added, removed)


def _check_same_table(one: Table, other: Table) -> None:
    if (one.rows, one.dim, one.dtype) != (other.rows, other.dim, other.dtype):
        raise InvalidPlan(
            f"table '{one.name}' is {one.rows} × {one.dim} {one.dtype} in one plan and {other.rows} × {other.dim} {other.dtype} "
            "in the other; only plans of the same tables can be compared"
        )


def _by_device(shards: Iterable[Shard]) -> dict[int, list[Shard]]:
    held: dict[int, list[Shard]] = {}
    for shard in shards:
        for rank in shard.devices:
            held.setdefault(rank, []).append(shard)
    return held


def _table_moves(
    table: Table, before: Mapping[int, list[Shard]], after: Mapping[int, list[Shard]], optimizer: str
) -> list[Move]:
    moves = []
    for rank in sorted(after):
        # Blocks of one plan are disjoint, so what stays is the plain sum of pairwise overlaps.
        kept = sum(
            new.overlap(old) for new in after[rank] for old in before.get(rank, []) if new.row_order == old.row_order
        )
        elements = sum(shard.area for shard in after[rank]) - kept
        if elements:
            state = optimizer_bytes(optimizer, 1, table.dim) / table.dim
            moves.append(Move(table.name, rank, elements, round(elements * (DTYPE_BYTES[table.dtype] + state))))
    return moves
