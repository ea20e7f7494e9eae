"""Initial weights that are a function of seed, table, id and column alone: the same for every plan and number of ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.task.table import Table

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]

InitialRows: TypeAlias = Callable[[Table, Ints], Floats]
"""From a table and `(n,)` ids to `(n, dim)` weights."""


@dataclass(frozen=True)
class UniformRows:
    """Weights from a uniform distribution over ± 1 / √rows, TorchRec's default, by hashing where they are.

    Attributes:
        seed: another seed, other weights.
    """

    seed: int = 0

    def __call__(self, table: Table, ids: Ints) -> Floats:
        """`(n, dim)` weights of `(n,)` ids."""
        salt = zlib.crc32(table.name.encode("utf-8")) ^ ((self.seed & 0xFFFFFFFF) << 32)
        start = _mixed(np.asarray(ids, dtype=np.uint64) ^ _mixed(np.full(1, salt, dtype=np.uint64)))
        steps = np.arange(1, table.dim + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        numbers = _mixed(start[:, None] + steps)
        share = (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        weights: Floats = (share * 2 - 1) * np.float32(table.rows**-0.5)
        return weights


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed
