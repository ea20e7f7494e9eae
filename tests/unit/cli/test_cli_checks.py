import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.cli.checks import (
    check_folder,
    check_same_task,
    check_target,
    differences,
    make_folder,
    measured_device,
)
from shardwright.cost.files import device_type, unlike
from shardwright.errors import InvalidInput
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of


def test_paths_that_can_be_made_pass(tmp_path):
    check_target(None)
    check_target(tmp_path / "plan.json")
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    make_folder(tmp_path / "new" / "deep")
    make_folder(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
    make_folder(tmp_path / "new", ["plan.json", "other.json"], [None, tmp_path / "task.yaml"])
    with pytest.raises(InvalidInput, match="deep: is a folder"):
        make_folder(tmp_path / "new", ["plan.json", "deep"])


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
    with pytest.raises(InvalidInput, match="is a sample store, which owns its .sqlite and .json files"):
        check_target(tmp_path / name, inputs=[tmp_path])
    check_target(tmp_path / "model.safetensors", inputs=[tmp_path])


@pytest.mark.parametrize("check", [check_target, check_folder])
@pytest.mark.parametrize("name", ["x" * 256, "loop", "loop/inside"])
def test_impossible_paths_are_refused(tmp_path, check, name):
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
    with pytest.raises(InvalidInput, match="no such descriptor is open"):
        check_target(Path("/dev/fd/999"))


TASK = task_of(4, 2)
ONE, OTHER = TASK.tables[:2]


def test_a_task_is_the_same_as_itself_after_a_file(tmp_path):
    TASK.save(tmp_path / "task.yaml")
    assert list(differences(TASK, sw.Task.load(tmp_path / "task.yaml"))) == []


def changed(**fields):
    return replace(TASK, **fields)


def first_changed(**fields):
    return changed(tables=[replace(ONE, **fields), *TASK.tables[1:]])


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (changed(batch_size=512), ["batch_size is 256 in the plan, 512 in the task"]),
        (changed(optimizer="adam"), ["optimizer is rowwise_adagrad in the plan, adam in the task"]),
        (
            changed(topology=replace(TASK.topology, hosts=2, devices_per_host=1)),
            ["topology: hosts differs", "topology: devices_per_host differs"],
        ),
        (changed(tables=TASK.tables[1:]), ["the task has no table 'table_0'"]),
        (changed(tables=[*TASK.tables, replace(ONE, name="new")]), ["the plan has no table 'new'"]),
        (first_changed(dim=ONE.dim * 2), [f"table 'table_0': dim is {ONE.dim}, not {ONE.dim * 2}"]),
        (first_changed(access=sw.AccessProfile.zipf(ONE.rows, 2.0)), ["table 'table_0': access differs"]),
        (changed(constraints=sw.Constraints(apart=(("table_0", "table_1"),))), ["constraints differ"]),
        (
            changed(exchange=sw.task.Exchange("host", "touched")),
            [
                "exchange is Exchange() in the plan, Exchange(deduplicate='host', replica_gradients='touched') in the task"
            ],
        ),
        (changed(tables=[OTHER, ONE, *TASK.tables[2:]]), []),
    ],
)
def test_every_difference_is_named(task, says):
    assert list(differences(TASK, task)) == says


@pytest.mark.parametrize("field", [field.name for field in fields(sw.Task)])
def test_no_field_of_a_task_is_forgotten(field):
    """Another value of any field is a difference, also of a field of a later release."""
    other = changed()
    value = {"tables": TASK.tables[1:], "topology": sw.Topology(), "constraints": None}.get(field, "another")
    object.__setattr__(other, field, value)
    assert list(differences(TASK, other))


def test_the_message_names_the_files_and_few_of_many_differences():
    plan = sw.plan(TASK, cost_model=SimpleCostModel())
    check_same_task(plan, "plan.json", TASK, "task.yaml")
    other = sw.Task([replace(table, name=f"new_{table.name}") for table in TASK.tables], TASK.topology, TASK.batch_size)
    with pytest.raises(
        InvalidInput, match=r"plan\.json: a plan for another task than task\.yaml .*'table_0'.*and 3 more\); plan this"
    ):
        check_same_task(plan, "plan.json", other, "task.yaml")


@pytest.mark.parametrize(
    ("processor", "device"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "nvidial4"),
    ],
)
def test_gpus_have_the_names_of_the_presets(processor, device):
    assert device_type({"device_kind": "cuda", "processor": processor}) == device
    assert device_type({"device_kind": "cpu", "processor": processor}) == "cpu"


def test_the_device_that_is_measured(monkeypatch):
    monkeypatch.setattr("shardwright.hardware.gpu_model", lambda: "NVIDIA H200")
    assert measured_device("cpu") == "cpu"
    assert measured_device("cuda") == "h200"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, []),
        ({"device": "cpu", "optimizer": "sgd, rowwise_adagrad", "batch_sizes": "128, 200"}, []),
        ({"batch_sizes": "512"}, []),
        ({"batch_sizes": "513"}, ["batch sizes 513, the task has 256"]),
        ({"batch_sizes": "1, 127"}, ["batch sizes 1, 127, the task has 256"]),
        ({"device": "h200"}, ["trained on h200, the task is for cpu"]),
        ({"optimizer": "adam"}, ["trained with adam, the task uses rowwise_adagrad"]),
    ],
)
def test_in_what_a_task_is_unlike_the_samples_of_a_model(metadata, says):
    notes = list(unlike(metadata, task_of(2, 2)))
    assert len(notes) == len(says)
    assert all(text in note for text, note in zip(says, notes, strict=True))


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo"], "measure"),
        (["collect", "-o", "samples"], "measure"),
        (["compare", "task.yaml", "--measure"], "measure"),
        (["verify", "plan.json"], "measure"),
        (["train", "samples", "-o", "model.safetensors"], "learn"),
    ],
)
def test_without_torch_the_message_names_the_extra(cli, tmp_path, monkeypatch, arguments, extra):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    outcome = cli(*arguments, "--json")
    assert outcome.code == 1
    assert outcome.document["error"]["type"] == "MissingDependency"
    assert f"pip install 'shardwright[{extra}]'" in outcome.err
    assert list(tmp_path.iterdir()) == []
