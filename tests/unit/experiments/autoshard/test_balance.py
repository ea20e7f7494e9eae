from dataclasses import replace

import pytest
from experiments.autoshard.kinds import QUICK
from experiments.autoshard.matrix import BALANCE, balance_table, degree_of_balance
from experiments.learned.tasks import Setting, draw_task
from experiments.summaries import NOTHING

import shardwright as sw

SCALE = replace(QUICK, tables=(5, 7), devices=(), unseen=(), base=Setting(5, 4))


def row(strategy, trained, tested, balance, task=0):
    return {"strategy": strategy, "trained": trained, "tested": tested, "task": task, BALANCE: balance}


def test_the_degree_is_of_kernels_alone():
    plan = sw.plan(draw_task(Setting(6, 2), 0), strategy="size")
    times = [device.forward_ms + device.backward_ms for device in plan.cost.devices]
    assert degree_of_balance(plan) == pytest.approx(min(times) / max(times))
    assert degree_of_balance(None) is None
    assert degree_of_balance(sw.plan(draw_task(Setting(1, 2), 0), strategy="size")) == 0.0


def test_policies_on_their_target_apart_from_others():
    five, seven = "5x4-unseen1", "7x4-unseen1"
    rows = [
        row("autoshard", "5x4-unseen0", five, 0.9),
        row("autoshard", "7x4-unseen0", five, 0.8),
        row("autoshard", "5x4-unseen0", seven, 0.7),
        row("autoshard", "bundled", seven, 0.95),
        row("dreamshard", "5x4-unseen0", five, 0.1),
        row("size", "nothing", five, 0.5),
        row("dim", "nothing", five, 0.6),
        row("certified", "nothing", five, None),
    ]
    table = balance_table(rows, SCALE.parts[:1])
    lines = {line[1]: dict(zip(table.heads[2:], line[2:], strict=True)) for line in table.rows}
    assert lines["5 tables"] == {
        "trained on the same kind": "0.90",
        "on other kinds": "0.80",
        "bundled policy": NOTHING,
        "best sorted heuristic": "0.60",
        "random": NOTHING,
        "certified": NOTHING,
    }
    assert lines["7 tables"]["trained on the same kind"] == NOTHING
    assert (lines["7 tables"]["on other kinds"], lines["7 tables"]["bundled policy"]) == ("0.70", "0.95")
