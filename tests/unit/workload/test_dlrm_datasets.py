import gzip
import tempfile

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.dlrm_datasets import iter_tables, read_tables

torch = pytest.importorskip("torch")

# Three tables × four samples; the middle table is never looked into.
BAGS = [
    [[0, 2], [2], [], [5, 2, 0]],
    [[], [], [], []],
    [[7], [7], [7], [1]],
]


def tensors(bags=BAGS, dtype=torch.int64):
    lengths = torch.tensor([[len(bag) for bag in table] for table in bags], dtype=dtype)
    indices = torch.tensor([row for table in bags for bag in table for row in bag], dtype=dtype)
    offsets = torch.cat([torch.zeros(1, dtype=dtype), lengths.flatten().cumsum(0).to(dtype)])
    return indices, offsets, lengths


@pytest.fixture
def write(tmp_path):
    def write(content, name="batch.pt"):
        path = tmp_path / name
        if name.endswith(".gz"):
            with gzip.open(path, "wb") as file:
                torch.save(content, file)
        else:
            torch.save(content, path)
        return path

    return write


@pytest.mark.parametrize("name", ["batch.pt", "batch.pt.gz", "named_oddly"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tables_come_one_by_one(write, name, dtype):
    read = list(iter_tables(write(tensors(dtype=dtype), name)))
    assert [name for name, _ in read] == ["t000", "t001", "t002"]
    for (_, batch), bags in zip(read, BAGS, strict=True):
        assert batch.indices.dtype == batch.offsets.dtype == np.int64
        found = [batch.indices[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
        assert found == bags


def test_the_unpacked_copy_is_removed(write, tmp_path, monkeypatch):
    path = write(tensors(), "batch.pt.gz")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    tables = iter_tables(path)
    _, batch = next(tables)
    assert list(scratch.iterdir())
    tables.close()
    assert not list(scratch.iterdir())
    assert batch.indices.tolist() == [0, 2, 2, 5, 2, 0], "a batch must outlive the file"


def test_the_file_cannot_be_changed_through_a_batch(write):
    path = write(tensors())
    before = path.read_bytes()
    for _, batch in iter_tables(path):
        batch.indices[:] = 3
    assert path.read_bytes() == before


def test_statistics_of_the_tables(write):
    first, last = read_tables(write(tensors()))
    assert (first.name, first.rows, first.dim, first.pooling) == ("t000", 6, 16, 1.5)
    assert (last.name, last.rows, last.pooling) == ("t002", 8, 1.0)
    assert first.access.share_of(0, 1) == pytest.approx(3 / 6)  # row 2
    assert first.access.share_of(1, 2) == pytest.approx(2 / 6)  # row 0
    assert first.access.share_of(3, 6) == 0
    assert last.access.share_of(0, 1) == pytest.approx(3 / 4)


def test_rows_and_dim_can_be_given(write):
    path = write(tensors())
    first, last = read_tables(path, rows=[100, 5, 8], dim=32)
    assert (first.rows, first.access.total_rows, first.dim, last.rows) == (100, 100, 32, 8)
    with pytest.raises(
        InvalidInput, match=r"rows of table t002 is 7, but the batch looks up row 7; must be at least 8"
    ):
        read_tables(path, rows=[100, 5, 7])
    for wrong in ([100, 5], [100, 5, 8, 8]):
        with pytest.raises(InvalidInput, match=f"rows lists {len(wrong)} tables"):
            read_tables(path, rows=wrong)


def test_good_turing_gives_unseen_rows_the_share_of_the_singletons(write):
    rng = np.random.default_rng(0)
    path = write(tensors([[rng.integers(0, 1000, 500).tolist()]]))
    never, smoothed = (read_tables(path, rows=[5000], unseen=unseen)[0].access for unseen in ("never", "good_turing"))
    counts = np.unique(next(iter_tables(path))[1].indices, return_counts=True)[1]
    assert never.share_of(counts.size, 5000) == 0
    assert smoothed.share_of(counts.size, 5000) == pytest.approx((counts == 1).sum() / 500)
    assert smoothed.share_of(0, 10) < never.share_of(0, 10)


def test_good_turing_leaves_unseen_rows_colder_than_seen_ones(write):
    path = write(tensors([[list(range(50))]]))
    access = read_tables(path, rows=[51], unseen="good_turing")[0].access
    assert 0.019 < access.share_of(50, 51) <= access.share_of(0, 1) * (1 + 1e-9)
    assert read_tables(path, rows=[50], unseen="good_turing")[0].access.share_of(0, 50) == 1


def test_unknown_choice_for_unseen_rows(write):
    with pytest.raises(InvalidInput, match=r"unseen is 'laplace', must be 'never' or 'good_turing'"):
        read_tables(write(tensors()), unseen="laplace")


def test_a_huge_id_takes_no_huge_memory(write):
    table = read_tables(write(tensors([[[2**40, 1, 1]]])))[0]
    assert table.rows == 2**40 + 1
    assert table.access.share_of(0, 1) == pytest.approx(2 / 3)


def test_reuse_of_a_large_batch_is_what_the_batch_has(write):
    counts = np.repeat([64, 32, 16], [10, 100, 500])
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(counts.size), counts))
    table = read_tables(write(tensors([rows.reshape(32, -1).tolist()])))[0]
    assert table.pooling * 32 == rows.size
    assert table.access.distinct_rows(rows.size) == pytest.approx(counts.size, rel=0.01)
    assert table.access.share_of(0, 10) == pytest.approx(640 / rows.size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, o, n: (i - 1, o, n), "table 0: index -1 is negative"),
        (lambda i, o, n: (i[:-1], o, n), "offsets run from 0 to 10, must run from 0 to the number of indices, 9"),
        (lambda i, o, n: (i, o + 1, n), "offsets run from 1 to 11"),
        (lambda i, o, n: (i, o[:-1], n), "12 offsets do not go with lengths of 3 tables × 4 samples; must be 13"),
        (lambda i, o, n: (i, o, n.flip(0)), "table 0: sample 0 has 2 indices by the offsets but 1 by the lengths"),
        (lambda i, o, n: (i, o.clone().index_fill_(0, torch.tensor([2]), 99), n), "table 0: offsets must rise"),
        (
            lambda i, o, n: (i, o.clone().index_fill_(0, torch.tensor([5]), -9), n),
            "table 1: offsets must rise|table 0: off",
        ),
        (lambda i, o, n: (i.reshape(2, 5), o, n), r"shapes \(2, 5\), \(13,\) and \(3, 4\)"),
        (lambda i, o, n: (i, o, n[:0]), r"shapes .* and \(0, 4\)"),
    ],
)
def test_contradictions_inside_a_file(write, change, message):
    with pytest.raises(InvalidInput, match=message):
        list(iter_tables(write(change(*tensors()))))


def test_errors_name_the_file(write):
    with pytest.raises(InvalidInput, match=r"^odd\.pt: "):
        read_tables(write((1, 2, 3), "odd.pt"))
