import json
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.learned.records import FIGURES_FILE, TrainingRecord, read_figures


def scalars(folder, name):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_every_step_is_in_the_event_files_and_the_json_lines(tmp_path):
    with TrainingRecord(tmp_path / "log") as record:
        for step in (1, 2, 3):
            record.step(step, 3, {"reward": step / 2, "latency_ms": 4})
    assert scalars(tmp_path / "log", "reward") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert scalars(tmp_path / "log", "latency_ms") == [(1, 4), (2, 4), (3, 4)]
    rows = [{"iteration": step, "reward": step / 2, "latency_ms": 4.0} for step in (1, 2, 3)]
    assert read_figures(tmp_path / "log") == record.rows == rows


def test_progress_is_told_without_a_folder():
    told = []
    with TrainingRecord(progress=lambda *arguments: told.append(arguments)) as record:
        record.step(2, 10, {"reward": 0.123456, "entropy": 2})
    assert told == [(2, 10, "reward 0.1235, entropy 2")]


def test_a_training_that_goes_on_replaces_the_steps_it_makes_again(tmp_path):
    with TrainingRecord(tmp_path) as record:
        for step in (1, 2, 3):
            record.step(step, 4, {"reward": float(step)})
    with (tmp_path / FIGURES_FILE).open("a") as file:
        file.write('{"iteration": 4, "rew')  # killed while it wrote
    with TrainingRecord(tmp_path) as record:
        for step in (3, 4):
            record.step(step, 4, {"reward": 10.0 * step})
    expected = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert [(row["iteration"], row["reward"]) for row in read_figures(tmp_path)] == expected
    assert scalars(tmp_path, "reward") == expected


def test_numbers_that_are_not_finite_are_null_in_the_json_lines(tmp_path):
    with TrainingRecord(tmp_path) as record:
        record.step(1, 1, {"reward": float("nan"), "cost_error": float("inf")})
    (line,) = (tmp_path / FIGURES_FILE).read_text().splitlines()
    assert json.loads(line) == {"iteration": 1, "reward": None, "cost_error": None}


def test_a_folder_that_is_a_file_and_one_without_a_record_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with TrainingRecord(tmp_path / "file") as record, pytest.raises(InvalidInput, match="file: the log cannot be"):
        record.step(1, 1, {})
    with pytest.raises(InvalidInput, match="there is no such record"):
        read_figures(tmp_path)


def test_a_damaged_line_is_refused_and_an_unfinished_last_one_is_dropped(tmp_path):
    path = tmp_path / FIGURES_FILE
    path.write_text('{"iteration": 1, "reward": 1.0}\n{"iteration": 2, "rew')
    assert read_figures(tmp_path) == [{"iteration": 1, "reward": 1.0}]
    path.write_text('{"iteration": 1, "rew\n{"iteration": 2, "reward": 1.0}\n')
    with pytest.raises(InvalidInput, match="line 1 is not a row of training figures"):
        read_figures(tmp_path)


def test_without_tensorboard_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        TrainingRecord(tmp_path) as record,
        pytest.raises(MissingDependency, match=r"pip install 'shardwright\[learn\]'"),
    ):
        record.step(1, 1, {"reward": 1.0})
    with TrainingRecord() as record:
        record.step(1, 1, {"reward": 1.0})
