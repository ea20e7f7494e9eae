from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    """Writes a Parquet log: parquet("a.parquet", user=[1, 2], tags=[[1], [2, 3]])."""

    def write(name: str, types: dict[str, pa.DataType] | None = None, **columns: Any) -> Path:
        path = tmp_path / name
        arrays = {
            column: values if isinstance(values, pa.Array) else pa.array(values, type=(types or {}).get(column))
            for column, values in columns.items()
        }
        pq.write_table(pa.table(arrays), path)
        return path

    return write


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a text file: text("a.csv", "user,item\\n1,2\\n")."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
