"""What a sample store holds, and how repeatable its measurements are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shardwright.measure.device_work import Visit
from shardwright.measure.stock import Stock


@dataclass(frozen=True)
class CollectSummary:
    """What a store holds after collecting.

    Attributes:
        folder: the store.
        samples: samples of this collection in the store.
        measured: visits made by this call.
        seconds: time this call took.
        disturbed: share of the samples for which the machine was quiet at no visit.
        repeat_median: median relative difference of forward + backward time between two visits to a sample; NaN where there are none.
        repeat_mean: mean of the same.
        wanted: samples that were asked for; 0 where that is not known.
        failed: samples that were given up, by this and earlier calls.
        spent: seconds of this call by step.
        failure: why one of them was given up.
    """

    folder: Path
    samples: int
    measured: int
    seconds: float
    disturbed: float
    repeat_median: float
    repeat_mean: float
    wanted: int = 0
    failed: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


def summarise(stock: Stock, seconds: float) -> CollectSummary:
    """The summary of a collection's sets on one hardware, after a call that took some time."""
    visits = [each for each in stock.visits.values() if each]
    noise = np.array([difference for each in visits if (difference := repeat_difference(each)) is not None])
    disturbed = [not any(visit.quiet for visit in each) for each in visits]
    return CollectSummary(
        folder=stock.folder,
        samples=len(visits),
        measured=stock.measured,
        seconds=seconds,
        disturbed=float(np.mean(disturbed)) if disturbed else math.nan,
        repeat_median=float(np.median(noise)) if noise.size else math.nan,
        repeat_mean=float(noise.mean()) if noise.size else math.nan,
        wanted=stock.wanted,
        failed=len(stock.failures),
        spent=dict(stock.spent),
        failure=next(iter(stock.failures.values()), ""),
    )


def repeat_difference(visits: Sequence[Visit]) -> float | None:
    """|a - b| / mean(a, b) of the first and the last quiet visit's forward + backward time; None where there are not two."""
    quiet = [visit.forward_ms + visit.backward_ms for visit in visits if visit.quiet]
    return abs(quiet[0] - quiet[-1]) / ((quiet[0] + quiet[-1]) / 2) if len(quiet) > 1 else None


def summary_text(summary: CollectSummary) -> str:
    """What a call did and what the store holds, for people: a few lines."""
    rate = summary.measured / summary.seconds
    lines = [
        f"{summary.samples} samples in {summary.folder}; {summary.measured} measurements in {summary.seconds:.0f} s ({rate:.1f} a second)",
        f"visits to a sample differ by {_percent(summary.repeat_mean)} (mean), {_percent(summary.repeat_median)} (median); "
        f"{_percent(summary.disturbed)} of the samples were never measured while the machine was quiet",
    ]
    if summary.failed:
        lines.append(f"{summary.failed} samples cannot be measured and are skipped, the first one: {summary.failure}")
    if summary.samples < summary.wanted:
        lines.append(f"{summary.wanted - summary.samples} samples are missing; the same command again goes on")
    return "\n".join(lines + spent_lines(summary))


def spent_lines(summary: CollectSummary) -> list[str]:
    """Where the time of a call went, a line a step, in order of size."""
    if not summary.measured:
        return []
    steps = dict(summary.spent) | {"all else": summary.seconds - sum(summary.spent.values())}
    return [
        f"  {name:20} {took:8.1f} s  {took / summary.seconds:6.1%}  {1e3 * took / summary.measured:8.2f} ms a measurement"
        for name, took in sorted(steps.items(), key=lambda step: -step[1])
    ]


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"
