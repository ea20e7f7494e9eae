import gzip
import pickle
import sys
import tempfile
import zipfile

import pytest

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.workload import archives
from shardwright.workload.archives import load_tensors, unpacked

torch = pytest.importorskip("torch")

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


def test_loads_what_torch_saved(saved):
    loaded = load_tensors(saved, "saved.pt", 3)
    assert all(torch.equal(one, other) for one, other in zip(loaded, TENSORS, strict=True))


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


def test_allocations_that_torch_would_allow_are_refused(saved):
    # torch.load(weights_only=True) would run bytearray(10 GB).
    pickled = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\xe4\x0bT\x02\x85R."
    with pytest.raises(InvalidInput, match="bytearray"):
        load_tensors(with_pickle(saved, pickled), "saved.pt", 3)


def test_storage_larger_than_the_file_is_refused(saved):
    # The pickle says how many numbers a storage and a tensor have: make the 10 of the first ones 2 billion.
    def enlarge(name, content):
        if not name.endswith("data.pkl"):
            return content
        for after in (b"t", b"\x85"):
            assert content.count(b"K\n" + after) == 1
            content = content.replace(b"K\n" + after, b"J\x00\x94\x35\x77" + after)
        return content

    with pytest.raises(InvalidInput, match="saved.pt"):
        load_tensors(rewrite(saved, enlarge), "saved.pt", 3)


def test_tensors_repeated_by_stride_are_refused(tmp_path):
    path = tmp_path / "wide.pt"
    torch.save((torch.zeros(1, dtype=torch.int64).expand(10**12), *TENSORS[1:]), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidInput, match=r"strides \(0,\)"):
        load_tensors(path, "wide.pt", 3)


def test_compressed_entries_are_refused(saved):
    with pytest.raises(InvalidInput, match="is compressed or larger than the file"):
        load_tensors(rewrite(saved, lambda _, content: content, zipfile.ZIP_DEFLATED), "saved.pt", 3)


@pytest.mark.parametrize(
    "content",
    [TENSORS[:2], [1, 2, 3], {"a": TENSORS[0]}, TENSORS[0], (*TENSORS[:2], None), (*TENSORS[:2], torch.ones(1))],
)
def test_other_contents_are_refused(tmp_path, content):
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(InvalidInput, match=r"other\.pt: (must hold a tuple of 3 tensors|a tensor of|its pickle)"):
        load_tensors(path, "other.pt", 3)


def test_every_cut_is_noticed(saved):
    whole = saved.read_bytes()
    for size in range(0, len(whole), 97):
        saved.write_bytes(whole[:size])
        with pytest.raises(InvalidInput, match="saved.pt"):
            load_tensors(saved, "saved.pt", 3)


def test_old_torch_format_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "old.pt"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=False)
    with pytest.raises(InvalidInput, match=r"of torch 1\.6 or later .*load and save it anew"):
        load_tensors(path, "old.pt", 3)


def test_a_damaged_pickle_is_refused(saved):
    with pytest.raises(InvalidInput, match="saved.pt"):
        load_tensors(with_pickle(saved, b"\x80\x02}q\x00\xff"), "saved.pt", 3)


def test_a_huge_pickle_is_not_read(saved, monkeypatch):
    monkeypatch.setattr(archives, "MOST_PICKLE_BYTES", 10)
    with pytest.raises(InvalidInput, match=r"one data\.pkl of at most 10 bytes"):
        load_tensors(saved, "saved.pt", 3)


def test_plain_files_are_used_in_place(saved):
    with unpacked(saved) as plain:
        assert plain == saved


def test_missing_file(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.pt: there is no such data set"), unpacked(tmp_path / "none.pt"):
        pass


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The directory for temporary files, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


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
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:20] + b"\xff" * 20 + data[40:],
        lambda data: data[:-8] + b"\0" * 8,
    ],
)
def test_damaged_gzip(saved, tmp_path, damage):
    path = tmp_path / "damaged.pt.gz"
    path.write_bytes(damage(gzip.compress(saved.read_bytes())))
    with pytest.raises(InvalidInput, match=r"damaged\.pt\.gz: damaged or cut short"), unpacked(path):
        pass


def test_a_full_disk_is_told_apart_from_a_damaged_file(saved, tmp_path, monkeypatch):
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
