"""The vocabulary of the programme: pieces of a table, rules on them, and the ways that they make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from shardwright.sharding.shard import Shard
from shardwright.task.table import Table

Kind: TypeAlias = Literal["columns", "rows", "replica"]


@dataclass(frozen=True)
class Piece:
    """A block that a way may put on its devices.

    Attributes:
        shard: the block, beginning at the first row and column; its place in the table follows once all pieces are known.
        share: share of the table it holds on each of its devices, in the dimension that is cut; 1 for row blocks.
        most: how often it may be taken.
    """

    shard: Shard
    share: float
    most: int = 1


@dataclass(frozen=True)
class Rule:
    """low ≤ weights · (pieces taken) ≤ high, if the way is chosen; no pieces are taken if it is not.

    Attributes:
        pieces: indices into the way's pieces.
        weights: of these pieces.
        low: least sum.
        high: greatest sum.
    """

    pieces: tuple[int, ...]
    weights: tuple[int, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Way:
    """One way to make a table.

    Attributes:
        table: the table.
        kind: what is cut.
        pieces: blocks it offers.
        rules: which numbers of them make the table.
    """

    table: Table
    kind: Kind
    pieces: tuple[Piece, ...]
    rules: tuple[Rule, ...]

    def shards(self, taken: Sequence[int]) -> list[Shard]:
        """The shards of the table, pieces side by side in order of their devices.

        Args:
            taken: `(pieces,)` how often each piece is taken.
        """
        blocks = [piece.shard for piece, count in zip(self.pieces, taken, strict=True) for _ in range(count)]
        result, row, column = [], 0, 0
        for block in sorted(blocks, key=lambda shard: shard.devices):
            result.append(replace(block, rows=(row, row + block.row_count), columns=(column, column + block.dim)))
            row += block.row_count if self.kind == "rows" else 0
            column += block.dim if self.kind == "columns" else 0
        return result
