import gzip
import pickle
import sys
import tempfile
import zipfile

import numpy as np
import pytest

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.workload import dlrm_datasets as archives
from shardwright.workload.dlrm_datasets import iter_tables, load_tensors, read_tables, unpacked

torch = pytest.importorskip("torch")

# Three tables × four samples; the middle table is never looked into.
BAGS = [[[0, 2], [2], [], [5, 2, 0]], [[], [], [], []], [[7], [7], [7], [1]]]  # fmt: skip


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
        rows = [batch.indices[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
        assert rows == bags


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The directory for temporary files, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_unpacked_copy_is_removed(write, scratch):
    path = write(tensors(), "batch.pt.gz")
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


TENSORS = (torch.arange(10), torch.tensor([0, 10]), torch.tensor([[10]], dtype=torch.int32))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "saved.pt"
    torch.save(TENSORS, path)
    return path


def rewrite(path, change, compression=zipfile.ZIP_STORED):
    """Write the archive anew with `change(name, content)` as the entries' contents."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, change(name, content))
    return path


def with_pickle(path, content):
    return rewrite(path, lambda name, old: content if name.endswith("data.pkl") else old)


class Touch:
    """Pickles as a call that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_calls_code_is_refused_and_not_run(saved, tmp_path, protocol):
    trap = tmp_path / "trap"
    with pytest.raises(InvalidInput, match="which may run code"):
        load_tensors(with_pickle(saved, pickle.dumps(Touch(trap), protocol)), "saved.pt", 3)
    assert not trap.exists()


def test_a_bare_pickle_is_refused_and_not_run(tmp_path):
    trap = tmp_path / "trap"
    path = tmp_path / "bare.pt"
    path.write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(InvalidInput, match="not a complete torch.save archive"):
        load_tensors(path, "bare.pt", 3)
    assert not trap.exists()


def enlarged(name, content):
    """The pickle says how many numbers a storage and a tensor have: make the 10 of the first ones 2 billion."""
    if name.endswith("data.pkl"):
        for after in (b"t", b"\x85"):
            assert content.count(b"K\n" + after) == 1
            content = content.replace(b"K\n" + after, b"J\x00\x94\x35\x77" + after)
    return content


def saving(content, **options):
    return lambda path: torch.save(content, path, **options)


TEN_GIGABYTES = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\xe4\x0bT\x02\x85R."
REPEATED = torch.zeros(1, dtype=torch.int64).expand(10**12)
NOT_THREE = "must hold a tuple of 3 tensors|a tensor of|its pickle"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: with_pickle(path, TEN_GIGABYTES), "bytearray"),  # torch.load(weights_only=True) would run it
        (lambda path: rewrite(path, enlarged), ""),
        (saving((REPEATED, *TENSORS[1:])), r"strides \(0,\)"),
        (lambda path: rewrite(path, lambda _, content: content, zipfile.ZIP_DEFLATED), "is compressed or larger than the file"),
        (lambda path: with_pickle(path, b"\x80\x02}q\x00\xff"), ""),
        (saving(TENSORS, _use_new_zipfile_serialization=False), r"of torch 1\.6 or later .*load and save it anew"),
        *((saving(content), f"({NOT_THREE})") for content in (TENSORS[:2], [1, 2, 3], {"a": TENSORS[0]}, TENSORS[0])),
        *((saving((*TENSORS[:2], last)), f"({NOT_THREE})") for last in (None, torch.ones(1))),
    ],
)  # fmt: skip
def test_files_without_a_batchs_tensors_are_refused(saved, change, says):
    change(saved)
    with pytest.raises(InvalidInput, match=rf"saved\.pt.*{says}"):
        load_tensors(saved, "saved.pt", 3)


def test_every_cut_is_noticed(saved):
    whole = saved.read_bytes()
    for size in range(0, len(whole), 97):
        saved.write_bytes(whole[:size])
        with pytest.raises(InvalidInput, match="saved.pt"):
            load_tensors(saved, "saved.pt", 3)


def test_a_huge_pickle_is_not_read(saved, monkeypatch):
    monkeypatch.setattr(archives, "MOST_PICKLE_BYTES", 10)
    with pytest.raises(InvalidInput, match=r"one data\.pkl of at most 10 bytes"):
        load_tensors(saved, "saved.pt", 3)


def test_missing_file(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.pt: there is no such data set"), unpacked(tmp_path / "none.pt"):
        pass


def test_unpacking_stops_at_the_limit(tmp_path, scratch, monkeypatch):
    path = tmp_path / "bomb.pt.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes(1_000_000))
    monkeypatch.setattr(archives, "CHUNK", 1000)
    with (
        pytest.raises(InvalidInput, match=r"bomb\.pt\.gz: unpacks to more than 50\.0 KB; .*raise max_bytes"),
        unpacked(path, 50_000),
    ):
        pass
    assert not list(scratch.iterdir())


def test_default_limit_follows_the_size_of_the_file(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(archives, "LEAST_LIMIT", 1000)
    path = tmp_path / "bomb.pt.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes(1_000_000))
    with pytest.raises(InvalidInput, match="unpacks to more than"), unpacked(path):
        pass
    with unpacked(path, 1_000_000) as plain:
        assert plain.stat().st_size == 1_000_000
        assert plain.parent.parent == scratch
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:20] + b"\xff" * 20 + data[40:], lambda data: data[:-8] + b"\0" * 8]
)  # fmt: skip
def test_damaged_gzip(saved, tmp_path, damage):
    path = tmp_path / "damaged.pt.gz"
    path.write_bytes(damage(gzip.compress(saved.read_bytes())))
    with pytest.raises(InvalidInput, match=r"damaged\.pt\.gz: damaged or cut short"), unpacked(path):
        pass


def test_a_full_disk_is_distinguished_from_a_damaged_file(saved, tmp_path, monkeypatch):
    path = tmp_path / "sound.pt.gz"
    path.write_bytes(gzip.compress(saved.read_bytes()))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives.gzip, "open", full)
    with pytest.raises(InvalidInput, match=r"\(No space left on device\); set TMPDIR"), unpacked(path):
        pass


def test_without_torch_the_error_has_the_install_command(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match="pip install"):
        load_tensors(saved, "saved.pt", 3)
