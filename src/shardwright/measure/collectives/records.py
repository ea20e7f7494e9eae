"""Rows of measured collectives in the sample store, and reading them.

They lie beside the kernel samples: `collectives-identity.json`, `collectives-00000.parquet`, …, `collectives-journal.jsonl`. A sample
that could not be measured is a row without times: it is not tried again, and readers do not see it.
"""

from __future__ import annotations

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
)
from shardwright.measure.collectives.timing import DeviceTimes
from shardwright.measure.collectives.volumes import Volumes, all_to_all_volumes, ring_volumes
from shardwright.measure.hardware import MACHINE, Fingerprint
from shardwright.measure.journal import Key, Row
from shardwright.measure.records import Records
from shardwright.measure.store import read_records

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def schema() -> pa.Schema:
    """Columns of a part of collectives; one row per measurement.

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


COLLECTIVES = Records(
    prefix="collectives",
    journal="collectives-journal.jsonl",
    identity="collectives-identity.json",
    schema=schema,
    decisive=MACHINE,
    command="shardwright collect --collectives",
)
"""Times of collectives."""


def read_collectives(
    folder: str | Path, *, hardware: Fingerprint | None = None, allow_other_hardware: bool = False
) -> pa.Table:
    """All measured collectives of a store, in order of sample and repeat; also while another process is still collecting.

    Skipped samples are left out; a damaged part is skipped with a warning.

    Args:
        folder: the store.
        hardware: what they must have been measured on, the kernel backend aside; None for any one machine.
        allow_other_hardware: take samples of other machines, and of several machines.

    Returns:
        A table with the columns of `schema()`, one row per sample and repeat.

    Raises:
        InvalidInput: there is no store or no measured collective, or the hardware is not what was asked for.
    """
    table = read_records(folder, COLLECTIVES, hardware=hardware, allow_other_hardware=allow_other_hardware)
    measured = table.filter(table["runs"].to_numpy() > 0)
    if not measured.num_rows:
        raise InvalidInput(
            f"{folder}: all {table.num_rows} collectives were skipped; find out why they hang or fail, and collect into a new folder"
        )
    return measured


def volumes_of(sample: CollectiveSample, hosts: int) -> Volumes:
    """The bytes of a sample, of the forward pass for all-to-all."""
    if sample.kind == ALL_TO_ALL:
        return all_to_all_volumes(sample.batch_size, sample.dims, hosts)
    gathers, reduces = sample.kind in (ALL_GATHER, ALL_REDUCE), sample.kind in (REDUCE_SCATTER, ALL_REDUCE)
    return ring_volumes(sample.elements, len(sample.delays_ms), hosts, gathers=gathers, reduces=reduces)


def row_of(
    sample: CollectiveSample, repeat: int, hosts: int, backend: str, times: DeviceTimes | None, runs: int
) -> Row:
    """The store's row of a sample, or of a skipped one where there are no times."""
    volumes = volumes_of(sample, hosts)
    sent, received = volumes.sent.tolist(), volumes.received.tolist()
    return {
        "sample": sample.sample,
        "repeat": repeat,
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


def keys_of(table: pa.Table) -> list[Key]:
    """(sample, repeat) of each row."""
    return list(zip(table["sample"].to_pylist(), table["repeat"].to_pylist(), strict=True))


def step_ms(table: pa.Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`(rows,)` ms until the last device is done, of both passes together."""
    columns = (table[name].to_pylist() for name in ("forward_ms", "backward_ms"))
    return np.array([max(forward) + max(backward, default=0.0) for forward, backward in zip(*columns, strict=True)])
