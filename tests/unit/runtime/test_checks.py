import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.errors import InvalidInput
from shardwright.runtime import ShardedEmbeddings
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology


def embedding(rows=10):
    table = Table("t", rows, 4, 1.0, False)
    return ShardedEmbeddings(Plan(Task([table], Topology(1, 1, memory="1 GB"), 4, "sgd"), [Shard.whole(table, 0)]))


@pytest.mark.parametrize("state", [None, 5, torch.zeros(2)])
def test_what_is_no_extra_state_is_refused(state):
    with pytest.raises(InvalidInput, match="instead of its plan and rank"):
        embedding().set_extra_state(state)


@pytest.mark.parametrize("state", [{}, {"rank": "1"}, embedding(11).get_extra_state()])
def test_the_state_of_another_plan_or_rank_is_refused(state):
    with pytest.raises(InvalidInput, match="of another plan or job, this is rank 0"):
        embedding().set_extra_state(state)


def test_one_process_loads_its_own_state_alone_and_in_a_model():
    first, second = embedding(), embedding()
    with torch.no_grad():
        first.storage.weights[0] += 1
    model = torch.nn.Sequential(second)
    model.load_state_dict(torch.nn.Sequential(first).state_dict())
    assert torch.equal(first.storage.weights[0], second.storage.weights[0])
    second.load_state_dict(embedding().state_dict())
    assert not torch.equal(first.storage.weights[0], second.storage.weights[0])
    with pytest.raises(RuntimeError, match="Missing key"):
        second.load_state_dict({})
