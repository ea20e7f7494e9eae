import json
from pathlib import Path

import numpy as np
import pytest

from shardwright.documents.yaml_text import parse_yaml
from shardwright.errors import InvalidInput
from shardwright.schema import Place
from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology
from shardwright.task.files import (
    load_tables,
    load_task,
    save_tables,
    save_task,
    table_from_dict,
    table_to_dict,
    task_from_dict,
    task_to_dict,
)
from shardwright.task.topology import Exchange

TEXT = """\
batch_size: 65536
topology: {hosts: 2, devices_per_host: 8, device: h200, memory: 120 GB, intra_bandwidth: 450 GB/s, inter_bandwidth: 50 GB/s}
tables:
  - {name: user_id, rows: 40_000_000, dim: 128, pooling: 1.0, access: {zipf: 1.05}}
  - {name: history, rows: 5_000_000, dim: 64, pooling: 200, pooled: false, access: {zipf: 1.2}}
  - {name: no, rows: 3, dim: 4, access: {rows: [0, 1, 3], share: [0, 0.5, 1]}, dtype: fp16}
constraints:
  - {table: user_id, sharding_types: [row_wise, column_wise], devices: [0, 1], max_shards: 4}
  - {colocate: [history, user_id]}
  - {apart: [history, no]}
"""

TASK = Task(
    (
        Table("user_id", 40_000_000, 128, 1.0, access=AccessProfile.zipf(40_000_000, 1.05)),
        Table("history", 5_000_000, 64, 200.0, False, AccessProfile.zipf(5_000_000, 1.2)),
        Table("no", 3, 4, access=AccessProfile.from_counts([2, 1, 1]), dtype="fp16"),
    ),
    Topology(2, 8, "h200", 120 * 10**9, 450e9, 50e9),
    65536,
    constraints=Constraints(
        {"user_id": TableConstraint(("row_wise", "column_wise"), (0, 1), 4)},
        (("history", "user_id"),),
        (("history", "no"),),
    ),
)


def load(tmp_path: Path, text: str, name: str = "task.yaml") -> Task:
    path = tmp_path / name
    path.write_text(text)
    return load_task(path)


def test_the_task_file_of_the_design(tmp_path: Path) -> None:
    task = load(tmp_path, TEXT)
    assert task.tables[0] == TASK.tables[0]
    assert task.tables[2].access.share_of(0, 1) == 0.5
    assert task == Task(
        (*TASK.tables[:2], Table("no", 3, 4, access=AccessProfile([0, 1, 3], [0, 0.5, 1]), dtype="fp16")),  # type: ignore[arg-type]
        TASK.topology,
        TASK.batch_size,
        constraints=TASK.constraints,
    )


@pytest.mark.parametrize("name", ["task.yaml", "task.json"])
def test_tasks_made_with_numpy_survive_files(tmp_path: Path, name: str) -> None:
    table = Table(
        "t",
        np.int64(1000),
        np.int64(16),
        np.float32(2.5),
        np.False_,
        AccessProfile.zipf(np.int64(1000), np.float32(1.5)),
    )  # type: ignore[arg-type]
    topology = Topology(np.int64(1), np.int64(2), memory=np.array([10**9, 10**8]), intra_latency_ms=np.float32(0.5))  # type: ignore[arg-type]
    limits = TableConstraint({"row_wise", "table_wise"}, range(2), np.int64(2))  # type: ignore[arg-type]
    task = Task([table], topology, np.int64(64), constraints=Constraints({"t": limits}))  # type: ignore[arg-type]
    save_task(task, tmp_path / name)
    assert load_task(tmp_path / name) == task


def test_saved_tasks_are_short() -> None:
    document = task_to_dict(TASK)
    assert document["format"] == 1
    assert document["topology"]["memory"] == 120_000_000_000
    assert document["topology"]["intra_bandwidth"] == 450_000_000_000
    assert isinstance(document["topology"]["intra_bandwidth"], int)
    assert document["tables"][0] == {
        "name": "user_id",
        "rows": 40_000_000,
        "dim": 128,
        "pooling": 1,
        "access": {"zipf": 1.05},
    }
    assert document["tables"][2]["access"] == {"rows": [0, 1, 2, 3], "share": [0, 0.5, 0.75, 1]}
    assert json.loads(json.dumps(document)) == document
    bare = task_to_dict(Task([Table("t", 5, 4, 2.5)], Topology(1, 2, memory=[1, 2]), 8))
    assert "constraints" not in bare
    assert bare["tables"] == [{"name": "t", "rows": 5, "dim": 4, "pooling": 2.5}]
    assert bare["topology"]["memory"] == ["1 B", "2 B"]


def test_small_sizes_are_written_with_their_unit() -> None:
    topology = Topology(2, 1, memory=[1, 10**6], intra_bandwidth=1.125, inter_bandwidth=1e17)
    task = Task([Table("t", 5, 4)], topology, 8)
    document = task_to_dict(task)
    assert document["topology"]["memory"] == ["1 B", 1_000_000]
    assert document["topology"]["intra_bandwidth"] == "1.125 B/s"
    assert task_from_dict(document) == task


def test_a_profile_that_is_no_longer_its_zipf_is_written_in_points() -> None:
    zipf = AccessProfile.zipf(100, 1.1)
    stretched = AccessProfile(zipf.rows * 10, zipf.share, exponent=1.1)
    table = Table("t", 1000, 4, access=stretched)
    assert set(table_to_dict(table)["access"]) == {"rows", "share"}
    assert table_from_dict(table_to_dict(table), Place("table")) == table


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("h100-8", Topology.preset("h100-8")),
        ("{preset: h100-8}", Topology.preset("h100-8")),
        ("{preset: h100-8, hosts: 4, memory: 60 GB}", Topology.preset("h100-8", hosts=4, memory="60 GB")),
        ("cpu", Topology.preset("cpu")),
        ("{}", Topology()),
        ("{hosts: 1, devices_per_host: 2, memory: [1 GB, 2 GiB]}", Topology(1, 2, memory=[10**9, 2**31])),
        ("{intra_latency_ms: 1, inter_bandwidth: 400 Gbit/s}", Topology(inter_bandwidth=50e9, intra_latency_ms=1)),
    ],
)
def test_topologies(tmp_path: Path, topology: str, expected: Topology) -> None:
    task = load(tmp_path, f"batch_size: 8\ntopology: {topology}\ntables: [{{name: a, rows: 5, dim: 4}}]\n")
    assert task.topology == expected
    assert task.optimizer == "rowwise_adagrad"
    assert task.tables == (Table("a", 5, 4),)


def test_tables_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    save_tables(TASK.tables, tmp_path / "data" / "tables.yaml")
    assert load_tables(tmp_path / "data" / "tables.yaml") == TASK.tables
    monkeypatch.chdir("/")  # the path is relative to the task file, not to the working directory
    task = load(tmp_path, "batch_size: 8\ntopology: h100-8\ntables: {file: data/tables.yaml}\n")
    assert task.tables == TASK.tables


def test_tables_by_name(tmp_path: Path) -> None:
    by_name = "{user_id: {rows: 1000, dim: 64, access: {zipf: 1.05}}, file: {rows: 5, dim: 4}, 7: {rows: 5, dim: 4}}"
    expected = (
        Table("user_id", 1000, 64, access=AccessProfile.zipf(1000, 1.05)),
        Table("file", 5, 4),
        Table("7", 5, 4),
    )
    assert load(tmp_path, f"batch_size: 8\ntopology: h100-8\ntables: {by_name}\n").tables == expected
    (tmp_path / "tables.yaml").write_text(f"tables: {by_name}")
    assert load_tables(tmp_path / "tables.yaml") == expected


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("{user_id: 1000}", "tables.user_id: 1000 is not a table: write a mapping without 'name' under"),
        ("{fil: data.yaml}", "tables.fil: 'data.yaml' is not a table: write"),
        ("{a: {name: b, rows: 5, dim: 4}}", "tables.a: {'dim': 4, 'name': 'b', 'rows': 5} is not a table: write"),
        ("{a: {rows: 5}}", "tables.a: the field 'dim' is missing; add it"),
        ("{a: {rows: 0, dim: 4}}", "tables.a: table 'a': rows is 0, must be"),
        ("{}", "tables: a task needs at least one table"),
        ("[]", "tables: a task needs at least one table"),
    ],
)
def test_bad_tables_by_name(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, f"batch_size: 8\ntopology: h100-8\ntables: {tables}\n")
    assert message in str(error.value)


def test_errors_in_a_file_of_tables_name_it(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text("tables: [{name: a, rows: 5}]")
    with pytest.raises(InvalidInput, match=r"tables\.yaml: tables\[0\]: the field 'dim' is missing; add it"):
        load(tmp_path, "batch_size: 8\ntopology: h100-8\ntables: {file: tables.yaml}\n")
    with pytest.raises(InvalidInput, match=r"task\.yaml: tables: .*other\.yaml: there is no such tables file"):
        load(tmp_path, "batch_size: 8\ntopology: h100-8\ntables: {file: other.yaml}\n")
    (tmp_path / "tables.yaml").write_text("tables: {file: tables.yaml}")
    with pytest.raises(InvalidInput, match=r"tables\.yaml: tables\.file: 'tables\.yaml' is not a table: write"):
        load_tables(tmp_path / "tables.yaml")
    (tmp_path / "tables.yaml").write_text("format: 7\ntables: []")
    with pytest.raises(InvalidInput, match=r"format is 7, this version of shardwright reads tables files of format 1"):
        load_tables(tmp_path / "tables.yaml")


def test_a_task_inside_of_another_document_lists_its_tables() -> None:
    document = {"batch_size": 8, "topology": "h100-8", "tables": {"file": "/etc/passwd"}}
    with pytest.raises(
        InvalidInput, match="plan: task: tables: names the file '/etc/passwd', which only a task file may do"
    ):
        task_from_dict(document, "plan: task")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows: 40_000_000", "rows: 12a", "tables[0]: rows is '12a', must be a whole number, as in 40000000, 40M"),
        ("rows: 3", "rowz: 3", "tables[2]: unknown field 'rowz'; did you mean 'rows'?"),
        ("rows: 3, ", "", "tables[2]: the field 'rows' is missing; add it"),
        ("dim: 64", "dim: [64]", "tables[1].dim: Expected `int | float | str`, got `array` [64]"),
        ("pooling: 200", "pooling: 1e400", "the number 1e400 is too large"),
        ("pooling: 200", "pooling: .nan", ".nan is not allowed"),
        ("pooled: false", "pooled: no", "tables[1].pooled: Expected `bool`, got `str` 'no'"),
        ("{zipf: 1.05}", "{zipff: 1}", "tables[0].access: unknown field 'zipff'; did you mean 'zipf'?"),
        ("{zipf: 1.05}", "{zipf: 1, rows: [0, 1]}", "tables[0]: access: fields are zipf, rows; it must be uniform, {zipf:"),
        ("{zipf: 1.05}", "{}", "tables[0]: access: fields are missing; it must be uniform"),
        ("{zipf: 1.05}", "zipf", "tables[0].access: 'zipf' must be uniform, {zipf: <exponent>} or"),
        ("{zipf: 1.05}", "[1]", "tables[0].access: Expected `str | object`, got `array` [1]"),
        ("[0, 0.5, 1]", "[0, 0.5, x]", "tables[2].access.share[2]: Expected `float`, got `str` 'x'"),
        ("batch_size: 65536", "batch_size: !!python/name:os.system x", "python/name:os.system' is not allowed"),
        ("batch_size: 65536", "batch_size: 8\noptimiser: sgd", "unknown field 'optimiser'; did you mean 'optimizer'?"),
        ("batch_size: 65536", "batch_size: 8\nformat: 2", "format is 2, this version of shardwright reads task files of format 1"),
        ("memory: 120 GB", "memory: 2", "topology: memory: 2 would be 2 bytes; add a unit, as in '2 GB'"),
        ("450 GB/s", "450", "intra_bandwidth: 450 would be 450 bytes per second; add a unit, as in '450 GB/s'"),
        ("hosts: 2", "host: 2", "topology: unknown field 'host'; did you mean 'hosts'?"),
        ("devices_per_host: 8", "devices_per_host: [8, 4]", "devices_per_host is [8, 4], but all hosts must have equally many devices"),
        ("devices: [0, 1]", "devices: [a]", "constraints[0].devices[0]: Expected `int`, got `str` 'a'"),
        ("apart: [history, no]", "table: user_id", "constraints[2]: table 'user_id' has a constraint already; put all its limits"),
        ("apart: [history, no]", "apart: [history, no], max_shards: 2", "constraints[2]: max_shards does not go with apart"),
        ("apart: [history, no]", "", "constraints[2]: names none of table, colocate and apart; a constraint names exactly one"),
        ("tables:", "tables: []\nx:", "unknown field 'x'"),
    ],
)  # fmt: skip
def test_bad_tasks(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(InvalidInput) as error:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert str(error.value).startswith(f"{tmp_path / 'task.yaml'}: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["task.yaml", "task.json"])
def test_a_file_cut_short_anywhere_is_a_task_or_refused(tmp_path: Path, name: str) -> None:
    save_task(TASK, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    read = 0
    for length in range(len(content)):
        (tmp_path / name).write_bytes(content[:length])
        try:
            assert isinstance(load_task(tmp_path / name), Task)
            read += 1
        except InvalidInput:
            pass
    assert read < len(content) / 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rows: 40_000_000", "rows: 40M"),
        ("rows: 40_000_000", "rows: 4e7"),
        ("rows: 40_000_000", 'rows: "40,000,000"'),
        ("rows: 40_000_000", "rows: 0.04 B"),
        ("batch_size: 65536", "batch_size: 64Ki"),
        ("batch_size: 65536", 'batch_size: "65536"'),
        ("dim: 128", 'dim: "128"'),
        ("pooling: 1.0", 'pooling: "1"'),
    ],
)
def test_numbers_as_people_write_them(tmp_path, before, after):
    document = (
        "batch_size: 65536\ntopology: {preset: H100-8, hosts: 2}\n"
        "tables: [{name: user, rows: 40_000_000, dim: 128, pooling: 1.0, dtype: fp16}]\n"
        "constraints: [{table: user, sharding_types: [Row-Wise, columnwise]}]\n"
    )
    plain, other = tmp_path / "plain.yaml", tmp_path / "other.yaml"
    plain.write_text(document)
    assert before in document
    other.write_text(document.replace(before, after).replace("fp16", "torch.float16"))
    assert Task.load(other) == Task.load(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{preset: h100}", "did you mean 'h100-8'"),
        ("{preset: h-100-8}", "did you mean 'h100-8'"),
        ("{preset: cpu, hosts: 1.5}", "hosts is 1.5, must be a whole number"),
    ],
)
def test_errors_suggest_the_likely_name(text, says):
    document = {
        "batch_size": 8,
        "topology": parse_yaml(text, "task.yaml", 100),
        "tables": [{"name": "a", "rows": 8, "dim": 4}],
    }
    with pytest.raises(InvalidInput, match=says):
        task_from_dict(document)


def test_device_types_and_optimizers_in_other_spellings():
    document = {"batch_size": "1k", "topology": {"device": "H100", "memory": "9 GB"}, "optimizer": "Row-wise Adagrad"}
    task = task_from_dict(document | {"tables": [{"name": "a", "rows": 8, "dim": 4}]})
    assert (task.batch_size, task.topology.device, task.optimizer) == (1000, "h100", "rowwise_adagrad")


def test_the_exchange_in_other_spellings():
    document = {"batch_size": 8, "topology": "h100-8", "tables": [{"name": "a", "rows": 8, "dim": 4}]}
    exchange = {"values": "float16", "gradients": "BF16", "pipeline": "Sparse-Dist", "dense_ms": 2}
    task = task_from_dict(document | {"exchange": exchange})
    assert task.exchange == Exchange(values="fp16", gradients="bf16", pipeline="sparse_dist", dense_ms=2.0)
    assert task_from_dict(task_to_dict(task)) == task
    with pytest.raises(InvalidInput, match="exchange: values is 'float8', must be one of fp32"):
        task_from_dict(document | {"exchange": {"values": "float8"}})
