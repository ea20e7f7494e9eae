from dataclasses import replace

import shardwright as sw
from shardwright.cost import score
from shardwright.report import entry_of, idle_sentence, verdict
from shardwright.sharding import Shard
from shardwright.task import Constraints, TableConstraint
from tests.unit.cli.models import linear_model

TABLE, SMALL = sw.Table("user", 40_000, 64, pooling=4.0), sw.Table("shop", 100, 4)
TOPOLOGY = sw.Topology(1, 4, "cpu", memory="1 GB")


def test_devices_without_tables_are_explained_by_a_price():
    task = sw.Task([TABLE, SMALL], TOPOLOGY, 4096)
    plan = sw.Plan(task, [Shard.whole(TABLE, 0), Shard.whole(SMALL, 2)])
    text = idle_sentence(plan, linear_model())
    assert text.startswith("devices 1,3 hold no table, ")
    assert "'user'" in text
    assert "%" in text


def test_advice_for_idle_devices_is_given_once():
    task = sw.Task([TABLE, SMALL], TOPOLOGY, 4096)
    plan = sw.Plan(task, [Shard.whole(TABLE, 0), Shard.whole(SMALL, 2)], cost_model=linear_model().name)
    priced = replace(plan, cost=score(task, plan.shards, linear_model()))
    text = verdict(entry_of(priced, "plan", cost_model=linear_model()))
    use = idle_sentence(priced, linear_model()).partition("though ")[2].partition(" would save")[0]
    assert use
    assert text.lower().count(use.lower()) == 1


def test_without_other_placements_constraints_are_named():
    constraints = Constraints({"user": TableConstraint(devices=(0,)), "shop": TableConstraint(devices=(1,))})
    task = sw.Task([TABLE, SMALL], TOPOLOGY, 4096, constraints=constraints)
    plan = sw.Plan(task, [Shard.whole(TABLE, 0), Shard.whole(SMALL, 1)])
    assert "constraints or memory leave no block for them" in idle_sentence(plan, linear_model())
    assert "constraints or memory" in idle_sentence(plan, None)


def test_no_note_if_all_devices_hold_a_table():
    task = sw.Task([TABLE], TOPOLOGY, 4096)
    assert idle_sentence(sw.Plan(task, [Shard.whole(TABLE, 0, 1, 2, 3)]), linear_model()) == ""
