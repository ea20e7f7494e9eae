"""What rows of pieces add to the fused calls of their devices, as `devices` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Added(NamedTuple):
    """The parts of n rows: those of row i are `[part[i], part[i + 1])`, at least one.

    Attributes:
        part: `(n + 1,)`.
        call: `(parts,)` the call that each part is in.
        vectors: `(parts, h + 2)` what it adds there.
    """

    part: Ints
    call: Ints
    vectors: Floats

    @classmethod
    def of(cls, call: Ints, vectors: Floats) -> Added:
        """Rows of one block each, given by their calls `(n,)` and vectors `(n, h + 2)`."""
        return cls(np.arange(call.size + 1), np.ascontiguousarray(call), np.ascontiguousarray(vectors))

    @classmethod
    def of_groups(cls, call: Ints, vectors: Floats, groups: Sequence[Ints]) -> Added:
        """Rows that each stand for a group of blocks, given by their places; blocks of a group in one call are one part."""
        if all(rows.size == 1 for rows in groups):
            rows = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
            return cls.of(call[rows], vectors[rows])
        parts = [[rows[call[rows] == kind] for kind in np.unique(call[rows])] for rows in groups]
        flat = [rows for of_row in parts for rows in of_row]
        return cls(
            np.cumsum([0, *(len(of_row) for of_row in parts)]),
            np.array([call[rows[0]] for rows in flat], dtype=np.int64),
            np.array([vectors[rows].sum(axis=0) for rows in flat]),
        )

    def take(self, order: Ints) -> Added:
        """The rows in this order."""
        counts = np.diff(self.part)[order]
        part = np.concatenate([[0], np.cumsum(counts)])
        source = np.arange(part[-1]) + np.repeat(self.part[order] - part[:-1], counts)
        return Added(part, self.call[source], self.vectors[source])

    def then(self, other: Added) -> Added:
        """These rows, and others behind them."""
        return Added(
            np.concatenate([self.part, self.part[-1] + other.part[1:]]),
            np.concatenate([self.call, other.call]),
            np.concatenate([self.vectors, other.vectors]),
        )

    def priced(self, prices: Floats) -> Floats:
        """`(n,)` ms of the rows at `(calls, h + 2)` prices."""
        return self.summed(priced(self.vectors, self.call, prices))

    def summed(self, of_parts: Floats) -> Floats:
        """`(n, …)` sums over the parts of each row."""
        single = len(of_parts) == self.part.size - 1
        found: Floats = of_parts if single else np.add.reduceat(of_parts, self.part[:-1])
        return found


def priced(vectors: Floats, call: Ints, prices: Floats) -> Floats:
    """`(n,)` ms of `(n, h + 2)` vectors at `(calls, h + 2)` prices, each at those of its call `(n,)`."""
    if len(prices) == 1 or not call.size or (call == call[0]).all():
        found: Floats = vectors @ prices[call[0] if call.size else 0]
        return found
    of_all: Floats = vectors @ prices.T  # reading the vectors is what takes time
    return of_all[np.arange(call.size), call]
