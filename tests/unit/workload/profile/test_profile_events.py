import gzip

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs


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


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("user item\n1 2\n", "line 1: 'user item'"),
        ("1 2\n3 x\n", "line 2: '3 x'"),
        ("1 2\n\n3 4 5\n", "line 3: '3 4 5'"),
        ("1 2\n3\n", "line 2: '3'"),
        ("1 2\n3 0.5\n", r"line 2: '3 0\.5'"),
        ("1 2\n3 \n", "line 2: '3 '"),
        ("1 2\n3 99999999999999999999\n", "line 2: '3 99999999999999999999'"),
        (b"1 2\n\xff\xfe\n", r"line 2: '.*xff.*xfe'"),
        ("7" * 9_000_000, "line 1: '7777"),
    ],
)
def test_a_line_that_is_no_event_is_named(text, content, place):
    with pytest.raises(
        InvalidInput, match=rf"log\.txt: {place}.* is not an event; an event file has lines of two integers"
    ):
        profile_logs(text("log.txt", content))


def test_a_late_bad_line_is_named(text):
    with pytest.raises(InvalidInput, match="line 700001: '1-2'"):
        profile_logs(text("log.txt", "12345 678\n" * 700_000 + "1-2\n"))


def test_negative_ids(text):
    with pytest.raises(InvalidInput, match=r"log\.txt: column 'item': id -3 is negative"):
        profile_logs(text("log.txt", "1 2\n1 -3\n"))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file(text, content):
    with pytest.raises(InvalidInput, match="the log is empty"):
        profile_logs(text("log.txt", content))


def test_options_of_columns_do_not_apply(text):
    with pytest.raises(InvalidInput, match="is an event file, of which columns"):
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
