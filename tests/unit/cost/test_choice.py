from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import shardwright as sw
from shardwright.cost import cost_model_for, resolve_cost_model
from shardwright.cost.choice import (
    best_user_model,
    keep_model,
    machine_with,
    model_behind,
    path_for,
    task_digest,
    user_models,
)
from shardwright.cost.files import provenance, unlike
from shardwright.errors import InvalidInput
from shardwright.hardware import DECISIVE
from shardwright.task import Topology
from shardwright.testing.tasks import task_of
from tests.unit.cli.models import linear_model

TASK = replace(task_of(4, 2), batch_size=1024, optimizer="rowwise_adagrad", topology=Topology(devices_per_host=2))


def kept(name, **changed):
    machine = machine_with("cpu")
    metadata = {
        "device": "cpu",
        "hardware": ", ".join(f"{key} {value}" for key, value in machine.items()),
        "optimizer": "rowwise_adagrad",
        "batch_sizes": "1024",
        "tables": "pooled-fp32, sequence-fp32, pooled-fp16, sequence-fp16",
        "mean_error": "0.1",
        "name": name,
    } | changed
    path = path_for(metadata, machine).with_name(f"{name}.safetensors")
    keep_model(linear_model(**metadata), path)
    return path


def test_the_model_of_this_machine_is_taken_if_the_task_runs_here(cache_folder):
    assert best_user_model(TASK) is None
    kept("mine")
    assert resolve_cost_model(None, TASK).name == "mine"
    elsewhere = replace(TASK, topology=Topology.preset("h100-8"))
    assert best_user_model(elsewhere) is None
    assert resolve_cost_model(None, elsewhere).name == cost_model_for("h100").name
    other = replace(TASK, topology=Topology.preset("h200-8"))
    assert resolve_cost_model(None, other).name == "h200/published"
    plan = sw.plan(TASK, strategy="size")
    assert plan.cost_model == model_behind(plan).name == "mine"
    assert model_behind(replace(plan, cost_model="unheard of")).name == cost_model_for("cpu").name
    assert model_behind(replace(plan, task=elsewhere, cost_model="h100/published")).name == "h100/published"


def test_the_one_made_for_the_task_comes_before_a_better_one_for_any(cache_folder):
    kept("better", mean_error="0.01")
    kept("good", mean_error="0.05")
    assert resolve_cost_model(None, TASK).name == "better"
    kept("exact", mean_error="0.2", task=task_digest(TASK))
    assert resolve_cost_model(None, TASK).name == "exact"
    assert task_digest(TASK) != task_digest(replace(TASK, batch_size=512))


@pytest.mark.parametrize("changed", [{"optimizer": "sgd"}, {"batch_sizes": "8"}])
def test_a_model_that_does_not_cover_the_task_gives_way_to_one_that_does(cache_folder, changed):
    kept("narrow", **changed)
    assert resolve_cost_model(None, TASK).name == cost_model_for("cpu").name
    assert list(unlike(user_models()[0].metadata, TASK))
    kept("covering", mean_error="0.5")
    assert resolve_cost_model(None, TASK).name == "covering"


def test_a_model_behind_other_hardware_or_libraries_is_not_taken(cache_folder):
    kept("other", hardware="device_kind cpu, processor Other CPU, cores 2, backend fbgemm, torch 2, fbgemm 1")
    assert best_user_model(TASK) is None
    machine = machine_with("cpu")
    mine = ", ".join(f"{key} {machine[key]}" for key in DECISIVE)
    kept("patched", hardware=f"{mine}.post1")
    assert best_user_model(TASK) is None
    kept("mine", hardware=mine)
    assert resolve_cost_model(None, TASK).name == "mine"


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-7], lambda data: b"x" * 100])
def test_a_damaged_model_warns_once_and_is_moved_aside(cache_folder, damage):
    path = kept("mine")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="moved aside as mine.safetensors.damaged"):
        model = resolve_cost_model(None, TASK)
    assert model.name == cost_model_for("cpu").name
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").exists()
    assert resolve_cost_model(None, TASK).name == model.name  # without a warning, which would be an error


def test_a_cache_folder_that_is_none_never_breaks_planning(cache_folder):
    cache_folder.write_text("a file")
    assert user_models() == []
    assert resolve_cost_model(None, TASK).name == cost_model_for("cpu").name
    with pytest.raises(InvalidInput):
        kept("mine")


def test_a_table_of_an_unmeasured_kind_warns(cache_folder):
    sequences = replace(TASK, tables=[replace(TASK.tables[0], pooled=False)])
    assert any("sequence-" in text for text in unlike({"tables": "pooled-fp32"}, sequences))
    assert not list(unlike({}, sequences))


@pytest.mark.parametrize(
    ("ago", "text"),
    [(0, "just now"), (-3600, "just now"), (61, "1 minute ago"), (7300, "2 hours ago"), (90_000, "1 day")],
)
def test_the_age_of_a_model_is_shown_even_after_a_clock_jump(ago, text):
    when = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="seconds")
    origin = provenance({"calibrated_at": when, "mean_error": "0.051", "test_sets": "180"})
    assert text in origin
    assert "5.1%" in origin
    assert "180" in origin
    assert "unknown time" in provenance({"calibrated_at": "yesterday"})
