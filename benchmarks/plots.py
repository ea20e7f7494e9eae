"""Figures of the benchmark programs: SVG files beside the tables, the same bytes for the same data. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from experiments import pages
from experiments.pages import COLOURS, mark, panels
from matplotlib.figure import Figure

from benchmarks import results_table

__all__ = ["COLOURS", "mark", "panels", "save"]


def save(figure: Figure, name: str) -> Path:
    """Write `results/<name>.svg`."""
    results_table.RESULTS.mkdir(exist_ok=True)
    path = results_table.RESULTS / f"{name}.svg"
    pages.save(figure, path)
    return path
