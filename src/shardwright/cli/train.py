"""`shardwright train`: learn a cost model from a sample store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli.dependencies import require_torch
from shardwright.cli.devices import device_type
from shardwright.cli.options import AsJson, OtherHardware, SamplesFolders, Seed, option
from shardwright.cli.output import MISSING, emit, percent, saved, table
from shardwright.cli.progress import progress
from shardwright.cli.targets import check_target
from shardwright.cost.model import Head

if TYPE_CHECKING:
    import pyarrow as pa
    import rich.table

    from shardwright.cost.accuracy import Accuracy


def run(
    *,
    samples: SamplesFolders,
    output: Annotated[Path, option("--output", "-o", metavar="FILE", text="Save the model here, as safetensors.")],
    head: Annotated[Head, typer.Option("--head", help="Head of the network; bounds need a convex one.")] = "convex",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Most passes over the samples.")] = 300,
    seed: Seed = 0,
    allow_other_hardware: OtherHardware = False,
    as_json: AsJson = False,
) -> None:
    """Train a cost model, and say how far it is off beside how far repeated measurements differ.

    Several folders, of other batch sizes for example, are trained on together.

    Example:
        shardwright train samples/ -o model.safetensors
    """
    require_torch("training", "learn")
    from shardwright.cost import save_model
    from shardwright.cost.dataset import join, samples_of
    from shardwright.cost.training import TrainingOptions, train
    from shardwright.measure.store import read_identity, read_samples

    check_target(output)
    hardware = read_identity(samples[0])["hardware"]
    allowed = {"hardware": hardware, "allow_other_hardware": allow_other_hardware}
    stores = [read_samples(folder, **allowed) for folder in samples]
    metadata = describe(stores, hardware)
    with progress("training", total=epochs) as report:
        trained = train(
            join([samples_of(measured) for measured in stores]),
            TrainingOptions(head=head, epochs=epochs, seed=seed),
            progress=lambda epoch, error: report(epoch, detail=f"validation error {percent(error)}"),
        )
    metadata |= accuracy_metadata(trained.accuracy)
    save_model(replace(trained.model, metadata=metadata), output)
    document = {
        "output": str(output),
        "epochs": trained.epochs,
        "accuracy": asdict(trained.accuracy),
        "metadata": metadata,
    }
    emit(document, accuracy_table(trained.accuracy), f"{trained.epochs} epochs", saved(output), as_json=as_json)


def describe(stores: Sequence[pa.Table], hardware: dict[str, str]) -> dict[str, str]:
    """What the samples are, for the model's metadata.

    Args:
        stores: samples as each store has them.
        hardware: fingerprint of the machine.
    """
    values = {
        name: {value for measured in stores for value in measured[name].to_pylist()}
        for name in ("optimizer", "batch_size")
    }
    return {
        "device": device_type(hardware),
        "hardware": ", ".join(f"{key} {value}" for key, value in hardware.items()),
        "optimizer": ", ".join(sorted(values["optimizer"])),
        "batch_sizes": ", ".join(map(str, sorted(values["batch_size"]))),
        "samples": str(sum(repeat == 0 for measured in stores for repeat in measured["repeat"].to_pylist())),
        "date": datetime.now(UTC).date().isoformat(),
    }


def accuracy_metadata(accuracy: Accuracy) -> dict[str, str]:
    """The errors, for the model's metadata."""
    figures: dict[str, Any] = {key: value for key, value in asdict(accuracy).items() if isinstance(value, float)}
    return {"test_sets": str(accuracy.sets)} | {key: f"{value:.5f}" for key, value in figures.items()}


def accuracy_table(accuracy: Accuracy) -> rich.table.Table:
    """Errors beside repeat noise."""
    rows = [
        ["forward + backward, mean", percent(accuracy.mean_error)],
        ["forward + backward, median", percent(accuracy.median_error)],
        ["forward, mean", percent(accuracy.forward_error)],
        ["backward, mean", percent(accuracy.backward_error)],
        *[[f"{count} tables, mean", percent(error)] for count, error in accuracy.by_tables.items()],
        ["repeated measurements differ by, mean", percent(accuracy.repeat_error) if accuracy.repeat_error else MISSING],
        ["rank correlation", f"{accuracy.spearman:.4f}"],
    ]
    return table(f"on {accuracy.sets} samples held out", ("relative error", "value"), rows)
