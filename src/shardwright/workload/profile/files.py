"""The files that profiling writes: tables, and rank maps."""

from __future__ import annotations

from pathlib import Path

from shardwright.files import dump_document, write_atomically
from shardwright.task.files import FORMAT, table_to_dict
from shardwright.workload.profile.result import ProfileResult, RowsRule


def save_tables(result: ProfileResult, path: str | Path, *, dim: int = 64, rows: RowsRule = "distinct") -> None:
    """Write the tables of a profile as the `tables` of a task, with what was found as comments (none in JSON); atomic.

    Args:
        result: the profile.
        path: file to write: YAML, or JSON where its name ends in .json.
        dim: embedding dimension of all tables.
        rows: see `ProfileResult.tables`.

    Raises:
        InvalidInput: the options break a rule, or the file cannot be written.
    """
    tables = result.tables(dim=dim, rows=rows)
    text = dump_document({"format": FORMAT, "tables": [table_to_dict(table) for table in tables]}, path)
    if Path(path).suffix.lower() != ".json":
        comments = ["Made by `shardwright profile`.", *result.notes(), *map(str, result.doubts(tables))]
        text = "".join(f"# {' '.join(line.split())}\n" for line in comments) + text
    write_atomically(path, text)
