import pytest
from experiments.ablations.ablations import Ablations
from experiments.ablations.pieces import SEARCH, TRAINED
from experiments.ablations.variants import FULL, NEUROSHARD, SummedCosts
from experiments.experiment import Piece
from experiments.pages import save

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.score import scored
from shardwright.workload import paper_tasks

EXPERIMENT = Ablations()
NOTHING = dict.fromkeys(EXPERIMENT.run.__globals__["_COLUMNS"])


def row(variant, step, *, system=NEUROSHARD, task=0, devices=4, seconds=1.0, shards="a", **others):
    key = {"part": SEARCH, "extent": "full", "devices": devices, "max_dim": 32, "task": task, "system": system}
    figures = {"step_ms": step, "embedding_cost_ms": step, "search_s": seconds, "shards": shards}
    return {**key, "variant": variant, **NOTHING, **figures, **others}


def line_of(page, caption, name):
    table = next(table for table in page.tables if caption in table.caption)
    return dict(zip(table.heads, next(line for line in table.rows if name in line[:2]), strict=True))


def test_a_search_runs_and_its_plan_is_judged_by_fused_costs():
    key = {"part": SEARCH, "extent": "quick", "devices": 4, "max_dim": 32, "task": 1, "system": NEUROSHARD}
    (full,), (summed,), (whole,) = (
        EXPERIMENT.run(Piece({**key, "variant": name})) for name in (FULL, "summed costs", "no beam")
    )
    assert full.keys() == summed.keys() == whole.keys() == NOTHING.keys()
    task, model = (
        paper_tasks(2, devices=4, max_dim=32, seed=2026, batch_size=1024, device="cpu")[1],
        cost_model_for("cpu"),
    )
    plan = sw.plan(task, strategy="neuroshard", cost_model=SummedCosts(model))
    assert summed["step_ms"] == pytest.approx(scored(plan, model).cost.step_ms)
    assert summed["step_ms"] < 0.95 * plan.cost.step_ms  # each table alone pays for a launch of its own
    assert full["step_ms"] <= whole["step_ms"] * 1.0001
    assert full["shards"] != summed["shards"]
    assert full["failure"] is None


def test_variants_are_compared_with_the_full_system():
    steps = {FULL: (1.0, 2.0, 4.0, None), "no grid": (1.1, 2.0, 3.6, 1.0), "no beam": (2.0, None, None, None)}
    rows = [
        row(name, step, task=task, seconds=2.0 if name == "no grid" else 1.0, shards=f"{name if step != 2.0 else ''}")
        for name, each in steps.items()
        for task, step in enumerate(each)
    ]
    page = EXPERIMENT.page(rows, False)
    line = line_of(page, "`neuroshard` without one part", "no grid")
    assert line["tasks"] == 3
    assert line["step, geometric mean"].startswith("0.9967")  # (1.1 · 1 · 0.9) ** (1 / 3)
    assert (line["longer"], line["equal"], line["shorter"], line["worst"]) == ("33%", "33%", "33%", "1.100")
    assert line["search time"] == "2.00×"
    assert line["not placed, without and with"] == "0, 1"
    assert line["same plans"] == "1 of 3"
    assert line_of(page, "`neuroshard` without one part", "no beam")["not placed, without and with"] == "3, 1"
    said = " ".join(page.text)
    assert "longer: no beam (+100.00%, 2 more not placed)" in said
    assert "not significantly: no grid (-0.33%, 1 more placed)" in said
    assert "`certified`**" not in said


@pytest.mark.parametrize("count", [0, 1, 7, 20, 60])
def test_any_part_of_the_rows_makes_a_page(count, tmp_path):
    rows = [
        {**piece.key, **NOTHING, "step_ms": 2.0, "embedding_cost_ms": 1.0, "search_s": 0.5}
        for piece in EXPERIMENT.pieces(True)[:count]
    ]
    page = EXPERIMENT.page([{**one, "head": "mlp"} if one["part"] == TRAINED else one for one in rows], True)
    assert page.text
    for figure in page.figures.values():
        save(figure, tmp_path / "figure.svg")
