import json
import re

import numpy as np
import pyarrow as pa
import pytest

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile
from shardwright.task.files import load_tables
from shardwright.workload.profile import profile_logs, save_tables
from shardwright.workload.profile.result import doubts_by_line


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


def test_notes_say_what_was_found_and_left_out(parquet):
    path = parquet("a.parquet", user=[1, 4, 4], price=[0.5, 0.25, 1.0], none=pa.nulls(3), label=[0, 1, 0])
    assert profile_logs(path, exclude=["label"]).notes() == [
        "1 file, 3 samples, 3 lookups",
        "'user': 2 distinct ids (exact), 3 lookups; largest id 4; pooled: one id a sample",
        "'price' is left out: double (ids are integers, text or lists of these)",
        "'label' is left out: excluded",
        "'none' is left out: holds only nulls",
    ]


def test_estimates_are_marked(parquet):
    result = profile_logs(parquet("a.parquet", user=list(range(5000))), sketch_bytes=28 * 256)
    assert "distinct ids (±" in result.notes()[1]
    assert result.tables()[0].rows == pytest.approx(5000, rel=0.4)


SAMPLES = 2000
RNG = np.random.default_rng(0)
TEXT = [f"u-{number:x}" for number in RNG.integers(0, 2**60, SAMPLES)]


def doubts_of(parquet, name="x", kind=None, **options):
    """The reason to doubt a column, as text; "" for a column without doubt."""
    result = profile_logs(parquet("log.parquet", {name: kind}, **{name: options.pop("values")}))
    doubts = result.doubts(result.tables(**options))
    assert [doubt.column for doubt in doubts] in ([], [name])
    return "".join(map(str, doubts))


def drawn(low, high, size=SAMPLES):
    return RNG.integers(low, high, size)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (drawn(1_700_000_000, 1_700_086_400), "as seconds since 1970"),
        (drawn(1_700_000_000, 1_700_000_010), "as seconds since 1970"),
        (drawn(1_700_000_000_000, 1_700_086_400_000), "as milliseconds since 1970"),
        (drawn(1_700_000_000, 1_700_086_400) * 10**6, "as microseconds since 1970"),
        (drawn(1_700_000_000, 1_700_086_400) * 10**9, "as nanoseconds since 1970"),
        (pa.array([[1_700_000_001, 1_700_000_002], [1_700_000_009]]), "as seconds since 1970"),
        ([20240130, 20240131, 20240201] * 50, "looks like a date"),
        (["2024-01-17 10:22:31"] * 5, "such as '2024-01-17 10:22:31'"),
        (["2024-01-17T10:22:31Z", "2023-01-17T10:22:31Z"], "looks like a time"),
        ([f"{number:.4f}" for number in RNG.random(SAMPLES)], "looks like a measured number"),
        ([f"-{number:e}" for number in RNG.random(SAMPLES)], "looks like a measured number"),
        (drawn(0, 2), "holds 0 and 1 alone"),
        (np.arange(SAMPLES), "a new id in nearly every lookup (100.0% of 2,000)"),
        (drawn(0, 2**62), "a new id in nearly every lookup"),
        (TEXT, "a new id in nearly every lookup"),
        (np.random.default_rng(1).lognormal(3, 2.5, 100_000).astype(int), "nearly all numbers below 32 occur"),
    ],
)
def test_columns_that_are_hardly_features(parquet, values, says):
    assert says in doubts_of(parquet, values=values)


@pytest.mark.parametrize("name", ["label", "is_click", "userConverted", "Target", "label_2", "labels"])
def test_labels_by_their_names(parquet, name):
    assert "looks like a label" in doubts_of(parquet, name, values=[0, 3, 5])
    assert "looks like a label" in doubts_of(parquet, name, values=["no", "yes"])
    assert doubts_of(parquet, name, values=list(range(50))) == ""


def test_integers_beside_categories_by_their_names(parquet):
    path = parquet("a.parquet", I1=[1, 2], I14=[1, 2], C1=["x", "y"])
    result = profile_logs(path)
    assert [doubt.column for doubt in result.doubts(result.tables())] == ["I1"]
    several = profile_logs(parquet("c.parquet", I1=[1, 2], I2=[1, 2], I3=[1, 2], C1=["x", "y"]))
    (columns,) = doubts_by_line(several.doubts(several.tables())).values()
    assert columns == ["I1", "I2", "I3"]
    alone = profile_logs(parquet("b.parquet", I1=[1, 2]))
    assert alone.doubts(alone.tables()) == []


@pytest.mark.parametrize(
    "values",
    [
        drawn(0, 1000),
        drawn(0, 2**32, 300).repeat(7),  # hashed
        drawn(0, 2**62, 300).repeat(7),
        drawn(10**18, 2 * 10**18, 300).repeat(7),  # ids that begin with a time
        drawn(1_000_000_000, 9_999_999_999, 300).repeat(7),  # ten digits
        [1_700_000_000] * 50,
        drawn(20_000_000, 21_000_000, 300).repeat(7),
        [20240101, 20241301] * 50,
        ["1.2", "10.3", "11.0"] * 500,  # versions
        ["de", "fr", "jp"] * 500,
        [text.encode() for text in TEXT[:100]] * 20,
        drawn(0, 3),
        [0, 1, 1],
        pa.array([[0, 1], [1]] * 100),
        np.arange(900),  # too few to tell
        np.minimum(np.random.default_rng(2).zipf(1.2, 50_000), 10**7),  # a vocabulary, hottest first
        [],
    ],
)
def test_features_are_not_doubted(parquet, values):
    if len(values):
        assert doubts_of(parquet, "click_category", values=values) == ""


def test_a_doubt_states_the_cost_of_the_table(parquet):
    said = doubts_of(parquet, values=[0, 1_699_999_999, 1_700_000_000][1:] * 2 + [1_700_000_001], rows="max_id")
    assert said.endswith("; its table takes 435.2 GB (1,700,000,002 rows x dim 64 x 4 bytes)")


def test_all_files_of_a_log_are_doubted_together(parquet):
    paths = [
        parquet("a.parquet", time=[1_700_000_000, 1_700_000_001], day=["2024-01-01", "2024-01-02"]),
        parquet("b.parquet", time=[1_700_000_009, 1_700_000_001], day=["2024-01-03", "x"]),
    ]
    whole = profile_logs(paths)
    assert [doubt.column for doubt in whole.doubts(whole.tables())] == ["time"]
    assert whole.columns["day"].examples == ("2024-01-01", "2024-01-02", "2024-01-03", "x")


def test_events_are_not_doubted(text):
    result = profile_logs(text("a.txt", "".join(f"{number} 7\n" for number in range(1500))))
    assert result.doubts(result.tables()) == []


@pytest.fixture
def result(parquet):
    columns = {"user": [1, 2, 2], "a: list #1": [[1] * 150, [2], [7]], "price": [0.5, 1.0, 1.5]}
    return profile_logs(parquet("log.parquet", **columns))


@pytest.mark.parametrize("name", ["tables.yaml", "tables.json"])
def test_reading_gives_equal_tables(result, tmp_path, name):
    save_tables(result, tmp_path / name, dim=32)
    assert load_tables(tmp_path / name) == tuple(result.tables(dim=32))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".parquet"] == [name]


def test_yaml_comments_hold_the_findings(result, tmp_path):
    save_tables(result, tmp_path / "tables.yaml")
    comments = [line for line in (tmp_path / "tables.yaml").read_text().splitlines() if line.startswith("#")]
    assert len(comments) == 2 + 2 + 1
    assert comments[3].startswith("# 'a: list #1': 3 distinct ids (exact), 152 lookups")


def test_json_has_no_comments(result, tmp_path):
    save_tables(result, tmp_path / "tables.json", rows="max_id")
    assert [table["rows"] for table in json.loads((tmp_path / "tables.json").read_text())["tables"]] == [3, 8]


def test_a_failed_write_leaves_the_old_file(result, tmp_path):
    old = tmp_path / "tables.yaml"
    old.write_text("old")
    with pytest.raises(InvalidInput):
        save_tables(result, old, dim=0)
    assert old.read_text() == "old"


def popular(rng, ids=4000, lookups=200_000):
    """Ids drawn by a power law: 0 most often."""
    weights = np.arange(1, ids + 1) ** -0.8
    return rng.choice(ids, lookups, p=weights / weights.sum())


def test_the_share_of_lookups_of_ranges_of_ids_is_kept(parquet, tmp_path):
    ids = popular(np.random.default_rng(0))
    result = profile_logs(parquet("a.parquet", item=ids, text=[f"n{number}" for number in ids]))
    item, text = result.tables(rows="numbered")
    expected = np.bincount(ids * 16 // item.rows, minlength=16) / ids.size
    assert item.id_shares == pytest.approx(expected.tolist(), abs=1e-6)
    assert text.id_shares == ()
    save_tables(result, tmp_path / "tables.yaml", rows="numbered")
    assert list(load_tables(tmp_path / "tables.yaml")) == [item, text]


def test_shares_of_ranges_are_estimated_if_not_all_ids_are_counted(parquet):
    ids = popular(np.random.default_rng(1), ids=20_000)
    result = profile_logs(parquet("a.parquet", item=ids), sketch_bytes=28 * 2000)
    assert not result.columns["item"].sketch.exact
    (item,) = result.tables(rows="max_id")
    assert item.id_shares == pytest.approx(
        (np.bincount(ids * 16 // item.rows, minlength=16) / ids.size).tolist(), abs=0.02
    )


def test_ids_in_order_of_popularity_are_warned_of(parquet, tmp_path):
    rng = np.random.default_rng(2)
    ids = popular(rng)
    shuffled = rng.permutation(4000)[ids]
    one_hot = np.where(rng.random(ids.size) < 0.3, 17, rng.integers(0, 4000, ids.size))
    result = profile_logs(parquet("a.parquet", ordered=ids, reverse=3999 - ids, shuffled=shuffled, one_hot=one_hot))
    (warning,) = result.uneven(result.tables())
    assert re.findall(r"'(\w+)' \(\d+%, from ([0-9,]+) on\)", warning) == [("ordered", "0"), ("reverse", "3,750")]
    save_tables(result, tmp_path / "tables.yaml")
    assert warning in (tmp_path / "tables.yaml").read_text()
