"""Communication of sequence models on clusters of 8 to 512 GPUs, predicted: writes results/flexshard_clusters.md and .svg.

    python benchmarks/flexshard_clusters.py [--tables 30] [--largest 512]

The same model on more and more hosts of 8 devices with NVLink (450 GB/s a device and direction) and NICs of 100 to 400 Gbit/s a
device, 4,096 samples a device, 1.25 times the memory of a row-wise plan's rows. Plans are searched for each cluster anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from plots import mark, panels, save
from results_table import write_results
from sequence_models import Sent, cluster, model, sent, task_of, with_memory

from shardwright.task import Exchange

NICS = (100, 200, 400)  # Gbit/s
HOSTS = (1, 2, 4, 8, 16, 32, 64)
LINES = {
    "row_wise": ("row_wise", Exchange(), "#777777"),
    "recshard": ("recshard", Exchange(), "#4062bb"),
    "flexshard": ("flexshard", Exchange(), "#0b6e4f"),
    "row_wise, distinct per host": ("row_wise", Exchange("host", "cheaper"), "#d9a441"),
    "flexshard, distinct per device": ("flexshard", Exchange("device", "cheaper"), "#c1440e"),
}
"""Strategy, exchange and colour."""
SHAPES = {"Zipf 0.8-1.3": (0.8, 1.3), "Zipf 1.1-1.3": (1.1, 1.3)}
FACTOR = 1.25
Cell = dict[tuple[str, int, int, str], Sent | None]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--largest", type=int, default=512, help="devices")
    options = parser.parse_args(arguments)
    hosts = [count for count in HOSTS if 8 * count <= options.largest]
    found = {
        (shape, nic, count, line): one
        for shape, skews in SHAPES.items()
        for count in hosts
        for nic in NICS
        for line, one in on_cluster(model(0, options.tables, skews), count, nic).items()
    }
    draw(found, hosts)
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    heads = ["accesses", "NIC", "strategy", *(f"{8 * count} GPUs" for count in hosts)]
    write_results(
        "flexshard_clusters",
        "Sequence models on clusters, predicted",
        [
            (
                f"Communication ms a step, and in brackets speed against row_wise: a model of {options.tables} sequence tables "
                f"(`benchmarks/sequence_models.py`, seed 0), 4,096 samples a device, {FACTOR} × the memory of a row-wise plan's rows. "
                "Every lookup sent and whole gradients where nothing else is said.",
                heads,
                rows_of(found, hosts),
            )
        ],
        f"python benchmarks/flexshard_clusters.py {given}".rstrip(),
    )


def on_cluster(tables: list, hosts: int, nic: int) -> dict[str, Sent | None]:  # type: ignore[type-arg]
    """What each line's plan sends on a cluster."""
    (task,) = with_memory(task_of(tables, cluster(hosts, between=f"{nic} Gbit/s")), FACTOR)
    return {line: sent(replace(task, exchange=exchange), strategy) for line, (strategy, exchange, _) in LINES.items()}


def rows_of(found: Cell, hosts: Sequence[int]) -> list[list[object]]:
    rows: list[list[object]] = []
    for shape in SHAPES:
        for nic in NICS:
            for line in LINES:
                cells = [(found[shape, nic, count, line], found[shape, nic, count, "row_wise"]) for count in hosts]
                rows.append([shape, f"{nic} Gbit/s", line, *(cell_of(one, base) for one, base in cells)])
    return rows


def cell_of(one: Sent | None, base: Sent | None) -> str:
    return f"{one.ms:.1f} ({base.ms / one.ms:.1f}×)" if one and base else "–"


def draw(found: Cell, hosts: Sequence[int]) -> None:
    """A row of panels a shape, a panel a NIC."""
    figure, axes = panels([[f"{shape}, {nic} Gbit/s" for nic in NICS] for shape in SHAPES])
    gpus = [8 * count for count in hosts]
    for row, shape in zip(axes, SHAPES, strict=True):
        for axis, nic in zip(row, NICS, strict=True):
            for line, (_, _, colour) in LINES.items():
                ms = [one.ms if (one := found[shape, nic, count, line]) else float("nan") for count in hosts]
                axis.plot(gpus, ms, marker="o", markersize=3, color=colour, label=line)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            mark(axis, gpus)
            axis.set_xlabel("GPUs")
        row[0].set_ylabel("communication, ms a step")
    axes[0][0].legend(fontsize=6)
    save(figure, "flexshard_clusters")


if __name__ == "__main__":
    main()
