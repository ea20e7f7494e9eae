"""`shardwright calibrate`: a cost model of this machine, or the links of a cluster, in minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli.checks import check_absent, check_target
from shardwright.cli.errors import Interrupted
from shardwright.cli.options import AsJson, Seed, option
from shardwright.cli.output import MISSING, Report, emit, note, percent, progress, saved, signed, table
from shardwright.errors import InvalidInput, counted, require
from shardwright.task.links import COLLECTIVES, LINK_CLASSES, ModuleTimes, links_to_dict

if TYPE_CHECKING:
    import rich.table

    from shardwright.calibration import Calibration
    from shardwright.cli.documents import measuring
    from shardwright.task.link_files import MeasuredLinks
    from shardwright.task.topology import Topology

_LEAST_LINKS_S, _SURE_LINKS_S = 18.0, 60.0  # less time measures no whole ladder; more measures each size often enough
_MADE = {
    "scaled": "by scaling the default one",
    "fine-tuned": "from the default one",
    "from nothing": "from these sets alone",
}


def run(
    *,
    context: typer.Context,
    task: Annotated[
        Path | None, typer.Argument(metavar="[TASK]", help="Task file, YAML or JSON.", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None,
        option(
            "--minutes",
            metavar="MINUTES",
            text="How long it may take once the program has started. (default 3, on cuda 8, of links 3)",
        ),
    ] = None,
    device: Annotated[
        str | None,
        option("--device", metavar="cpu|cuda", text="Device to measure on; by default the task's, else cpu."),
    ] = None,
    aim: Annotated[
        float, typer.Option("--aim", metavar="SHARE", help="Stop at this mean error on held-out sets.")
    ] = 0.05,
    seed: Seed = 0,
    links: Annotated[bool, typer.Option("--links", help="Measure collectives instead of kernels.")] = False,
    devices: Annotated[
        int | None,
        option("--devices", metavar="N", text="With --links: processes to start. (default one a core or GPU)"),
    ] = None,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", text="With --links: also save the links here, as JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine's kernels for some minutes and keep a cost model of it. Planning then uses that model by default.

    With a task, the command measures the task's tables, batch size and optimizer, in sets as searches form them. If the time is too short
    for a separate model, the command prints a note and scales the default model to the measurements. Ctrl-C keeps all measurements, and the
    same command resumes from there.

    With --links, it measures the collectives that TorchRec calls, and keeps their latencies and bandwidths: between processes of this
    machine or, started by torchrun on every host, between the devices of a cluster. Planning for such a cluster then uses them.

    Example:
        shardwright calibrate
        shardwright calibrate task.yaml --minutes 5
        torchrun --nnodes 2 --nproc-per-node 8 … -m shardwright calibrate --links --device cuda
    """
    require("measure", "measuring")
    if links:
        check_absent(context, ("task", "aim", "seed"), "does not apply to --links; leave it out")
        _run_links(devices=devices, device=device or "cpu", minutes=minutes, output=output, as_json=as_json)
        return
    check_absent(context, ("devices", "output"), "needs --links; add that flag, or leave it out")
    from shardwright.calibration import calibrate
    from shardwright.calibration.calibration import MINUTES
    from shardwright.task import Task

    wanted = Task.load(task) if task is not None else None
    on_gpu = device == "cuda" if device or wanted is None else wanted.topology.device != "cpu"
    total = 60 * (MINUTES["cuda" if on_gpu else "cpu"] if minutes is None else minutes)
    with progress("calibrating", detail="starting") as report:
        result = calibrate(
            wanted, minutes=minutes, device=device, aim=aim, seed=seed, progress=progress_of(report, total)
        )
    for text in result.notes:
        note(f"note: {text}")
    if result.failed:
        note(
            f"note: left out, since they could not be measured: {counted(len(result.failed), 'set')}, the first: {result.failed[0]}"
        )
    emit(_document(result), *_views(result), as_json=as_json)
    if result.stopped == "interrupted":
        raise Interrupted("stopped early; all measurements are kept: run the same command again to go on")
    if result.model is None:
        raise typer.Exit(1)


def progress_of(report: Report, total: float) -> Callable[[float, int, float | None, str], None]:
    """A callback for `calibrate` that shows its progress as a line, which is full after `total` seconds."""

    def told(seconds: float, sets: int, error: float | None, what: str) -> None:
        known = f", error {percent(error)}" if error is not None else ""
        report(min(seconds, total), total, f"s: {what}, {counted(sets, 'set')}{known}")

    return told


def _document(result: Calibration) -> measuring.Calibrate:
    return {
        "model": str(result.path) if result.path else None,
        "metadata": result.model.metadata if result.model else {},
        "accuracy": result.accuracy,
        "error_before": result.before,
        "recipe": result.recipe,
        "sets": result.sets,
        "new_sets": result.new_sets,
        "failed": list(result.failed),
        "notes": list(result.notes),
        "stopped": result.stopped,
        "seconds": result.seconds,
        "controls_slower": result.slower,
    }


def _views(result: Calibration) -> list[rich.table.Table | str]:
    """The model's errors, its coverage, and its file."""
    if result.model is None or result.accuracy is None:
        off = f"the default model is {percent(result.before)} off on them (mean)" if result.before is not None else ""
        return [off] if off else []
    from shardwright.cli.train import accuracy_table

    metadata = result.model.metadata
    title = f"on {counted(result.sets, 'set')}, each predicted by models that have not seen it"
    lines = [
        f"covers batches of {metadata['batch_sizes']}, {metadata['optimizer']}, {metadata['tables']} tables"
        + (", and was made for this task" if "task" in metadata else ""),
        f"{counted(result.new_sets, 'set')} measured in {result.seconds:.0f} s; model {metadata['name']} made {_MADE[result.recipe]}",
    ]
    if result.slower is not None:
        lines.append(f"controls {signed(result.slower - 1)} against their time when the last model was calibrated")
    return [accuracy_table(result.accuracy, title, result.before), *lines, f"saved {result.path}"]


_WHERE = dict(zip(LINK_CLASSES, ("inside a host", "between hosts"), strict=True))


def _run_links(*, devices: int | None, device: str, minutes: float | None, output: Path | None, as_json: bool) -> None:
    """Measure links, show and keep them; ranks that torchrun numbered above 0 show nothing."""
    from shardwright.calibration.links import SECONDS, calibrate_links
    from shardwright.integrations.torchrec.steps import modules
    from shardwright.measure.pace import check_minutes, minutes_text

    if output is not None:
        check_target(output)
    check_minutes(SECONDS / 60 if minutes is None else minutes)
    seconds = SECONDS if minutes is None else 60 * minutes
    if seconds < _LEAST_LINKS_S:
        raise InvalidInput(
            f"minutes is {minutes:g}: to start the ranks and measure each collective takes {_LEAST_LINKS_S:.0f} s; give at least "
            f"--minutes {minutes_text(_LEAST_LINKS_S)}"
        )
    if seconds < _SURE_LINKS_S:
        note(
            f"note: in {seconds:.0f} s each size is measured a few times only, so links may be off by tens of percent; --minutes "
            f"{minutes_text(SECONDS)} measures each up to 25 times"
        )
    probe = modules.ModuleProbe() if modules.available() else None
    try:
        with progress("measuring links", detail="starting the ranks") as report:
            measured = calibrate_links(
                devices=devices, device=device, seconds=seconds, output=output, progress=report, probe=probe
            )
    except KeyboardInterrupt:
        raise Interrupted("stopped; all measurements are kept: run the same command again to go on") from None
    if measured is None:
        return
    links, path = measured
    document: measuring.CalibrateLinks = {
        "file": str(path),
        "cluster": links.cluster,
        "links": links_to_dict(links.links),
        "errors": links.errors,
    }
    lines = [saved(file) for file in (path, output) if file is not None]
    lines.append(_of_modules(links.links.modules))
    lines.append(f"plans for {links.cluster} take them by themselves; elsewhere, state {{links: FILE}} in the topology")
    emit(document, _links_table(links), *lines, as_json=as_json)


def _of_modules(modules: ModuleTimes) -> str:
    if modules == ModuleTimes():
        return "modules: not measured; that needs TorchRec, and --minutes of at least 1.4"
    return (
        f"modules beside them, ms a step: TorchRec's {modules.pooled_ms:.3g} pooled and {modules.sequence_ms:.3g} sequence, "
        f"shardwright.runtime {modules.shared_ms:.3g}"
    )


def _links_table(links: MeasuredLinks) -> rich.table.Table:
    rows = []
    for collective in COLLECTIVES:
        for name, speed in zip(LINK_CLASSES, links.links.of(collective), strict=True):
            errors = links.errors.get(collective, {}).get(name)
            if speed is not None and errors is not None:
                after = MISSING if speed.following_ms is None else f"{1e3 * speed.following_ms:.1f}"
                alone = MISSING if speed.alone is None else f"{speed.alone / 1e9:.3g}"
                figures = [f"{1e3 * speed.latency_ms:.1f}", after, f"{speed.bandwidth / 1e9:.3g}", alone]
                repeats = MISSING if errors.repeats is None else percent(errors.repeats)
                rows.append([f"{collective}, {_WHERE[name]}", *figures, percent(errors.held_out), repeats])
    heads = ("collective", "latency, us", "following", "GB/s", "alone", "error", "repeats")
    return table(f"links of {links.cluster}; errors are of sizes held out", heads, rows)


def with_known_links(topology: Topology) -> tuple[Topology, str | None]:
    """A topology that states no links, with those that were measured on such a cluster; and a note about them, else None."""
    from shardwright.cost.files import age
    from shardwright.hardware import installed
    from shardwright.modelling.links import cached_links

    measured = cached_links(topology) if topology.links is None else None
    if measured is None:
        return topology, None
    errors = [error.held_out for classes in measured.errors.values() for error in classes.values()]
    true = f", mean error {percent(sum(errors) / len(errors))} on sizes held out" if errors else ""
    here, there = (torch.split("+")[0] for torch in (installed("torch"), measured.cluster.torch))
    other = f" with torch {there} (here {here}: shardwright calibrate --links)" if here not in ("absent", there) else ""
    note = f"links of {measured.cluster}: measured {age(measured.date)}{other}{true}; to price by the topology's own, state links: {{}}"
    return replace(topology, links=measured.links), note
