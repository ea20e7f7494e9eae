"""`shardwright tune`: search and measure in turn for some minutes, and keep the best measured plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import RenderableType

from shardwright.cli.checks import check_target
from shardwright.cli.clusters import task_on_cluster
from shardwright.cli.errors import Interrupted, about
from shardwright.cli.options import AsJson, ModelFile, OnRuntime, Seed, TaskFile, cost_model_for, option
from shardwright.cli.output import emit, ms, note, progress, saved, signed
from shardwright.cli.tune_steps import STOPPED, run_steps
from shardwright.errors import InvalidInput, counted, require

if TYPE_CHECKING:
    from shardwright.calibration import Tuned
    from shardwright.cli.documents import measuring, planning
    from shardwright.cost.correction import CorrectedModel
    from shardwright.sharding.runtimes import RunsOn


def run(
    *,
    task: TaskFile,
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="FILE", text="Save the plan here, as JSON, with its measurements."),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="MINUTES", help="How long it may take once the program has started.")
    ] = 5.0,
    device: Annotated[
        str | None, option("--device", metavar="cpu|cuda", text="Device to measure on; by default the task's.")
    ] = None,
    model: ModelFile = None,
    runs_on: OnRuntime = "auto",
    seed: Seed = 0,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps",
            help="Train steps of a few plans with TorchRec in turns, and keep the fastest; also under torchrun.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan, measure on this machine, correct the cost model, and plan again; keep the best plan that was measured.

    Use it if you can measure on the hardware that will train. Kernels are measured, one device after another; links are predicted. The
    result never measures worse than the plan without tuning. If the time is too short to measure that plan, the command prints a note.
    Ctrl-C ends the command with the best plan so far. Measurements are kept: the same command resumes from them.

    With --steps, our plans and that of TorchRec's planner train in turns, links included, and the fastest one is kept.

    Example:
        shardwright tune task.yaml --minutes 5 -o plan.json
        shardwright tune task.yaml --steps -o plan.json
        shardwright report plan.json -o report.html
    """
    require("measure", "measuring")
    if steps:
        if runs_on not in ("auto", "torchrec"):
            raise InvalidInput(f"--runs-on {runs_on}: with --steps, TorchRec runs the plans; leave one of the two out")
        check_target(output, inputs=[task, model])
        run_steps(task, output=output, minutes=minutes, device=device, model=model, seed=seed, as_json=as_json)
        return
    import shardwright as sw
    from shardwright.cli.model_notes import print_model_notes
    from shardwright.cli.show import device_table, headline, tuning_lines

    check_target(output, inputs=[task, model])
    placed = task_on_cluster(task)
    cost_model = cost_model_for(model, placed, task)
    print_model_notes(cost_model, placed)
    with progress("tuning", detail="starting") as report, about(task):
        tuned = sw.tune(
            placed,
            minutes=minutes,
            device=device,
            cost_model=cost_model,
            runs_on=cast("RunsOn", runs_on),
            seed=seed,
            progress=lambda seconds, total, what: report(min(seconds, total), total, f"s: {what}"),
        )
    for text in tuned.notes:
        note(f"note: {text}")
    if tuned.failed:
        note(
            f"note: {counted(len(tuned.failed), 'device')} could not be measured, so their plans are left out; the first: {tuned.failed[0]}"
        )
    if output is not None:
        tuned.plan.save(output)
    views: list[RenderableType] = [
        device_table(tuned.plan),
        headline(tuned.plan),
        tuning_lines(tuned.plan) or "no plan was measured whole: this is the plan that planning alone finds",
        _more(tuned),
    ]
    emit(_document(tuned, output), *views, saved(output), as_json=as_json)
    if tuned.stopped == "interrupted":
        raise Interrupted("stopped early with the best plan so far; the same command goes on")


def _document(tuned: Tuned, output: Path | None) -> measuring.Tune:
    from shardwright.sharding.files import plan_to_dict

    tuning = tuned.plan.tuning
    return {
        "tuning": tuning,
        "above_floor": tuning.above_floor if tuning else None,
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "controls_slower": tuned.slower,
        "model": str(tuned.path) if tuned.path else None,
        "corrections": _corrections(tuned.model) if tuned.model else None,
        "corrected_bound_ms": tuned.bound_ms,
        "notes": list(tuned.notes),
        "failed": list(tuned.failed),
        "plan": cast("planning.PlanFile", plan_to_dict(tuned.plan, output)),
    }


def _corrections(model: CorrectedModel) -> measuring.Corrections:
    forward, backward = model.scale.tolist()
    return {"forward_scale": forward, "backward_scale": backward, "cut_ms": model.cut_price}


def _more(tuned: Tuned) -> str:
    """Lines about why tuning stopped, the model's corrections, and the state of the machine."""
    lines = [f"stopped after {tuned.seconds:.0f} s: {STOPPED[tuned.stopped]}"]
    if tuned.model is not None:
        forward, backward = (signed(factor - 1) for factor in tuned.model.scale.tolist())
        proven = (
            f"; no plan is below {ms(tuned.bound_ms)} ms by the corrected model" if tuned.bound_ms is not None else ""
        )
        lines.append(
            f"the model was corrected by {forward} forward, {backward} backward, and {tuned.model.cut_price:+.4f} ms a shard{proven}"
        )
        if tuned.path is not None:
            lines.append(
                f"saved this model as {tuned.model.name}: for other plans of the same tables, pass --model {tuned.model.name}"
            )
    if tuned.slower is not None:
        lines.append(f"controls {signed(tuned.slower - 1)} against their time when the model was learned")
    return "\n".join(lines)
