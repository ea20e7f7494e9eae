"""What `search_scaling.py` measures; light, since the processes that measure memory import it."""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int]


@dataclass(frozen=True)
class Point:
    """One strategy on one size, medians over the repeats.

    Attributes:
        strategy: its name.
        size: tables and devices.
        search_s: seconds of the search by the clock.
        cpu_s: seconds of all its threads on processors.
        before_mb: peak memory of the process before the search: the interpreter, libraries, the task.
        peak_mb: peak memory at the end.
        gap: gap to the bound; None without one.
        within: share of the repeats that reached a gap of 1%.
        end: how the last search ended: "by itself", "at the limit", "killed" (it ran on long after the limit) or "failed".
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
