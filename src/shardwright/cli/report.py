"""`shardwright report`: one HTML page about plans, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli.checks import check_target, measured_device
from shardwright.cli.options import AsJson, Device, ModelFile, Rounds, option
from shardwright.cli.output import emit, note, progress, saved
from shardwright.errors import InvalidInput, require
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.report import Entry, MeasuredTimes
    from shardwright.sharding import Plan


def run(
    *,
    plans: Annotated[
        list[Path],
        typer.Argument(
            metavar="PLAN...", help="Plan files; the others are compared with the first.", show_default=False
        ),
    ],
    output: Annotated[Path, option("--output", "-o", metavar="FILE", text="Save the page here, as HTML.")],
    measured: Annotated[
        list[Path] | None,
        option(
            "--measured",
            metavar="FILE",
            text="Output of 'shardwright verify PLAN --json' for one of the plans; may be given several times.",
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the plans' kernels on this machine now, and show those times.")
    ] = False,
    device: Device = "cpu",
    rounds: Rounds = 5,
    model: ModelFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a report of a plan, or of several side by side: one HTML file that needs no network.

    The page shows the step time against the proven bound, time and memory of every device, bottlenecks of the phases, the place of every
    table, moves between two plans, tiers, traffic, and predicted and measured times.

    Example:
        shardwright report before.json after.json -o report.html
    """
    from shardwright.cost.choice import given_cost_model
    from shardwright.report import entry_of, write_report
    from shardwright.sharding import Plan

    check_target(output, inputs=[*plans, *(measured or ()), model])
    if measure:
        require("measure", "measuring")
        if measured:
            raise InvalidInput(
                "--measure and --measured: use one of them; the first measures now, the second reads a file"
            )
    loaded = [Plan.load(path) for path in plans]
    cost_model = given_cost_model(model, loaded[0].task.optimizer) if model is not None else None
    times = _measure(loaded, device, rounds) if measure else _read(measured or [], plans, loaded)
    entries = [
        entry_of(plan, _name(path), cost_model=cost_model, measured=of_plan)
        for plan, path, of_plan in zip(loaded, plans, times, strict=True)
    ]
    size = write_report(entries, output)
    for entry in entries:
        for text in entry.notes:
            note(f"note: {entry.name}: {text}")
    document: planning.Report = {
        "bytes": size,
        "plans": [_summary(path, entry) for path, entry in zip(plans, entries, strict=True)],
    }
    emit(document, f"{saved(output)} ({format_bytes(size)})", as_json=as_json)


def _name(path: Path) -> str:
    name = path.stem or str(path)
    return name.encode("utf-8", "replace").decode()  # a page is UTF-8; file names need not be


def _read(files: Sequence[Path], paths: Sequence[Path], plans: Sequence[Plan]) -> list[MeasuredTimes | None]:
    """Read measured times from files, each for the first plan that it fits; None for plans without a file."""
    from shardwright.report import read_measured

    measured: list[MeasuredTimes | None] = [None] * len(plans)
    for file in files:
        open_places = [index for index, times in enumerate(measured) if times is None]
        if not open_places:
            raise InvalidInput(
                f"{file}: --measured is given more often than there are plans; give one file for each plan"
            )
        reasons = []
        for index in open_places:
            try:
                measured[index] = read_measured(file, plans[index])
                break
            except InvalidInput as error:
                reasons.append(error)
        else:
            others = ", ".join(str(paths[index]) for index in open_places[1:])
            more = f" (it does not fit {others} either)" if others else ""
            raise InvalidInput(f"{reasons[0]}{more}")
    return measured


def _measure(plans: Sequence[Plan], device: str, rounds: int) -> list[MeasuredTimes | None]:
    from shardwright.cli.model_notes import print_origin_notes
    from shardwright.measure.measuring import measure_plans
    from shardwright.report import MeasuredTimes

    print_origin_notes(plans, device)
    with progress("measuring") as report:
        results = measure_plans(plans, rounds=rounds, device=device, progress=report)
    here = measured_device(device)
    return [
        MeasuredTimes(tuple(result.forward_ms.tolist()), tuple(result.backward_ms.tolist()), here) for result in results
    ]


def _summary(path: Path, entry: Entry) -> planning.PlanOfReport:
    from shardwright.report import verdict

    plan, measured = entry.plan, entry.measured
    return {
        "plan": str(path),
        "name": entry.name,
        "step_ms": entry.cost.step_ms,
        "bound_ms": plan.bound_ms,
        "bound_scope": plan.bound_scope,
        "gap": plan.gap,
        "runs_on": list(plan.runs_on),
        "verdict": verdict(entry),
        "measured_compute_ms": measured.compute_ms if measured else None,
        "measured_on": measured.device if measured else None,
        "notes": list(entry.notes),
    }
