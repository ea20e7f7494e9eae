"""`shardwright demo`: the whole story on this machine."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from shardwright.cli.attempts import (
    CAPTION,
    Attempt,
    agreement,
    attempt_dict,
    attempts_table,
    failures,
    measure_each,
    plan_with_each,
    save_each,
)
from shardwright.cli.dependencies import require_torch
from shardwright.cli.model_notes import print_hardware_note
from shardwright.cli.options import AsJson, ModelFile, Seed
from shardwright.cli.output import emit, show
from shardwright.cli.progress import progress
from shardwright.cli.targets import make_folder
from shardwright.cost import CostModel
from shardwright.task import Task

_DEVICES = 4
_ROUNDS = 8
_BATCH = 1024  # what the bundled CPU model was trained at
_TASK = "{batch_size: 65536, topology: {preset: h100-8, hosts: 2}, tables: {file: tables.yaml}}"


@dataclass(frozen=True)
class Scene:
    """One task of the demo.

    Attributes:
        name: folder of its files.
        title: what it is.
        task: the task.
    """

    name: str
    title: str
    task: Task


def run(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where plans are saved.")] = Path(
        "shardwright-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller tables, each plan measured once: some seconds.")
    ] = False,
    model: ModelFile = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Plan two tasks with every strategy, and measure every plan with this machine's real kernels.

    Takes less than four minutes.

    Example:
        shardwright demo -o shardwright-demo
    """
    from shardwright.cost import resolve_cost_model

    require_torch("measuring", "measure")
    cost_model = resolve_cost_model(model, scenes(quick)[0].task)
    print_hardware_note(cost_model, "cpu")
    make_folder(output)
    document: dict[str, Any] = {"folder": str(output), "cost_model": cost_model.name, "tasks": []}
    for scene in scenes(quick):
        attempts = play(scene, output / scene.name, cost_model, rounds=1 if quick else _ROUNDS, seed=seed)
        document["tasks"].append(
            {"name": scene.name, "title": scene.title, "strategies": [attempt_dict(one) for one in attempts]}
        )
        if not as_json:
            said = agreement(attempts, metadata=getattr(cost_model, "metadata", None))
            show(view(scene, attempts, cost_model), *failures(attempts), *said, "")
    emit(document, next_steps(output), as_json=as_json)


def scenes(quick: bool) -> list[Scene]:
    """The tasks: a public model scaled down to fit, and one as in the papers."""
    from shardwright.task import Topology
    from shardwright.workload import public_task, random_task

    shrink = 50 if quick else 1
    topology = Topology.preset("cpu", devices_per_host=_DEVICES, memory="4 GB")
    mlperf = public_task("mlperf-dlrm-dcnv2", topology, scale=1 / (50 * shrink), batch_size=_BATCH)
    paper = random_task(
        1, tables=40, devices=_DEVICES, max_dim=128, memory="4 GB", batch_size=_BATCH, device="cpu", scale=1 / shrink
    )
    return [
        Scene(
            "mlperf-dlrm-dcnv2",
            f"MLPerf DLRM-DCNv2: {len(mlperf.tables)} tables with 1/{50 * shrink} of their rows, {_DEVICES} devices, batch {_BATCH}",
            replace(mlperf, optimizer="rowwise_adagrad"),  # as the bundled CPU model was trained
        ),
        Scene(
            "paper-40-tables",
            f"a task as in the papers: 40 tables{f' with 1/{shrink} of their rows' if quick else ''}, {_DEVICES} devices, batch {_BATCH}",
            paper,
        ),
    ]


def play(scene: Scene, folder: Path, cost_model: CostModel, rounds: int, seed: int) -> list[Attempt]:
    """Plan a task with every strategy, save task and plans, and measure all plans."""
    from shardwright.search import strategy_names

    make_folder(folder)
    scene.task.save(folder / "task.yaml")
    with progress(f"{scene.name}: planning", compiles=True) as report:
        attempts = plan_with_each(scene.task, strategy_names(scene.task), cost_model, report, seed=seed)
    save_each(attempts, folder)
    with progress(f"{scene.name}: measuring real kernels") as report:
        return measure_each(attempts, rounds, report)


def view(scene: Scene, attempts: list[Attempt], cost_model: CostModel) -> Table:
    """The table of a task; its caption says what was predicted and measured, and with what."""
    from shardwright.measure.backends import default_backend
    from shardwright.measure.hardware import cpu_model

    caption = f"{CAPTION}\ncost model {cost_model.name} · measured with {default_backend()} on {cpu_model()}"
    return attempts_table(scene.title, attempts, caption)


def next_steps(folder: Path) -> str:
    """What to do next, as lines to paste into a shell: look at the plans, then plan a model of one's own."""
    program, plans = _program(), folder / "mlperf-dlrm-dcnv2"
    best, other = (shlex.quote(str(plans / f"{name}.json")) for name in ("certified", "greedy"))
    return "\n".join(
        [
            f"Tasks and plans are in {folder}. Look at them:",
            f"  {program} show {best}",
            f"  {program} report {other} {best} -o demo.html",
            "",
            "A model of your own, from its training logs (Parquet or CSV) to a plan, here for two hosts of eight H100:",
            f"  {program} profile YOUR-LOGS/*.parquet -o tables.yaml",
            f"  echo {shlex.quote(_TASK)} > task.yaml",
            f"  {program} plan task.yaml -o plan.json",
            f"  {program} show plan.json",
            f"  {program} report plan.json -o report.html",
            "",
            "A model in TorchRec, where its planner is made now; the rest of the program stays as it is:",
            "  from shardwright.integrations.torchrec import ShardwrightPlanner",
            '  planner = ShardwrightPlanner(topology=topology, batch_size=512, profiles="tables.yaml")',
            "  plan = planner.collective_plan(model, sharders, process_group)",
        ]
    )


def _program() -> str:
    """How a shell calls this program: by its name where that is on the path, else as it was called now."""
    if shutil.which("shardwright"):
        return "shardwright"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "shardwright" else f"{shlex.quote(sys.executable)} -m shardwright"
