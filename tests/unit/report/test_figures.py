from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from shardwright.cost import cost_model_for
from shardwright.errors import InvalidInput
from shardwright.report import figures, marginals
from shardwright.report.figures import memory_matrix
from shardwright.sharding import PHASES
from tests.unit.report.plans import hostile_plan, mixed_plan, row_wise_plan


def stacks(figure):
    """Heights of the bars by series."""
    return np.array([[bar.get_height() for bar in group] for group in figure.axes[0].containers])


def test_bars_are_the_plans_times_and_bytes():
    plan = mixed_plan()
    times = stacks(figures.time_bars(plan))
    assert times == pytest.approx(np.array([[getattr(cost, phase) for cost in plan.cost.devices] for phase in PHASES]))
    held = stacks(figures.memory_bars(plan))
    assert held.sum(axis=0) == pytest.approx(plan.memory.total)


def test_the_matrix_shows_bytes_or_times():
    plan = mixed_plan()
    held = memory_matrix(plan)
    assert np.nansum(held, axis=0) == pytest.approx(plan.memory.total)
    order = np.argsort(-np.nansum(held, axis=1), kind="stable")
    figure = figures.matrix(plan)
    shown = figure.axes[0].images[0].get_array()
    assert np.ma.filled(shown, np.nan) == pytest.approx(held[order] / 1e9, nan_ok=True)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [plan.task.tables[row].name for row in order]
    times = np.ma.filled(figures.matrix(plan, colour="time").axes[0].images[0].get_array(), np.nan)
    marginal = marginals(plan, cost_model_for("cpu"))
    assert np.nansum(times) == pytest.approx(np.maximum(marginal.cell_ms.sum(axis=1), 0).sum())


def test_plans_are_compared_with_the_bound():
    plans = [row_wise_plan(), mixed_plan(bound_ms=0.05)]
    figure = figures.comparison(plans, ["before $x$", "after"])
    ends = [bar.get_x() + bar.get_width() for bar in figure.axes[0].containers[-1]]
    assert ends == pytest.approx([plan.cost.step_ms for plan in plans])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [r"before \$x\$", "after"]
    assert "proven bound" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_access_curve_has_its_tiers():
    figure = figures.access_curve(mixed_plan(), "history")
    assert [text.get_text() for text in figure.axes[0].texts] == ["hot", "warm", "cold"]
    curve = figure.axes[0].lines[-1].get_ydata()
    assert curve[-1] == 1
    assert figures.access_curve(mixed_plan(), "whole").axes[0].texts[:] == []


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_saved_figures_are_the_same_bytes_each_time(tmp_path, ending):
    for name in ("a", "b"):
        figures.save(figures.time_bars(mixed_plan()), tmp_path / f"{name}{ending}", dpi=50)
    content = (tmp_path / f"a{ending}").read_bytes()
    assert content == (tmp_path / f"b{ending}").read_bytes()
    assert content[:4] in (b"\x89PNG", b"<?xm", b"%PDF")


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_names_that_look_like_mathematics_or_markup_are_drawn(tmp_path):
    plan = hostile_plan()
    figures.save(figures.matrix(plan, title="$\\bad{"), tmp_path / "matrix.svg")
    text = (tmp_path / "matrix.svg").read_text()
    assert "&lt;script&gt;" in text
    assert "<script" not in text


def test_bad_input():
    with pytest.raises(InvalidInput, match="holds no predicted cost"):
        figures.time_bars(replace(mixed_plan(), cost=None))
    with pytest.raises(InvalidInput, match="has no table 'nobody'"):
        figures.access_curve(mixed_plan(), "nobody")
    with pytest.raises(InvalidInput, match="1 plans and 0 names"):
        figures.comparison([mixed_plan()], [])
    with pytest.raises(InvalidInput, match=r"must end in one of \.png"):
        figures.save(figures.time_bars(mixed_plan()), "figure.gif")
