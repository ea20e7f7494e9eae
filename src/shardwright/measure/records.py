"""The kinds of records that a sample store can hold side by side, each in files of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.measure.hardware import DECISIVE
from shardwright.measure.identity import COMMAND, IDENTITY
from shardwright.measure.journal import JOURNAL
from shardwright.measure.parts import schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Records:
    """One kind of records. Every kind has the columns sample, repeat and measured_at, which tell its rows apart.

    Attributes:
        prefix: parts are named `prefix-00000.parquet`.
        journal: name of the journal.
        identity: name of the file with the hardware and the request.
        schema: columns of a part.
        decisive: fields of the hardware fingerprint that matter for these records.
        command: what collects them.
    """

    prefix: str
    journal: str
    identity: str
    schema: Callable[[], pa.Schema]
    decisive: Sequence[str]
    command: str


KERNELS = Records("part", JOURNAL, IDENTITY, schema, DECISIVE, COMMAND)
"""Kernel times of sets of tables."""
