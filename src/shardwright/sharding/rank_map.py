"""Map ids to ranks by hotness. Only the hottest ids are kept, since the order of cold rows does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class RankMap:
    """A bijection between the ids of a table and their ranks; the hottest id has rank 0.

    Attributes:
        rows: rows of the table.
        hottest: `(n,)` distinct ids, hottest first, with ranks 0 to n - 1. All other ids follow in ascending order.
    """

    rows: int
    hottest: Ints

    def __post_init__(self) -> None:
        hottest = np.array(self.hottest, dtype=np.int64)
        if hottest.ndim != 1 or hottest.size > self.rows:
            raise InvalidInput(
                f"rank map: {hottest.size} hottest ids for a table of {self.rows} rows; there must be one list of at most all rows"
            )
        if hottest.size and not 0 <= hottest.min() <= hottest.max() < self.rows:
            raise InvalidInput(
                f"rank map: ids from {hottest.min()} to {hottest.max()} for a table of {self.rows} rows; ids must be below the rows"
            )
        hottest.flags.writeable = False
        object.__setattr__(self, "hottest", hottest)
        if (np.diff(self.ascending) == 0).any():
            raise InvalidInput("rank map: an id occurs twice among the hottest; every id has one rank")

    def __repr__(self) -> str:
        return f"<RankMap: {self.hottest.size:,} hottest ids of {self.rows:,} rows>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankMap):
            return NotImplemented
        return self.rows == other.rows and np.array_equal(self.hottest, other.hottest)

    def __hash__(self) -> int:
        return hash((self.rows, self.hottest.tobytes()))

    def trimmed(self, ranks: int) -> RankMap:
        """Return the map with the ids of the first `ranks` ranks only; the map itself if it knows no more."""
        return self if ranks >= self.hottest.size else RankMap(self.rows, self.hottest[: max(ranks, 0)])

    @classmethod
    def identity(cls, rows: int) -> RankMap:
        """Return the map of a table whose ids are ranks already."""
        return cls(rows, np.zeros(0, dtype=np.int64))

    @cached_property
    def order(self) -> Ints:
        """`(n,)` ranks of the hottest ids, by ascending id."""
        return np.argsort(self.hottest).astype(np.int64)

    @cached_property
    def ascending(self) -> Ints:
        """`(n,)` hottest ids, ascending."""
        ids: Ints = self.hottest[self.order]
        return ids

    def ranks(self, ids: Ints) -> Ints:
        """`(m,)` ranks of `(m,)` ids."""
        below = np.searchsorted(self.ascending, ids)
        ranks = self.hottest.size + ids - below
        if self.hottest.size:
            nearest = np.minimum(below, self.hottest.size - 1)
            ranks = np.where(self.ascending[nearest] == ids, self.order[nearest], ranks)
        return ranks.astype(np.int64)

    def ids(self, ranks: Ints) -> Ints:
        """`(m,)` ids of `(m,)` ranks."""
        cold = ranks - self.hottest.size
        missing = self.ascending - np.arange(
            self.hottest.size
        )  # for each of the hottest ids, the number of other ids below it
        ids = cold + np.searchsorted(missing, cold, side="right")
        if self.hottest.size:
            ids = np.where(cold < 0, self.hottest[np.minimum(ranks, self.hottest.size - 1)], ids)
        return ids.astype(np.int64)
