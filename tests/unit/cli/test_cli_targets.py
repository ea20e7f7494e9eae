import os
from pathlib import Path

import pytest

from shardwright.cli.targets import check_folder, check_target, make_folder
from shardwright.errors import InvalidInput


def test_what_can_be_made_passes(tmp_path):
    check_target(None)
    check_target(tmp_path / "plan.json")
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    make_folder(tmp_path / "new" / "deep")
    make_folder(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()


def test_a_file_is_no_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "inside"):
        with pytest.raises(InvalidInput, match="is no folder"):
            check_folder(path)
        with pytest.raises(InvalidInput, match="cannot be made"):
            make_folder(path)
    with pytest.raises(InvalidInput, match="its folder does not exist"):
        check_target(file / "plan.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="may not be written to"):
        check_folder(tmp_path / "new")


def test_an_input_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, new = tmp_path / "task.yaml", tmp_path / "new.yaml"
    file.write_text("")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for path in (file, Path("task.yaml"), tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(InvalidInput, match="is an input too"):
            check_target(path, inputs=[None, file])
    check_target(new, inputs=[None, file], outputs=[None, file])


def test_a_file_that_an_input_names_is_not_written_over(tmp_path):
    tables, task, train = (tmp_path / name for name in ("tables.json", "task.yaml", "train.yaml"))
    tables.write_text('{"tables": []}')
    task.write_text("tables: {file: tables.json}")
    train.write_text("groups: [{file: task.yaml}, {pool: {file: train.yaml}, tasks: 3}]")  # names itself: read once
    for target, source in [(tables, task), (task, train), (tables, train)]:
        with pytest.raises(InvalidInput, match=f"is named in {source}"):
            check_target(target, inputs=[None, source])
    check_target(tmp_path / "plan.json", inputs=[task, train])
    check_target(task, inputs=[tables])


@pytest.mark.parametrize("content", ["", "{", "- file: 3", "file: [x]", "\x00"])
def test_an_input_that_names_nothing_or_is_broken_is_left_to_who_reads_it(tmp_path, content):
    source, target = tmp_path / "task.yaml", tmp_path / "plan.json"
    source.write_text(content)
    target.write_text("")
    check_target(target, inputs=[source])


def test_two_results_are_not_written_over_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="two results"):
        check_target(tmp_path / "new", outputs=[None, Path("new")])


def test_devices_may_be_read_and_written():
    check_target(Path("/dev/null"), inputs=[Path("/dev/null")], outputs=[Path("/dev/null")])


@pytest.mark.parametrize("name", ["identity.json", "samples.sqlite", "new.sqlite"])
def test_files_of_a_store_are_not_written_over(tmp_path, name):
    with pytest.raises(InvalidInput, match="are the samples'"):
        check_target(tmp_path / name, inputs=[tmp_path])
    check_target(tmp_path / "model.safetensors", inputs=[tmp_path])


@pytest.mark.parametrize("check", [check_target, check_folder])
@pytest.mark.parametrize("name", ["x" * 256, "loop", "loop/inside"])
def test_what_no_path_can_be_is_refused(tmp_path, check, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(
        InvalidInput, match="(File name too long|Too many levels of symbolic links).; name another with -o"
    ):
        check(tmp_path / name)
    (tmp_path / "new").mkdir()
    check_target(tmp_path / "new.json", inputs=[tmp_path / name], outputs=[tmp_path / name])  # who reads it says why


def test_descriptors_are_written_to_if_they_are_open(tmp_path):
    with (tmp_path / "log").open("w") as log:
        check_target(Path(f"/dev/fd/{log.fileno()}"))
    with pytest.raises(InvalidInput, match="is no open descriptor"):
        check_target(Path("/dev/fd/999"))
