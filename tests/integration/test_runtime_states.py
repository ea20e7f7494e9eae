"""State dicts of ShardedEmbeddings by table: loaded as they are, and by torch.distributed.checkpoint under other plans and by TorchRec."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from tests import runtime_pooled_cases as cases

from shardwright.errors import InvalidInput
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology


class Model(torch.nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.dense = torch.nn.Linear(2, 2)


def stepped(plan, rank, steps=2):
    """A model after some steps."""
    module = cases.make_module(plan)
    for step in range(steps):
        cases.step_of(module, rank, step, {})
    return Model(module)


def by_id(module):
    """The values of a rank, by table, kind, id and column."""
    return {
        (name, kind, row, column): values[place, column - columns[0]].item()
        for name, columns, ids, matrices in cases.held(module)
        for kind, values in matrices.items()
        if kind == "weights" or values.shape[1] > 1
        for place, row in enumerate(ids.tolist())
        for column in range(*columns)
    }


def save(rank, plan, folder):
    model = stepped(plan, rank)
    dcp.save({"model": model.state_dict(), "optimizer": model.embedding.optimizer_state_dict()}, checkpoint_id=folder)
    return by_id(model.embedding)


def load(rank, plan, folder):
    model = Model(cases.make_module(plan, initial=7))
    state = {"model": model.state_dict(), "optimizer": model.embedding.optimizer_state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    model.embedding.load_optimizer_state_dict(state["optimizer"])
    model.embedding.check_replicas()
    return by_id(model.embedding), int(model.embedding.storage.step)


@pytest.mark.parametrize(("one", "other"), [("columns", "rows"), ("grid", "one_host"), ("data_parallel", "bricks")])
def test_a_checkpoint_of_torch_loads_under_another_plan(ranks, tmp_path, one, other):
    saved = {}
    for held in ranks.run(save, cases.make_plan(one, "adagrad"), tmp_path / "checkpoint"):
        saved |= held
    for held, step in ranks.run(load, cases.make_plan(other, "adagrad"), tmp_path / "checkpoint"):
        assert held == {key: saved[key] for key in held}
        assert step == 2
    held, step = load(0, cases.unsharded(cases.make_plan(one, "adagrad")), tmp_path / "checkpoint")
    assert (held, step) == (saved, 2)


def reload(rank, plan):
    """A state dict of this very module, and whole tensors."""
    model = stepped(plan, rank)
    state, held = model.state_dict(), by_id(model.embedding)
    other = Model(cases.make_module(plan, initial=7))
    other.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    other.embedding.load_optimizer_state_dict(model.embedding.optimizer_state_dict())
    return by_id(other.embedding) == held


@pytest.mark.parametrize("kind", ["rows", "data_parallel"])
def test_a_state_dict_loads_into_the_same_plan(ranks, kind):
    assert all(ranks.run(reload, cases.make_plan(kind, "adam")))


TABLE = Table("t", 6, 4, 1.0)
PLAN = Plan(Task([TABLE], Topology(1, 1, memory="1 GB"), 4, "rowwise_adagrad"), [Shard.whole(TABLE, 0)])


def test_the_weights_of_an_unsharded_collection_load():
    module, whole = cases.make_module(PLAN), torch.arange(24.0).view(6, 4)
    assert list(module.state_dict()) == ["embedding_bags.t.weight"]
    module.load_state_dict({"embedding_bags.t.weight": whole})
    assert torch.equal(module.storage.weights[0], whole)
    module.load_optimizer_state_dict({"state": {"embedding_bags.t.weight": {"t.momentum1": torch.arange(6.0)}}})
    assert module.storage.states(0)[0].flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "Missing key"),
        ({"embedding_bags.t.weight": torch.zeros(6, 4), "x": torch.zeros(1)}, "Unexpected key"),
        (
            {"embedding_bags.t.weight": torch.zeros(5, 4)},
            "table 't': the state is a Tensor of shape \\(5, 4\\), must be",
        ),
        ({"embedding_bags.t.weight": "rows"}, "the state is a str of shape"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state, text):
    with pytest.raises(RuntimeError, match=text):
        cases.make_module(PLAN).load_state_dict(state)


def test_a_table_in_blocks_is_not_computed_with():
    (blocks,) = cases.make_module(PLAN).state_dict().values()
    assert repr(blocks) == "TableBlocks('t', (6, 4), 1 blocks here)"
    with pytest.raises(InvalidInput, match="use its `blocks`, and torch.distributed.checkpoint to save or load it"):
        blocks + 1
    with pytest.raises(InvalidInput, match="save it by torch.distributed.checkpoint"):
        pickle.dumps(blocks)


def test_states_of_an_optimizer_that_do_not_fit_are_refused():
    with pytest.raises(
        InvalidInput, match="no state 't.momentum1' of 'embedding_bags.t.weight'; save it with the weights"
    ):
        cases.make_module(PLAN).load_optimizer_state_dict({})


def load_another_plan(rank, plans):
    state = cases.make_module(plans[0]).state_dict()
    try:
        cases.make_module(plans[1]).load_state_dict(state)
    except RuntimeError as problem:
        return str(problem)
    return "no error"


def test_blocks_of_another_plan_name_the_remedy(ranks):
    errors = ranks.run(load_another_plan, [cases.make_plan("table_wise"), cases.make_plan("grid")])
    assert "other blocks than this rank; change plans by torch.distributed.checkpoint" in errors[0]


def tiered_state(rank, plan):
    try:
        cases.make_module(plan).state_dict()
    except InvalidInput as problem:
        return str(problem)
    return "no error"


def test_tiers_are_saved_by_save_checkpoint(ranks):
    for error in ranks.run(tiered_state, cases.make_plan("tiered")):
        assert "counts its rows by hotness" in error
        assert "use save_checkpoint" in error


def all_tensors(state):
    """The tensors of a module's state and of its optimizer's, by name."""
    kinds = {f"{name} {kind}": value for name, its in state.get("optimizer", {}).items() for kind, value in its.items()}
    return {**state["model"], **kinds}


def by_torchrec(rank, plan, folder, into):
    """TorchRec's module of the plan, saved to a folder or loaded from it; the blocks of its weights and states."""
    from types import SimpleNamespace

    from shardwright.integrations.torchrec.steps.sharded import ShardedModel, planned

    member = SimpleNamespace(rank=rank, world=cases.RANKS, device=torch.device("cpu"))
    model = ShardedModel.of(plan.task, planned(plan, "cpu"), member).model
    states = model.fused_optimizer.state_dict()["state"]
    state = {"model": model.state_dict()} | ({"optimizer": states} if states else {})  # none where a rank has no rows
    shards = {name: tensor.local_shards() for name, tensor in all_tensors(state).items()}
    if into:
        for shard in (part for own in shards.values() for part in own):
            torch.nn.init.uniform_(shard.tensor)
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
    return {
        name: [(tuple(shard.metadata.shard_offsets), shard.tensor.clone()) for shard in own]
        for name, own in shards.items()
    }


def by_shardwright(rank, plan, folder, into):
    """The same of our module."""
    model = torch.nn.ModuleDict({"pooled": cases.make_module(plan, initial=3)})
    state = {"model": model.state_dict(), "optimizer": model["pooled"].optimizer_state_dict("pooled.")["state"]}
    if into:
        dcp.save(state, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
    return {
        name: [(block.offsets, block.tensor.clone()) for block in tensor.blocks]
        for name, tensor in all_tensors(state).items()
    }


def whole(by_rank):
    """All elements of each tensor, by place."""
    tensors = {}
    for name, blocks in (item for of_rank in by_rank for item in of_rank.items()):
        elements = tensors.setdefault(name, {})
        for offsets, tensor in blocks:
            for place in np.ndindex(*tensor.shape):
                elements[tuple(a + b for a, b in zip(offsets, place, strict=True))] = tensor[place].item()
    return tensors


@pytest.mark.slow
@pytest.mark.torchrec
@pytest.mark.parametrize("back", [False, True], ids=["from TorchRec", "to TorchRec"])
@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "column_wise"])
def test_a_job_changes_sides(ranks, tmp_path, kind, back):
    pytest.importorskip("torchrec", reason="TorchRec saves and loads")
    table = Table("t", 8, 8, 2.0)
    shards = {
        "table_wise": [Shard.whole(table, 1)],
        "row_wise": [Shard("t", (2 * rank, 2 * rank + 2), (0, 8), (rank,)) for rank in range(4)],
        "column_wise": [Shard("t", (0, 8), (0, 4), (2,)), Shard("t", (0, 8), (4, 8), (0,))],
    }[kind]
    task = Task([table], Topology(2, 2, memory="1 GB"), 16, "rowwise_adagrad")
    theirs = Plan(task, shards)
    ours = (
        theirs
        if kind == "column_wise"
        else Plan(task, [Shard("t", (0, 3), (0, 8), (3,)), Shard("t", (3, 8), (0, 8), (0,))])
    )
    saving, loading = (by_shardwright, by_torchrec) if back else (by_torchrec, by_shardwright)
    folder = tmp_path / "checkpoint"
    saved = ranks.run(saving, ours if back else theirs, folder, True)
    loaded = ranks.run(loading, theirs if back else ours, folder, False)
    assert whole(saved) == whole(loaded)
