"""Logs of any content are profiled or refused with a clear error; nothing else happens."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs

fields = st.sampled_from(["1", "-1", "user", "", "x y", "1 2", "[3]", '"', '"a,b"', "0.5", "9" * 30, "é", "\0"])
lines = st.lists(fields, max_size=4)


def profiled_or_refused(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        complaint = None
        try:
            assert all(table.rows >= 1 for table in profile_logs(path).tables())
        except InvalidInput as error:
            complaint = str(error)
        assert complaint is None or str(path) in complaint


@settings(max_examples=60)
@given(st.lists(lines, max_size=6), st.sampled_from([",", " ", "\t"]), st.sampled_from(["a.csv", "a.tsv", "a.txt"]))
def test_text_of_odd_fields(rows, separator, name):
    profiled_or_refused(name, "\n".join(separator.join(row) for row in rows).encode())


@settings(max_examples=60)
@given(st.binary(max_size=200), st.sampled_from(["a.csv", "a.txt", "a.txt.gz", "a.csv.gz", "a.parquet"]))
def test_bytes_of_any_kind(content, name):
    profiled_or_refused(name, content)


FLIP_BYTES = """
import random, sys
from pathlib import Path
from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs

path, rng = Path(sys.argv[1]), random.Random(0)
content = path.read_bytes()
refused = 0
for _ in range(400):
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 3, 20])):
        damaged[-1 - rng.randrange(rng.choice([len(content), 3000]))] = rng.randrange(256)
    path.write_bytes(damaged)
    try:
        profile_logs(path, progress=lambda done, total: None).tables()
    except InvalidInput:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_parquet_with_damaged_bytes(tmp_path, page_version):
    """In a process of its own: if Arrow is misused, damaged data ends the process."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = range(777)
    columns = {"user": [i % 10 for i in count], "name": [f"u{i}" for i in count], "tags": [[i, i + 1] for i in count]}
    columns["texts"] = [["a", "b", None]] * 777
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", data_page_version=page_version)
    run = subprocess.run(
        [sys.executable, "-c", FLIP_BYTES, str(tmp_path / "a.parquet")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert 100 < int(run.stdout) < 400
