import pyarrow as pa
import pytest

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile
from shardwright.workload.profile import profile_logs


def test_pooling_counts_nulls_and_empty_lists_as_samples(parquet):
    path = parquet("a.parquet", user=[1, 1, None, 2], tags=[[5, 6], [], None, [5, None]])
    result = profile_logs(path)
    user, tags = result.tables(dim=16)
    assert (result.samples, result.lookups) == (4, 6)
    assert (user.name, user.rows, user.dim, user.pooling, user.pooled) == ("user", 2, 16, 0.75, True)
    assert (tags.name, tags.rows, tags.pooling, tags.pooled) == ("tags", 2, 0.75, True)
    assert user.access.share_of(0, 1) == pytest.approx(2 / 3, abs=1e-7)


def test_rows_by_distinct_ids_or_the_largest_id(parquet):
    path = parquet("a.parquet", user=[0, 9, 9, 9])
    assert profile_logs(path).tables()[0].rows == 2
    (table,) = profile_logs(path).tables(rows="max_id")
    assert table.rows == 10
    assert table.access == AccessProfile.from_counts([1, 0, 0, 0, 0, 0, 0, 0, 0, 3])


def test_the_largest_id_makes_no_rows_of_text_or_hashes(parquet):
    with pytest.raises(InvalidInput, match="column 'who' holds text"):
        profile_logs(parquet("a.parquet", who=["x"])).tables(rows="max_id")
    with pytest.raises(InvalidInput, match="its largest id 4611686018427387904 is no row number"):
        profile_logs(parquet("b.parquet", user=[2**62])).tables(rows="max_id")
    with pytest.raises(InvalidInput, match="rows is 'all', must be 'distinct', 'max_id' or 'numbered'"):
        profile_logs(parquet("c.parquet", user=[2])).tables(rows="all")


def test_long_lists_are_sequences_unless_told_otherwise(parquet):
    path = parquet("a.parquet", short=[[1] * 100], long=[[1] * 101])
    short, long = profile_logs(path).tables()
    assert (short.pooled, long.pooled) == (True, False)
    short, long = profile_logs(path, sequence=["short"], pooled=["long"]).tables()
    assert (short.pooled, long.pooled) == (False, True)
    notes = profile_logs(path, sequence=["short"]).notes()
    assert notes[1].endswith("sequence, as told")
    assert notes[2].endswith("sequence: its longest list has 101 ids, more than 100")


def test_parts_merge_to_the_whole(parquet):
    left = parquet("a.parquet", user=[1, 2, 2], tags=[[1], [2], []])
    right = parquet("b.parquet", user=[3, 2, None], tags=[[1, 2, 3], [1], [1] * 200])
    both, merged = profile_logs([left, right]), profile_logs(left).merged(profile_logs(right))
    assert merged.tables() == both.tables()
    assert merged.tables(rows="max_id") == both.tables(rows="max_id")
    assert merged.notes() == both.notes()
    assert (merged.files, merged.log_rows) == (2, 6)


def test_what_differs_does_not_merge(parquet):
    numbers, names = profile_logs(parquet("a.parquet", user=[1])), profile_logs(parquet("b.parquet", user=["x"]))
    with pytest.raises(InvalidInput, match="column 'user' holds integers in one profile and text in the other"):
        numbers.merged(names)
    with pytest.raises(InvalidInput, match="profiles of different columns do not merge: user and item"):
        numbers.merged(profile_logs(parquet("c.parquet", item=[1])))


def test_notes_say_what_was_found_and_left_out(parquet):
    path = parquet("a.parquet", user=[1, 4, 4], price=[0.5, 0.25, 1.0], none=pa.nulls(3), label=[0, 1, 0])
    assert profile_logs(path, exclude=["label"]).notes() == [
        "1 file, 3 samples, 3 lookups",
        "'user': 2 distinct ids (exact), 3 lookups; largest id 4; pooled: one id a sample",
        "'price' is left out: double (ids are integers or text)",
        "'label' is left out: excluded",
        "'none' is left out: holds only nulls",
    ]


def test_estimates_are_marked(parquet):
    result = profile_logs(parquet("a.parquet", user=list(range(5000))), sketch_bytes=28 * 256)
    assert "distinct ids (±" in result.notes()[1]
    assert result.tables()[0].rows == pytest.approx(5000, rel=0.4)
