import gzip
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.formats import ParquetLog


def test_columns_of_every_kind_of_id(parquet):
    lists = [["a", "b"], [], ["a"]]
    path = parquet(
        "a.parquet",
        types={"fixed": pa.list_(pa.int32(), 2), "large": pa.large_list(pa.int64()), "bytes": pa.binary()},
        small=pa.array([1, 2, 2], type=pa.int8()), huge=pa.array([2**64 - 1, 0, 0], type=pa.uint64()),
        words=["x", "y", "x"], category=pa.array(["x", "y", "x"]).dictionary_encode(), bytes=[b"x", b"y", b"x"],
        lists=lists, categories=pa.array(lists, type=pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        fixed=[[1, 2], [1, 3], None], large=[[1, 2], [], [1]], **{"a.dotted": [[1], [2], [1, 2]]},
    )  # fmt: skip
    result = profile_logs(path)
    rows_and_lookups = {table.name: (table.rows, round(table.pooling * 3)) for table in result.tables()}
    scalars = dict.fromkeys(["small", "huge", "words", "category", "bytes"], (2, 3))
    assert rows_and_lookups == scalars | {
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


def test_batches_shrink_for_long_lists(tmp_path):
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


@pytest.mark.parametrize(
    "damage",
    [
        *((lambda content, keep=keep: content[: int(len(content) * keep)]) for keep in (0.0, 0.3, 0.9, 0.999)),
        lambda content: content[:4] + bytes(196) + content[200:],
    ],
)
def test_a_file_cut_short_or_with_damaged_pages(parquet, damage):
    path = parquet("a.parquet", user=list(range(1000)))
    path.write_bytes(damage(path.read_bytes()))
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


def named(result):
    return {table.name: table for table in result.tables()}


def test_scalars_text_and_what_is_left_out(text):
    path = text("a.csv", "user,country,price,day,label\n1,de,0.5,2024-01-01,true\n2,fr,1.5,2024-01-02,false\n1,de,,,\n")
    result = profile_logs(path)
    tables = named(result)
    assert list(tables) == ["user", "country"]
    assert (tables["user"].rows, tables["country"].rows) == (2, 2)
    assert set(result.left_out) == {"price", "day", "label"}


@pytest.mark.parametrize("field", ["1 2 3", "1|2|3", "1;2;3", '"1,2,3"', '"[1, 2, 3]"', "[1 2 3]"])
def test_lists_of_integers_are_recognised(text, field):
    tables = named(profile_logs(text("a.csv", f"user,items\n1,{field}\n2,3\n3,\n4,[]\n")))
    assert (tables["items"].rows, tables["items"].pooling) == (3, 1.0)


def test_lists_of_text_need_a_separator(text):
    path = text("a.csv", "user,genres\n1,Action|Drama\n2,Drama\n")
    assert named(profile_logs(path))["genres"].pooling == 1
    genres = named(profile_logs(path, list_separator="|"))["genres"]
    assert (genres.rows, genres.pooling) == (2, 1.5)


def test_tabs_and_compression(text):
    assert named(profile_logs(text("a.tsv", "user\titem\n1\t2\n")))["item"].rows == 1
    assert named(profile_logs(text("b.csv.gz", gzip.compress(b"user,item\n1,2\n"))))["item"].rows == 1


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_columns_are_separated_by_what_the_header_shows(text, mark, name):
    lists = "1 2 3" if mark == "," else "1,2,3"
    content = f'user;items;"a,b"\n7;{lists};1\n8;4;2\n'.replace(";", mark).encode()
    tables = named(profile_logs(text(name, gzip.compress(content) if name.endswith("gz") else content)))
    assert [table.rows for table in tables.values()] == [2, 4, 2]
    assert (tables["user"].pooling, tables["items"].pooling) == (1.0, 2.0)


def test_one_column_of_lists_needs_no_delimiter(text):
    tables = named(profile_logs(text("a.csv", "items\n1;2;3\n4\n")))
    assert (tables["items"].rows, tables["items"].pooling) == (4, 2.0)
    tables = named(profile_logs(text("b.csv", "user,genre|tag\n1,2\n2,2|3\n")))
    assert list(tables) == ["user", "genre|tag"]


def test_a_decimal_comma_is_no_list_of_two_ids(text):
    result = profile_logs(text("a.csv", "user;price;items\n1;0,50;1,2\n2;3;1,2,3\n"))
    assert list(named(result)) == ["user", "items"]
    assert result.left_out["price"].startswith("double")
    lists = profile_logs(text("b.csv", "user;items\n1;1,2\n2;3\n"), list_separator=",")
    assert named(lists)["items"].pooling == 1.5


def test_empty_fields_are_no_lookups(text):
    tables = named(profile_logs(text("a.csv", "user,country\n1,\n,de\n3,null\n4,NaN\n")))
    assert (tables["user"].pooling, tables["country"].pooling) == (0.75, 0.25)


CRITEO = "0\t1\t-1\t\t68fd1e64\t\n1\t\t2\t5\t05db9164\t68fd1e64\n"


@pytest.mark.parametrize("name", ["train.txt", "day_0", "a.tsv"])
def test_a_file_without_header(text, name):
    path = text(name, CRITEO)
    result = profile_logs(path, header=False, names=["label", "I1", "I2", "I3", "C1", "C2"], exclude=["I*"])
    assert (list(result.columns), result.samples) == (["label", "C1", "C2"], 2)
    numbered = profile_logs(path, header=False)
    assert list(numbered.columns) == [f"column_{number}" for number in (1, 2, 4, 5, 6)]
    assert "id -1 is negative" in numbered.left_out["column_3"]


@pytest.mark.parametrize(
    ("names", "says"), [(["a", "b"], "has 6 columns, and --columns names 2"), (["x", "x"], "occurs twice")]
)
def test_names_of_a_file_without_header(text, names, says):
    path = text("a.tsv", CRITEO if names[0] == "a" else "1\t2\n")
    with pytest.raises(InvalidInput, match=says):
        profile_logs(path, header=False, names=names)
    with pytest.raises(InvalidInput, match="its first line names its columns"):
        profile_logs(text("b.csv", "user,item\n1,2\n"), header=False, names=["user", "item"])
    with pytest.raises(InvalidInput, match="names are for files without a header"):
        profile_logs(path, names=names)


LINES = '{"user": 7, "seen": [1, 2], "h": -5, "at": {"x": 1}}\n{"user": 8, "extra": 1}\n'


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson.gz", "log"])
def test_json_lines(text, name):
    path = text(name, gzip.compress(LINES.encode()) if name.endswith("gz") else LINES)
    result = profile_logs(path, hashed=["h*"])
    assert (result.samples, list(result.columns)) == (2, ["user", "seen", "h", "extra"])
    assert named(result)["seen"].pooling == 1.0
    assert result.columns["h"].max_id is None
    assert "struct<x: int64>" in result.left_out["at"]


def test_samples_and_files_of_json_lines_leave_columns_out(text):
    paths = [text("a.jsonl", '{"user": 7}\n'), text("b.jsonl", '{"item": 8}\n{"user": 9, "item": 1}\n')]
    result = profile_logs(paths)
    assert (result.samples, result.columns["user"].sketch.events, result.columns["item"].sketch.events) == (3, 2, 2)


def test_files_that_name_their_columns_take_no_other_names(parquet, text):
    for path in (parquet("a.parquet", user=[1]), text("a.jsonl", '{"user": 7}\n')):
        for names in ((), ("user",)):
            with pytest.raises(InvalidInput, match="names its columns itself"):
                profile_logs(path, header=False, names=names)


@pytest.mark.parametrize("mark", [" ", "\t", ","])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_histories_become_a_sequence_table_and_users(text, mark, end):
    lines = ["1 7", "1 7", "1 9", "2 7", "", "3 5"]
    user, item = profile_logs(text("log.txt", end.join(lines).replace(" ", mark))).tables(dim=8)
    assert (user.name, user.rows, user.pooling, user.pooled) == ("user", 3, 1.0, True)
    assert (item.name, item.rows, item.pooling, item.pooled) == ("item", 3, 1.66667, False)
    assert item.access.share_of(0, 1) == pytest.approx(0.6)
    assert user.access.share_of(0, 1) == pytest.approx(1 / 3)


def test_users_of_several_files_are_counted_once(text):
    paths = [text("a.txt", "1 7\n2 8\n"), text("b.txt", "2 9\n4 9\n")]
    result = profile_logs(paths)
    user, item = result.tables(rows="max_id")
    assert (result.samples, result.log_rows) == (3, 4)
    assert (user.rows, item.rows) == (5, 10)
    assert (user.access.share_of(0, 3), user.access.share_of(3, 5)) == (1, 0)


def test_a_compressed_file(tmp_path):
    path = tmp_path / "log.txt.gz"
    path.write_bytes(gzip.compress(b"1 2\n1 3\n"))
    assert profile_logs(path).tables()[1].pooling == 2


def test_options_of_columns_do_not_apply(text):
    with pytest.raises(InvalidInput, match="is an event file: columns"):
        profile_logs(text("log.txt", "1 2\n"), columns=["item"])


def test_real_histories(shared_data):
    """Amazon reviews of video games: published totals, and the skew counted with numpy."""
    path = shared_data / "amazon_video_sequences.txt"
    user, item = profile_logs(path).tables()
    assert (user.rows, item.rows) == (31_013, 23_715)
    assert item.pooling == pytest.approx(287_107 / 31_013, rel=1e-5)
    counts = np.sort(np.unique(np.loadtxt(path, dtype=np.int64)[:, 1], return_counts=True)[1])[::-1]
    for share in (0.01, 0.1):
        top = round(item.rows * share)
        assert item.access.share_of(0, top) == pytest.approx(counts[:top].sum() / counts.sum(), abs=2e-3)
    assert item.access.share_of(0, 0.01 * item.rows) == pytest.approx(0.17, abs=0.005)
    assert item.access.share_of(0, 0.10 * item.rows) == pytest.approx(0.54, abs=0.005)
