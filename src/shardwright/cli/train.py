"""`shardwright train`: learn a cost model from sample stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np
import typer

from shardwright.cli.checks import check_target
from shardwright.cli.options import AsJson, HardwareName, OtherHardware, SamplesFolders, Seed, option
from shardwright.cli.output import emit, percent, progress, saved, table
from shardwright.cost.files import device_type
from shardwright.cost.model import ComputeModel, Head
from shardwright.cost.neuroshard import NeuroShardModel
from shardwright.errors import InvalidInput, ShardwrightError, counted, require, some_of
from shardwright.files import check_distinct
from shardwright.modelling.accuracy import accuracy_metadata
from shardwright.schema import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import rich.table

    from shardwright.cli.documents import measuring
    from shardwright.hardware import Fingerprint
    from shardwright.modelling.accuracy import Accuracy
    from shardwright.modelling.dataset import Samples
    from shardwright.modelling.neuroshard_collectives import Collectives, PassErrors

Network: TypeAlias = Literal["shardwright", "neuroshard"]
_EPOCHS: dict[Network, int] = {"shardwright": 300, "neuroshard": 1000}


@dataclass(frozen=True)
class Outcome:
    """A trained model and its errors on held-out samples.

    Attributes:
        model: the model, without metadata yet.
        epochs: passes made over the kernel samples.
        accuracy: errors of the kernel times.
        communication: errors of NeuroShard's communication networks, by devices and pass; None if there are no such networks.
    """

    model: ComputeModel | NeuroShardModel
    epochs: int
    accuracy: Accuracy
    communication: dict[str, dict[str, PassErrors]] | None = None


def run(
    *,
    samples: SamplesFolders,
    output: Annotated[Path, option("--output", "-o", metavar="FILE", text="Save the model here, as safetensors.")],
    network: Annotated[
        Network,
        typer.Option("--network", help="Shardwright's network, or NeuroShard's three (two of them need collectives)."),
    ] = "shardwright",
    head: Annotated[
        Head | None,
        typer.Option("--head", help="Head of Shardwright's network; bounds need a convex one. [default: convex]"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Most passes over the samples. [default: 300, neuroshard: 1000]"),
    ] = None,
    seed: Seed = 0,
    hardware: HardwareName = None,
    allow_other_hardware: OtherHardware = False,
    as_json: AsJson = False,
) -> None:
    """Train a cost model; show its errors and the differences between repeated measurements.

    Several folders, for example of different batch sizes, are trained on together.

    Example:
        shardwright train samples/ -o model.safetensors
    """
    require("learn", "training")
    from shardwright.cost import save_model
    from shardwright.cost.files import telling_name

    check_target(output, inputs=samples)
    if network == "neuroshard" and head is not None:
        raise InvalidInput(f"--head {head}: NeuroShard's network has its own head; leave --head out")
    stores = read_stores(samples, hardware=hardware, allow_other_hardware=allow_other_hardware)
    passes = epochs or _EPOCHS[network]
    ours = network == "shardwright"
    with Place(some_of(samples)).naming():
        outcome = (
            _train_shardwright(stores, head or "convex", passes, seed)
            if ours
            else _train_neuroshard(stores, passes, seed)
        )
    metadata = (
        describe(stores.kernels, stores.machines)
        | accuracy_metadata(outcome.accuracy)
        | _communication_metadata(outcome.communication or {})
    )
    # Plans and policies name their model, so the next model trained for this device must have another name.
    metadata |= {"name": telling_name(replace(outcome.model, metadata=metadata))}
    save_model(replace(outcome.model, metadata=metadata), output)
    views = [accuracy_table(outcome.accuracy, f"on {counted(outcome.accuracy.sets, 'sample')} held out")]
    views += [_communication_table(outcome.communication)] if outcome.communication else []
    emit(_document(outcome, metadata), *views, f"{outcome.epochs} epochs", saved(output), as_json=as_json)


def _train_shardwright(stores: Stores, head: Head, epochs: int, seed: int) -> Outcome:
    from shardwright.modelling.gpu_parts import width_of
    from shardwright.modelling.training import TrainingOptions, train

    width = width_of(stores.machines[0]["device_kind"])
    with progress("training", total=epochs) as report:
        trained = train(
            stores.samples(),
            TrainingOptions(head=head, epochs=epochs, width=width, seed=seed),
            progress=lambda epoch, error: report(epoch, detail=f"validation error {percent(error)}"),
            caches=_caches(stores.machines),
        )
    return Outcome(trained.model, trained.epochs, trained.accuracy)


def _caches(machines: Sequence[Fingerprint]) -> tuple[int, int]:
    """Cache sizes of a GPU as published, or of this machine if it measured all samples.

    Otherwise they are common sizes: a model must not depend on the machine that trains it.
    """
    from shardwright.cost.published import GPUS
    from shardwright.hardware import COMMON_CACHES, cache_bytes, cpu_model, gpu_model

    kind = machines[0]["device_kind"]
    if (gpu := GPUS.get(device_type(machines[0]))) is not None and kind == "cuda":
        return int(gpu.cache), int(gpu.cache)
    try:
        here = gpu_model() if kind == "cuda" else cpu_model()
    except ShardwrightError:
        return COMMON_CACHES
    return cache_bytes(kind) if all(machine["processor"] == here for machine in machines) else COMMON_CACHES


def _train_neuroshard(stores: Stores, epochs: int, seed: int) -> Outcome:
    from shardwright.modelling.neuroshard_training import NeuroShardOptions, train_communication, train_compute

    options = NeuroShardOptions(epochs=epochs, seed=seed)
    with progress("training", total=epochs) as report:

        def told(epoch: int, error: float) -> None:
            report(epoch, detail=f"validation error {percent(error)}")

        model, accuracy = train_compute(stores.samples(), options, progress=told)
        if not any(map(len, stores.collectives)):
            return Outcome(model, epochs, accuracy)
        trained = train_communication(stores.collectives, options, progress=told)
    return Outcome(replace(model, communication=trained.networks), epochs, accuracy, trained.errors)


def _document(outcome: Outcome, metadata: dict[str, str]) -> measuring.Train:
    return {
        "metadata": metadata,
        "epochs": outcome.epochs,
        "accuracy": outcome.accuracy,
        "communication": {
            label: {name: asdict(of_pass) for name, of_pass in errors.items()}
            for label, errors in (outcome.communication or {}).items()
        },
    }


def _communication_metadata(errors: Mapping[str, Mapping[str, PassErrors]]) -> dict[str, str]:
    """Mean errors by devices and pass, for the model's metadata."""
    return {
        f"communication_{label.replace(' ', '_')}_{name}_mean_error": f"{of_pass.mean_error:.5f}"
        for label, by_name in errors.items()
        for name, of_pass in by_name.items()
    }


def _communication_table(errors: Mapping[str, Mapping[str, PassErrors]]) -> rich.table.Table:
    """A table of errors of NeuroShard's communication networks beside repeat noise."""
    rows = [
        [f"{name}, {label}", percent(of_pass.mean_error), percent(of_pass.median_error), percent(of_pass.repeat_error)]
        for label, by_name in errors.items()
        for name, of_pass in by_name.items()
    ]
    title = "relative error of a device's time, collectives held out"
    return table(title, ("collective", "mean", "median", "repeats differ by"), rows)


def describe(stores: Sequence[pa.Table], machines: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Describe the samples for the model's metadata."""
    values = {
        name: {value for measured in stores for value in measured[name].to_pylist()}
        for name in ("optimizer", "batch_size")
    }
    return {
        "device": device_type(machines[0]),
        "hardware": "; ".join(", ".join(f"{key} {value}" for key, value in machine.items()) for machine in machines),
        "optimizer": ", ".join(sorted(values["optimizer"])),
        "batch_sizes": ", ".join(map(str, sorted(values["batch_size"]))),
        "samples": str(sum(repeat == 0 for measured in stores for repeat in measured["repeat"].to_pylist())),
        "date": datetime.now(UTC).date().isoformat(),
    }


def accuracy_table(accuracy: Accuracy, title: str, default: float | None = None) -> rich.table.Table:
    """A table of errors beside repeat noise and, if given, the mean error of the default model."""
    alone = {"forward": accuracy.forward_error, "backward": accuracy.backward_error}
    rows = [
        ["forward + backward, mean", percent(accuracy.mean_error)],
        ["forward + backward, median", percent(accuracy.median_error)],
        *[[f"{way}, mean", percent(error)] for way, error in alone.items() if error is not None],
        *[
            [f"{count} table{'' if count == '1' else 's'}, mean", percent(error)]
            for count, error in accuracy.by_tables.items()
        ],
        *([["of the default model, mean", percent(default)]] if default is not None else []),
        *([["repeated measurements differ by, mean", percent(accuracy.repeat_error)]] if accuracy.repeat_error else []),
        ["rank correlation", f"{accuracy.spearman:.4f}"],
    ]
    return table(title, ("relative error", "value"), rows)


@dataclass(frozen=True)
class Stores:
    """The content of sample stores.

    Attributes:
        folders: the stores and files that have kernel samples.
        machines: fingerprints of the machines that measured kernels.
        kernels: kernel samples of each store that has some.
        collectives: measured collectives of all stores, by number of devices.
    """

    folders: list[Path]
    machines: list[Fingerprint]
    kernels: list[pa.Table]
    collectives: list[Collectives]

    def samples(self) -> Samples:
        """The kernel samples of all stores, to train on.

        Raises:
            InvalidInput: a store holds samples that cannot be trained on; the message names it.
        """
        from shardwright.modelling.dataset import join, samples_of

        parts = []
        for folder, measured in zip(self.folders, self.kernels, strict=True):
            with Place(str(folder)).naming():
                parts.append(samples_of(measured))
        return join(parts)


def read_stores(paths: Sequence[Path], *, hardware: str | None, allow_other_hardware: bool) -> Stores:
    """Read sample stores and Parquet files; each store holds kernel samples, collectives, or both.

    A set that several stores hold is taken from the first, since a set must not be both in the training and in the held-out samples.

    Args:
        paths: folders and files.
        hardware: part of the name of the processor or backend that measured; None if there is only one.
        allow_other_hardware: take samples of all hardware.

    Raises:
        InvalidInput: a path is named twice or has no samples, no path has kernel samples, or they were measured on different machines.
    """
    from shardwright.hardware import MACHINE
    from shardwright.measure.collectives.collect import read_collectives
    from shardwright.measure.samples import fingerprints, read_samples
    from shardwright.measure.store import chosen_hardware
    from shardwright.modelling.neuroshard_collectives import collectives_of

    check_distinct(paths, "samples")  # they would be both in the training and in the held-out samples
    measured = [path for path in paths if _has_collectives(path)]
    kernels = [path for path in paths if path not in measured or fingerprints(path)]
    if not kernels:
        raise InvalidInput(
            f"{measured[0]}: holds collectives but no kernel samples, which every model needs; name a folder with some too, or add some: "
            f"shardwright collect -o {measured[0]}"
        )
    machines: list[Fingerprint] = []
    tables, known = [], np.zeros(0, np.int64)
    for path in kernels:
        wanted = machines[0] if machines else hardware
        table = read_samples(path, hardware=wanted, allow_other_hardware=allow_other_hardware)
        there = list(enumerate(fingerprints(path)))
        chosen = chosen_hardware(path, there, wanted, allow_other=allow_other_hardware)
        machines += [there[number][1] for number in chosen if there[number][1] not in machines]
        numbers = table["sample"].to_numpy()
        tables.append(table.filter(~np.isin(numbers, known)))
        known = np.union1d(known, numbers)
    wanted_links = {key: machines[0][key] for key in MACHINE if key in machines[0]}
    collectives = [
        read_collectives(path, hardware=wanted_links, allow_other_hardware=allow_other_hardware) for path in measured
    ]
    with Place(some_of(measured)).naming():
        fitted = collectives_of(collectives)
    kept = [(path, table) for path, table in zip(kernels, tables, strict=True) if table.num_rows]
    return Stores([path for path, _ in kept], machines, [table for _, table in kept], fitted)


def _has_collectives(path: Path) -> bool:
    from shardwright.measure.store import hardware_of, reading

    if path.suffix == ".parquet":
        return False
    with reading(path) as db:
        return bool(hardware_of(db, "collectives"))
