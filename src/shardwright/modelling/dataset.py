"""Measured samples as arrays for training.

The cost of a cut is a small difference of large times, so a model that is accurate on each set may still miss it. So some sets are measured
to be compared. They form a *pair*: variants of the same work, such as the same tables whole and cut. A variant has one or several sets,
whose times add up; the other variants are compared with variant 0. The label of a set, "pair:NAME/VARIANT/SETS", names its pair, its
variant, and the number of sets in that variant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.features import BINS, WorkArrays
from shardwright.errors import InvalidInput
from shardwright.sharding.work import ShardWork
from shardwright.task.table import DTYPE_BYTES


@dataclass(frozen=True)
class Samples:
    """n measured sets with m shards in total.

    Attributes:
        sample: `(n,)` ids; a sample measured twice occurs twice.
        repeat: `(n,)` 0 for the first measurement of a sample, 1 for the second.
        starts: `(n + 1,)` offsets: the shards of set i are `starts[i]` to `starts[i + 1] - 1`.
        works: the m shards as arrays.
        times: `(n, 2)` measured forward and backward ms.
        labels: `(n,)` the pair label of each set (see `shardwright.modelling.dataset`); empty texts by default.
    """

    sample: Ints
    repeat: Ints
    starts: Ints
    works: WorkArrays
    times: Floats
    labels: npt.NDArray[np.object_] = field(default_factory=lambda: np.zeros(0, dtype=object))

    def __post_init__(self) -> None:
        if not len(self.labels):
            object.__setattr__(self, "labels", np.full(len(self.sample), "", dtype=object))

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def shard_counts(self) -> Ints:
        """`(n,)` number of shards in each set."""
        return np.diff(self.starts)

    @property
    def owner(self) -> Ints:
        """`(m,)` the set that each shard belongs to."""
        return np.repeat(np.arange(len(self)), self.shard_counts)

    @cached_property
    def calls(self) -> tuple[Ints, Ints]:
        """`(m,)` the fused call of each shard, and `(c,)` the set of each call, in order of the sets."""
        keys = np.column_stack([self.owner, self.works.calls])
        distinct, call = np.unique(keys, axis=0, return_inverse=True)
        return call.reshape(-1), distinct[:, 0].astype(np.int64)

    def select(self, chosen: Bools) -> Samples:
        """The sets where `chosen`, `(n,)`, is true."""
        shards = np.repeat(chosen, self.shard_counts)
        works = WorkArrays(**{name: column[shards] for name, column in vars(self.works).items()})
        starts = np.concatenate([[0], np.cumsum(self.shard_counts[chosen])])
        return Samples(self.sample[chosen], self.repeat[chosen], starts, works, self.times[chosen], self.labels[chosen])

    def repeat_pairs(self) -> tuple[Floats, Floats]:
        """`(k, 2)` first and `(k, 2)` second times of the k sets that were measured twice."""
        first, second = repeats(self.sample, self.repeat)
        return self.times[first], self.times[second]


def repeats(sample: Ints, repeat: Ints) -> tuple[Ints, Ints]:
    """`(k,)` rows of the first and `(k,)` rows of the second measurements of the k samples that were measured twice.

    Args:
        sample: `(n,)` ids.
        repeat: `(n,)` 0 for the first measurement of a sample, 1 for the second.
    """
    first, second = (np.flatnonzero(repeat == number) for number in (0, 1))
    _, in_first, in_second = np.intersect1d(sample[first], sample[second], return_indices=True)
    return first[in_first], second[in_second]


def rates_of(sizes: Floats, times: Floats, weights: Floats | None = None) -> Floats:
    """`(k,)` non-negative rates by which `(n, k)` sizes add up to `(n,)` times, fitted by relative error, to be weighted by `(n,)`."""
    from scipy.optimize import nnls

    goal = np.ones(len(times)) if weights is None else weights
    columns = sizes / times[:, None] * goal[:, None]
    unit = np.maximum(columns.max(axis=0), 1e-30)
    rates: Floats = nnls(columns / unit, goal)[0] / unit
    return rates


SHARES = (0.8, 0.1, 0.1)
"""Shares of training, validation and test samples, as in NeuroShard."""


def split(sample: Ints, seed: int) -> list[Bools]:
    """Three `(n,)` masks, of training, validation and test sets, drawn at random; both measurements of a sample stay together.

    Args:
        sample: `(n,)` ids.
        seed: seed of the draw.
    """
    ids = np.unique(sample)
    cuts = np.cumsum([round(share * len(ids)) for share in SHARES[:-1]])
    return [np.isin(sample, part) for part in np.split(np.random.default_rng(seed).permutation(ids), cuts)]


def join(parts: Sequence[Samples]) -> Samples:
    """Join the sets of several stores; ids are shifted so that no two stores share one."""
    shifts = np.concatenate([[0], np.cumsum([part.sample.max() + 1 for part in parts])])
    counts = np.concatenate([part.shard_counts for part in parts])
    columns = {name: np.concatenate([getattr(part.works, name) for part in parts]) for name in vars(parts[0].works)}
    return Samples(
        sample=np.concatenate([part.sample + shift for part, shift in zip(parts, shifts, strict=False)]),
        repeat=np.concatenate([part.repeat for part in parts]),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        works=WorkArrays(**columns),
        times=np.concatenate([part.times for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


def samples_of_works(sets: Sequence[Sequence[ShardWork]], times: Floats, labels: Sequence[str] = ()) -> Samples:
    """Samples from the shards and times of n sets.

    Args:
        sets: the shards of each of n sets.
        times: `(n, 2)` forward and backward ms.
        labels: the pair label of each set; empty texts by default.
    """
    numbers = np.arange(len(sets))
    starts = np.concatenate([[0], np.cumsum([len(works) for works in sets])]).astype(np.int64)
    works = WorkArrays.of([work for works in sets for work in works])
    return Samples(numbers, np.zeros_like(numbers), starts, works, times, np.array(labels, dtype=object))


def samples_of(table: Any) -> Samples:
    """Samples from the table of a sample store.

    Args:
        table: a `pyarrow.Table` as `shardwright.measure.samples.read_samples` returns it.

    Raises:
        InvalidInput: the store holds a time that is not finite and positive, or an impossible shard.
    """
    lists = table["shards"].combine_chunks()
    starts = np.asarray(lists.offsets, dtype=np.int64)
    starts = starts - starts[0]
    flat = lists.flatten()
    column = {name: flat.field(name) for name in ("rows", "dim", "samples", "lookups", "pooled", "dtype", "features")}
    works = WorkArrays(
        **{name: _floats(column[name]) for name in ("rows", "dim", "samples", "lookups", "pooled", "features")},
        weight_size=_weight_sizes(column["dtype"].to_pylist()),
        reuse_rows=_floats(flat.field("reuse_rows").flatten()).reshape(-1, BINS),
        reuse_lookups=_floats(flat.field("reuse_lookups").flatten()).reshape(-1, BINS),
        row_share=np.ones(len(flat)),
    )
    _check_works(works)
    times = np.stack([_floats(table["forward_ms"]), _floats(table["backward_ms"])], axis=1)
    if not np.isfinite(times).all() or (times <= 0).any():
        raise InvalidInput(
            "the sample store holds a time that is not finite and greater than 0; collect the samples again"
        )
    sample, repeat = (np.asarray(table[name], dtype=np.int64) for name in ("sample", "repeat"))
    return Samples(sample, repeat, starts, works, times, np.array(table["label"].to_pylist(), dtype=object))


def _weight_sizes(dtypes: Sequence[str]) -> Floats:
    unknown = sorted(set(dtypes) - set(DTYPE_BYTES))
    if unknown:
        raise InvalidInput(
            f"the samples have tables of dtype {unknown[0]!r}, must be one of {', '.join(DTYPE_BYTES)}; collect the samples again"
        )
    return np.array([DTYPE_BYTES[kind] for kind in dtypes], dtype=np.float64)


def _check_works(works: WorkArrays) -> None:
    for name, values in vars(works).items():
        least = 1 if name in ("rows", "dim", "samples", "features") else 0
        if not np.isfinite(values).all() or (values < least).any():
            raise InvalidInput(
                f"the samples have shards whose {name} is not a finite number of at least {least}; collect them again"
            )


def _floats(column: Any) -> Floats:
    return np.asarray(column.to_numpy(zero_copy_only=False) if hasattr(column, "flatten") else column, dtype=np.float64)


_LABEL = re.compile(r"pair:(.+)/(\d+)/(\d+)")


def pair_label(name: str, variant: int, sets: int) -> str:
    """The label of a set in a variant of `sets` sets."""
    return f"pair:{name}/{variant}/{sets}"


@dataclass(frozen=True)
class Pairs:
    """The complete variants of n sets.

    Attributes:
        variant: `(n,)` number of the variant of each set; -1 if the set belongs to no complete variant.
        base: `(variants,)` the variant that each variant is compared with; itself for a variant 0.
        group: `(n,)` a number for each set; the sets of one pair share a number that no other set has.
    """

    variant: Ints
    base: Ints
    group: Ints


def pairs_of(labels: Sequence[str]) -> Pairs:
    """The pairs among sets with these labels; a variant counts only if all of its sets and all of variant 0 are present."""
    sets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    wanted: dict[tuple[str, int], int] = {}
    group, first = np.arange(len(labels)), dict[str, int]()
    for place, label in enumerate(labels):
        match = _LABEL.fullmatch(label)
        if match:
            key = (match[1], int(match[2]))
            sets[key].append(place)
            wanted[key] = int(match[3])
            group[place] = first.setdefault(match[1], place)
    complete = {key for key, places in sets.items() if len(places) == wanted[key]}
    used = sorted(key for key in complete if (key[0], 0) in complete)
    number = {key: index for index, key in enumerate(used)}
    variant = np.full(len(labels), -1)
    for key, index in number.items():
        variant[sets[key]] = index
    return Pairs(variant, np.array([number[name, 0] for name, _ in used], dtype=np.int64), group)
