"""The sample store: a folder of Parquet parts, journals of samples not yet in a part, and identities.

    samples/
      identity.json       the hardware, and what was asked for; written first
      part-00000.parquet  measured samples, written atomically, never changed
      journal.jsonl       samples measured since the last part

Those are the kernel samples. Samples of collectives lie beside them, in files of their own names
(`shardwright.measure.collectives.records`), and follow the same rules.

Killed at any moment, nothing measured is lost and nothing is measured twice: a sample is in the journal before the next one starts; a
part appears under its name only when it is complete; and the journal is emptied only after that. If the process dies between the last
two, samples are in both, and readers take each once. (A sample that was measured while the machine was not quiet is measured again on
purpose: see `shardwright.measure.visits`.)
"""

from __future__ import annotations

import fcntl
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias

from shardwright.errors import InvalidInput
from shardwright.files import is_missing, write_atomically
from shardwright.measure.hardware import MACHINE, Fingerprint
from shardwright.measure.identity import check_claim, check_hardware, read_identity
from shardwright.measure.journal import Journal, Row, read_journal
from shardwright.measure.parts import FORMAT, DamagedPart, check_filled, read_part, rows_to_table, write_part
from shardwright.measure.records import KERNELS, Records
from shardwright.measure.visits import Visits, distinct_visits, merge_visits

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecordStore", "SampleStore", "read_identity", "read_records", "read_samples"]

_Part: TypeAlias = tuple[str, dict[str, Any], "pa.Table"]
"""Name, identity and samples of a part."""


class RecordStore:
    """The records of one kind in a sample store, open for writing; a context manager. One process at a time may write to a store.

    Args:
        folder: made if it does not exist.
        hardware: fingerprint of the machine that measures.
        request: what is collected (seed, batch sizes, …): sample numbers mean the same samples only while it stays the same.
        records: the kind.
        allow_other_hardware: add to a store that was made on other hardware.

    Attributes:
        found: the tables that were there already; each row once.

    Raises:
        InvalidInput: the store was made on other hardware or for another request, is of another format version, or is in use.
    """

    def __init__(
        self,
        folder: Path,
        hardware: Fingerprint,
        request: Mapping[str, Any],
        records: Records,
        *,
        allow_other_hardware: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._records = folder, records
        self._lock = _lock(folder)
        try:
            parts = _all_parts(folder, records)
            self._identity = _claim(folder, parts, hardware, request, records, allow_other=allow_other_hardware)
            _tidy(folder, parts, records)
        except BaseException:
            self._lock.close()
            raise
        self.found = [samples for _, _, samples in parts]
        self._journal = Journal(folder, self._identity, records.journal)

    @property
    def hardware(self) -> Fingerprint:
        """What samples are measured on now."""
        found: Fingerprint = self._identity["hardware"]
        return found

    def append(self, row: Row, hardware: Fingerprint | None = None) -> None:
        """Keep a measured sample: it survives the process's end from here on.

        Args:
            row: the sample.
            hardware: what it was measured on, where the store may hold samples of several machines; by default the store's own.
        """
        self._journal.append(row, None if hardware is None else self._identity | {"hardware": dict(hardware)})

    def flush(self) -> None:
        """Move the journal into parts of their own, one for each machine."""
        for identity, rows in self._journal.groups:
            table = rows_to_table(rows, self._records.schema())
            write_part(_next_part(self._folder, self._records), table, identity)
        if self._journal.groups:
            self._journal.clear()

    def close(self) -> None:
        """Flush, and let other processes write."""
        try:
            self.flush()
        finally:
            self._journal.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SampleStore(RecordStore):
    """The kernel samples of a store, open for writing: see `RecordStore`.

    Attributes:
        visits: the visits to each sample, so far.
    """

    def __init__(
        self, folder: Path, hardware: Fingerprint, request: Mapping[str, Any], *, allow_other_hardware: bool = False
    ) -> None:
        super().__init__(folder, hardware, request, KERNELS, allow_other_hardware=allow_other_hardware)
        self.visits = Visits(self.found)

    def append(self, row: Row, hardware: Fingerprint | None = None) -> None:
        """Keep a measured sample, and count the visit."""
        super().append(row, hardware)
        self.visits.add(row)


def read_samples(
    folder: str | Path, *, hardware: Fingerprint | None = None, allow_other_hardware: bool = False
) -> pa.Table:
    """All kernel samples of a store, in order of sample and repeat; also while another process is still collecting.

    Several visits to a sample are merged into one row (see `shardwright.measure.visits`). A damaged part is skipped with a warning.

    Args:
        folder: the store.
        hardware: what the samples must have been measured on; None for any one machine.
        allow_other_hardware: take samples of other machines, and of several machines.

    Returns:
        A table with the columns of `parts.schema()`, one row per sample and repeat.

    Raises:
        InvalidInput: there is no store or no readable sample, a value is missing in one, or the hardware is not what was asked for.
    """
    return merge_visits(read_records(folder, KERNELS, hardware=hardware, allow_other_hardware=allow_other_hardware))


def read_records(
    folder: str | Path, records: Records, *, hardware: Fingerprint | None = None, allow_other_hardware: bool = False
) -> pa.Table:
    """All rows of one kind, each once, in order of sample, repeat and time; else as `read_samples`."""
    import pyarrow as pa

    path = Path(folder)
    identity = read_identity(path, records.identity, records.command)
    parts = [(records.identity, identity, None), *_all_parts(path, records)]
    if not allow_other_hardware:
        expected = hardware or identity["hardware"]
        for name, identity, _ in parts:
            check_hardware(path / name, identity["hardware"], expected, records.decisive)
    tables = [samples for _, _, samples in parts if samples is not None]
    if not tables:
        raise InvalidInput(f"{path}: holds no readable samples; measure some with: {records.command} -o {path}")
    return distinct_visits(pa.concat_tables(tables))


def _lock(folder: Path) -> IO[bytes]:
    """Take the store's lock; the kernel releases it when the process ends, however it ends."""
    handle = (folder / ".lock").open("wb")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise InvalidInput(
            f"{folder}: another process is collecting into this store; wait for it, or use another folder"
        ) from None
    return handle


def _claim(
    folder: Path,
    parts: Sequence[_Part],
    hardware: Fingerprint,
    request: Mapping[str, Any],
    records: Records,
    *,
    allow_other: bool,
) -> dict[str, Any]:
    """Check this collection against what the store holds; returns its identity, which becomes the identity of an empty store."""
    mine = {"format": FORMAT, "hardware": dict(hardware), "request": dict(request)}
    path = folder / records.identity
    found = read_identity(folder, records.identity) if not is_missing(path) else None
    if found is not None and (parts or any(folder.glob(f"{records.prefix}-*.parquet"))):
        check_claim(path, found, mine, allow_other, records.decisive)
        return mine
    if not allow_other:
        _check_neighbours(folder, records, hardware)
    for name, identity, _ in parts:  # the identity was deleted, or the parts were copied in
        check_claim(folder / name, identity, mine, allow_other, records.decisive)
    write_atomically(path, json.dumps(mine, indent=2) + "\n")
    return mine


def _check_neighbours(folder: Path, records: Records, hardware: Fingerprint) -> None:
    """Check that what a first collection into a folder measures on is the machine that the other kinds of records there are of."""
    for path in folder.glob("*identity.json"):
        if path.name != records.identity:
            check_hardware(path, read_identity(folder, path.name)["hardware"], hardware, MACHINE)


def _tidy(folder: Path, parts: Sequence[_Part], records: Records) -> None:
    """Make parts of what an earlier process left in the journal, and remove the files it did not finish."""
    for leftover in folder.glob(".shardwright-*.tmp"):
        leftover.unlink()
    for name, identity, left in parts:
        if name == records.journal:
            write_part(_next_part(folder, records), left, identity)


def _all_parts(folder: Path, records: Records = KERNELS) -> list[_Part]:
    """The readable parts, and last what is in the journal only."""
    parts = list(_readable_parts(folder, records))
    groups = read_journal(folder, records.journal, records.schema().names)
    known = {visit for _, _, samples in parts for visit in _visits_of(samples)} if groups else set()
    for identity, rows in groups:
        left = _journal_table(folder, rows, records)
        new = [place for place, visit in enumerate(_visits_of(left)) if visit not in known]
        if new:
            parts.append((records.journal, identity, left.take(new)))
    return parts


def _journal_table(folder: Path, rows: Sequence[Row], records: Records) -> pa.Table:
    import pyarrow as pa

    try:
        table = rows_to_table(rows, records.schema())
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInput(f"{folder / records.journal}: a line is no sample ({error}); remove that line") from error
    check_filled(folder / records.journal, table)
    return table


def _readable_parts(folder: Path, records: Records) -> Iterator[_Part]:
    """The parts; damaged ones are skipped with a warning."""
    for path in sorted(folder.glob(f"{records.prefix}-*.parquet")):
        try:
            identity, samples = read_part(path, records.schema())
        except DamagedPart as error:
            warnings.warn(f"{path}: skipped, {error}", stacklevel=2)
        else:
            yield path.name, identity, samples


def _next_part(folder: Path, records: Records) -> Path:
    names = [path.stem.removeprefix(f"{records.prefix}-") for path in folder.glob(f"{records.prefix}-*.parquet")]
    taken = [int(name) for name in names if name.isdigit()]
    return folder / f"{records.prefix}-{max(taken, default=-1) + 1:05d}.parquet"


def _visits_of(table: pa.Table) -> list[tuple[int, int, object]]:
    """What tells visits apart: sample, repeat and time."""
    columns = (table[name].to_pylist() for name in ("sample", "repeat", "measured_at"))
    return list(zip(*columns, strict=True))
