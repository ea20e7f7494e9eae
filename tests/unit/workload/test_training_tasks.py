from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Table
from shardwright.task.files import save_tables
from shardwright.testing.tasks import task_of
from shardwright.workload import split_pool
from shardwright.workload.training_tasks import load_training_tasks, training_tasks

EXAMPLE = Path(__file__).parents[3] / "examples" / "train.yaml"
GROUP = (
    "count: 3, tables: [5, 9], devices: 2, dims: [16], device: cpu, batch_size: 1024, replacement: false, fill: null"
)


def load(tmp_path, text):
    path = tmp_path / "train.yaml"
    path.write_text(text)
    return load_training_tasks(path)


@pytest.mark.parametrize(("half", "at"), [("train", 0), ("test", 1)])
def test_a_group_is_drawn_as_it_says(tmp_path, half, at):
    group = f"{{{GROUP}, memory: 2 GB, half: {half}, split_seed: 3, sharding_types: [table_wise], dtype: fp16}}"
    tasks = load(tmp_path, f"groups: [{group}]").tasks
    tables = {(table.rows, table.pooling) for table in split_pool("dlrm-2021", 0.5, 3)[at]}
    assert len(tasks) == 3
    for task in tasks:
        assert 5 <= len(task.tables) < 9
        assert (task.topology.devices, task.topology.device, task.batch_size) == (2, "cpu", 1024)
        assert task.topology.memory_bytes == (2_000_000_000,) * 2
        assert all(table.dim == 16 and table.dtype == "fp16" for table in task.tables)
        assert {(table.rows, table.pooling) for table in task.tables} <= tables
        assert all(task.constraints.of(table.name).sharding_types == ("table_wise",) for table in task.tables)


def test_the_nth_task_depends_on_seed_and_n_alone(tmp_path):
    three = load(tmp_path, f"groups: [{{{GROUP}}}]").tasks
    five = load(tmp_path, f"groups: [{{{GROUP.replace('count: 3', 'count: 5')}}}]").tasks
    other = load(tmp_path, f"groups: [{{{GROUP}, seed: 1}}]").tasks
    assert five[:3] == three
    assert not set(map(id, other)) & set(map(id, three))
    assert all(a != b for a, b in zip(three, other, strict=True))
    assert len({task.tables for task in five}) == 5


def test_task_files_and_own_tables_are_found_beside_the_file(tmp_path):
    task_of(4, 2).save(tmp_path / "mine.yaml")
    save_tables([Table(f"own_{n}", 100, 16) for n in range(6)], tmp_path / "tables.yaml")
    own = "{tables: 3, devices: 2, device: cpu, pool: {file: tables.yaml}}"
    tasks = load(tmp_path, f"groups: [{{file: mine.yaml}}, {own}]").tasks
    assert tasks[0] == task_of(4, 2)
    assert all(table.name.startswith("own_") for table in tasks[1].tables)


def test_digests_of_different_sets_differ_and_the_description_sums_up(tmp_path):
    first, again = (load(tmp_path, f"groups: [{{{GROUP}}}]") for _ in range(2))
    other = load(tmp_path, f"groups: [{{{GROUP}, seed: 1}}]")
    assert first.digest == again.digest != other.digest
    assert len({first.digest, training_tasks(first.tasks[:2]).digest, training_tasks(first.tasks[::-1]).digest}) == 3
    training_set = training_tasks([task_of(4, 2), task_of(7, 2)])
    assert training_set.description == f"2 tasks of 4-7 tables on 2 devices, sha256 {training_set.digest}"


@pytest.mark.slow
def test_the_example_loads():
    assert len(load_training_tasks(EXAMPLE).tasks) == 80


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("groups: []", "train.yaml: the training set has no task"),
        ("{}", "train.yaml: training tasks are a task file"),
        ("[]", "train.yaml: training tasks are a task file"),
        ("groups: [{count: 0}]", "groups[0].count: Expected `int` >= 1, got 0"),
        ("groups: [{count: 1_000_000_000}]", "groups[0].count: Expected `int` <= 100000, got 1000000000"),
        ("groups: [{count: x}]", "groups[0].count: Expected `int`, got `str` 'x'"),
        ("groups: [{tables: 5}, {seed: -1}]", "groups[1].seed: Expected `int` >= 0, got -1"),
        ("groups: [{split_seed: -1, half: train}]", "groups[0].split_seed: Expected `int` >= 0, got -1"),
        ("groups: [{half: third}]", "groups[0].half: Invalid enum value 'third', must be one of all, test, train"),
        ("groups: [{pool: dlrm-1999}]", "groups[0].pool: table pool: unknown pool 'dlrm-1999'"),
        ("groups: [{pool: {file: none.yaml}}]", "groups[0].pool: FOLDER/none.yaml: there is no such tables file"),
        ("groups: [{tables: [1, 2, 3]}]", "groups[0].tables: Expected `array` of length 2, got [1, 2, 3]"),
        ("groups: [{tables: [5, 2]}]", "groups[0]: tables is (5, 2), must be"),
        ("groups: [{tables: 0}]", "groups[0]: tables is 0, must be"),
        ("groups: [{devices: 0}]", "groups[0]: topology: devices_per_host is 0"),
        ("groups: [{device: abacus}]", "groups[0]: device 'abacus' has no preset"),
        ("groups: [{tables: 900, replacement: false}]", "groups[0]: a pool of 856 tables cannot give 900"),
        ("groups: [{tables: 50, scale: 0}]", "groups[0]: scale 0.0 must be"),
        ("groups: [{table: 50}]", "groups[0]: unknown field 'table'; did you mean 'tables'?"),
        ("groups: [{dtype: fp8}]", "groups[0].dtype: Invalid enum value 'fp8', must be one of fp16, fp32, int8"),
        (
            "groups: [{fill: null, sharding_types: [diagonal]}]",
            "groups[0].sharding_types: constraints: unknown sharding type",
        ),
        ("groups: [{file: none.yaml}]", "groups[0]: FOLDER/none.yaml: there is no such task file"),
        ("groups: [{file: a.yaml, count: 3}]", "groups[0]: unknown field 'count'; known fields are file"),
        ("{format: 2, groups: []}", "format is 2, this version of shardwright reads training tasks files of format 1"),
        ("groups: [", "train.yaml: line"),
    ],
)
def test_bad_files_name_the_place_the_value_and_the_rule(tmp_path, text, says):
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, text)
    assert says.replace("FOLDER", str(tmp_path)) in str(error.value)
    assert str(tmp_path) in str(error.value)
