"""`shardwright collect`: measure this machine's kernels, or its collectives, into a sample store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import typer

from shardwright.cli.checks import check_folder, check_target, require_torch
from shardwright.cli.collect_collectives import collectives_collected
from shardwright.cli.collect_options import (
    BatchSizes,
    Collectives,
    Export,
    Hosts,
    Kinds,
    Memory,
    OptimizerName,
    Output,
    PoolName,
    Runs,
    SampleCount,
    Seconds,
    SequenceShare,
    Space,
    Timeout,
    World,
)
from shardwright.cli.collect_remote import kernels_collected_on
from shardwright.cli.errors import Interrupted
from shardwright.cli.options import AsJson, BackendName, Device, Seed
from shardwright.cli.output import emit, note, progress, saved
from shardwright.cli.ray_option import RayAddress
from shardwright.errors import InvalidInput
from shardwright.measure.backends import is_own
from shardwright.measure.stock import seconds_or_default
from shardwright.task.units import parse_bytes

_OF_KERNELS = ("space", "optimizer", "backend", "sequence_share", "memory", "seconds", "ray")
_OF_COLLECTIVES = ("world", "hosts", "kind", "runs", "timeout")


def run(
    *,
    context: typer.Context,
    output: Output,
    samples: SampleCount = None,
    collectives: Collectives = False,
    device: Device = "cpu",
    batch_size: BatchSizes = None,
    space: Space = None,
    optimizer: OptimizerName = None,
    backend: BackendName = None,
    pool: PoolName = "dlrm-2021",
    sequence_share: SequenceShare = None,
    memory: Memory = None,
    seconds: Seconds = None,
    world: World = None,
    hosts: Hosts = None,
    kind: Kinds = None,
    runs: Runs = None,
    timeout: Timeout = None,
    ray: RayAddress = None,
    seed: Seed = 0,
    export: Export = None,
    as_json: AsJson = False,
) -> None:
    """Measure fused kernels of random sets of tables, or with --collectives what devices exchange, to train a cost model on.

    Stop it at any moment, and run the same command again to go on, with or without --ray. Both may go into the same folder, and so may
    what several machines measure.

    Example:
        shardwright collect -o samples/ --samples 8000
        shardwright collect -o samples/ --ray auto
        shardwright collect -o samples/ --collectives --world 4
        shardwright collect -o samples/ --export samples.parquet
    """
    _check_together(context, collectives)
    if export is not None:
        _exported(output, export, optimizer, as_json=as_json)
        return
    if ray is None:  # where a cluster measures, its machines need torch, and this one does not
        require_torch("measuring", "measure")
    from shardwright.workload.pools import table_pool

    check_folder(output)
    if not collectives and ray is None and (device == "cuda" or (backend is not None and is_own(backend))):
        from shardwright.measure.checks.run import require_checked

        require_checked(output, device, backend, say=note)
    tables, stopped = table_pool(pool), f"stopped; all samples measured so far are in {output}"
    with _resumable(stopped):
        if collectives:
            document, text = collectives_collected(
                output,
                samples=2000 if samples is None else samples,
                world=world,
                hosts=hosts,
                kinds=kind,
                runs=runs,
                timeout_s=60.0 if timeout is None else timeout,
                seed=seed,
                device=device,
                batch_sizes=batch_size,
                pool=tables,
            )
        else:
            collected = _kernels_collected if ray is None else partial(kernels_collected_on, ray)
            document, text = collected(
                output,
                samples=8000 if samples is None else samples,
                seed=seed,
                space=space,
                batch_sizes=batch_size,
                device=device,
                backend=backend,
                optimizer=optimizer,
                pool=tables,
                sequence_share=sequence_share,
                arena_bytes=None if memory is None else parse_bytes(memory, "--memory"),
                seconds=seconds_or_default(seconds, device),
            )
    if document is not None:
        emit(document, text, as_json=as_json)


def _kernels_collected(output: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """What to say of kernels after collecting them, as data and as text."""
    from shardwright.measure.collect import collect
    from shardwright.measure.stock import summary_text

    with progress("measuring", detail="starting the measuring process") as report:
        summary = collect(output, **options, progress=report)
    text = f"{summary_text(summary)}\nnext: shardwright train {summary.folder} -o model.safetensors"
    return asdict(summary) | {"folder": str(summary.folder)}, text


def _exported(store: Path, file: Path, optimizer: str | None, *, as_json: bool) -> None:
    """Write the samples of a store to a file, and say so."""
    from shardwright.measure.samples import export_parquet

    check_target(file, inputs=[store])
    rows = export_parquet([store], file, optimizer=optimizer)
    text = f"{rows} measurements\nnext: shardwright train {file} -o model.safetensors"
    emit({"output": str(file), "measurements": rows}, text, saved(file), as_json=as_json)


@contextmanager
def _resumable(stopped: str) -> Iterator[None]:
    """Ctrl-C ends the command with one line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{stopped}: run the same command again to go on") from None


def _check_together(context: typer.Context, collectives: bool) -> None:
    """Check that no option is given that the other kind of samples has.

    Raises:
        InvalidInput: one is.
    """
    foreign = _OF_KERNELS if collectives else _OF_COLLECTIVES
    for name in foreign:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            if name == "ray":
                raise InvalidInput(
                    "--ray does not apply to --collectives, whose ranks must run at the same time; leave it out, and start the "
                    "command by torchrun on all machines"
                )
            rule = "does not apply to --collectives" if collectives else "needs --collectives"
            raise InvalidInput(
                f"--{name.replace('_', '-')} {rule}; "
                + ("leave it out" if collectives else "add that flag, or leave it out")
            )
