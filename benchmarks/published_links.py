"""Latency and bandwidth of GPU links from collectives that others have published: the basis of the topology presets.

    python -m benchmarks.published_links

Reads data/published/links.csv. A run is a collective at several sizes on one cluster. Latency + bytes / bandwidth is fitted to its times,
by relative error. Bytes are those a rank sends: 2 (n - 1) / n of the message in an all-reduce of n ranks, half of that in the others.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.program import options_of
from benchmarks.results_table import write_results
from shardwright.cost.features import Floats
from shardwright.task import PRESETS, Topology
from shardwright.task.links import Collective

TABLE = Path(__file__).parent.parent / "data" / "published" / "links.csv"
RUN = ("gpu", "fabric", "ranks", "hosts", "collective", "source")
FEWEST, LARGEST = 5, 2**24  # fewest sizes of a run, and bytes of its largest: long against the latency
HEADS = (
    "GPU", "fabric", "ranks", "hosts", "collective", "source", "sizes", "latency, us", "GB/s a rank", "median error", "worst",
    "bandwidth alone: median", "preset: median error",
)  # fmt: skip


_EXCHANGES = "All-to-alls, most used by embeddings: the fastest published one of large messages. Sums inside a switch do not help them."


def main(arguments: Sequence[str] | None = None) -> None:
    options_of(__doc__, arguments)
    rows: list[list[object]] = []
    for run, (sent, times) in runs().items():
        latency, slope = fitted(sent, times)
        off, bare = (np.abs(told / times - 1) for told in (latency + slope * sent, slope * sent))
        rings = int(run[3]) > 1 and run[4] != "all_to_all"  # the rings of a host's ranks share its links
        between = int(run[2]) / int(run[3]) if rings else 1.0
        speed = 1e-3 / slope / between
        rows.append([
            *run, len(times), f"{latency:.0f}", f"{speed:.0f}", f"{np.median(off):.0%}", f"{off.max():.0%}", f"{np.median(bare):.0%}",
            preset_error(run, sent, times),
        ])  # fmt: skip
    told = "; ".join(
        f"{name} {preset.link_bandwidth[0] / 1e9:.0f} GB/s after {1e3 * preset.intra_latency_ms:.0f} us inside a host, "
        f"{preset.link_bandwidth[1] / 1e9:.0f} after {1e3 * preset.inter_latency_ms:.0f} between hosts"
        for name, preset in PRESETS.items()
    )
    caption = (
        f"Runs of at least {FEWEST} sizes. For rings between hosts, the bandwidth is a rank's share of its host's. The last columns are "
        f"the "
        f"error without a latency, and that of the preset's price, whose links between hosts are InfiniBand. Presets: {told}."
    )
    tables = [
        (caption, HEADS, rows),
        (_EXCHANGES, ("GPU", "fabric", "ranks", "hosts", "source", "MB", "GB/s a rank"), exchanges()),
    ]
    title = "Links of GPUs from published collectives"
    write_results("published_links", title, tables, "python -m benchmarks.published_links")


def preset_error(run: tuple[str, ...], sent: Floats, times: Floats) -> str:
    """Median error of the preset's price of a run, as plans are priced; "-" if no preset has the GPU."""
    gpu, _, ranks, hosts, collective, _ = run
    name = next(
        (name for name, preset in PRESETS.items() if preset.device == gpu.lower() and name.endswith("-8")), None
    )
    if name is None or collective == "sendrecv":
        return "-"
    near = int(ranks) // int(hosts)
    topology = Topology.preset(name, hosts=int(hosts), devices_per_host=near)
    if collective == "all_to_all":  # of the bytes sent, those to other hosts take the slower way
        far = (int(ranks) - near) / (int(ranks) - 1)
        shares = (1 - far, far)
    else:
        shares = (1.0, 1.0 / near if int(hosts) > 1 else 0.0)
    kind: Collective = collective  # type: ignore[assignment]  # one of them
    latency = max(topology.latency_of(kind)[: 1 + (int(hosts) > 1)])
    slope = max(share / speed for share, speed in zip(shares, topology.bandwidth_of(kind), strict=True))
    told = 1e3 * latency + 1e6 * slope * sent
    return f"{np.median(np.abs(told / times - 1)):.0%}"


def exchanges() -> list[list[object]]:
    """Return rows of a table: the fastest all-to-all of large messages in each run; few sizes, so no latency can be fitted."""
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["collective"] in ("all_to_all", "sendrecv")]
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        run = tuple(row[name] for name in RUN)
        if float(row["message_bytes"]) >= LARGEST and float(row["bus_gb_s"]) > float(
            best.get(run, {"bus_gb_s": "0"})["bus_gb_s"]
        ):
            best[run] = row
    return [
        [*run[:4], run[5], int(row["message_bytes"]) // 2**20, f"{float(row['bus_gb_s']):.3g}"]
        for run, row in sorted(best.items())
    ]


def runs() -> dict[tuple[str, ...], tuple[Floats, Floats]]:
    """Return, for each run of enough sizes, `(k,)` bytes that a rank sends and `(k,)` us."""
    with TABLE.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: [row[name] for name in RUN])
    kept = {}
    for run, group in groupby(rows, key=lambda row: tuple(row[name] for name in RUN)):
        ranks = int(run[2])
        share = (2 if run[4] == "all_reduce" else 1) * (ranks - 1) / ranks
        pairs = np.array([(share * float(row["message_bytes"]), _microseconds(row, share)) for row in group])
        pairs = pairs[np.isfinite(pairs[:, 1])]
        if len(pairs) >= FEWEST and pairs[:, 0].max() >= LARGEST:
            kept[run] = (pairs[:, 0], pairs[:, 1])
    return kept


def _microseconds(row: dict[str, str], share: float) -> float:
    if row["time_us"]:
        return float(row["time_us"])
    bus = float(row["bus_gb_s"] or 0)
    return share * float(row["message_bytes"]) / bus / 1e3 if bus else np.inf


def fitted(sent: Floats, times: Floats) -> tuple[float, float]:
    """Fit latency in us and us per byte, both at least 0, by relative error."""
    equations = np.stack([np.ones_like(sent), sent], axis=1) / times[:, None]
    unit = equations.max(axis=0)
    latency, slope = nnls(equations / unit, np.ones(len(times)))[0] / unit
    return float(latency), float(slope)


if __name__ == "__main__":
    main()
