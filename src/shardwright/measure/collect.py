"""Collect samples: measure random sets of tables until there are enough, resuming where an earlier process stopped.

`python -m shardwright.measure.collect --help` needs torch, fbgemm_gpu, numpy and pyarrow only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from shardwright.errors import telling_errors
from shardwright.hardware import default_backend, fingerprint
from shardwright.measure.backends import BACKEND_HELP, check_backend, is_own
from shardwright.measure.campaign import Campaign
from shardwright.measure.checks import require_checked
from shardwright.measure.device_work import Job, Visit
from shardwright.measure.measurer import Measurer, Visitor
from shardwright.measure.measuring import Printer
from shardwright.measure.sampling import BREADTHS
from shardwright.measure.stock import (
    Collection,
    CollectSummary,
    Stock,
    seconds_or_default,
    summarise,
    summary_text,
)
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visits import Progress
from shardwright.task.quantities import parse_bytes
from shardwright.task.task import OPTIMIZERS

if TYPE_CHECKING:
    from shardwright.measure.remote import Fleet

_AHEAD = 3  # number of sets drawn before they are needed


def collect(
    folder: str | Path,
    *,
    backend: str | None = None,
    seconds: float | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    fleet: Fleet | None = None,
    **options: Any,
) -> CollectSummary:
    """Measure random sets of tables into a sample store; call it again to resume after any interruption.

    Sample i depends only on the seed and i. Every 20th sample is visited a second time, rebuilt from scratch. A disturbed sample (see
    `shardwright.measure.timing`) is visited up to two more times, a minute later. So another call on a quiet machine improves a store that
    was collected on a busy one. A store may hold samples of other machines and of other collections too. On a GPU a sample that cannot be
    measured is noted and skipped; on a CPU it ends the collection. This machine or the machines of a cluster may continue a store: both
    measure the same sets, and only this process writes samples.

    Args:
        folder: the store; made if it does not exist.
        backend: "fbgemm", "embedding_bag", or your own as "package.module:ClassName", which is checked before samples are measured with
            it (`shardwright.measure.checks`); by default fbgemm if it is installed.
        seconds: stop after this time; by default when all samples are measured.
        policy: how often to repeat each measurement; by default the policy of the device.
        progress: called after each visit with the samples measured, those wanted, and how many are to be visited again.
        fleet: workers of a cluster that measure instead of this machine, with their own backend and policy.
        **options: options of `shardwright.measure.stock.Collection`: number of samples, kinds of sets, device.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: a kernel could not run (earlier measurements are kept), or your own backend did not pass its checks.
        ClusterFailed: no worker of the cluster is left.
    """
    collection = Collection(**options)
    started, path = monotonic(), Path(folder)
    stop_at = started + (math.inf if seconds is None else seconds)
    if fleet is not None:
        arena, ahead = collection.arena(lambda: fleet.facts.memory), not fleet.cluster.local
        with Stock(path, fleet.facts.hardware, collection, arena, ahead=ahead) as stock:
            _collect(stock, fleet.visitor(arena), stop_at, progress, ahead=fleet.pool.size)
            return summarise(stock, monotonic() - started)
    backend, arena = backend or default_backend(), collection.arena()
    check_backend(backend)
    if is_own(backend):
        require_checked(path, collection.device, backend)
    hardware = fingerprint(collection.device, backend)
    with (
        Stock(path, hardware, collection, arena, ahead=collection.device == "cuda") as stock,
        Measurer(collection.device, backend, arena, policy) as measurer,
    ):
        _collect(stock, measurer, stop_at, progress, ahead=_AHEAD)
        for step, took in measurer.spent.items():
            stock.spent[step] += took
        return summarise(stock, monotonic() - started)


def _collect(stock: Stock, visitor: Visitor, stop_at: float, progress: Progress | None, *, ahead: int) -> None:
    """Visit the sets of a stock until all are settled or `time.monotonic()` reaches `stop_at`; `ahead` sets are drawn ahead."""

    def saw(job: Job, result: Visit | str) -> None:
        stock.saw(job, result)
        if progress:
            again = stock.left - stock.unseen
            told = f"{again} to be visited again" if again else ""
            progress(stock.wanted - stock.unseen, stock.wanted, told)

    campaign = Campaign(visitor, store=stock.store)
    while stock.left and monotonic() < stop_at:  # sets that are visited again may come after the queue's end
        campaign.run(stock.queue(stop_at, ahead), saw=saw)


@telling_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line, for machines that have only the measuring packages."""
    from shardwright.workload.generators import table_pool

    options = vars(_parser().parse_args(arguments))
    memory = options.pop("memory")
    summary = collect(
        options.pop("folder"),
        pool=table_pool(options.pop("pool")),
        arena_bytes=parse_bytes(memory, "--memory") if memory else None,
        seconds=seconds_or_default(options.pop("seconds"), options["device"]),
        progress=Printer(),
        **options,
    )
    print(f"\n{summary_text(summary)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.collect", description="Measure random sets of tables."
    )
    add = parser.add_argument
    add("-o", "--output", dest="folder", required=True, help="the sample store (a folder)")
    add("-n", "--samples", type=int, default=8000, help="samples the store is to hold (default 8000)")
    add(
        "--seconds",
        type=float,
        help="stop after this time; the same command again goes on (default none, on cuda 1400; inf for none)",
    )
    add("--seed", type=int, default=0, help="of the samples")
    add("--space", choices=tuple(BREADTHS), help="range of the sampled sets (default: wide on cuda, else usual)")
    add(
        "--batch-size",
        dest="batch_sizes",
        type=int,
        nargs="+",
        help="one or more; each sample draws one (default: the space's)",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--backend", metavar="NAME", help=BACKEND_HELP)
    add("--optimizer", choices=OPTIMIZERS, help="default: the space's")
    add("--pool", default="dlrm-2021", help="name of the table pool (default dlrm-2021)")
    add("--sequence-share", type=float, help="share of sets that are not pooled (default: the space's)")
    add("--memory", metavar="SIZE", help="room for the tables of a sample, as in '4 GB'")
    return parser


if __name__ == "__main__":
    sys.exit(main())
