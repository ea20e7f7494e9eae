"""The sample store: a folder of Parquet parts, a journal of samples not yet in a part, and an identity.

    samples/
      identity.json       the hardware, and what was asked for; written first
      part-00000.parquet  measured samples, written atomically, never changed
      journal.jsonl       samples measured since the last part

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
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.measure.hardware import Fingerprint
from shardwright.measure.identity import IDENTITY, check_claim, check_hardware, read_identity
from shardwright.measure.journal import JOURNAL, Journal, Row, read_journal
from shardwright.measure.parts import FORMAT, DamagedPart, read_part, rows_to_table, write_part
from shardwright.measure.visits import Visits, distinct_visits, merge_visits

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SampleStore", "read_identity", "read_samples"]

_Part: TypeAlias = tuple[str, dict[str, Any], "pa.Table"]
"""Name, identity and samples of a part."""


class SampleStore:
    """A sample store open for writing; a context manager. One process at a time may write.

    Args:
        folder: made if it does not exist.
        hardware: fingerprint of the machine that measures.
        request: what is collected (seed, batch sizes, …): sample numbers mean the same samples only while it stays the same.
        allow_other_hardware: add to a store that was made on other hardware.

    Attributes:
        visits: the visits to each sample, so far.

    Raises:
        InvalidInput: the store was made on other hardware or for another request, is of another format version, or is in use.
    """

    visits: Visits

    def __init__(
        self, folder: Path, hardware: Fingerprint, request: Mapping[str, Any], *, allow_other_hardware: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _lock(folder)
        try:
            parts = _all_parts(folder)
            self._identity = _claim(folder, parts, hardware, request, allow_other=allow_other_hardware)
            _tidy(folder, parts)
        except BaseException:
            self._lock.close()
            raise
        self.visits = Visits(samples for _, _, samples in parts)
        self._journal = Journal(folder, self._identity)

    @property
    def hardware(self) -> Fingerprint:
        """What samples are measured on now."""
        found: Fingerprint = self._identity["hardware"]
        return found

    def append(self, row: Row) -> None:
        """Keep a measured sample: it survives the process's end from here on."""
        self._journal.append(row)
        self.visits.add(row)

    def flush(self) -> None:
        """Move the journal into a part of its own."""
        if self._journal.rows:
            write_part(_next_part(self._folder), rows_to_table(self._journal.rows), self._identity)
            self._journal.clear()

    def close(self) -> None:
        """Flush, and let other processes write."""
        try:
            self.flush()
        finally:
            self._journal.close()
            self._lock.close()

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_samples(
    folder: str | Path, *, hardware: Fingerprint | None = None, allow_other_hardware: bool = False
) -> pa.Table:
    """All samples of a store, in order of sample and repeat; also while another process is still collecting.

    Several visits to a sample are merged into one row (see `shardwright.measure.visits`). A damaged part is skipped with a warning.

    Args:
        folder: the store.
        hardware: what the samples must have been measured on; None for any one machine.
        allow_other_hardware: take samples of other machines, and of several machines.

    Returns:
        A table with the columns of `parts.schema()`, one row per sample and repeat.

    Raises:
        InvalidInput: there is no store or no readable sample, or the hardware is not what was asked for.
    """
    import pyarrow as pa

    path = Path(folder)
    parts = [(IDENTITY, read_identity(path), None), *_all_parts(path)]
    if not allow_other_hardware:
        expected = hardware or parts[0][1]["hardware"]
        for name, identity, _ in parts:
            check_hardware(path / name, identity["hardware"], expected)
    tables = [samples for _, _, samples in parts if samples is not None]
    if not tables:
        raise InvalidInput(f"{path}: holds no readable samples; measure some with: shardwright collect -o {path}")
    return merge_visits(distinct_visits(pa.concat_tables(tables)))


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
    folder: Path, parts: Sequence[_Part], hardware: Fingerprint, request: Mapping[str, Any], *, allow_other: bool
) -> dict[str, Any]:
    """Check this collection against what the store holds; returns its identity, which becomes the identity of an empty store."""
    mine = {"format": FORMAT, "hardware": dict(hardware), "request": dict(request)}
    path = folder / IDENTITY
    found = read_identity(folder) if path.exists() else None
    if found is not None and (parts or any(folder.glob("part-*.parquet"))):
        check_claim(path, found, mine, allow_other)
        return mine
    for name, identity, _ in parts:  # the identity was deleted, or the parts were copied in
        check_claim(folder / name, identity, mine, allow_other)
    write_atomically(path, json.dumps(mine, indent=2) + "\n")
    return mine


def _tidy(folder: Path, parts: Sequence[_Part]) -> None:
    """Make a part of what an earlier process left in the journal, and remove the files it did not finish."""
    for leftover in folder.glob(".shardwright-*.tmp"):
        leftover.unlink()
    if parts and parts[-1][0] == JOURNAL:
        _, identity, left = parts[-1]
        write_part(_next_part(folder), left, identity)


def _all_parts(folder: Path) -> list[_Part]:
    """The readable parts, and last what is in the journal only."""
    parts = list(_readable_parts(folder))
    identity, rows = read_journal(folder)
    if identity is None:
        return parts
    known = {visit for _, _, samples in parts for visit in _visits_of(samples)}
    left = _journal_table(folder, rows)
    new = [place for place, visit in enumerate(_visits_of(left)) if visit not in known]
    return [*parts, (JOURNAL, identity, left.take(new))] if new else parts


def _journal_table(folder: Path, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    try:
        return rows_to_table(rows)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInput(f"{folder / JOURNAL}: a line is no sample ({error}); remove that line") from error


def _readable_parts(folder: Path) -> Iterator[_Part]:
    """The parts; damaged ones are skipped with a warning."""
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            identity, samples = read_part(path)
        except DamagedPart as error:
            warnings.warn(f"{path}: skipped, {error}", stacklevel=2)
        else:
            yield path.name, identity, samples


def _next_part(folder: Path) -> Path:
    taken = [int(path.stem[5:]) for path in folder.glob("part-*.parquet") if path.stem[5:].isdigit()]
    return folder / f"part-{max(taken, default=-1) + 1:05d}.parquet"


def _visits_of(table: pa.Table) -> list[tuple[int, int, object]]:
    """What tells visits apart: sample, repeat and time."""
    columns = (table[name].to_pylist() for name in ("sample", "repeat", "measured_at"))
    return list(zip(*columns, strict=True))
