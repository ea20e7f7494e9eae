"""`shardwright collect --collectives`: ranks as processes of this machine, or the ranks that torchrun started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwright.cli.output import percent, progress
from shardwright.task.table import Table


def collectives_collected(
    output: Path,
    *,
    samples: int,
    world: int | None,
    hosts: int | None,
    kinds: Sequence[str] | None,
    runs: int | None,
    timeout_s: float,
    seed: int,
    device: str,
    batch_sizes: Sequence[int] | None,
    pool: Sequence[Table],
) -> tuple[dict[str, Any] | None, str]:
    """What to say after collecting collectives, as data and as text; no data on ranks that torchrun numbered above 0."""
    from shardwright.measure.collectives.collect import collect_collectives, new_collection
    from shardwright.measure.collectives.sampling import KINDS
    from shardwright.measure.collectives.timing import RunPolicy
    from shardwright.measure.collectives.torchrun import collect_in_group, place_of_this_process

    place = place_of_this_process()
    collection = new_collection(
        output,
        samples=samples,
        world=world if world is not None else place.world if place else 2,
        hosts=hosts if hosts is not None else place.hosts if place else 1,
        seed=seed,
        device=device,
        batch_sizes=batch_sizes,
        kinds=kinds or KINDS,
        pool=pool,
        policy=RunPolicy() if runs is None else RunPolicy(runs=runs),
    )
    with progress("measuring", detail="starting the ranks") as report:
        if place:
            summary = collect_in_group(collection, place, timeout_s=timeout_s, progress=report)
        else:
            summary = collect_collectives(collection, timeout_s=timeout_s, progress=report)
    if summary is None:
        return None, ""
    text = (
        f"{summary.samples} collectives in {summary.folder}, {summary.skipped} skipped; {summary.measured} measurements in "
        f"{summary.seconds:.0f} s\n"
        f"repeats of a sample differ by {percent(summary.repeat_mean)} (mean), {percent(summary.repeat_median)} (median)\n"
        f"next: shardwright train {summary.folder} -o model.safetensors"
    )
    return asdict(summary) | {"folder": str(summary.folder)}, text
