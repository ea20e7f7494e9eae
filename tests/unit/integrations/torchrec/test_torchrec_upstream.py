"""Faults of TorchRec's planner that were fixed in 2026, by the number of the fix; ours does not have them."""

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints

from shardwright.integrations.torchrec import dmp_arguments

from .made import SHARDERS, Model, bags, planner, ranks_of, refused, tables_of, topology

pytestmark = pytest.mark.torchrec

OF_A_HOST = {
    "t0": ParameterConstraints(sharding_types=["table_row_wise"]),
    "t1": ParameterConstraints(sharding_types=["grid_shard"]),
}


def rows_by_columns(table):
    """Ranks of the row blocks of each column block, in order."""
    ranks_by_offset = {}
    for shard, rank in zip(table.sharding_spec.shards, ranks_of(table), strict=True):
        ranks_by_offset.setdefault(shard.shard_offsets[1], []).append(rank)
    return list(ranks_by_offset.values())


def of_a_group(where, size, **fields):
    """The width of a host that `DMPCollection` gets, and the ranks of the row blocks on a host."""
    one = planner(where, sharding_group_size=size, constraints=OF_A_HOST, **fields)
    tables = tables_of(one.plan(bags([(4096, 64), (2048, 256)]), SHARDERS))
    return dmp_arguments(one.last_groups)["node_group_size"], [
        ranks for table in tables.values() for ranks in rows_by_columns(table)
    ]


@pytest.mark.parametrize("where", [(16, 4), (16, 2, 2)], ids=["4750: hosts", "4726: pods"])
@pytest.mark.parametrize(("size", "together", "width"), [(8, False, 2), (8, True, 4), (4, True, 4), (16, False, 4)])
def test_the_width_of_a_host_in_2d_is_that_of_its_part_of_a_group(where, size, together, width):
    """Ranks of a group lie side by side, or every other rank is of the group; a host has as many of it as it may.

    A pod of two hosts of two devices with fast links counts as a host. TorchRec lost the shards beyond a host's own devices.
    """
    world, local, *pod = where
    of_cluster = topology(world, local, **({"pod_size": pod[0]} if pod else {}))
    told, blocks = of_a_group(of_cluster, size, use_inter_host_allreduce=together)
    assert told == width
    assert size % width == 0  # TorchRec cuts a group into process groups of that width
    assert all(ranks == list(range(ranks[0], ranks[0] + width)) and ranks[0] % width == 0 for ranks in blocks)


def test_3652_every_table_is_in_the_plan_or_there_is_none():
    model = nn.ModuleDict({"a": Model(), "b": nn.Sequential(Model(), bags([(100, 8), (50, 4)], "u"))})
    tables = tables_of(planner().plan(model, SHARDERS))
    names = {(f"{path}pooled", f"t{i}") for path in ("a.", "b.0.") for i in range(3)}
    names |= {(f"{path}sequence", f"s{i}") for path in ("a.", "b.0.") for i in range(2)}
    assert set(tables) == names | {("b.1", "u0"), ("b.1", "u1")}
    with refused("MISSING_MODULE_IN_PLAN", r"tables 'b\.1\.u1' are missing"):
        planner(callbacks=[lambda options: [option for option in options if option.name != "u1"]]).plan(model, SHARDERS)
