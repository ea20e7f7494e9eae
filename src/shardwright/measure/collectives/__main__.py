"""The command line `python -m shardwright.measure.collectives`, also under torchrun; needs only torch, numpy and pyarrow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shardwright.errors import telling_errors
from shardwright.measure.collectives.rank import RunPolicy
from shardwright.measure.collectives.sampling import KINDS
from shardwright.measure.collectives.torchrun import collect_as_started
from shardwright.measure.measuring import Printer


@telling_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line, for machines with only the measuring packages; returns the exit code."""
    options = vars(_parser().parse_args(arguments))
    policy = RunPolicy(options.pop("warm_up"), options.pop("runs"))
    summary = collect_as_started(options.pop("folder"), policy=policy, progress=Printer(), **options)
    if summary is not None:
        print(
            f"\n{summary.samples} samples in {summary.folder}, {summary.skipped} skipped; {summary.measured} measurements in "
            f"{summary.seconds:.0f} s; repeats differ by {summary.repeat_median:.1%} (median), {summary.repeat_mean:.1%} (mean)"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.collectives", description="Measure random collectives."
    )
    parser.add_argument("-o", "--output", dest="folder", required=True, help="the sample store (a folder)")
    parser.add_argument("-n", "--samples", type=int, default=2000, help="samples the store is to hold (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--world", type=int, help="ranks to start (default 2; under torchrun its own)")
    parser.add_argument("--hosts", type=int, help="hosts the ranks stand for (default 1; under torchrun its own)")
    parser.add_argument(
        "--batch-size", dest="batch_sizes", type=int, nargs="+", help="one or more; each sample draws one"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of collectives (default all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="gloo or NCCL (one GPU a rank)")
    parser.add_argument(
        "--timeout", dest="timeout_s", type=float, default=60.0, help="seconds a sample may take (default 60)"
    )
    parser.add_argument("--warm-up", type=int, default=RunPolicy.warm_up, help="runs that are not counted (default 5)")
    parser.add_argument(
        "--runs", type=int, default=RunPolicy.runs, help="counted runs; their median is kept (default 10)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
