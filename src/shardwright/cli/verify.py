"""`shardwright verify`: run a plan's shards on this machine, and compare measured with predicted times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli.checks import check_same_task, measured_device, other_device
from shardwright.cli.options import AsJson, BackendName, Device, Rounds, option
from shardwright.cli.output import emit, ms, note, percent, progress, signed, table
from shardwright.errors import InvalidInput, require

if TYPE_CHECKING:
    import rich.table

    from shardwright.cli.documents import measuring
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.sharding import DeviceCost, Plan

_COLUMNS = ("rank", "fwd predicted", "measured", "bwd predicted", "measured", "both, relative")


def run(
    *,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.", show_default=False)],
    task: Annotated[
        Path | None, option("--task", metavar="FILE", text="Also check that the plan is for this task.")
    ] = None,
    device: Device = "cpu",
    backend: BackendName = None,
    rounds: Rounds = 5,
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            metavar="SHARE",
            text="Fail if measured and predicted time differ by more than this share, such as 0.2.",
        ),
    ] = None,
    steps: Annotated[
        bool,
        typer.Option("--steps", help="Train steps, with a process a device or the ranks that torchrun started."),
    ] = False,
    against: Annotated[
        str | None,
        option(
            "--against",
            metavar="torchrec|FILE",
            text="With --steps: take turns with the plan of TorchRec's planner, or with another plan of the task.",
        ),
    ] = None,
    timeout: Annotated[
        float, option("--timeout", metavar="SECONDS", text="With --steps: longest time of the run. (default 300)")
    ] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Check a plan, measure every device's kernels on this machine, and compare with the prediction.

    With --steps, TorchRec trains on the plan, and whole steps are measured, phase by phase. A plan that TorchRec cannot run is trained by
    shardwright.runtime, without phases.

    Example:
        shardwright verify plan.json --task task.yaml --tolerance 0.2
        shardwright verify plan.json --steps --against torchrec
        torchrun --nproc-per-node 8 -m shardwright verify plan.json --steps --device cuda
    """
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidInput(f"--tolerance is {tolerance:g}, must be a finite number of at least 0, as in 0.2")
    if steps and backend is not None:
        raise InvalidInput(
            "--backend: with --steps, the training runs the kernels, by FBGEMM; leave one of the two out"
        )
    if against is not None and not steps:
        raise InvalidInput("--against compares measured steps; add --steps")
    require("measure", "measuring")
    from shardwright.cli.compare import truth_line
    from shardwright.cli.model_notes import model_of, print_origin_notes
    from shardwright.cost.score import kernels_and_links
    from shardwright.measure.measuring import measure_plans
    from shardwright.sharding import Plan
    from shardwright.task import Task

    checked = kernels_and_links(Plan.load(plan), modules=steps)
    if task is not None:
        check_same_task(checked, plan, Task.load(task), task)
    _check_comparable(checked, device, tolerance)
    print_origin_notes([checked], device)
    unlike = other_device(checked.task.topology.device, device)
    if steps:
        from shardwright.cli.verify_steps import run_steps

        off = run_steps(
            plan,
            checked,
            against=against,
            rounds=rounds,
            device=device,
            timeout_s=timeout,
            unlike=unlike,
            as_json=as_json,
        )
        _fail_beyond(tolerance, off)
        return
    with progress("measuring") as report:
        (measured,) = measure_plans([checked], rounds=rounds, device=device, backend=backend, progress=report)
    document = _document(plan, checked, measured, tolerance, unlike, device)
    off, metadata = document["relative_difference"], getattr(model_of(checked), "metadata", {})
    state = document["controls_slower"] = measured.controls.slower_than(metadata)
    summary = (
        f"slowest forward + slowest backward: predicted {ms(document['predicted_compute_ms'])} ms, "
        f"measured {ms(measured.compute_ms)} ms ({unlike or signed(off)})"
    )
    truth = [truth_line("plan", [measured], metadata)] if None not in (off, state) else []
    emit(document, _view(document["devices"], unlike), summary, *truth, as_json=as_json)
    _fail_beyond(tolerance, off)


def _fail_beyond(tolerance: float | None, off: float | None) -> None:
    """Exit with 1 if a relative difference is larger than the tolerance."""
    if tolerance is not None and off is not None and abs(off) > tolerance:
        note(
            f"error: the measured time differs from the predicted one by {signed(off)}, more than the tolerance of {percent(tolerance)}"
        )
        raise typer.Exit(1)


def _check_comparable(plan: Plan, kind: str, tolerance: float | None) -> None:
    """Refuse --tolerance for a plan whose times cannot be compared with those of this machine."""
    predicted_for, here = plan.task.topology.device, measured_device(kind)
    if tolerance is not None and plan.cost is None:
        raise InvalidInput("--tolerance: the plan holds no predicted cost to compare with; plan the task again")
    if tolerance is not None and predicted_for != here:
        raise InvalidInput(
            f"--tolerance: the plan is predicted for {predicted_for} and would be measured on {here}; "
            f"verify it on {predicted_for}, or leave the option out"
        )


def _document(
    file: Path, plan: Plan, measured: MeasuredPlan, tolerance: float | None, unlike: str | None, device: str
) -> measuring.Verify:
    predicted = plan.cost.compute_ms if plan.cost else None
    off = measured.compute_ms / predicted - 1 if predicted and not unlike else None
    costs: Sequence[DeviceCost | None] = plan.cost.devices if plan.cost else [None] * plan.task.topology.devices
    measured_ms = measured.forward_ms.tolist(), measured.backward_ms.tolist()
    devices: list[measuring.DeviceOfVerify] = [
        {
            "rank": rank,
            "predicted_forward_ms": cost.forward_ms if cost else None,
            "predicted_backward_ms": cost.backward_ms if cost else None,
            "measured_forward_ms": forward,
            "measured_backward_ms": backward,
        }
        for rank, (cost, forward, backward) in enumerate(zip(costs, *measured_ms, strict=True))
    ]
    return {
        "plan": str(file),
        "predicted_compute_ms": predicted,
        "measured_compute_ms": measured.compute_ms,
        "relative_difference": off,
        "notes": [unlike] if unlike else [],
        "tolerance": tolerance,
        "within_tolerance": None if tolerance is None or off is None else abs(off) <= tolerance,
        "devices": devices,
        "measured_on": measured_device(device),
    }


def _view(devices: Sequence[measuring.DeviceOfVerify], unlike: str | None) -> rich.table.Table:
    rows = []
    for device in devices:
        forward, backward = device["measured_forward_ms"], device["measured_backward_ms"]
        predicted = device["predicted_forward_ms"], device["predicted_backward_ms"]
        whole = sum(time or 0.0 for time in predicted)
        off = (forward + backward) / whole - 1 if whole and not unlike else None
        rows.append([str(device["rank"]), ms(predicted[0]), ms(forward), ms(predicted[1]), ms(backward), signed(off)])
    return table("kernel ms per device, predicted and measured", _COLUMNS, rows)
