"""`shardwright calibrate --links`: what the links of a cluster do, and how true that is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cli.checks import check_target
from shardwright.cli.errors import Interrupted
from shardwright.cli.output import MISSING, emit, percent, progress, table
from shardwright.task.links import COLLECTIVES, LINK_CLASSES, links_to_dict

if TYPE_CHECKING:
    import rich.table

    from shardwright.task.link_files import MeasuredLinks
    from shardwright.task.topology import Topology

_WHERE = dict(zip(LINK_CLASSES, ("inside a host", "between hosts"), strict=True))


def run_links(*, devices: int | None, device: str, minutes: float | None, output: Path | None, as_json: bool) -> None:
    """Measure links, show and keep them; ranks that torchrun numbered above 0 show nothing."""
    from shardwright.calibration.links import SECONDS, calibrate_links

    if output is not None:
        check_target(output)
    seconds = SECONDS if minutes is None else 60 * minutes
    try:
        with progress("measuring links", detail="starting the ranks") as report:
            found = calibrate_links(devices=devices, device=device, seconds=seconds, output=output, progress=report)
    except KeyboardInterrupt:
        raise Interrupted("stopped; what was measured is kept: run the same command again to go on") from None
    if found is None:
        return
    links, path = found
    document: dict[str, Any] = {
        "file": str(path),
        "output": None if output is None else str(output),
        "cluster": asdict(links.cluster),
        "links": links_to_dict(links.links),
        "errors": {name: {link: asdict(one) for link, one in of.items()} for name, of in links.errors.items()},
    }
    lines = [f"saved {path}" + (f" and {output}" if output is not None else "")]
    lines.append(f"plans for {links.cluster} take them by themselves; elsewhere, state {{links: FILE}} in the topology")
    emit(document, _table(links), *lines, as_json=as_json)


def _table(links: MeasuredLinks) -> rich.table.Table:
    rows = []
    for collective in COLLECTIVES:
        for name, speed in zip(LINK_CLASSES, links.links.of(collective), strict=True):
            errors = links.errors.get(collective, {}).get(name)
            if speed is not None and errors is not None:
                figures = [f"{1e3 * speed.latency_ms:.1f}", f"{speed.bandwidth / 1e9:.3g}"]
                repeats = MISSING if errors.repeats is None else percent(errors.repeats)
                rows.append([f"{collective}, {_WHERE[name]}", *figures, percent(errors.held_out), repeats])
    heads = ("collective", "latency, us", "GB/s", "error", "repeats differ by")
    return table(f"links of {links.cluster}; errors are of sizes held out", heads, rows)


def with_known_links(topology: Topology) -> tuple[Topology, str | None]:
    """A topology that states no links, with those that were measured on such a cluster; and a note that says so, None if there are none."""
    from dataclasses import replace

    from shardwright.cost.files import age
    from shardwright.cost.links import cached_links

    found = cached_links(topology) if topology.links is None else None
    if found is None:
        return topology, None
    errors = [one.held_out for classes in found.errors.values() for one in classes.values()]
    true = f", mean error {percent(sum(errors) / len(errors))} on sizes held out" if errors else ""
    note = (
        f"links of {found.cluster}: measured {age(found.date)}{true}; to price by the topology's own, state links: {{}}"
    )
    return replace(topology, links=found.links), note
