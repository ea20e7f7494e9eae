"""Sizes, peak memory and the result type of `search_scaling.py`; a light module, since processes that measure memory import it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def size_of(text: str) -> Size:
    """Return tables and devices of a text such as 200x16."""
    tables, devices = text.split("x")
    return int(tables), int(devices)


def peak_memory() -> int:
    """Return the most bytes that this process had in memory; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
