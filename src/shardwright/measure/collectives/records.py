"""Rows of measured collectives in the sample store, and reading them.

A sample that could not be measured is a row without times: it is not tried again, and readers do not see it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    CollectiveSample,
    Volumes,
    all_to_all_volumes,
    ring_volumes,
)
from shardwright.measure.collectives.timing import DeviceTimes
from shardwright.measure.hardware import MACHINE, Fingerprint
from shardwright.measure.store import chosen_hardware, hardware_of, reading

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def schema() -> pa.Schema:
    """Columns of collectives; one row per measurement.

    Lists have one entry per device, in order of rank. `bytes` is the device's own input buffer; `sent_*` and `received_*` are what
    passes over its links inside its host and between hosts (`volumes`), in the forward pass. `delays_ms` are the start delays before
    the forward pass. `dims` and `backward_ms` are empty for kinds other than all_to_all.
    """
    import pyarrow as pa

    volumes = [
        (name, pa.list_(pa.int64())) for name in ("sent_intra", "sent_inter", "received_intra", "received_inter")
    ]
    return pa.schema(
        [
            ("sample", pa.int64()),
            ("repeat", pa.int8()),
            ("kind", pa.string()),
            ("world", pa.int32()),
            ("hosts", pa.int32()),
            ("batch_size", pa.int32()),
            ("dims", pa.list_(pa.int32())),
            ("bytes", pa.list_(pa.int64())),
            *volumes,
            ("delays_ms", pa.list_(pa.float64())),
            ("forward_ms", pa.list_(pa.float64())),
            ("backward_ms", pa.list_(pa.float64())),
            ("runs", pa.int16()),
            ("backend", pa.string()),
            ("measured_at", pa.timestamp("ms", tz="UTC")),
        ]
    )


def read_collectives(
    folder: str | Path,
    *,
    hardware: Fingerprint | str | None = None,
    allow_other_hardware: bool = False,
    skipped: bool = False,
) -> pa.Table:
    """All measured collectives of a store, in order of sample and repeat; also while another process is still collecting.

    Args:
        folder: the store.
        hardware: what they must have been measured on, the kernel backend aside: a fingerprint, or a part of a processor's name; None for
            any one machine.
        allow_other_hardware: take samples of other machines, and of several machines.
        skipped: take those that could not be measured too.

    Returns:
        A table with the columns of `schema()`, one row per sample and repeat; samples of several collections are numbered
        one after another.

    Raises:
        InvalidInput: there is no store or no measured collective, or the hardware is not what was asked for.
    """
    import pyarrow as pa

    with reading(folder) as db:
        known = hardware_of(db, "collectives")
        chosen = (
            chosen_hardware(folder, known, hardware, allow_other=allow_other_hardware, decisive=MACHINE)
            if known
            else []
        )
        rows, last, shift = list[dict[str, Any]](), (0, ""), 0
        for machine, collection, sample, repeat, text in db.execute(
            "SELECT hardware, collection, sample, repeat, document FROM collectives"
            " ORDER BY hardware, collection, sample, repeat"
        ):
            if machine in chosen:
                if (machine, collection) != last:
                    last, shift = (machine, collection), 1 + rows[-1]["sample"] if rows else 0
                rows.append(json.loads(text) | {"sample": shift + sample, "repeat": repeat})
        try:
            table = pa.Table.from_pylist(rows, schema=schema())
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
    taken = table if skipped else table.filter(np.asarray(table["runs"].to_numpy() > 0))
    if not taken.num_rows:
        why = (
            f"all {len(rows)} collectives were skipped; find out why they hang or fail"
            if rows
            else "holds no collectives"
        )
        raise InvalidInput(f"{folder}: {why}, and collect some: shardwright collect --collectives -o {folder}")
    return taken


def volumes_of(sample: CollectiveSample, hosts: int) -> Volumes:
    """The bytes of a sample, of the forward pass for all-to-all."""
    if sample.kind == ALL_TO_ALL:
        return all_to_all_volumes(sample.batch_size, sample.dims, hosts)
    gathers, reduces = sample.kind in (ALL_GATHER, ALL_REDUCE), sample.kind in (REDUCE_SCATTER, ALL_REDUCE)
    return ring_volumes(sample.elements, len(sample.delays_ms), hosts, gathers=gathers, reduces=reduces)


def row_of(sample: CollectiveSample, hosts: int, backend: str, times: DeviceTimes | None, runs: int) -> dict[str, Any]:
    """The store's row of a sample, or of a skipped one where there are no times."""
    volumes = volumes_of(sample, hosts)
    sent, received = volumes.sent.tolist(), volumes.received.tolist()
    return {
        "kind": sample.kind,
        "world": len(sample.delays_ms),
        "hosts": hosts,
        "batch_size": sample.batch_size,
        "dims": list(sample.dims),
        "bytes": volumes.buffer.tolist(),
        "sent_intra": sent[0],
        "sent_inter": sent[1],
        "received_intra": received[0],
        "received_inter": received[1],
        "delays_ms": list(sample.delays_ms),
        "forward_ms": list(times.forward_ms) if times else [],
        "backward_ms": list(times.backward_ms) if times else [],
        "runs": runs if times else 0,
        "backend": backend,
        "measured_at": int(time() * 1000),
    }


def keys_of(table: pa.Table) -> list[tuple[int, int]]:
    """(sample, repeat) of each row."""
    return list(zip(table["sample"].to_pylist(), table["repeat"].to_pylist(), strict=True))


def step_ms(table: pa.Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`(rows,)` ms until the last device is done, of both passes together."""
    columns = (table[name].to_pylist() for name in ("forward_ms", "backward_ms"))
    return np.array([max(forward) + max(backward, default=0.0) for forward, backward in zip(*columns, strict=True)])


@dataclass(frozen=True)
class CollectivesSummary:
    """What a store holds after collecting collectives.

    Attributes:
        folder: the store.
        samples: measured samples in the store, repeats not counted.
        skipped: samples in the store that hung or ended the group, repeats not counted.
        measured: measurements made by this call.
        seconds: time this call took.
        repeat_median: median relative difference between a sample and its repeat, of the time until the last device is done; NaN
            without repeats.
        repeat_mean: mean of the same.
    """

    folder: Path
    samples: int
    skipped: int
    measured: int
    seconds: float
    repeat_median: float
    repeat_mean: float


def summarise(folder: Path, measured: int, seconds: float) -> CollectivesSummary:
    """The summary of a store, of which a call measured some rows in some time."""
    table = read_collectives(folder, allow_other_hardware=True, skipped=True)
    first, valid = table["repeat"].to_numpy() == 0, table["runs"].to_numpy() > 0
    kept = table.filter(valid)
    by_key = dict(zip(keys_of(kept), step_ms(kept), strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    one, other = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    noise = np.abs(one - other) / ((one + other) / 2)
    return CollectivesSummary(
        folder=folder,
        samples=int((first & valid).sum()),
        skipped=int((first & ~valid).sum()),
        measured=measured,
        seconds=seconds,
        repeat_median=float(np.median(noise)) if noise.size else float("nan"),
        repeat_mean=float(noise.mean()) if noise.size else float("nan"),
    )
