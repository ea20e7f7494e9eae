"""State dicts of ShardedEmbeddings, alone and inside of a model: all ranks take theirs, or all hear why one cannot."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests.runtime_cases import make_module, make_plan, one_step
from tests.runtime_ranks import started

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.task.topology import Exchange

EXCHANGE = Exchange("device", "touched")
BAD = 2


@pytest.fixture(scope="module")
def ranks():
    with started(4) as group:
        yield group


class Model(torch.nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.dense = torch.nn.Linear(2, 2)


def spoiled(state, prefix, how, shift):
    """The state with rows shifted, and wrong in one way."""
    state = {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in state.items()}
    rows, extra = f"{prefix}storage.weights.0", f"{prefix}_extra_state"
    state[rows] += shift
    if how == "replica":
        state[rows].view(-1)[-1] += 1
    elif how == "rank":
        state[extra] = state[extra] | {"rank": "7"}
    elif how == "extra is none":
        state[extra] = None
    elif how == "shape":
        state[rows] = state[rows][:-1]
    elif how == "no tensor":
        state[rows] = "rows"
    elif how == "missing":
        del state[rows]
    elif how == "no extra":
        del state[extra]
    elif how == "unexpected":
        state[f"{prefix}storage.weights.9"] = torch.zeros(1)
    return state


MESSAGES = {
    "replica": "ShardwrightError: table 'd': the replicas of rows [0, 5) on ranks [2] differ from those on rank 0",
    "rank": "InvalidInput: rank 2: the state dict is of rank 7 of another plan or job, this is rank 2",
    "extra is none": "InvalidInput: rank 2: the state dict holds None instead",
    "shape": "InvalidInput: rank 2: size mismatch for",
    "no tensor": "InvalidInput: rank 2: While copying the parameter",
    "missing": "InvalidInput: ranks [2] have missing or unexpected keys in their state dicts other than rank 0",
    "no extra": "InvalidInput: ranks [2] have missing or unexpected keys in their state dicts other than rank 0",
    "unexpected": "InvalidInput: ranks [2] have missing or unexpected keys in their state dicts other than rank 0",
}


def load_spoiled(rank, plan, nested, how):
    """The error of a load with one rank's state spoiled, whether rows changed, and whether a good load works after it."""
    embedding = make_module(plan, None)
    module = Model(embedding) if nested else embedding
    prefix = "embedding." if nested else ""
    before = embedding.storage.weights[0].clone()
    state = spoiled(module.state_dict(), prefix, how if rank == BAD else None, 1.0)
    try:
        module.load_state_dict(state)
        error = "no error"
    except (ShardwrightError, RuntimeError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    changed = not torch.equal(before, embedding.storage.weights[0])
    module.load_state_dict(spoiled(module.state_dict(), prefix, None, 0.0) | {f"{prefix}storage.weights.0": before})
    one_step(embedding, rank, 0)
    return error, changed


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a model"])
@pytest.mark.parametrize("how", MESSAGES)
def test_a_wrong_state_of_one_rank_is_an_error_on_all(ranks, how, nested):
    plan = make_plan("data_parallel", EXCHANGE)
    for error, changed in ranks.run(load_spoiled, plan, nested, how):
        assert error.startswith(MESSAGES[how])
        assert how not in ("rank", "extra is none") or not changed


def load_something_else(rank, plan):
    module = make_module(plan, None)
    try:
        module.load_state_dict(module.state_dict() if rank != BAD else 5)
    except InvalidInput as problem:
        return str(problem)
    return "no error"


def test_what_is_no_state_dict_is_an_error_on_all(ranks):
    for error in ranks.run(load_something_else, make_plan("row_wise", EXCHANGE)):
        assert error.startswith("rank 2: a state dict is a mapping from names to tensors, this is a int")


def load_the_rest(rank, plan):
    """A model's state without this module's rows."""
    model = Model(make_module(plan, None))
    rest = {name: one for name, one in model.state_dict().items() if name.startswith("dense")}
    found = model.load_state_dict(rest, strict=False)
    try:
        model.load_state_dict(rest)
    except RuntimeError as problem:
        return len(found.missing_keys), "Missing key(s)" in str(problem)
    return None


def test_a_state_that_lacks_the_rows_on_all_ranks_is_torchs_matter(ranks):
    for missing, refused in ranks.run(load_the_rest, make_plan("row_wise", EXCHANGE)):
        assert missing > 2
        assert refused
