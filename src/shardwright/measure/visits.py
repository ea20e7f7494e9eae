"""Measuring a sample again when the machine was not quiet: what the visits to a sample amount to.

Bursts of other tenants last minutes, so a disturbed sample is visited again a minute later and not at once. Each visit is a row in the
store; readers get one row per sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.measure.device_work import QUIET
from shardwright.measure.journal import Key, key_of

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VISITS = 3


class Visits:
    """The sentinel ratios of the visits to each sample.

    Args:
        tables: samples of a store; a visit that is in two of them counts once.
    """

    def __init__(self, tables: Iterable[pa.Table] = ()) -> None:
        self._ratios: defaultdict[Key, list[float]] = defaultdict(list)
        for table in tables:
            columns = (table[name].to_pylist() for name in ("sample", "repeat", "sentinel"))
            for sample, repeat, ratio in zip(*columns, strict=True):
                self._ratios[sample, repeat].append(ratio)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a visit."""
        self._ratios[key_of(row)].append(row["sentinel"])

    def __len__(self) -> int:
        """How many samples were visited, repeats counted."""
        return len(self._ratios)

    def seen(self, key: Key) -> bool:
        """Whether the sample has been visited."""
        return key in self._ratios

    def settled(self, key: Key) -> bool:
        """Whether the sample needs no further visit: one was quiet, or there were enough."""
        ratios = self._ratios.get(key, ())
        return len(ratios) >= MOST_VISITS or any(ratio <= QUIET for ratio in ratios)


def distinct_visits(table: pa.Table) -> pa.Table:
    """Each visit once, ordered by sample, repeat and time."""
    if not table.num_rows:
        return table
    keys = [table[name].to_numpy() for name in ("measured_at", "repeat", "sample")]
    order = np.lexsort(keys)
    columns = np.array([key[order].astype(np.int64) for key in keys])
    return table.take(order[np.insert(np.diff(columns, axis=1).any(axis=0), 0, True)])


def merge_visits(table: pa.Table) -> pa.Table:
    """One row per sample and repeat, in order.

    On a CPU noise only adds time, so times are the shortest of all visits. On CUDA, where a time is a median, they are those of the
    quietest visit. Runs are added up; all else is of the quietest visit.
    """
    import pyarrow as pa

    if not table.num_rows:
        return table
    sample, repeat, sentinel = (table[name].to_numpy() for name in ("sample", "repeat", "sentinel"))
    order = np.lexsort((sentinel, repeat, sample))
    changes = np.diff(np.stack([sample, repeat.astype(np.int64)])[:, order], axis=1).any(axis=0)
    starts = np.flatnonzero(np.insert(changes, 0, True))
    merged = table.take(order[starts])
    on_cpu = np.array([kind == "cpu" for kind in merged["device_kind"].to_pylist()])
    columns = {"runs": np.minimum(np.add.reduceat(table["runs"].to_numpy()[order].astype(np.int64), starts), 2**15 - 1)}
    for name in ("forward_ms", "backward_ms"):
        times = table[name].to_numpy()[order]
        columns[name] = np.where(on_cpu, np.minimum.reduceat(times, starts), times[starts])
    for name, values in columns.items():
        position = merged.schema.get_field_index(name)
        field = merged.schema.field(position)
        merged = merged.set_column(position, field, pa.array(values, field.type))
    return merged
