"""Open logs, and cut them into the parts in which they are counted.

Each part is counted separately, in one process or in many, and parts are merged in the order of the log. The parts depend on the files
alone, not on the processes that count, so a log has exactly one profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from shardwright.errors import InvalidInput
from shardwright.files import input_size
from shardwright.workload.profile.formats import LogReader, ParquetLog, Reading
from shardwright.workload.profile.texts import CsvLog, EventLog, JsonLog, is_csv

LEAST_BYTES = 128 * 2**20
MOST_PARTS = 256
_CSV_SUFFIXES = (".csv", ".tsv")
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst", ".lz4")


def open_log(path: Path, reading: Reading | None = None) -> LogReader:
    """Open a log.

    Parquet is known by its first bytes or its name, CSV (`.csv`, `.tsv`) and JSON lines (`.jsonl`, `.ndjson`, `.json`) by their names, also
    compressed. A file with another name is CSV if `reading` has options of CSV, or if its first line has over two columns;
    else it holds `user item` events.

    Args:
        path: the file.
        reading: properties that the file does not state.

    Raises:
        InvalidInput: the file does not exist, cannot be read, or is damaged; or `reading` names the columns of one that names them itself.
    """
    reading = reading or Reading()
    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED_SUFFIXES]
    first = _first_bytes(path)
    suffix = suffixes[-1] if suffixes else ""
    is_parquet = first == b"PAR1" or path.suffix in {".parquet", ".pq"}
    if is_parquet or suffix in _JSON_SUFFIXES or (suffix not in _CSV_SUFFIXES and first[:1] == b"{"):
        if not reading.header:
            raise InvalidInput(
                f"{path}: names its columns itself; leave --no-header and --columns out, and choose columns with --column"
            )
        return ParquetLog(path) if is_parquet else JsonLog(path)
    if suffix in _CSV_SUFFIXES or not reading.header or is_csv(path):
        return CsvLog(path, delimiter="\t" if suffix == ".tsv" else ",", reading=reading)
    return EventLog(path)


def _first_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise InvalidInput(f"{path}: is a directory; name its files, for example {path}/*.parquet")
    input_size(path)
    try:
        str(path).encode()  # Arrow opens files by names in UTF-8 only
        with path.open("rb") as file:
            return file.read(4)
    except UnicodeEncodeError:
        raise InvalidInput(f"{path}: its name is not UTF-8, by which logs are opened; rename it") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class LogFile:
    """A file as it was when the profile began.

    Attributes:
        path: the file.
        bytes: size of the file.
        pieces: number of pieces that can be read separately: row groups of Parquet, 1 for files that are read as a whole.
    """

    path: Path
    bytes: int
    pieces: int

    @classmethod
    def of(cls, log: LogReader) -> LogFile:
        """Record the present size and pieces of an open log.

        Raises:
            InvalidInput: the file no longer exists.
        """
        try:
            return cls(log.path, log.path.stat().st_size, log.pieces)
        except OSError as error:
            raise InvalidInput(f"{log.path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class Span:
    """Neighbouring pieces of a file.

    Attributes:
        file: the file.
        first: the first piece.
        stop: the piece after the last one.
    """

    file: LogFile
    first: int
    stop: int

    def open(self, reading: Reading) -> LogReader:
        """Open the file, if it has not changed.

        Raises:
            InvalidInput: the file cannot be read, or has changed.
        """
        log = open_log(self.file.path, reading)
        now = LogFile.of(log)
        if now != self.file:
            raise InvalidInput(
                f"{self.file.path}: changed while it was profiled (had {self.file.bytes:,} bytes in {self.file.pieces:,} pieces, now "
                f"{now.bytes:,} in {now.pieces:,}); profile files that nobody writes to. Workers on several machines need a shared folder"
            )
        return log


Part: TypeAlias = tuple[Span, ...]
"""Spans of one or more files, in the order of the log."""


def parts_of(files: Iterable[LogFile]) -> list[Part]:
    """Cut a log into at most about `MOST_PARTS` parts of at least `LEAST_BYTES`, except for the last one.

    Small files are counted together; the row groups of large Parquet files are counted separately. Files of text are never cut: a
    quoted field may hold line ends, and the first block determines the list columns.
    """
    files = list(files)
    most = max(LEAST_BYTES, -(-sum(file.bytes for file in files) // MOST_PARTS))
    parts: list[Part] = []
    spans: list[Span] = []
    held = 0.0
    for file in files:
        first = 0
        for piece in range(file.pieces):
            held += file.bytes / file.pieces
            if held >= most:
                parts.append((*spans, Span(file, first, piece + 1)))
                spans, held, first = [], 0.0, piece + 1
        if first < file.pieces:
            spans.append(Span(file, first, file.pieces))
    return [*parts, tuple(spans)] if spans else parts
