"""Logs of three kinds, read in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardwright.errors import InvalidInput
from shardwright.files import input_size

if TYPE_CHECKING:
    import pyarrow as pa

_CSV_SUFFIXES = (".csv", ".tsv")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst", ".lz4")


class LogReader(Protocol):
    """One log file.

    Attributes:
        path: the file.
        schema: names and Arrow types of its columns.
        is_events: whether a line is one event of a user, not one sample.
        pieces: how many pieces of it can be read apart; 1 where it is read as a whole, 0 where it holds nothing.
    """

    path: Path
    schema: pa.Schema
    is_events: bool
    pieces: int

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Lookups in the columns, if the file says without being read."""

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """The columns, in batches that take at most tens of MB; a batch may hold some of them, but a column comes once for each row.

        Args:
            columns: their names.
            pieces: the pieces to read; by default all. The batches of a piece do not depend on what else is read.

        Raises:
            InvalidInput: the file is damaged or breaks its format; the message names the place.
        """


def open_log(path: Path, list_separator: str | None = None) -> LogReader:
    """Open a log: Parquet by its first bytes or name, CSV (`.csv`, `.tsv`, also compressed) by its name, else `user item` events.

    Args:
        path: the file.
        list_separator: what separates the ids of a list in a CSV field; default: lists of integers are recognised.

    Raises:
        InvalidInput: the file does not exist, cannot be read, or is damaged.
    """
    from shardwright.workload.profile.csv_log import CsvLog
    from shardwright.workload.profile.event_log import EventLog
    from shardwright.workload.profile.parquet_log import ParquetLog

    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED_SUFFIXES]
    if _first_bytes(path) == b"PAR1" or path.suffix in {".parquet", ".pq"}:
        return ParquetLog(path)
    if suffixes and suffixes[-1] in _CSV_SUFFIXES:
        return CsvLog(path, delimiter="\t" if suffixes[-1] == ".tsv" else ",", list_separator=list_separator)
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
