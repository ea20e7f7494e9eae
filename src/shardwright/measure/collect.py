"""Collecting samples: measure random sets of tables until there are enough, resuming where an earlier process stopped.

`python -m shardwright.measure.collect --help` needs torch, fbgemm_gpu, numpy and pyarrow only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from shardwright.errors import ShardwrightError, printable
from shardwright.measure.backends import BACKEND_HELP, check_backend, default_backend
from shardwright.measure.breadth import BREADTHS
from shardwright.measure.checks.run import require_checked
from shardwright.measure.collection import Collection, request_of, seconds_or_default
from shardwright.measure.drawing import Drawer
from shardwright.measure.failures import Failures
from shardwright.measure.hardware import fingerprint
from shardwright.measure.homes import home_of
from shardwright.measure.own_backend import is_own
from shardwright.measure.printer import Printer, Progress
from shardwright.measure.schedule import schedule
from shardwright.measure.store import SampleStore, read_samples
from shardwright.measure.summary import CollectSummary, summarise, summary_text
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visiting import Visitor
from shardwright.measure.worker_client import Worker, WorkerOptions
from shardwright.task.table import Table
from shardwright.task.task import OPTIMIZERS
from shardwright.task.units import parse_bytes


def collect(
    folder: str | Path,
    *,
    samples: int,
    seed: int = 0,
    space: str | None = None,
    batch_sizes: Sequence[int] | None = None,
    device: str = "cpu",
    backend: str | None = None,
    optimizer: str | None = None,
    pool: Sequence[Table] | None = None,
    sequence_share: float | None = None,
    arena_bytes: int | None = None,
    seconds: float | None = None,
    policy: TimingPolicy | None = None,
    allow_other_hardware: bool = False,
    progress: Progress | None = None,
) -> CollectSummary:
    """Measure random sets of tables into a sample store; call it again to resume after any interruption.

    Sample i follows from the seed and i alone. Every 20th sample is measured a second time ten samples later, rebuilt from scratch. A
    sample that was disturbed (see `shardwright.measure.sentinel`) is visited up to two more times, a minute later; the shortest
    times count. Calling it again, with the machine quiet, so improves a store that was collected on a busy machine. On a GPU a sample
    that cannot be measured is noted beside the store and skipped; on a CPU it ends the collection.

    Args:
        folder: the store; made if it does not exist. Where the samples of this machine lie in a store of their own in it, beside those of
            other hardware (`shardwright.measure.homes`), they go on there.
        samples: how many samples the store is to hold in the end.
        seed: seed of the sets of tables.
        space: "usual" or "wide" (see `shardwright.measure.breadth`); by default "wide" on a GPU.
        batch_sizes: each sample draws one of these; by default those of the space.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or one's own as "package.module:ClassName", which is checked before samples are made of it
            (`shardwright.measure.checks`); by default fbgemm where it is installed.
        optimizer: optimizer inside backward; by default those of the space, of which each sample draws one.
        pool: tables to draw from; by default the "dlrm-2021" pool.
        sequence_share: share of sets whose tables are not pooled; by default that of the space.
        arena_bytes: room for the weights and optimizer state of a set; by default 4 GB, on a GPU 45% of its memory up to 60 GB.
        seconds: stop after this time; by default when all samples are there.
        policy: how often to repeat each measurement; by default the device's own.
        allow_other_hardware: add to a store that was made on other hardware.
        progress: called after each visit with the samples that were measured, those wanted, and how many are to be revisited and why.

    Raises:
        InvalidInput: an option breaks a rule, or the store is of other hardware or another request.
        MeasurementFailed: a kernel could not be run; what was measured before is kept. Or a backend of one's own does not pass.
    """
    collection = Collection(samples, seed, space, batch_sizes, device, optimizer, pool, sequence_share, arena_bytes)
    started, backend, arena = monotonic(), backend or default_backend(), collection.arena()
    check_backend(backend)
    drawn_from, hardware = collection.sets(arena), fingerprint(device, backend)
    path, on_cpu = home_of(Path(folder), hardware, allow_other_hardware=allow_other_hardware), device == "cpu"
    if is_own(backend):
        require_checked(path, device, backend)
    request = request_of(drawn_from, arena)
    with (
        SampleStore(path, hardware, request, allow_other_hardware=allow_other_hardware) as store,
        Drawer(drawn_from, ahead=not on_cpu) as drawer,
    ):
        visitor = Visitor(
            drawer,
            store,
            None if on_cpu else Failures(path),
            lambda: Worker(WorkerOptions(device, backend, arena, policy)),
            started + (math.inf if seconds is None else seconds),
        )
        visitor.visit(list(schedule(samples)), progress)
    measured = read_samples(path, allow_other_hardware=True) if len(store.visits) else None
    return replace(
        summarise(path, measured, visitor.measured, monotonic() - started),
        wanted=samples,
        failed=len(visitor.failures or ()),
        spent=dict(visitor.spent),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line, for machines where only the measuring packages are installed."""
    options = _parser().parse_args(arguments)
    try:
        from shardwright.workload.pools import table_pool

        summary = collect(
            options.output,
            samples=options.samples,
            seed=options.seed,
            space=options.space,
            batch_sizes=options.batch_size,
            device=options.device,
            backend=options.backend,
            optimizer=options.optimizer,
            pool=table_pool(options.pool),
            sequence_share=options.sequence_share,
            arena_bytes=parse_bytes(options.memory, "--memory") if options.memory else None,
            seconds=seconds_or_default(options.seconds, options.device),
            allow_other_hardware=options.allow_other_hardware,
            progress=Printer(),
        )
    except ShardwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to go on", file=sys.stderr)
        return 130
    print(f"\n{summary_text(summary)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.collect", description="Measure random sets of tables."
    )
    add = parser.add_argument
    add("-o", "--output", required=True, help="the sample store (a folder)")
    add("-n", "--samples", type=int, default=8000, help="samples the store is to hold (default 8000)")
    add(
        "--seconds",
        type=float,
        help="stop after this time; the same command again goes on (default none, on cuda 1400; inf for none)",
    )
    add("--seed", type=int, default=0)
    add("--space", choices=tuple(BREADTHS), help="how wide to sample (default: wide on cuda, else usual)")
    add("--batch-size", type=int, nargs="+", help="one or more; each sample draws one (default: the space's)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--backend", metavar="NAME", help=BACKEND_HELP)
    add("--optimizer", choices=OPTIMIZERS, help="default: the space's")
    add("--pool", default="dlrm-2021", help="name of the table pool (default dlrm-2021)")
    add("--sequence-share", type=float, help="share of sets that are not pooled (default: the space's)")
    add("--memory", metavar="SIZE", help="room for the tables of a sample, as in '4 GB'")
    add("--allow-other-hardware", action="store_true", help="add to a store made on other hardware")
    return parser


if __name__ == "__main__":
    sys.exit(main())
