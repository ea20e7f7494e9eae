"""What a sample store holds, and how repeatable its measurements are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.measure.device_work import QUIET
from shardwright.measure.failures import FAILURES

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CollectSummary:
    """What a store holds after collecting.

    Attributes:
        folder: the store.
        samples: samples in the store, repeats not counted.
        measured: visits made by this call.
        seconds: time this call took.
        disturbed: share of all measurements for which the machine was quiet at no visit.
        repeat_median: median relative difference of forward + backward time between a sample and its repeat; NaN without repeats.
        repeat_mean: mean of the same.
        wanted: samples that were asked for; 0 where that is not known.
        failed: measurements that were given up, by this and earlier calls.
        spent: seconds of this call by step.
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


def repeat_differences(samples: pa.Table) -> Floats:
    """`(pairs,)` relative differences |a − b| / mean(a, b) of forward + backward time between samples and their repeats."""
    total = samples["forward_ms"].to_numpy() + samples["backward_ms"].to_numpy()
    keys = list(zip(samples["sample"].to_pylist(), samples["repeat"].to_pylist(), strict=True))
    by_key = dict(zip(keys, total, strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    first, second = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    difference: Floats = np.abs(first - second) / ((first + second) / 2)
    return difference


def summarise(folder: Path, samples: pa.Table | None, measured: int, seconds: float) -> CollectSummary:
    """The summary of a store with these samples, or none, of which a call measured some."""
    if samples is None:
        return CollectSummary(folder, 0, measured, seconds, math.nan, math.nan, math.nan)
    noise = repeat_differences(samples)
    return CollectSummary(
        folder=folder,
        samples=int((samples["repeat"].to_numpy() == 0).sum()),
        measured=measured,
        seconds=seconds,
        disturbed=float((samples["sentinel"].to_numpy() > QUIET).mean()),
        repeat_median=float(np.median(noise)) if noise.size else float("nan"),
        repeat_mean=float(noise.mean()) if noise.size else float("nan"),
    )


def summary_text(summary: CollectSummary) -> str:
    """What a call did and what the store holds, for people: a few lines."""
    rate = summary.measured / summary.seconds
    lines = [
        f"{summary.samples} samples in {summary.folder}; {summary.measured} measurements in {summary.seconds:.0f} s ({rate:.1f} a second)",
        f"repeats of a sample differ by {_percent(summary.repeat_mean)} (mean), {_percent(summary.repeat_median)} (median); "
        f"{_percent(summary.disturbed)} of the measurements were made while the machine was not quiet",
    ]
    if summary.failed:
        lines.append(f"{summary.failed} measurements failed and are skipped: see {summary.folder / FAILURES}")
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
