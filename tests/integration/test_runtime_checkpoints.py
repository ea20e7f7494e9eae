"""Checkpoints of ShardedEmbeddings on real gloo processes: any plan loads what another has saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests.runtime_cases import held_rows, make_module, make_plan, one_step, rank_maps, tables

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange

SAVED = Exchange("device", "touched")


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    """A checkpoint of a tiered plan after two steps of Adam, and the rows of every rank."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, ranks.run(train_and_save, make_plan("tiered", SAVED, "adam"), str(folder))


def train_and_save(rank, plan, folder):
    from shardwright.runtime import save_checkpoint

    module = make_module(plan, rank_maps())
    for step in range(2):
        one_step(module, rank, step)
    save_checkpoint(module, folder, part_bytes=2000)
    return held_rows(module)


def load(rank, plan, folder, maps):
    from shardwright.runtime import load_checkpoint

    module = make_module(plan, maps, initial=77)
    load_checkpoint(module, folder)
    return held_rows(module), int(module.storage.step)


def by_id(held):
    """By table, weights and states of every id, all replicas checked to be equal."""
    rows = {}
    for rank in held:
        for name, pieces in rank.items():
            for ids, weights, states in pieces:
                for place, row in enumerate(ids.tolist()):
                    values = torch.cat([weights[place], *(state[place] for state in states)])
                    assert torch.equal(rows.setdefault((name, row), values), values)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["row_wise", "table_wise", "data_parallel", "blocks"])
def test_another_plan_loads_the_same_rows_and_states(ranks, saved, kind):
    folder, held = saved
    loaded = ranks.run(load, make_plan(kind, Exchange("none", "whole"), "adam"), str(folder), rank_maps(9))
    assert [step for _, step in loaded] == [2] * 4
    before, after = by_id(held), by_id([rows for rows, _ in loaded])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert len(before) == sum(table.rows for table in tables())


def test_one_process_loads_what_four_have_saved(saved):
    folder, held = saved
    one = Topology(1, 1, memory="1 GB")
    plan = Plan(Task(tables(), one, 16, "adam"), [Shard.whole(table, 0) for table in tables()])
    rows, _ = load(0, plan, str(folder), None)
    before, after = by_id(held), by_id([rows])
    assert all(torch.equal(before[key], after[key]) for key in before)


def load_error(rank, plan, folder):
    try:
        load(rank, plan, folder, None)
    except ShardwrightError as error:
        return str(error)
    return "no error"


def broken_copy(folder, target, how):
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    parts = sorted(target.glob("*.safetensors"))
    manifest = json.loads((target / "manifest.json").read_text())
    if how == "part is missing":
        parts[0].unlink()
    elif how == "part cut short":
        parts[0].write_bytes(parts[0].read_bytes()[:-10])
    elif how == "part changed":
        content = bytearray(parts[0].read_bytes())
        content[-1] ^= 1
        parts[0].write_bytes(content)
    elif how == "no manifest":
        (target / "manifest.json").unlink()
    elif how == "manifest cut short":
        text = (target / "manifest.json").read_text()
        (target / "manifest.json").write_text(text[: len(text) // 2])
    elif how == "rows missing":
        manifest["parts"] = manifest["parts"][1:]
    elif how == "other table":
        manifest["tables"][1]["rows"] += 1
    elif how == "path outside":
        manifest["parts"][0]["file"] = "../" + manifest["parts"][0]["file"]
    if how in ("rows missing", "other table", "path outside"):
        (target / "manifest.json").write_text(json.dumps(manifest))


MESSAGES = {
    "part is missing": "there is no such part of a checkpoint",
    "part cut short": "bytes",
    "part changed": "or their checksum differ",
    "no manifest": "there is no such checkpoint's manifest",
    "manifest cut short": "manifest.json",
    "rows missing": "are in no part",
    "other table": "load a checkpoint of the same tables",
    "path outside": "parts[0].file: Expected `str` matching regex",
}


@pytest.mark.parametrize("how", MESSAGES)
def test_a_broken_checkpoint_is_refused_on_all_ranks(ranks, saved, tmp_path, how):
    broken_copy(saved[0], tmp_path, how)
    errors = ranks.run(load_error, make_plan("row_wise", SAVED, "adam"), str(tmp_path))
    assert all(MESSAGES[how] in error for error in errors)


def test_another_optimizer_is_refused(ranks, saved):
    errors = ranks.run(load_error, make_plan("row_wise", SAVED, "adagrad"), str(saved[0]))
    assert all("is of optimizer adam, the module's is adagrad" in error for error in errors)


def save_with_different_replicas(rank, plan, folder):
    from shardwright.runtime import save_checkpoint

    module = make_module(plan, None)
    if rank == 3:
        with torch.no_grad():
            module.storage.weights[0].view(-1)[-1] += 1
    try:
        save_checkpoint(module, folder)
    except ShardwrightError as error:
        return str(error)
    return "no error"


def test_replicas_that_differ_are_not_saved(ranks, tmp_path):
    errors = ranks.run(save_with_different_replicas, make_plan("data_parallel", SAVED), str(tmp_path))
    assert all("on ranks [3] differ" in error for error in errors)
    assert not (tmp_path / "manifest.json").exists()


def peak_bytes(action):
    """How much more memory the process had, at most, while the action ran."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # peak = now
    except OSError:
        pytest.skip("the kernel does not reset the peak of memory here")
    before = resident("VmRSS")
    action()
    return resident("VmHWM") - before


def resident(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def test_saving_and_loading_take_a_few_parts_of_memory_not_a_table(tmp_path):
    from shardwright.runtime import ShardedEmbeddings, load_checkpoint, save_checkpoint

    table = Table("big", 500_000, 32, 1.0, False)
    plan = Plan(Task([table], Topology(1, 1, memory="1 GB"), 16, "adagrad"), [Shard.whole(table, 0)])
    module = ShardedEmbeddings(plan, initial=lambda table, ids: np.full((ids.size, table.dim), 0.5, dtype=np.float32))
    module.storage.states(0)[0].fill_(1.0)
    part = 2**20
    peaks = [
        peak_bytes(lambda: save_checkpoint(module, tmp_path, part_bytes=part)),
        peak_bytes(lambda: load_checkpoint(module, tmp_path)),
    ]
    assert max(peaks) < 24 * part < table.weight_bytes // 2
    files = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    assert max(files) <= 2.6 * part  # a piece has weights of one part's size at most, its state and ids beside
    assert sum(files) > 2 * table.weight_bytes


def save_and_note(rank, plan, folder, most):
    """The largest sizes of the manifest that saving foresees, and its outcome if `most` bytes are allowed."""
    from shardwright.runtime import checkpoint

    expected = []

    def noted(*sizes):
        expected.append(sizes)
        check(*sizes)

    check, limit = checkpoint.check_readable, checkpoint.MAX_BYTES
    checkpoint.check_readable, checkpoint.MAX_BYTES = noted, most
    try:
        checkpoint.save_checkpoint(make_module(plan, rank_maps()), folder, part_bytes=400)
        return expected, "saved"
    except InvalidInput as error:
        return expected, str(error)
    finally:
        checkpoint.check_readable, checkpoint.MAX_BYTES = check, limit


def test_a_manifest_takes_no_more_than_was_expected(ranks, tmp_path):
    from shardwright.runtime.checkpoint import measure

    plan = make_plan("tiered", SAVED, "adam")
    (((size, values),), _), *others = ranks.run(save_and_note, plan, str(tmp_path), 10**6)
    assert others == [([(size, values)], "saved")] * 3
    measured = measure((tmp_path / "manifest.json").read_bytes())
    assert 0.8 * size < measured[0] <= size
    assert 0.9 * values < measured[1] <= values


def test_a_checkpoint_that_could_not_be_read_is_not_written(ranks, tmp_path):
    for _, error in ranks.run(save_and_note, make_plan("tiered", SAVED, "adam"), str(tmp_path), 2000):
        assert error.startswith("the checkpoint's manifest may take")
    assert not list(tmp_path.iterdir())


def test_large_tables_have_larger_parts(tmp_path, monkeypatch):
    from shardwright.runtime import ShardedEmbeddings, checkpoint, load_checkpoint, save_checkpoint

    monkeypatch.setattr(checkpoint, "MOST_PARTS", 8)
    table = Table("t", 1000, 4, 1.0, False)
    plan = Plan(Task([table], Topology(1, 1, memory="1 GB"), 16, "sgd"), [Shard.whole(table, 0)])
    module, other = ShardedEmbeddings(plan, initial=1), ShardedEmbeddings(plan, initial=2)
    save_checkpoint(module, tmp_path, part_bytes=100)
    assert 4 <= len(list(tmp_path.glob("*.safetensors"))) <= 17
    load_checkpoint(other, tmp_path)
    assert torch.equal(module.storage.weights[0], other.storage.weights[0])


def test_a_new_checkpoint_takes_the_place_of_the_old_one(tmp_path):
    from shardwright.runtime import ShardedEmbeddings, load_checkpoint, save_checkpoint

    table = Table("t", 50, 4, 1.0, False)
    plan = Plan(Task([table], Topology(1, 1, memory="1 GB"), 16, "sgd"), [Shard.whole(table, 0)])
    for seed in (1, 2):
        save_checkpoint(ShardedEmbeddings(plan, initial=seed), tmp_path)
    module = ShardedEmbeddings(plan, initial=3)
    load_checkpoint(module, tmp_path)
    assert torch.equal(module.storage.weights[0], ShardedEmbeddings(plan, initial=2).storage.weights[0])
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unwritable_folder_raises(tmp_path):
    from shardwright.runtime import ShardedEmbeddings, save_checkpoint

    (tmp_path / "file").write_text("")
    table = Table("t", 50, 4, 1.0, False)
    plan = Plan(Task([table], Topology(1, 1, memory="1 GB"), 16, "sgd"), [Shard.whole(table, 0)])
    with pytest.raises(InvalidInput, match="cannot be made a folder"):
        save_checkpoint(ShardedEmbeddings(plan), tmp_path / "file")


def pooled_and_saved(rank, plan, folder):
    """The rows of a rank after two steps; they are saved too."""
    from tests import runtime_pooled_cases as pooled

    from shardwright.runtime import save_checkpoint

    module = pooled.make_module(plan)
    for step in range(2):
        pooled.step_of(module, rank, step, {})
    save_checkpoint(module, folder, part_bytes=2000)
    return pooled.held(module)


def pooled_and_loaded(rank, plan, folder):
    from tests import runtime_pooled_cases as pooled

    from shardwright.runtime import load_checkpoint

    module = pooled.make_module(plan, initial=77)
    load_checkpoint(module, folder)
    return pooled.held(module)


def by_column(held):
    """Weight and row-wise state, by table, id and column."""
    return {
        (name, row, column): (matrices["weights"][place, column - columns[0]].item(), matrices["sum"][place, 0].item())
        for rank in held
        for name, columns, ids, matrices in rank
        for place, row in enumerate(ids.tolist())
        for column in range(*columns)
    }


@pytest.mark.parametrize(("one", "other"), [("columns", "bricks"), ("bricks", "table_wise"), ("tiered", "grid")])
def test_columns_are_cut_anew(ranks, tmp_path, one, other):
    from tests import runtime_pooled_cases as pooled

    held = by_column(ranks.run(pooled_and_saved, pooled.make_plan(one), str(tmp_path)))
    loaded = by_column(ranks.run(pooled_and_loaded, pooled.make_plan(other), str(tmp_path)))
    assert {key: weight for key, (weight, _) in held.items()} == {key: weight for key, (weight, _) in loaded.items()}
    for name, dim in (("plain", 12), ("few", 4)):
        for row in range(5):
            before, after = ([cells[name, row, column][1] for column in range(dim)] for cells in (held, loaded))
            assert np.mean(after) == pytest.approx(np.mean(before), rel=1e-6)
