"""Collecting samples: measure random sets of tables until there are enough, resuming where an earlier process stopped.

`python -m shardwright.measure.collect --help` needs torch, fbgemm_gpu, numpy and pyarrow only.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, time
from typing import Any

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.measure.backend import BACKENDS, default_backend
from shardwright.measure.hardware import fingerprint
from shardwright.measure.journal import Key
from shardwright.measure.printer import Printer
from shardwright.measure.sampling import SampleSpace, TableSet, pool_digest
from shardwright.measure.schedule import schedule as _schedule
from shardwright.measure.session import Measurement
from shardwright.measure.store import SampleStore, read_samples
from shardwright.measure.summary import CollectSummary, summarise
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.wire import describe_work
from shardwright.measure.worker_client import Worker, WorkerOptions
from shardwright.task.table import Table
from shardwright.task.task import OPTIMIZERS

_FLUSH_S = 30.0
_AGAIN_AFTER_S = 60.0
ARENA_BYTES = 4_000_000_000

Progress = Callable[[int, int], None]
"""Called after each visit with the measurements settled and wanted, in all."""


def collect(
    folder: str | Path,
    *,
    samples: int,
    seed: int = 0,
    batch_sizes: Sequence[int] = (1024,),
    device: str = "cpu",
    backend: str | None = None,
    optimizer: str = "rowwise_adagrad",
    pool: Sequence[Table] | None = None,
    sequence_share: float = 0.0,
    arena_bytes: int = ARENA_BYTES,
    policy: TimingPolicy | None = None,
    allow_other_hardware: bool = False,
    progress: Progress | None = None,
) -> CollectSummary:
    """Measure random sets of tables into a sample store; call it again to resume after any interruption.

    Sample i follows from the seed and i alone. Every 20th sample is measured a second time ten samples later, rebuilt from scratch. A
    sample that was disturbed (see `shardwright.measure.sentinel`) is visited up to two more times, a minute later; the shortest
    times count. Calling it again, with the machine quiet, so improves a store that was collected on a busy machine.

    Args:
        folder: the store; made if it does not exist.
        samples: how many samples the store is to hold in the end.
        seed: seed of the sets of tables.
        batch_sizes: each sample draws one of these.
        device: "cpu" or "cuda".
        backend: "fbgemm" or "embedding_bag"; by default fbgemm where it is installed.
        optimizer: optimizer inside backward.
        pool: tables to draw from; by default the "dlrm-2021" pool.
        sequence_share: share of sets whose tables are not pooled.
        arena_bytes: room for the weights and optimizer state of a set.
        policy: how often to repeat each measurement; by default the device's own.
        allow_other_hardware: add to a store that was made on other hardware.
        progress: called after each visit with the measurements that are settled and those wanted.

    Raises:
        InvalidInput: an option breaks a rule, or the store is of other hardware or another request.
        MeasurementFailed: a kernel could not be run; what was measured before is kept.
    """
    _check_options(samples, seed, device, optimizer)
    if pool is None:
        from shardwright.workload.pools import table_pool

        pool = table_pool("dlrm-2021")
    backend = backend or default_backend()
    room = arena_bytes - arena_bytes // 100
    space = SampleSpace(tuple(pool), seed, tuple(batch_sizes), optimizer, room, sequence_share)
    request = {
        "seed": seed,
        "batch_sizes": list(batch_sizes),
        "optimizer": optimizer,
        "sequence_share": sequence_share,
        "arena_bytes": arena_bytes,
        "pool": pool_digest(pool),
    }
    started = monotonic()
    hardware = fingerprint(device, backend)
    with SampleStore(Path(folder), hardware, request, allow_other_hardware=allow_other_hardware) as store:
        wanted = list(_schedule(samples))
        todo = [key for key in wanted if not store.visits.settled(key)]
        measured = 0
        if todo:
            with Worker(WorkerOptions(device, backend, arena_bytes, policy)) as worker:
                for measured, left in enumerate(_measure(space, todo, worker, store), 1):  # noqa: B007
                    if progress:
                        progress(len(wanted) - left, len(wanted))
    return summarise(Path(folder), read_samples(folder, allow_other_hardware=True), measured, monotonic() - started)


def _measure(space: SampleSpace, todo: Sequence[Key], worker: Worker, store: SampleStore) -> Iterator[int]:
    """Visit samples until all are settled; yields after each visit how many are not.

    New samples come first. A disturbed one is visited again when a minute has passed, or nothing else is left.
    """
    new = deque(key for key in todo if not store.visits.seen(key))
    again = deque((0.0, key) for key in todo if store.visits.seen(key))
    flushed = monotonic()
    while new or again:
        due = again and (not new or again[0][0] <= monotonic())
        key = again.popleft()[1] if due else new.popleft()
        drawn = space.draw(key[0])
        measurement = worker.measure(drawn.works, drawn.seeds, space.optimizer)
        store.append(_row(drawn, key[1], space.optimizer, store.hardware["device_kind"], measurement))
        if not store.visits.settled(key):
            again.append((monotonic() + _AGAIN_AFTER_S, key))
        if monotonic() - flushed > _FLUSH_S:
            store.flush()
            flushed = monotonic()
        yield len(new) + len(again)


def _row(drawn: TableSet, repeat: int, optimizer: str, device_kind: str, measurement: Measurement) -> dict[str, Any]:
    """The store's row of a measured sample."""
    return {
        "sample": drawn.sample,
        "repeat": repeat,
        "batch_size": drawn.batch_size,
        "optimizer": optimizer,
        "device_kind": device_kind,
        "forward_ms": measurement.forward_ms,
        "backward_ms": measurement.backward_ms,
        "runs": measurement.runs,
        "sentinel": measurement.sentinel,
        "measured_at": int(time() * 1000),
        "shards": [describe_work(work) for work in drawn.works],
    }


def _check_options(samples: int, seed: int, device: str, optimizer: str) -> None:
    if samples < 1:
        raise InvalidInput(f"samples is {samples}, must be at least 1")
    if seed < 0:
        raise InvalidInput(f"seed is {seed}, must not be negative")
    if device not in ("cpu", "cuda"):
        raise InvalidInput(f"device is {device!r}, must be 'cpu' or 'cuda'")
    if optimizer not in OPTIMIZERS:
        raise InvalidInput(f"optimizer is {optimizer!r}, must be one of {', '.join(OPTIMIZERS)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line, for machines where only the measuring packages are installed."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.collect", description="Measure random sets of tables."
    )
    parser.add_argument("-o", "--output", required=True, help="the sample store (a folder)")
    parser.add_argument("-n", "--samples", type=int, default=8000, help="samples the store is to hold (default 8000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1024], help="one or more; each sample draws one")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=BACKENDS, help="default: fbgemm where it is installed")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="rowwise_adagrad")
    parser.add_argument("--pool", default="dlrm-2021", help="name of the table pool (default dlrm-2021)")
    parser.add_argument(
        "--sequence-share", type=float, default=0.0, help="share of sets that are not pooled (default 0)"
    )
    parser.add_argument("--allow-other-hardware", action="store_true", help="add to a store made on other hardware")
    options = parser.parse_args(arguments)
    try:
        from shardwright.workload.pools import table_pool

        summary = collect(
            options.output,
            samples=options.samples,
            seed=options.seed,
            batch_sizes=options.batch_size,
            device=options.device,
            backend=options.backend,
            optimizer=options.optimizer,
            pool=table_pool(options.pool),
            sequence_share=options.sequence_share,
            allow_other_hardware=options.allow_other_hardware,
            progress=Printer(),
        )
    except ShardwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to go on", file=sys.stderr)
        return 130
    print(
        f"\n{summary.samples} samples in {summary.folder}; {summary.measured} measurements in {summary.seconds:.0f} s; "
        f"repeats differ by {summary.repeat_median:.1%} (median), {summary.repeat_mean:.1%} (mean); "
        f"{summary.disturbed:.1%} measured on a machine that was not quiet"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
