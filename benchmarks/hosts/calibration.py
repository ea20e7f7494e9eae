"""Latency and bandwidth of a bed's links, fitted to all-to-alls on the bed, as a topology for planning and predicting.

Latency is the time of a nearly empty all-to-all. Bandwidth is fitted as in `shardwright.modelling.links`: every device takes the maximum
over link classes of latency + bytes / bandwidth. It is the bandwidth of one device while all devices of its host send over the shared link.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from benchmarks.hosts.bed import HostBed
from benchmarks.hosts.collectives import PATTERNS
from benchmarks.hosts.network import bits_per_second
from shardwright.arrays import Floats
from shardwright.errors import MeasurementFailed
from shardwright.modelling.links import Speeds, fit_speeds, predicted_ms
from shardwright.task import Topology

_SIZES = 7
_RANGE = 16  # largest / smallest size: after a pause the limit passes some bytes at full speed, which would distort small messages
_LONGEST_S = 0.3  # longest time of the largest all-to-all between hosts
_NEXT_TO_NOTHING = 64
_UNLIMITED = 4e9  # bits per second, to choose sizes for links without a limit
_MOST_BYTES = 32 << 20


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        topology: topology with the fitted links.
        errors: `(n,)` predicted / measured − 1 of the all-to-alls.
        collectives: for each all-to-all its pattern, the bytes that a rank sent and the median ms.
    """

    topology: Topology
    errors: tuple[float, ...]
    collectives: tuple[tuple[str, int, float], ...]


def calibrate(bed: HostBed, *, memory: str | int = "4 GB", runs: int = 7, timeout_s: float = 240.0) -> Calibration:
    """Measure all-to-alls on a bed and fit its links.

    Args:
        bed: an open bed of at least two devices.
        memory: memory of each device of the topology.
        runs: runs of each all-to-all; the median counts.
        timeout_s: most seconds for all runs.

    Raises:
        MeasurementFailed: a rank failed, or the time is over.
    """
    settings = {"bytes": [_NEXT_TO_NOTHING, *_sizes(bed)], "runs": runs, "patterns": list(PATTERNS), "timeout_s": 60}
    printed = bed.run(
        [sys.executable, "-m", "benchmarks.hosts.collectives", json.dumps(settings)], timeout_s=timeout_s
    )[0]
    rows = json.loads(printed.splitlines()[-1])
    ran = [(row["pattern"], row["bytes"], row["ms"]) for row in rows if row["ms"]]
    latency = {pattern: median(times) for pattern, size, times in ran if size == _NEXT_TO_NOTHING}
    timed = [run for run in ran if run[1] != _NEXT_TO_NOTHING]
    sent = _sent(bed, timed)
    halves = [[median(times[part::2]) for *_, times in timed] for part in (0, 1)]
    fit = fit_speeds(np.concatenate([sent, sent]), np.concatenate(halves))
    predicted = predicted_ms(fit, sent)
    medians = [median(times) for *_, times in timed]
    errors = tuple(float(p / m - 1) for p, m in zip(predicted, medians, strict=True))
    shown = tuple((pattern, size, ms) for (pattern, size, _), ms in zip(timed, medians, strict=True))
    return Calibration(_topology(bed, fit, latency, memory), errors, shown)


def _sizes(bed: HostBed) -> list[int]:
    """Return the bytes that a rank sends, from small up to the bytes that the link carries in `_LONGEST_S`."""
    rate = _UNLIMITED if bed.rate is None else bits_per_second(bed.rate)
    most = min(_MOST_BYTES, rate / 8 * _LONGEST_S / bed.devices_per_host)
    return [round(size) for size in np.geomspace(most / _RANGE, most, _SIZES)]


def _sent(bed: HostBed, collectives: Sequence[tuple[str, int, list[float]]]) -> Floats:
    """Return `(n, 2)` bytes that a rank sends inside its host and to other hosts."""
    sent = np.zeros((len(collectives), 2))
    for row, (pattern, size, _) in enumerate(collectives):
        to = [other for other in range(bed.devices) if PATTERNS[pattern](0, other, bed.devices_per_host)]
        for other in to:
            sent[row, int(other >= bed.devices_per_host)] += size // 4 // len(to) * 4
    return sent


def _topology(bed: HostBed, fit: Speeds, latency: Mapping[str, float], memory: str | int) -> Topology:
    base = Topology(bed.hosts, bed.devices_per_host, "cpu", memory)
    if fit == (None, None):
        raise MeasurementFailed("no links were measured: the bed has one device; use at least two")
    near, far = fit[0] or fit[1], fit[1] or fit[0]
    assert near is not None
    assert far is not None
    least = [latency.get(pattern, latency["all"]) for pattern in ("inside hosts", "between hosts")]
    return replace(
        base,
        memory=memory,
        intra_bandwidth=near.bandwidth,
        inter_bandwidth=far.bandwidth,
        intra_latency_ms=max(near.latency_ms, least[0]),
        inter_latency_ms=max(far.latency_ms, least[1]),
    )
