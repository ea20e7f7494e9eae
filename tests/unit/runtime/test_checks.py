import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime.checks import description, wrong_ids
from shardwright.runtime.features import RankBatch, features_of
from shardwright.runtime.placement import Placement
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology

TABLE = Table("t", 10, 8, 1.0)
TASK = Task([TABLE], Topology(1, 2, memory="1 GB"), 4, "sgd")
WHOLE = Placement.of(Plan(TASK, [Shard.whole(TABLE, 0)]), ["t"])
HALVES = Placement.of(Plan(TASK, [Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (1,))]), ["t"])


def test_descriptions_of_different_blocks_differ():
    assert description(WHOLE) != description(HALVES)
    assert description(WHOLE) == description(Placement.of(WHOLE.plan, ["t"]))


@pytest.mark.parametrize("placement", [WHOLE, HALVES])
def test_wrong_ids_name_the_table_and_the_first_id(placement):
    def said(*ids):
        features = {"t": (torch.tensor(ids), torch.tensor([len(ids)]))}
        return wrong_ids(RankBatch.of(features, features_of([TABLE], None), placement, torch.device("cpu")), placement)

    assert said(0, 9) == ""
    assert said(3, 10, -1).startswith("table 't' of 10 rows: 2 ids are out of range, the first is 10; ids must be")
