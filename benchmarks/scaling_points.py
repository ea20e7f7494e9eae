"""The result type of `search_scaling.py`; a light module, since the processes that measure memory import it."""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int]


@dataclass(frozen=True)
class Point:
    """Figures of one strategy on one size, as medians over the repeats.

    Attributes:
        strategy: name of the strategy.
        size: numbers of tables and devices.
        search_s: wall seconds of the search.
        cpu_s: processor seconds of all its threads.
        before_mb: peak memory of the process before the search: interpreter, libraries and task.
        peak_mb: peak memory at the end.
        gap: gap to the bound; None without a bound.
        within: share of the repeats that reached a gap of 1%.
        end: how the last search ended: "by itself", "at the limit", "killed" (it ran long past the limit) or "failed".
    """

    strategy: str
    size: Size
    search_s: float
    cpu_s: float
    before_mb: float
    peak_mb: float
    gap: float | None
    within: float
    end: str
