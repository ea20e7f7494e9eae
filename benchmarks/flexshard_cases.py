"""Sequence models for `flexshard_measured.py`: tables, rank maps, and every rank's batches, which depend on the case alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.sharding import RankMap
from shardwright.task import AccessProfile, Table

Ints: TypeAlias = npt.NDArray[np.int64]
Jagged: TypeAlias = dict[str, tuple[Ints, Ints]]
"""By table, `(n,)` ids and `(samples,)` lengths."""

SPREAD = 2.0
"""Rows and lengths of synthetic tables differ from the case's by at most this factor."""


@dataclass(frozen=True)
class Case:
    """A sequence model and its batches.

    Attributes:
        name: name on the page.
        dim: dim of all tables.
        batch: samples of each rank in a step.
        log: file of `user item` lines in time order per user; None for synthetic tables.
        longest: most ids of a sample of the log; the last ones are kept.
        tables: number of synthetic tables.
        rows: approximate rows of a synthetic table.
        zipf: Zipf exponent of the accesses of synthetic tables.
        length: approximate mean number of ids of a sample.
        seed: seed of the batches.
    """

    name: str
    dim: int
    batch: int
    log: str | None = None
    longest: int = 200
    tables: int = 1
    rows: int = 0
    zipf: float = 0.0
    length: int = 0
    seed: int = 0

    def data(self) -> Log | Synthetic:
        """Return the tables and batches."""
        return Log(self) if self.log is not None else Synthetic(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `Case(**…)`."""
        return asdict(self)


class Log:
    """Histories of users, one sample each. Ids are permuted, as hashing does: numbered by first use they would be half sorted."""

    def __init__(self, case: Case) -> None:
        assert case.log is not None
        self._case = case
        users, items = np.fromfile(case.log, dtype=np.int64, sep=" ").reshape(-1, 2).T
        self.permutation = np.random.default_rng(case.seed).permutation(items.max() + 1)
        order = np.argsort(users, kind="stable")
        lengths = np.bincount(users)[np.unique(users)]
        ends = np.cumsum(lengths)
        self._items = self.permutation[items[order]]
        self._kept = np.minimum(lengths, case.longest)
        self._starts = ends - self._kept

    @cached_property
    def _counts(self) -> Ints:
        kept = np.concatenate([np.arange(start, start + n) for start, n in zip(self._starts, self._kept, strict=True)])
        return np.bincount(self._items[kept], minlength=self.permutation.size)

    def tables(self) -> list[Table]:
        """Return the table of items, with the accesses of the shortened histories."""
        pooling = float(self._kept.mean())
        access = AccessProfile.from_counts(self._counts)
        return [Table("item", self.permutation.size, self._case.dim, pooling, pooled=False, access=access)]

    def rank_maps(self) -> dict[str, RankMap]:
        """Return the items by number of accesses, then id."""
        return {"item": RankMap(self.permutation.size, np.argsort(-self._counts, kind="stable"))}

    def batch(self, step: int, rank: int, ranks: int) -> Jagged:
        """Return the users of a rank: every epoch visits all users in a new order."""
        size = self._case.batch * ranks
        epoch, place = divmod(step, self._kept.size // size)
        order = np.random.default_rng((self._case.seed, epoch)).permutation(self._kept.size)
        chosen = order[place * size + rank * self._case.batch :][: self._case.batch]
        ids = [self._items[self._starts[user] : self._starts[user] + self._kept[user]] for user in chosen]
        return {"item": (np.concatenate(ids), self._kept[chosen])}


class Synthetic:
    """Tables whose r-th hottest row has accesses proportional to r ** -zipf; ids scattered, lengths uniform from 0 to twice the mean."""

    def __init__(self, case: Case) -> None:
        self._case = case

    @cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        """Return rows and mean length of each table."""
        factors = SPREAD ** np.random.default_rng(self._case.seed).uniform(-1, 1, (self._case.tables, 2))
        return [(max(2, round(self._case.rows * a)), max(1, round(self._case.length * b))) for a, b in factors]

    def tables(self) -> list[Table]:
        """Return the tables."""
        case = self._case
        return [
            Table(f"t{i:03}", rows, case.dim, float(length), pooled=False, access=AccessProfile.zipf(rows, case.zipf))
            for i, (rows, length) in enumerate(self._shapes)
        ]

    def rank_maps(self) -> dict[str, RankMap]:
        """Return all ids by hotness."""
        return {
            f"t{i:03}": RankMap(rows, scattered(np.arange(rows, dtype=np.int64), rows))
            for i, (rows, _) in enumerate(self._shapes)
        }

    @cached_property
    def _cumulative(self) -> list[npt.NDArray[np.float64]]:
        mass = [np.cumsum(np.arange(1, rows + 1) ** -float(self._case.zipf)) for rows, _ in self._shapes]
        return [sums / sums[-1] for sums in mass]

    def batch(self, step: int, rank: int, ranks: int) -> Jagged:
        """Return the samples of a rank."""
        draw = np.random.default_rng((self._case.seed, step, rank))
        result = {}
        for i, (rows, length) in enumerate(self._shapes):
            lengths = draw.integers(0, 2 * length + 1, self._case.batch)
            ranked = np.searchsorted(self._cumulative[i], draw.random(int(lengths.sum())), side="right")
            result[f"t{i:03}"] = (scattered(np.minimum(ranked, rows - 1), rows), lengths)
        return result


def scattered(ranks: Ints, rows: int) -> Ints:
    """Ids of ranks: multiply modulo the rows and shift. Factor and shift depend on the rows, so hot rows lie anywhere."""
    factor = round(rows * 0.6180339887)
    while gcd(factor, rows) != 1:
        factor += 1
    shift = int(np.random.default_rng(rows).integers(rows))
    return (ranks * factor + shift) % rows


BATCH = 32
"""Samples of each device for synthetic tables, where nothing else is asked for."""


def cases(log: str | None, *, quick: bool, production: bool, batches: Sequence[int] = (BATCH,)) -> Iterator[Case]:
    """Yield the cases of a page.

    Synthetic tables have few rows, so that a step on this machine looks up each row as often as a step of a cluster does. With 1.3
    lookups a row and device (32 samples), 4 devices match 64 devices with 4,096 samples of 200 ids in 10 million rows. With 128
    samples they match the same in 2.5 million rows.

    Args:
        log: the file of the log; None to leave it out.
        quick: whether to yield few and small cases.
        production: whether to add 100 tables, and sequences of a thousand.
        batches: samples of each device for the synthetic tables.
    """
    if log is not None:
        real = Case("Amazon video games, dim 64", 64, 1024 if quick else 2048, log=str(Path(log).resolve()))
        yield real
        if not quick:
            yield replace(real, name="Amazon video games, dim 128", dim=128)
    shape = Case("", 64, BATCH, tables=8 if quick else 20, rows=2500, length=100)
    for batch, zipf in product(batches, (1.1,) if quick else (0.8, 1.0, 1.1, 1.2, 1.3)):
        samples = "" if batch == BATCH else f", {batch} samples a device"
        name = f"{shape.tables} tables, length 100, Zipf {zipf:g}{samples}"
        yield replace(shape, name=name, zipf=zipf, batch=batch)
    if production:
        long = replace(shape, tables=2, rows=25_000, length=1000, zipf=1.1)
        yield replace(long, name="2 tables, length 1000, Zipf 1.1")
        yield replace(
            shape, name="100 tables, length 50, Zipf 1.1", tables=100, batch=16, rows=600, length=50, zipf=1.1
        )
