"""The files and columns that profiling takes, and the messages about those that it refuses."""

import pyarrow as pa
import pytest
from tests.pools import UnrulyPool

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.formats import ColumnKind
from shardwright.workload.profile.profiler import SKETCH_BYTES, _empty_columns


def test_columns_selects_and_exclude_leaves_out(parquet):
    path = parquet("a.parquet", user=[1], item=[2], label=[1], price=[0.5])
    assert list(profile_logs(path).columns) == ["user", "item", "label"]
    assert list(profile_logs(path, exclude=["label"]).columns) == ["user", "item"]
    assert list(profile_logs(path, columns=["item"]).columns) == ["item"]


def test_files_of_different_formats_count_together(parquet, text):
    result = profile_logs([parquet("a.parquet", user=[1, 2]), text("b.csv", "user\n2\n3\n")])
    assert (result.samples, result.tables()[0].rows) == (4, 3)


def test_a_column_may_be_empty_in_one_file(parquet):
    first = parquet("a.parquet", user=[1], tags=pa.array([None]), lists=pa.array([[]]))
    second = parquet("b.parquet", user=[1], tags=["x"], lists=[[7, 8]])
    for paths in ([first, second], [second, first]):
        tables = {table.name: table.pooling for table in profile_logs(paths).tables()}
        assert tables == {"user": 1, "tags": 0.5, "lists": 1}


def test_without_extension_the_first_bytes_tell(parquet):
    path = parquet("part-00000", user=[1])
    assert profile_logs(path).tables()[0].rows == 1


def test_many_columns_share_the_memory():
    kinds = {str(number): ColumnKind("integers", False) for number in range(1000)}
    columns = _empty_columns(kinds, {}, SKETCH_BYTES)
    assert sum(28 * column.sketch.limit for column in columns.values()) <= SKETCH_BYTES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["nobody"]}, r"a\.parquet: there is no column 'nobody'; its columns are user, tags, price"),
        ({"exclude": ["nobody"]}, r"a\.parquet: there is no column 'nobody'"),
        ({"columns": ["price"]}, r"a\.parquet: column 'price' has type double; ids are integers, text or lists"),
        ({"columns": []}, "no column holds embedding ids"),
        ({"sequence": ["user"]}, "sequence: 'user' is not a profiled column of lists; those are: tags"),
        ({"pooled": ["nobody"]}, "pooled: 'nobody' is not a profiled column of lists"),
        ({"sequence": ["tags"], "pooled": ["tags"]}, "column 'tags' is named both in sequence and in pooled"),
    ],
)
def test_options_that_do_not_fit(parquet, options, message):
    with pytest.raises(InvalidInput, match=message):
        profile_logs(parquet("a.parquet", user=[1], tags=[[1]], price=[0.5]), **options)


def test_paths_that_are_no_logs(tmp_path, parquet):
    with pytest.raises(InvalidInput, match="no log is named"):
        profile_logs([])
    path = parquet("a.parquet", user=[1])
    with pytest.raises(InvalidInput, match=r"a\.parquet: is named twice"):
        profile_logs([path, tmp_path / "." / "a.parquet"])
    for name in ("a\udcff.parquet", "a\udcff.csv", "a\udcff.txt"):
        (tmp_path / name).write_bytes(path.read_bytes())
        with pytest.raises(InvalidInput, match="its name is not UTF-8, by which logs are opened; rename it"):
            profile_logs(tmp_path / name)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"user": [1]}, {"user": ["x"]}, r"b\.parquet: column 'user' holds text, but integers in .*a\.parquet"),
        ({"user": [1]}, {"user": [[1]]}, r"b\.parquet: column 'user' holds lists of integers, but integers in"),
        ({"user": [1]}, {"user": [0.5]}, r"b\.parquet: column 'user' is missing or holds no ids, but holds ids in .*a"),
        ({"user": [1]}, {"user": [1], "item": [1]}, r"a\.parquet: column 'item' is missing or holds no ids, .*b\.parquet"),
    ],
)  # fmt: skip
def test_files_that_disagree(parquet, first, second, message):
    with pytest.raises(InvalidInput, match=message):
        profile_logs([parquet("a.parquet", **first), parquet("b.parquet", **second)])


def test_events_and_samples_do_not_mix(parquet, text):
    with pytest.raises(InvalidInput, match=r"log\.txt: event files .* do not mix"):
        profile_logs([parquet("a.parquet", user=[1], item=[1]), text("log.txt", "1 2\n")])


def test_nested_lists(parquet):
    path = parquet("a.parquet", user=[1], sessions=[[[1, 2], [3]]])
    with pytest.raises(InvalidInput, match=r"a\.parquet: column 'sessions' has type list<.*list<.*; ids are integers"):
        profile_logs(path, columns=["user", "sessions"])
    assert list(profile_logs(path, exclude=["sessions"]).columns) == ["user"]
    result = profile_logs(path)
    assert list(result.columns) == ["user"]
    assert "list<" in result.left_out["sessions"]


def test_every_column_that_holds_no_ids_is_named_in_one_run(parquet):
    hashes = [-(2**63), 2**62, -1]
    path = parquet(
        "a.parquet", user=[1, 2, 3], hash=hashes, where=[{"x": 1}] * 3, deep=[[[1]]] * 3, pad=[[1, -1], [2], []]
    )
    result = profile_logs(path)
    assert list(result.columns) == ["user"]
    assert result.left_out.keys() == {"hash", "where", "deep", "pad"}
    taken = profile_logs(path, hashed=["hash"], exclude=["[dpw]*"])
    assert list(taken.columns) == ["user", "hash"]
    assert taken.columns["hash"].sketch.distinct == 3
    assert [table.rows for table in taken.tables(rows="numbered")] == [4, 3]
    with pytest.raises(InvalidInput, match="hashed: 'nobody' is not a profiled column"):
        profile_logs(path, hashed=["nobody"])


def test_logs_without_rows_or_ids(parquet):
    with pytest.raises(InvalidInput, match=r"a\.parquet: the log is empty \(0 rows in 1 files\)"):
        profile_logs(parquet("a.parquet", types={"user": pa.int64()}, user=[]))
    with pytest.raises(InvalidInput, match=r"b\.parquet: no id in any of the columns user"):
        profile_logs(parquet("b.parquet", types={"user": pa.int64()}, user=[None, None]))
    with pytest.raises(InvalidInput, match=r"d\.parquet: the log is empty: columns user have no value"):
        profile_logs(parquet("d.parquet", user=[None, None]))
    with pytest.raises(InvalidInput, match=r"c\.parquet: no column holds embedding ids .* its columns: price \(double"):
        profile_logs(parquet("c.parquet", price=[0.5]))


def test_names_must_be_printable(parquet):
    with pytest.raises(InvalidInput, match=r"a\.parquet: column 2 is named 'b\\n', must be printable text"):
        profile_logs(parquet("a.parquet", a=[1], **{"b\n": [1]}))


def test_negative_ids_are_found_in_lists_too(parquet):
    with pytest.raises(InvalidInput, match=r"a\.parquet: column 'tags': id -1 is negative"):
        profile_logs(parquet("a.parquet", tags=[[1], [2, -1]]))


def hex_log(path, first, later):
    """A CSV file whose blocks are small enough that `later` comes in another one than `first`."""
    lines = ["label,c"] + [f"1,{id_}" for id_ in first] + [f"0,{id_}" for id_ in later]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_hexadecimal_ids_are_text_even_without_letters(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwright.workload.profile.texts._BLOCK_BYTES", 256)
    digits, letters = [f"{n}" for n in range(10_000_000, 10_000_100)], ["a0000001", "10000000"]
    log = hex_log(tmp_path / "log.csv", digits, letters)
    for pool in (None, UnrulyPool(2)):
        column = profile_logs(log, pool=pool).columns["c"]
        assert (column.kind.ids, column.sketch.distinct) == ("text", 101)
    others = [hex_log(tmp_path / f"{name}.csv", ids, []) for name, ids in (("digits", digits), ("letters", letters))]
    for files in (others, others[::-1]):
        column = profile_logs(files).columns["c"]
        assert (column.kind.ids, column.sketch.distinct) == ("text", 101)
    padded = profile_logs(hex_log(tmp_path / "padded.csv", ["00000012", "12345678"], [])).columns["c"]
    assert padded.kind.ids == "text"
    for name, ids in (("floats", ["1e5", "00000012", "12345678"]), ("wide", ["1234567e", "12345678"])):
        like_floats = profile_logs(hex_log(tmp_path / f"{name}.csv", ids, ["ab"])).columns["c"]
        assert (like_floats.kind.ids, like_floats.sketch.distinct) == ("text", len(ids) + 1)
    plain = profile_logs(hex_log(tmp_path / "plain.csv", ["012", "7"], [])).columns["c"]
    assert plain.kind.ids == "integers"
