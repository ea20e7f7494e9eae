"""`shardwright tune --steps`: train some steps on a few plans in turns with TorchRec, and keep the fastest one."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shardwright.cli.errors import Interrupted, about
from shardwright.cli.options import cost_model_for
from shardwright.cli.output import MISSING, emit, ms, note, percent, progress, saved, signed, table
from shardwright.errors import counted

if TYPE_CHECKING:
    import rich.table

    from shardwright.cli.documents import measuring, planning
    from shardwright.integrations.torchrec.steps.tuning import TunedSteps

STOPPED = {
    "floor": "it is within the noise of the floor",
    "no gain": "several rounds in a row gained nothing",
    "settled": "no further round would change the choice",
    "time": "time was up",
    "interrupted": "it was interrupted",
}

_CAPTION = "step: ms of the slowest rank, the median over the rounds · against default: by the ratios of each round, with noise"


def run_steps(
    task: Path, *, output: Path | None, minutes: float, device: str | None, model: Path | None, seed: int, as_json: bool
) -> None:
    """Measure whole steps of a few plans, save the fastest one, and print all.

    Raises:
        ShardwrightError: see `tune_steps`.
    """
    from shardwright.cli.calibrate import with_known_links
    from shardwright.cli.model_notes import print_model_notes
    from shardwright.cli.show import headline
    from shardwright.cli.verify_steps import where_ranks_run
    from shardwright.integrations.torchrec.requirements import require_torchrec
    from shardwright.measure.collectives.group import place_of_this_process
    from shardwright.task import Task

    require_torchrec()
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # TorchRec warns about topologies not from its factory
    from shardwright.integrations.torchrec.steps.tuning import tune_steps

    place, placed = place_of_this_process(), Task.load(task)
    topology, known_links = with_known_links(placed.topology)
    placed = replace(placed, topology=topology)
    cost_model = cost_model_for(model, placed, task)
    if place is None or place.rank == 0:
        print_model_notes(cost_model, placed)
        if known_links is not None:
            note(known_links)
    with progress("tuning", detail="starting") as report, about(task):
        tuned = tune_steps(
            placed,
            minutes=minutes,
            device=device,
            cost_model=cost_model,
            seed=seed,
            progress=lambda seconds, total, what: report(min(seconds, total), total, f"s: {what}"),
        )
    if tuned is None:  # another rank reports everything
        return
    for text in tuned.notes:
        note(f"note: {text}")
    if output is not None:
        tuned.plan.save(output)
    where = where_ranks_run(topology.devices, place, device or topology.compute_device)
    views = (headline(tuned.plan), _why(tuned, where), saved(output))
    emit(_document(tuned, where, output), _view(tuned), *views, as_json=as_json)
    if tuned.stopped == "interrupted":
        raise Interrupted("stopped early with the fastest plan so far")


def _document(tuned: TunedSteps, where: str, output: Path | None) -> measuring.TuneSteps:
    from shardwright.sharding.files import plan_to_dict

    return {
        "taken": tuned.name,
        "candidates": [
            {
                "name": name,
                "predicted_step_ms": steps.predicted("step"),
                "step_ms": steps.step_ms,
                "rounds_ms": steps.rounds("step"),
                "against_default": tuned.against_first(name).share,
                "noise": tuned.against_first(name).noise,
            }
            for name, steps in tuned.candidates.items()
        ],
        "ranks_on": where,
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "notes": list(tuned.notes),
        "plan": cast("planning.PlanFile", plan_to_dict(tuned.plan, output)),
    }


def _view(tuned: TunedSteps) -> rich.table.Table:
    rounds = max(len(steps.reports) for steps in tuned.candidates.values())
    rows = []
    for name, steps in tuned.candidates.items():
        against, count = tuned.against_first(name), len(steps.reports)
        dropped = f"dropped after round {count}, clearly slower" if count < rounds else ""
        noise = percent(against.noise) if math.isfinite(against.noise) else "unknown"
        difference = f"{signed(against.share)} ± {noise}" if steps is not tuned.first else MISSING
        what = "taken" if name == tuned.name else dropped
        rows.append([name, ms(steps.predicted("step")), ms(steps.step_ms), difference, what])
    columns = ("candidate", "predicted ms", "measured ms", "against default", "")
    return table(f"a step of TorchRec, {counted(rounds, 'round')}", columns, rows, _CAPTION, texts=(0, 4))


def _why(tuned: TunedSteps, where: str) -> str:
    """Lines about the plan that was taken, and why."""
    against = tuned.against_first(tuned.name)
    if tuned.plan is tuned.first.plan:
        why = "no other plan is faster beyond the noise"
    else:
        why = f"its step is {signed(against.share)} against the default plan's, beyond the noise of {percent(against.noise)}"
    return f"taken: {tuned.name}; {why}\nstopped after {tuned.seconds:.0f} s: {STOPPED[tuned.stopped]}; {where}"
