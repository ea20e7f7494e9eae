import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.parquet_log import ParquetLog


def test_columns_of_every_kind_of_id(parquet):
    lists = [["a", "b"], [], ["a"]]
    path = parquet(
        "a.parquet",
        types={"fixed": pa.list_(pa.int32(), 2), "large": pa.large_list(pa.int64()), "bytes": pa.binary()},
        small=pa.array([1, 2, 2], type=pa.int8()),
        huge=pa.array([2**64 - 1, 0, 0], type=pa.uint64()),
        words=["x", "y", "x"],
        category=pa.array(["x", "y", "x"]).dictionary_encode(),
        bytes=[b"x", b"y", b"x"],
        lists=lists,
        categories=pa.array(lists, type=pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        fixed=[[1, 2], [1, 3], None],
        large=[[1, 2], [], [1]],
        **{"a.dotted": [[1], [2], [1, 2]]},
    )
    result = profile_logs(path)
    found = {table.name: (table.rows, round(table.pooling * 3)) for table in result.tables()}
    scalars = dict.fromkeys(["small", "huge", "words", "category", "bytes"], (2, 3))
    assert found == scalars | {
        "lists": (2, 3),
        "categories": (2, 3),
        "fixed": (3, 4),
        "large": (2, 3),
        "a.dotted": (2, 4),
    }
    assert result.columns["huge"].max_id == 2**64 - 1


def test_row_groups_batches_and_counts_agree_with_numpy(tmp_path):
    rng = np.random.default_rng(0)
    scalar, lengths = rng.zipf(1.3, 50_000) % 1000, rng.integers(0, 5, 50_000)
    flat = rng.integers(0, 300, lengths.sum())
    lists = pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(flat))
    columns = {f"c{number}": pa.array(scalar + number) for number in range(20)}  # more than are read at once
    words = pa.array(scalar.astype(str))
    pq.write_table(pa.table({**columns, "lists": lists, "words": words}), tmp_path / "a.parquet", row_group_size=7_000)
    seen = []
    result = profile_logs(tmp_path / "a.parquet", progress=lambda done, total: seen.append((done, total)))
    assert result.log_rows == 50_000
    for name in ("c0", "c19", "words"):
        counts = np.sort(result.columns[name].sketch.sample_counts)
        assert counts.tolist() == np.sort(np.unique(scalar, return_counts=True)[1]).tolist()
    assert result.columns["lists"].sketch.events == flat.size
    assert result.columns["lists"].longest == 4
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == result.lookups
    assert {total for _, total in seen} == {21 * 50_000 + flat.size + int((lengths == 0).sum())}


def test_batches_shrink_where_lists_are_long(tmp_path):
    lists = pa.array([list(range(1000))] * 1000)
    pq.write_table(pa.table({"a": lists}), tmp_path / "a.parquet")
    batches = list(ParquetLog(tmp_path / "a.parquet").batches(["a"]))
    assert len(batches) > 5
    assert max(batch.num_rows for batch in batches) <= 200


def test_short_texts_are_read_as_dictionaries_and_many_are_not(tmp_path):
    few, many = ["abc", "def"] * 200_000, [f"{number:020d}" for number in range(400_000)]
    pq.write_table(pa.table({"few": few, "many": many}), tmp_path / "a.parquet")
    batch = next(ParquetLog(tmp_path / "a.parquet").batches(["few", "many"]))
    assert pa.types.is_dictionary(batch.column("few").type)
    assert pa.types.is_string(batch.column("many").type)
    assert [table.rows for table in profile_logs(tmp_path / "a.parquet").tables()] == [2, 400_000]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_file_cut_short(parquet, keep):
    path = parquet("a.parquet", user=list(range(1000)))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InvalidInput, match=r"a\.parquet: not a whole Parquet file"):
        profile_logs(path)


def test_damaged_pages(parquet):
    path = parquet("a.parquet", user=list(range(1000)))
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"a\.parquet: not a whole Parquet file"):
        profile_logs(path)


def zigzag_varint(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def forge(path, field: bytes, claim: int) -> None:
    """Replace each 64-bit integer with this encoding in a Parquet footer by another."""
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - size], content[-8 - size : -8]
    assert field in footer
    forged = footer.replace(field, field[:1] + zigzag_varint(claim))
    path.write_bytes(body + forged + len(forged).to_bytes(4, "little") + b"PAR1")


PEAK = """
import sys
from pathlib import Path
from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs
try:
    profile_logs(sys.argv[1])
except InvalidInput as error:
    print(error)
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.parametrize(
    ("what", "claim", "message"),
    [
        ("num_rows", 10_000_000_000, "row group 0, column user: claims 10,000,000,000 rows and holds 777"),
        ("total_compressed_size", 10_000_000_000, "row group 0, column user: "),
        ("total_uncompressed_size", 10_000_000_000, None),
        ("num_values", 10_000_000_000, None),
    ],
)
def test_a_tiny_file_that_claims_much_takes_little_memory(tmp_path, what, claim, message):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"user": np.arange(777) % 10}), path, compression="zstd")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    true = 777 if what == "num_rows" else getattr(chunk, what)
    forge(path, b"\x16" + zigzag_varint(true), claim)
    run = subprocess.run([sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True)
    *said, peak = run.stdout.splitlines()
    assert int(peak) < 400_000
    if message:
        assert len(said) == 1
        assert "a.parquet" in said[0]
        assert re.search(message, said[0])
