import numpy as np
import pyarrow as pa
import pytest

from shardwright.workload.profile import profile_logs

SAMPLES = 2000
RNG = np.random.default_rng(0)
TEXT = [f"u-{number:x}" for number in RNG.integers(0, 2**60, SAMPLES)]


def doubts_of(parquet, name="x", kind=None, **options):
    """What is doubted of a column, as text; "" where it is not."""
    result = profile_logs(parquet("log.parquet", {name: kind}, **{name: options.pop("values")}))
    found = result.doubts(result.tables(**options))
    assert [one.column for one in found] in ([], [name])
    return "".join(map(str, found))


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
    ],
)
def test_columns_that_are_hardly_features(parquet, values, says):
    assert says in doubts_of(parquet, values=values)


@pytest.mark.parametrize("name", ["label", "is_click", "userConverted", "Target", "label_2", "labels"])
def test_labels_by_their_names(parquet, name):
    assert "looks like a label" in doubts_of(parquet, name, values=[0, 3, 5])
    assert "looks like a label" in doubts_of(parquet, name, values=["no", "yes"])
    assert doubts_of(parquet, name, values=list(range(50))) == ""


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
        [],
    ],
)
def test_features_are_not_doubted(parquet, values):
    if len(values):
        assert doubts_of(parquet, "click_category", values=values) == ""


def test_a_doubt_says_what_the_table_costs(parquet):
    said = doubts_of(parquet, values=[0, 1_699_999_999, 1_700_000_000][1:] * 2 + [1_700_000_001], rows="max_id")
    assert said.endswith("; its table takes 435.2 GB (1,700,000,002 rows x dim 64 x 4 bytes)")


def test_parts_are_doubted_as_the_whole_is(parquet):
    paths = [
        parquet("a.parquet", time=[1_700_000_000, 1_700_000_001], day=["2024-01-01", "2024-01-02"]),
        parquet("b.parquet", time=[1_700_000_009, 1_700_000_001], day=["2024-01-03", "x"]),
    ]
    one, other = map(profile_logs, paths)
    whole, merged = profile_logs(paths), one.merged(other)
    assert [str(doubt) for doubt in merged.doubts(merged.tables())] == [
        str(doubt) for doubt in whole.doubts(whole.tables())
    ]
    assert [doubt.column for doubt in whole.doubts(whole.tables())] == ["time"]
    assert whole.columns["day"].examples == ("2024-01-01", "2024-01-02", "2024-01-03", "x")


def test_events_are_not_doubted(text):
    result = profile_logs(text("a.txt", "".join(f"{number} 7\n" for number in range(1500))))
    assert result.doubts(result.tables()) == []
