"""`shardwright collect`: measure this machine's kernels, or its collectives, into a sample store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from shardwright.cli.checks import check_absent, check_folder
from shardwright.cli.errors import Interrupted
from shardwright.cli.options import AsJson, BackendName, Device, RayAddress, Seed, option
from shardwright.cli.output import emit, note, percent, progress
from shardwright.errors import require
from shardwright.measure.backends import is_own
from shardwright.measure.stock import seconds_or_default
from shardwright.task.quantities import parse_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import measuring

Output = Annotated[
    Path, option("--output", "-o", metavar="FOLDER", text="The sample store; an existing one is extended.")
]
SampleCount = Annotated[
    int | None,
    option(
        "--samples",
        "-n",
        metavar="N",
        text="Target number of samples in the store. (default 8000, of collectives 2000)",
    ),
]
Collectives = Annotated[
    bool, typer.Option("--collectives", help="Measure collectives between processes instead of kernels.")
]
BatchSizes = Annotated[
    list[int] | None,
    option(
        "--batch-size",
        metavar="N",
        text="Samples a batch; repeat for several. (default: the space's, for collectives four sizes)",
    ),
]
Space = Annotated[
    str | None,
    option("--space", metavar="NAME", text="Range of the sampled sets: usual, or wide. (default usual, on cuda wide)"),
]
OptimizerName = Annotated[
    str | None, option("--optimizer", metavar="NAME", text="Optimizer inside backward. (default: the space's)")
]
PoolName = Annotated[str, typer.Option("--pool", metavar="NAME", help="Table pool that sets are drawn from.")]
SequenceShare = Annotated[
    float | None,
    option("--sequence-share", metavar="X", text="Share of sets with sequence tables. (default: the space's)"),
]
Memory = Annotated[
    str | None,
    option(
        "--memory",
        metavar="SIZE",
        text="Room for the tables of a sample. (default 4 GB, on cuda 45% of the card, at most 60 GB)",
    ),
]
Seconds = Annotated[
    float | None,
    option(
        "--seconds",
        metavar="N",
        text="Stop after this time; the same command resumes. (default none, on cuda 1400; inf for none)",
    ),
]
World = Annotated[int | None, option("--world", metavar="N", text="With --collectives: ranks to start. (default 2)")]
Runs = Annotated[
    int | None,
    option("--runs", metavar="N", text="With --collectives: timed runs per sample; their median counts. (default 10)"),
]
Timeout = Annotated[
    float | None,
    option(
        "--timeout",
        metavar="SECONDS",
        text="With --collectives: a sample that takes longer ends the command. (default 60)",
    ),
]

_OF_KERNELS = ("space", "optimizer", "backend", "sequence_share", "memory", "seconds", "ray")
_OF_COLLECTIVES = ("world", "runs", "timeout")


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
    runs: Runs = None,
    timeout: Timeout = None,
    ray: RayAddress = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure samples to train a cost model on: fused kernels of random sets of tables or, with --collectives, all-to-alls.

    NeuroShard's networks learn from all-to-alls. To measure the links that plans are priced by, use 'shardwright calibrate --links'.

    You can stop the command at any moment and run it again to resume, with or without --ray. Kernels and collectives may go into the
    same folder, and so may the samples of several machines.

    Example:
        shardwright collect -o samples/ --samples 8000
        shardwright collect -o samples/ --ray auto
        shardwright collect -o samples/ --collectives --world 4
    """
    if collectives:
        check_absent(context, _OF_KERNELS, "does not apply to --collectives; leave it out")
    else:
        check_absent(context, _OF_COLLECTIVES, "needs --collectives; add that flag, or leave it out")
    if ray is None:  # with --ray, the machines of the cluster need torch; this one does not
        require("measure", "measuring")
    from shardwright.workload.generators import table_pool

    check_folder(output)
    if not collectives and ray is None and (device == "cuda" or (backend is not None and is_own(backend))):
        from shardwright.measure.checks import require_checked

        require_checked(output, device, backend, say=note)
    common: dict[str, Any] = {"seed": seed, "device": device, "batch_sizes": batch_size, "pool": table_pool(pool)}
    document: measuring.Collect | measuring.CollectCollectives
    try:
        if collectives:
            document, text = _collectives_collected(
                output,
                samples=2000 if samples is None else samples,
                world=world,
                runs=runs,
                timeout_s=60.0 if timeout is None else timeout,
                **common,
            )
        else:
            document, text = _kernels_collected(
                ray,
                output,
                samples=8000 if samples is None else samples,
                space=space,
                backend=backend,
                optimizer=optimizer,
                sequence_share=sequence_share,
                arena_bytes=None if memory is None else parse_bytes(memory, "--memory"),
                seconds=seconds_or_default(seconds, device),
                **common,
            )
    except KeyboardInterrupt:
        stopped = f"stopped; all samples measured so far are in {output}: run the same command again to go on"
        raise Interrupted(stopped) from None
    emit(document, text, as_json=as_json)


def _kernels_collected(
    address: str | None, output: Path, *, backend: str | None, seconds: float | None, **options: Any
) -> tuple[measuring.Collect, str]:
    """Collect kernels, here or on the cluster at an address; return the result as data and as text."""
    from shardwright.measure.collect import collect
    from shardwright.measure.stock import Collection, summary_text

    if address is None:
        with progress("measuring", detail="starting the measuring process") as report:
            summary = collect(output, backend=backend, seconds=seconds, progress=report, **options)
    else:
        from shardwright.cluster import open_cluster
        from shardwright.measure.remote import open_fleet

        collection = Collection(**options)  # reports wrong options before a cluster starts
        collection.sets(collection.arena(lambda: 4 * 10**9))
        with (
            open_cluster(address) as cluster,
            progress("measuring", detail="starting workers") as report,
            open_fleet(cluster, collection.device, backend=backend, checked_in=output) as fleet,
        ):
            for text in fleet.notes:
                note(text)
            summary = collect(output, seconds=seconds, progress=report, fleet=fleet, **options)
    document = cast("measuring.Collect", asdict(summary) | {"folder": str(summary.folder)})
    return document, f"{summary_text(summary)}\nnext: shardwright train {summary.folder} -o model.safetensors"


def _collectives_collected(
    output: Path, *, world: int | None, runs: int | None, timeout_s: float, **options: Any
) -> tuple[measuring.CollectCollectives, str]:
    """Collect all-to-alls between processes of this machine; return the result as data and as text."""
    from shardwright.measure.collectives.collect import collect_collectives, new_collection
    from shardwright.measure.collectives.rank import RunPolicy

    policy = RunPolicy() if runs is None else RunPolicy(runs=runs)
    collection = new_collection(output, world=2 if world is None else world, policy=policy, **options)
    with progress("measuring", detail="starting the ranks") as report:
        summary = collect_collectives(collection, timeout_s=timeout_s, progress=report)
    text = (
        f"{summary.samples} all-to-alls in {summary.folder}; {summary.measured} measurements in {summary.seconds:.0f} s\n"
        f"repeats of a sample differ by {percent(summary.repeat_mean)} (mean), {percent(summary.repeat_median)} (median)\n"
        f"next: shardwright train {summary.folder} --network neuroshard -o model.safetensors"
    )
    return cast("measuring.CollectCollectives", asdict(summary) | {"folder": str(summary.folder)}), text
