"""The report's figures for papers and notebooks: matplotlib figures, saved as PNG, SVG or PDF. Needs matplotlib.

from shardwright.report import figures

figures.save(figures.time_bars(plan), "time.svg")
"""

from importlib.util import find_spec

from shardwright.errors import MissingDependency

if find_spec("matplotlib") is None:
    raise MissingDependency(
        "figures need matplotlib, which is not installed; install it with: pip install 'shardwright[report]'"
    )

from shardwright.report.figures.curve import access_curve
from shardwright.report.figures.devices import memory_bars, time_bars
from shardwright.report.figures.grid import matrix
from shardwright.report.figures.side_by_side import comparison
from shardwright.report.figures.style import save

__all__ = ["access_curve", "comparison", "matrix", "memory_bars", "save", "time_bars"]
