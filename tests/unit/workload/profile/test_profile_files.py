import json

import pytest

from shardwright.errors import InvalidInput
from shardwright.task.files import load_tables
from shardwright.workload.profile import profile_logs, save_tables


@pytest.fixture
def result(parquet):
    columns = {"user": [1, 2, 2], "a: list #1": [[1] * 150, [2], [7]], "price": [0.5, 1.0, 1.5]}
    return profile_logs(parquet("log.parquet", **columns))


@pytest.mark.parametrize("name", ["tables.yaml", "tables.json"])
def test_reading_gives_equal_tables(result, tmp_path, name):
    save_tables(result, tmp_path / name, dim=32)
    assert load_tables(tmp_path / name) == tuple(result.tables(dim=32))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".parquet"] == [name]


def test_yaml_says_in_comments_what_was_found(result, tmp_path):
    save_tables(result, tmp_path / "tables.yaml")
    comments = [line for line in (tmp_path / "tables.yaml").read_text().splitlines() if line.startswith("#")]
    assert len(comments) == 2 + 2 + 1
    assert comments[3].startswith("# 'a: list #1': 3 distinct ids (exact), 152 lookups")


def test_json_has_no_comments(result, tmp_path):
    save_tables(result, tmp_path / "tables.json", rows="max_id")
    assert [table["rows"] for table in json.loads((tmp_path / "tables.json").read_text())["tables"]] == [3, 8]


def test_a_failed_write_leaves_the_old_file(result, tmp_path):
    old = tmp_path / "tables.yaml"
    old.write_text("old")
    with pytest.raises(InvalidInput):
        save_tables(result, old, dim=0)
    assert old.read_text() == "old"
