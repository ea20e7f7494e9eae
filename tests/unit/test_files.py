import os
import stat
from pathlib import Path

import pytest

from shardwright import files
from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.files import dump_document, input_size, parse_document, read_bytes, read_text, write_atomically


def test_write_and_read(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "Zürich → 東京")
    assert read_text(tmp_path / "a.txt") == "Zürich → 東京"
    write_atomically(str(tmp_path / "a.txt"), b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ShardwrightError, match=r"a\.txt: writing failed \(No space left on device\)") as error:
        write_atomically(path, "new")
    assert error.value.exit_code == 1
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_links_and_permissions_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_pipes_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_an_open_descriptor_is_written_to_at_its_position(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "log").open("w+") as log:
        log.write("kept\n")
        log.flush()
        for path in (f"/dev/fd/{log.fileno()}", Path(f"/proc/self/fd/{log.fileno()}")):
            write_atomically(path, "added\n")
    assert (tmp_path / "log").read_text() == "kept\nadded\nadded\n"
    print("before")
    write_atomically("/dev/stdout", "document\n")
    assert capfd.readouterr().out == "before\ndocument\n"
    with pytest.raises(InvalidInput, match="/dev/fd/999: cannot be written"):
        write_atomically("/dev/fd/999", "x")
    assert os.listdir(tmp_path) == ["log"]  # noqa: PTH208


@pytest.mark.parametrize("name", ["missing/a.txt", "folder", "file/a.txt"])
def test_paths_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be written .*; name a file in a folder you may write to"):
        write_atomically(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing\.yaml: there is no such task file; check the path"):
        read_text(tmp_path / "nothing.yaml", "task file")
    with pytest.raises(InvalidInput, match="is a folder, expected a task file"):
        read_text(tmp_path, "task file")
    (tmp_path / "latin").write_bytes(b"Z\xfcrich")
    with pytest.raises(InvalidInput, match=r"is not UTF-8 text \(byte 0xfc at position 1\); save it as UTF-8"):
        read_text(tmp_path / "latin")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_text("nul\0byte")


def test_the_size_of_a_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_text("x" * 100)
    assert len(read_text(path, max_bytes=100)) == 100
    with pytest.raises(InvalidInput, match="the task file is larger than 99 bytes, the most that is read"):
        read_text(path, "task file", max_bytes=99)


def test_pipes_and_devices_are_no_input_however_they_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path / "link"):
        for read in (input_size, read_bytes, read_text, parse_document):
            with pytest.raises(InvalidInput, match=rf"^{path}: is a pipe or device, expected a file; save its output"):
                read(path)


def test_of_a_file_that_grows_no_more_is_read_than_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_text("whole")
    monkeypatch.setattr(files, "input_size", lambda *_: 3)
    assert read_text(path) == "who"


@pytest.mark.parametrize("name", ["x" * 256, "loop", "loop/file"])
def test_paths_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InvalidInput, match="the task file cannot be read .(File name too long|Too many levels)"):
        read_text(tmp_path / name, "task file")
    with pytest.raises(InvalidInput, match="cannot be written .(File name too long|Too many levels)"):
        write_atomically(tmp_path / name, "x")
    assert [(path.name, path.is_symlink()) for path in tmp_path.iterdir()] == [("loop", True)]


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert parse_document(tmp_path / "a.json") == {"a": 1}


@pytest.mark.parametrize("name", ["a.json", "a.JSON", "a.yaml", "a.yml", "a"])
def test_documents_by_suffix(tmp_path: Path, name: str) -> None:
    document = {"format": 1, "list": [{"a": [1, 2.5, None, True]}, {"b": "no"}], "empty": [], "nested": {"x": {}}}
    text = dump_document(document, name)
    assert text.startswith("{") == name.lower().endswith(".json")
    (tmp_path / name).write_text(text)
    assert parse_document(tmp_path / name) == document


def test_items_have_a_line_each() -> None:
    document = {"format": 1, "tables": [{"name": "a", "rows": [1, 2]}, {"name": "b"}], "ranks": [1, 2]}
    assert dump_document(document, "a.yaml") == (
        "format: 1\ntables:\n- {name: a, rows: [1, 2]}\n- {name: b}\nranks: [1, 2]\n"
    )
    assert dump_document(document, "a.json") == (
        '{\n  "format": 1,\n  "tables": [\n    {"name": "a", "rows": [1, 2]},\n    {"name": "b"}\n  ],\n  "ranks": [1, 2]\n}\n'
    )
    assert dump_document([1], "a.json") == "[1]\n"
    assert dump_document([1], "a.yaml") == "- 1\n"


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_only_finite_numbers_are_written(name: str, number: float) -> None:
    with pytest.raises(InvalidInput, match="a number is NaN or infinite; files hold finite numbers only"):
        dump_document({"a": [number]}, name)


@pytest.mark.parametrize("text", ['{"a": 1}', ' {\n "a": 1}', "{a: 1}", "a: 1", '"a": 1'])
def test_without_an_ending_the_content_decides_the_format(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    assert parse_document(tmp_path / "a") == {"a": 1}


def test_a_name_without_an_ending_is_what_the_caller_says() -> None:
    assert dump_document({"a": 1}, "a") == "a: 1\n"
    assert dump_document({"a": 1}, "a", otherwise=".json") == dump_document({"a": 1}, "a.json")
    assert dump_document({"a": 1}, "a.yml", otherwise=".json") == "a: 1\n"
