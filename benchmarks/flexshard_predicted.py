"""Bytes between hosts and communication time of sequence tables, predicted: writes results/flexshard_predicted.md.

    python benchmarks/flexshard_predicted.py [--models 20 50 100 200] [--seeds 3]

At equal memory (1.0 to 1.5 times the rows of a row-wise plan, with the buffers of that plan) every strategy is held against `row_wise` with
every lookup sent. First one table of 10 million rows × 128 on 8 hosts of 8 devices, where an estimate by hand exists; then models.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from results_table import write_results
from sequence_models import EXCHANGES, STRATEGIES, Sent, against, cluster, model, sent, task_of, with_memory

from shardwright.task import AccessProfile, Exchange, Table, Task

BY_HAND = {0.8: "−46% · 1.8×", 1.0: "−75% · 3.8×", 1.1: "−86% · 6.7×", 1.15: "−90% · 9.3×", 1.2: "−93% · 13×"}
SKEWS = (0.8, 0.9, 1.0, 1.1, 1.15, 1.2, 1.3)
CASES = ((1.0, ("row_wise",)), *((factor, STRATEGIES[1:]) for factor in (1.1, 1.25, 1.5)))
"""Memory, and strategies: with the memory of a row-wise plan all are one, and that one does not gain by more."""
SHAPES = {"Zipf 0.8-1.3": (0.8, 1.3), "Zipf 1.1-1.3": (1.1, 1.3)}
Row = list[object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, nargs="*", default=[20, 50, 100, 200], help="numbers of tables")
    parser.add_argument("--seeds", type=int, default=3, help="models of each number of tables; cells are medians")
    options = parser.parse_args(arguments)
    what = "bytes between hosts and speed of communication against row_wise with every lookup sent"
    tables = [
        (
            "One table of 10 million rows × 128, 200 lookups a sample, 4,096 samples a device, 8 × 8 devices, 200 GB/s inside hosts and "
            f"12.5 GB/s between, no latency, SGD, 1.25 × memory, every lookup sent, whole gradients: {what}.",
            ["Zipf", "by hand", "flexshard", "hot rows", "warm rows", "gap"],
            by_hand(),
        ),
        (
            f"The same table in other memory, exchanged otherwise: {what}.",
            ["exchange", "memory", "strategy", *map(str, SKEWS)],
            one_table(),
        ),
        (
            "Models: rows 1 to 30 million, dims 32, 64 and 128, mean lengths 50 to 1,000, 4,096 samples a device, row-wise Adagrad, 8 × 8 "
            f"devices, 450 GB/s inside hosts and 50 GB/s between, latency 0.02 and 0.04 ms: {what}. Medians of {options.seeds} models.",
            ["accesses", "exchange", "memory", "strategy", *(f"{count} tables" for count in options.models)],
            many_tables(options.models, options.seeds),
        ),
    ]
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    write_results(
        "flexshard_predicted",
        "Tiers of sequence tables, predicted",
        tables,
        f"python benchmarks/flexshard_predicted.py {given}".rstrip(),
    )


def table_by_hand(skew: float, exchange: Exchange | None = None) -> Task:
    """The task of the estimate by hand, without a limit of memory."""
    table = Table("sequence", 10_000_000, 128, 200.0, False, AccessProfile.zipf(10_000_000, skew))
    topology = cluster(8, inside="200 GB/s", between="12.5 GB/s", waits=(0.0, 0.0))
    return replace(task_of([table], topology, optimizer="sgd"), exchange=exchange or Exchange())


def by_hand() -> list[Row]:
    from shardwright.search.flexshard import tier_plan

    rows: list[Row] = []
    for skew, claim in BY_HAND.items():
        (task,) = with_memory(table_by_hand(skew), 1.25)
        ((hot, warm),) = (found := tier_plan(task)).boundaries.values()
        cells = against(sent(task, "flexshard"), base_of(task))
        rows.append([skew, claim, cells, f"{hot:,}", f"{warm - hot:,}", f"{found.gap:.2%}"])
    return rows


def base_of(task: Task) -> Sent:
    """What a row-wise plan sends, every lookup and whole gradients."""
    found = sent(replace(task, exchange=Exchange()), "row_wise")
    assert found is not None
    return found


def one_table() -> list[Row]:
    roomy = [table_by_hand(skew) for skew in SKEWS]
    cells = cells_of(roomy)
    return [
        [*key, *(against(one, base) for one, base in found)]
        for key, found in cells.items()
        if any(one for one, _ in found)
    ]


def many_tables(counts: Sequence[int], seeds: int) -> list[Row]:
    rows: dict[tuple[object, ...], list[str]] = {}
    for shape, skews in SHAPES.items():
        for count in counts:
            cells = cells_of([task_of(model(seed, count, skews), cluster(8)) for seed in range(seeds)])
            for key, found in cells.items():
                rows.setdefault((shape, *key), []).append(median_of(found))
    return [[*key, *cells] for key, cells in rows.items()]


def cells_of(roomy: Sequence[Task]) -> dict[tuple[str, float, str], list[tuple[Sent | None, Sent]]]:
    """What plans of some tasks send, with that of the row-wise plan, by exchange, memory and strategy."""
    bases = [base_of(task) for task in roomy]
    by_factor = list(zip(*(with_memory(task, *(factor for factor, _ in CASES)) for task in roomy), strict=True))
    return {
        (name, factor, strategy): [
            (sent(replace(task, exchange=exchange), strategy), base) for task, base in zip(tasks, bases, strict=True)
        ]
        for name, exchange in EXCHANGES.items()
        for (factor, strategies), tasks in zip(CASES, by_factor, strict=True)
        for strategy in strategies
    }


def median_of(found: Sequence[tuple[Sent | None, Sent]]) -> str:
    """The cell of the middle model."""
    pairs = [(one, base) for one, base in found if one is not None]
    if len(pairs) < len(found):
        return "does not fit"
    saved = float(np.median([one.bytes / base.bytes - 1 for one, base in pairs]))
    faster = float(np.median([base.ms / one.ms for one, base in pairs]))
    return f"{saved:+.1%} · {faster:.2f}×"


if __name__ == "__main__":
    main()
