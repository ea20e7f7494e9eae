import pytest
from experiments.ablations.ablations import Ablations
from experiments.ablations.pieces import MEASURED, SAMPLES, SEARCH, TRAINED
from experiments.ablations.variants import CERTIFIED, FULL, NEUROSHARD, VARIANTS, SummedCosts
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
    found = {"step_ms": step, "embedding_cost_ms": step, "search_s": seconds, "shards": shards}
    return {**key, "variant": variant, **NOTHING, **found, **others}


def head_row(strategy, head, predicted, measured, *, task=0, shards="a"):
    key = {
        "part": MEASURED,
        "extent": "full",
        "devices": 4,
        "max_dim": 32,
        "task": task,
        "system": "all",
        "variant": "both heads, bundled model",
    }
    found = {
        "strategy": strategy,
        "head": head,
        "seed": 0,
        "predicted_ms": predicted,
        "measured_ms": measured,
        "shards": shards,
    }
    return {**key, **NOTHING, **found}


def trained_row(head, seed, error):
    key = {
        "part": TRAINED,
        "extent": "full",
        "devices": 0,
        "max_dim": 0,
        "task": seed,
        "system": "cost model",
        "variant": head,
    }
    found = {
        "head": head,
        "seed": seed,
        "sets": 100,
        "mean_error": error,
        "median_error": error and error / 2,
        "spearman": 0.99,
    }
    return {**key, **NOTHING, **found, "repeat_error": 0.02}


def line_of(page, caption, name):
    table = next(table for table in page.tables if caption in table.caption)
    return dict(zip(table.heads, next(line for line in table.rows if name in line[:2]), strict=True))


def test_pieces_are_unique_and_go_task_by_task():
    for quick in (True, False):
        pieces = EXPERIMENT.pieces(quick)
        assert len({tuple(piece.key.items()) for piece in pieces}) == len(pieces)
        assert len({tuple(piece.key) for piece in pieces}) == 1
        searches = [piece.key for piece in pieces if piece.key["part"] == SEARCH]
        first = searches[: len(searches) // 2]
        assert {(key["devices"], key["max_dim"]) for key in first} == {(4, 32), (4, 128), (8, 32), (8, 128)}
        assert {key["variant"] for key in first if key["system"] == CERTIFIED} == set(VARIANTS[CERTIFIED])
        assert [key["task"] for key in searches] == sorted(key["task"] for key in searches)
    assert len(EXPERIMENT.pieces(True)) < len(EXPERIMENT.pieces(False)) / 10


def test_what_measures_runs_alone_and_after_what_it_needs():
    pytest.importorskip("fbgemm_gpu", reason="heads are compared on real kernels")
    pieces = EXPERIMENT.pieces(False)
    assert all(piece.alone == (piece.key["part"] != SEARCH) for piece in pieces)
    parts = [piece.key["part"] for piece in pieces if piece.key["part"] != SEARCH]
    assert list(dict.fromkeys(parts)) == [SAMPLES, TRAINED, MEASURED]
    assert {piece.key["part"] for piece in Ablations(heads=False).pieces(False)} == {SEARCH}


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


def test_variants_are_held_against_the_full_system():
    steps = {FULL: (1.0, 2.0, 4.0, None), "no grid": (1.1, 2.0, 3.6, 1.0), "no beam": (2.0, None, None, None)}
    rows = [
        row(name, step, task=task, seconds=2.0 if name == "no grid" else 1.0, shards=f"{name if step != 2.0 else ''}")
        for name, each in steps.items()
        for task, step in enumerate(each)
    ]
    page = EXPERIMENT.page(rows, False)
    found = line_of(page, "`neuroshard` without one part", "no grid")
    assert found["tasks"] == 3
    assert found["step, geometric mean"].startswith("0.9967")  # (1.1 · 1 · 0.9) ** (1 / 3)
    assert (found["longer"], found["equal"], found["shorter"], found["worst"]) == ("33%", "33%", "33%", "1.100")
    assert found["search time"] == "2.00×"
    assert found["not placed, without and with"] == "0, 1"
    assert found["same plans"] == "1 of 3"
    assert line_of(page, "`neuroshard` without one part", "no beam")["not placed, without and with"] == "3, 1"
    said = " ".join(page.text)
    assert "These lengthen the step: no beam (+100.00%, 2 tasks more not placed)." in said
    assert "not significantly: no grid (-0.33%, 1 tasks more placed)" in said
    assert "`certified`**" not in said


def test_ratios_by_setting():
    rows = [row(FULL, 1.0, devices=devices) for devices in (4, 8)]
    rows += [row("no grid", 1.5), row("no grid", 3.0, devices=8)]
    found = line_of(EXPERIMENT.page(rows, False), "by setting", "no grid")
    assert list(found.values()) == ["neuroshard", "no grid", "1.5000 (1)", "3.0000 (1)"]


def test_the_gap_is_to_the_variant_s_own_bound():
    rows = [
        row(FULL, 1.02, system=CERTIFIED, bound_ms=1.0),
        row("whole tables", 1.65, system=CERTIFIED, bound_ms=1.5),
        row("summed costs", 1.65, system=CERTIFIED),
    ]
    page = EXPERIMENT.page(rows, False)
    gaps = {
        name: line_of(page, "`certified` without", name)["gap, median"]
        for name in (FULL, "whole tables", "summed costs")
    }
    assert gaps == {FULL: "2.00%", "whole tables": "10.00%", "summed costs": "–"}


def test_heads_beside_each_other():
    rows = [trained_row("convex", seed, error) for seed, error in enumerate((0.05, 0.07))] + [
        trained_row("mlp", 0, 0.04)
    ]
    rows += [
        head_row("greedy", "convex", 1.0, 2.0), head_row("greedy", "mlp", 0.9, 1.0, shards="b"),
        head_row("greedy", "convex", 1.0, 1.0, task=1), head_row("greedy", "mlp", 1.0, 1.0, task=1),
        head_row("certified", "convex", 1.0, None), head_row("certified", "convex", 0.75, 0.5, task=1),
        head_row("certified", "bundled", 0.1, 0.4, task=1),
    ]  # fmt: skip
    rows += [trained_row("", chunk, None) | {"part": SAMPLES, "sets": 500 * (chunk + 1)} for chunk in range(2)]
    page = EXPERIMENT.page(rows, False)
    errors = line_of(page, "trained on the same samples", "convex")
    assert errors["mean error"] == "6.00% (5.00% to 7.00%)"
    assert errors["repeat noise"] == "2.00%"
    found = line_of(page, "slowest forward", "greedy")
    assert (found["pairs"], found["same plans"], found["mlp faster"]) == (2, 1, "50%")
    assert found["measured, mlp / convex"].startswith("0.7071")
    assert (found["difference, convex"], found["difference, mlp"]) == ("-25.0%", "-5.0%")
    beside = line_of(page, "divided by `greedy`'s under", "certified")
    assert (beside["model"], beside["tasks"], beside["measured"][:6], beside["predicted"][:6]) == (
        "convex",
        1,
        "0.5000",
        "0.7500",
    )
    assert beside["over its plans under the bundled model"].startswith("1.2500")
    said = " ".join(page.text)
    assert "1,000 sets of tables were measured for this." in said
    assert "Held-out error: 6.0% convex, 4.0% mlp" in said
    assert "1 plans were not found or not measured." in said


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
