"""`shardwright collect`: measure this machine's kernels into a sample store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.dependencies import require_torch
from shardwright.cli.errors import Interrupted
from shardwright.cli.options import AsJson, Device, OtherHardware, Seed, option
from shardwright.cli.output import emit, percent
from shardwright.cli.progress import progress
from shardwright.cli.targets import check_folder


def run(
    *,
    output: Annotated[
        Path, option("--output", "-o", metavar="FOLDER", text="The sample store; an existing one goes on.")
    ],
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples the store is to hold in the end.")] = 8000,
    device: Device = "cpu",
    batch_size: Annotated[
        list[int] | None,
        option("--batch-size", metavar="N", text="Samples a batch; repeat for several. [default: 1024]"),
    ] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="Optimizer inside backward.")
    ] = "rowwise_adagrad",
    backend: Annotated[
        str | None, option("--backend", metavar="NAME", text="fbgemm, or embedding_bag where it is absent.")
    ] = None,
    pool: Annotated[
        str, typer.Option("--pool", metavar="NAME", help="Table pool that sets are drawn from.")
    ] = "dlrm-2021",
    sequence_share: Annotated[
        float, typer.Option("--sequence-share", metavar="X", help="Share of sets with sequence tables.")
    ] = 0.0,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Room for the tables of a sample.")] = "4 GB",
    seed: Seed = 0,
    allow_other_hardware: OtherHardware = False,
    as_json: AsJson = False,
) -> None:
    """Measure fused kernels of random sets of tables, to train a cost model on.

    Stop it at any moment, and run the same command again to go on.

    Example:
        shardwright collect -o samples/ --samples 8000
    """
    require_torch("measuring", "measure")
    from shardwright.measure.collect import collect
    from shardwright.task.units import parse_bytes
    from shardwright.workload.pools import table_pool

    check_folder(output)
    try:
        with progress("measuring") as report:
            summary = collect(
                output,
                samples=samples,
                seed=seed,
                batch_sizes=batch_size or (1024,),
                device=device,
                backend=backend,
                optimizer=optimizer,
                pool=table_pool(pool),
                sequence_share=sequence_share,
                arena_bytes=parse_bytes(memory, "--memory"),
                allow_other_hardware=allow_other_hardware,
                progress=report,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; all samples measured so far are in {output}: run the same command again to go on"
        ) from None
    rate = summary.measured / summary.seconds
    text = (
        f"{summary.samples} samples in {summary.folder}; {summary.measured} measurements in {summary.seconds:.0f} s ({rate:.1f} a second)\n"
        f"repeats of a sample differ by {percent(summary.repeat_mean)} (mean), {percent(summary.repeat_median)} (median); "
        f"{percent(summary.disturbed)} of the measurements were made while the machine was not quiet\n"
        f"next: shardwright train {summary.folder} -o model.safetensors"
    )
    emit(asdict(summary) | {"folder": str(summary.folder)}, text, as_json=as_json)
