"""`shardwright demo`: calibrate, plan, measure and report on this machine, in three minutes."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shardwright.cli.calibrate import progress_of
from shardwright.cli.checks import make_folder
from shardwright.cli.compare import (
    CAPTION,
    Attempt,
    agreement,
    attempt_document,
    attempts_table,
    failures,
    measure_each,
    plan_with_each,
    save_each,
)
from shardwright.cli.model_notes import print_hardware_note
from shardwright.cli.options import AsJson, ModelFile, Seed
from shardwright.cli.output import emit, note, percent, progress, saved, show
from shardwright.cost import CostModel
from shardwright.errors import InvalidInput, counted, require
from shardwright.search import strategy_names
from shardwright.task import Task

if TYPE_CHECKING:
    from shardwright.calibration import Calibration
    from shardwright.cli.documents import planning

_DEVICES = 4
_BATCH = 1024
_ROUNDS = 3
_CALIBRATE_S, _MEASURE_S, _SEARCH_S = 45.0, 40.0, 5.0
_QUICK_CALIBRATE_S = 12.0
_FIRST = ("certified", "greedy", "neuroshard", "random")  # measured first, in case there is no time for all
_VISIT_S, _RUNS = 0.3, 14  # approximate cost of measuring a device: this many seconds, and this many runs
_TASK = "{batch_size: 65536, topology: {preset: h100-8, hosts: 2}, tables: {file: tables.yaml}}"


def run(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where plans are saved.")] = Path(
        "shardwright-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller tables, a shorter calibration, each plan measured once.")
    ] = False,
    model: ModelFile = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate this machine, plan a public model with every strategy, and measure the plans on real kernels.

    The demo takes less than three minutes. It keeps the cost model of this machine, and later plans for its CPUs use it.

    Example:
        shardwright demo -o shardwright-demo
    """
    require("measure", "measuring")
    from shardwright.calibration import calibrate
    from shardwright.cost import resolve_cost_model

    task = demo_task(quick)
    given = resolve_cost_model(model, task) if model is not None else None
    file = output / "task.yaml"
    make_folder(output, [file.name, "report.html", *(f"{name}.json" for name in strategy_names(task))], [model])
    if file.exists() and Task.load(file) not in (task, demo_task(not quick)):
        raise InvalidInput(f"{file}: is not the demo's task, which would overwrite it; name another folder with -o")
    task.save(file)
    if given is None:
        seconds = _QUICK_CALIBRATE_S if quick else _CALIBRATE_S
        with progress("calibrating") as report:
            calibration = calibrate(task, minutes=seconds / 60, seed=seed, progress=progress_of(report, seconds))
        cost_model: CostModel = calibration.model or resolve_cost_model(None, task)
        note(_said_of(calibration))
    else:
        cost_model = given
    print_hardware_note(cost_model, "cpu")
    attempts = play(task, output, cost_model, rounds=1 if quick else _ROUNDS, seed=seed)
    page = _report(attempts, output, cost_model)
    document: planning.Demo = {
        "folder": str(output),
        "cost_model": cost_model.name,
        "task": title(task, quick),
        "strategies": [attempt_document(attempt) for attempt in attempts],
    }
    for file in [*output.glob("*.json"), *([page] if page else ())]:
        saved(file)
    said = agreement(attempts, cost_model.metadata)
    if not as_json:
        show(view(title(task, quick), attempts, cost_model), *failures(attempts), said, "")
    emit(document, next_steps(output), as_json=as_json)


def demo_task(quick: bool) -> Task:
    """A public model, scaled down so that it fits any machine."""
    from shardwright.task import Topology
    from shardwright.workload import public_task

    topology = Topology.preset("cpu", devices_per_host=_DEVICES, memory="4 GB")
    task = public_task("mlperf-dlrm-dcnv2", topology, scale=_scale(quick), batch_size=_BATCH)
    return replace(task, optimizer="rowwise_adagrad")  # the bundled CPU model was trained with it


def title(task: Task, quick: bool) -> str:
    """A line that describes the task."""
    return (
        f"MLPerf DLRM-DCNv2: {len(task.tables)} tables with 1/{round(1 / _scale(quick))} of their rows, {_DEVICES} devices, "
        f"batch {_BATCH}"
    )


def play(task: Task, folder: Path, cost_model: CostModel, rounds: int, seed: int) -> list[Attempt]:
    """Plan a task with every strategy, save the plans, and measure as many plans as there is time for."""
    with progress("planning") as report:
        attempts = plan_with_each(task, strategy_names(task), cost_model, report, seed=seed, time_limit=_SEARCH_S)
    save_each(attempts, folder)
    chosen = affordable(attempts, _MEASURE_S)
    with progress("measuring real kernels") as report:
        measured = iter(measure_each(chosen, rounds, report, seconds=_MEASURE_S))
    return [next(measured) if attempt in chosen else attempt for attempt in attempts]


def affordable(attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
    """Attempts whose plans can be measured once within `seconds`, in their order. The most informative are chosen first, at least two.

    A device that holds the same shards in two plans is measured once.
    """
    placed = [attempt for attempt in attempts if attempt.plan is not None]
    order = sorted(placed, key=lambda tried: _FIRST.index(tried.strategy) if tried.strategy in _FIRST else len(_FIRST))
    chosen: list[str] = []
    seen: set[tuple[float, float, int]] = set()
    left = seconds
    for attempt in order:
        assert attempt.plan is not None
        assert attempt.plan.cost is not None
        devices = {(cost.forward_ms, cost.backward_ms, cost.memory_bytes) for cost in attempt.plan.cost.devices} - seen
        left -= sum(_VISIT_S + _RUNS * (forward + backward) / 1e3 for forward, backward, _ in devices)
        if left < 0 and len(chosen) >= 2:
            break
        seen |= devices
        chosen.append(attempt.strategy)
    return [attempt for attempt in attempts if attempt.strategy in chosen]


def view(heading: str, attempts: Sequence[Attempt], cost_model: CostModel) -> Table:
    """The table of attempts; its caption names the predicted and measured quantities, the cost model and the backend."""
    from shardwright.hardware import cpu_model, default_backend

    caption = f"{CAPTION}\ncost model {cost_model.name} · measured with {default_backend()} on {cpu_model()}"
    return attempts_table(heading, attempts, caption)


def _scale(quick: bool) -> float:
    return 1 / 2500 if quick else 1 / 50


def _said_of(result: Calibration) -> str:
    """A line about the calibration's accuracy."""
    if result.accuracy is None:
        return f"note: {counted(result.sets, 'set')} measured in the time, too few for a model of this machine: the bundled one is used"
    return (
        f"calibrated in {result.seconds:.0f} s on {counted(result.sets, 'set')}: the mean error on sets not seen is "
        f"{percent(result.accuracy.mean_error)}, that of the bundled model {percent(result.before)}"
    )


def _report(attempts: Sequence[Attempt], folder: Path, cost_model: CostModel) -> Path | None:
    """Write the page that compares a simple plan with a searched one, or shows one of them; None if both are missing."""
    from shardwright.report import Entry, MeasuredTimes, entry_of, write_report

    entries: list[Entry] = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.strategy, reverse=True):
        if attempt.strategy in ("greedy", "certified") and attempt.plan is not None:
            measured = attempt.measured
            times = MeasuredTimes(tuple(measured.forward_ms), tuple(measured.backward_ms), "cpu") if measured else None
            entries.append(entry_of(attempt.plan, attempt.strategy, cost_model=cost_model, measured=times))
    if not entries:
        return None
    write_report(entries, folder / "report.html")
    return folder / "report.html"


def next_steps(folder: Path) -> str:
    """The next steps as lines to paste into a shell: look at the plans, then plan a model of your own."""
    program = _program()
    best = shlex.quote(str(folder / "certified.json"))
    return "\n".join(
        [
            f"Task and plans are in {folder}. Look at the best one:",
            f"  {program} show {best}",
            "",
            "A model of your own, from its training logs (Parquet or CSV) to a plan, here for two hosts of eight H100:",
            f"  {program} profile YOUR-LOGS/*.parquet -o tables.yaml",
            f"  echo {shlex.quote(_TASK)} > task.yaml",
            f"  {program} plan task.yaml -o plan.json",
            f"  {program} show plan.json",
            f"  {program} report plan.json -o report.html",
            "",
            "In a TorchRec program, only the line that makes the planner changes:",
            "  from shardwright.integrations.torchrec import ShardwrightPlanner",
            '  planner = ShardwrightPlanner(topology=topology, batch_size=512, profiles="tables.yaml")',
            "  plan = planner.collective_plan(model, sharders, process_group)",
            "",
            f"Where the time goes, table by table: {folder / 'report.html'}",
        ]
    )


def _program() -> str:
    """The shell command of this program: its name if that is on the path, else the command that was called now."""
    if shutil.which("shardwright"):
        return "shardwright"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "shardwright" else f"{shlex.quote(sys.executable)} -m shardwright"
