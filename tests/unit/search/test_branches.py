"""The bound by branches: kinds of ways of hot tables, whose mixtures cost less than each kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.score import score
from shardwright.search.bound import BoundProof
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.relaxation import WAY_KINDS, Branch, Relaxation
from shardwright.sharding import Plan, Shard
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.workload import random_task

HOT, LARGE = Table("hot", 4_000, 64, 120.0), Table("large", 50_000_000, 8, 100.0)
SMALL = [Table(f"t{number}", 100_000, 64, 4.0 + number) for number in range(12)]
TASK = Task([HOT, LARGE, *SMALL], Topology.preset("h200-8"), 65_536)
MODEL = cost_model_for("h200")


@pytest.mark.parametrize("case", [None, 0])
def test_branches_of_a_table_share_no_way_and_leave_none_out(case):
    relaxation = Relaxation(make_catalog(TASK, MODEL))
    with relaxation.only(Branch(case)):
        legal, other_legal = relaxation.legal.astype(int), relaxation.other_legal.astype(int)
    parts = []
    for kind in WAY_KINDS:
        with relaxation.only(Branch(case, ((0, kind),))):
            parts.append((relaxation.legal.astype(int), relaxation.other_legal.astype(int)))
    of_hot, other_of_hot = relaxation.catalog.forms.pieces.table == 0, relaxation.other.table == 0
    pieces, others = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    np.testing.assert_array_equal(pieces, np.where(of_hot, legal, len(WAY_KINDS) * legal))
    np.testing.assert_array_equal(others, np.where(other_of_hot, other_legal, len(WAY_KINDS) * other_legal))
    assert relaxation.branch == Branch()


def test_hot_tables_that_may_be_replicated_leave_a_small_gap():
    """The mean device holds a part of each replica; no device can."""
    task = random_task(1, tables=50, devices=8, device="a100", memory="40 GB", batch_size=65_536)
    plan = sw.plan(task, runs_on="torchrec")
    assert any(plan.sharding_type(table.name) == "data_parallel" for table in task.tables)
    assert plan.gap < 0.03


def test_no_kind_of_a_hot_table_is_cheaper_than_the_bound_given_a_plan():
    whole = Plan(TASK, [Shard.whole(table, rank % 8) for rank, table in enumerate(TASK.tables)])
    proof = BoundProof(make_catalog(TASK, MODEL), MODEL)
    known = score(TASK, whole.shards, MODEL).step_ms
    bound = proof.refined(proof.tightened(proof.solve(), known), known, lambda: False)
    for kinds in (("table_wise",), ("row_wise",), ("data_parallel",), ("column_wise",)):
        of_kind = Constraints({"hot": TableConstraint(sharding_types=kinds)})
        plan = sw.plan(replace(TASK, constraints=of_kind), cost_model=MODEL, time_limit=2.0)
        assert bound.ms <= min(known, plan.cost.step_ms)
