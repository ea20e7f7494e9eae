"""Quality of `certified`'s plans against `neuroshard`'s and a proven bound, all on the same cost model.

    python -m benchmarks.search_quality --tasks 100     # NeuroShard's tasks on 4 and on 8 devices: results/search_quality.md
    python -m benchmarks.search_quality --large         # 16 to 128 devices, heavy tails too: results/search_quality_large.md

Every task is planned for the learned CPU model (batch 1,024) and for the published H100 model (batch 65,536). Each is a row of the CSV
file beside the page. A loss is a step longer than `neuroshard`'s by more than a millionth, or a task that only `neuroshard` placed.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks import results_table
from benchmarks.block_times import HALF
from benchmarks.cluster_tasks import cluster_task
from benchmarks.program import Options, options_of, size_of
from benchmarks.quality_tables import (
    Rows,
    above_bound_table,
    large_table,
    paper_table,
    proof_table,
    strategy_table,
    worst_table,
)  # fmt: skip
from benchmarks.search_outcome import BATCH, Outcome, Search
from shardwright.files import write_atomically
from shardwright.task import Task
from shardwright.workload import paper_tasks

PAPER_DEVICES = (4, 8)
LARGE = ((200, 16), (500, 64), (1000, 128))
PROOFS = (
    "Tasks by the end of `certified`'s search: proven within the tolerance, settled because kicks gained nothing, or at the deadline. Then "
    "the gap of its plan after each part of the proof, without a time limit, and the tasks by the part that gave the best bound."
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=(100, "tasks for 4 and for 8 devices, of each cost model"),
        large=(False, "clusters of hosts instead of the paper's tasks"),
        tails=(["pool", "heavy"], "tables of --large", ["pool", "heavy"]),
        sizes=(LARGE, "sizes of --large", {"metavar": "TxD", "type": size_of}), seeds=(5, "tasks of each size of --large"),
        models=(list(BATCH), "", list(BATCH)), tolerance=(0.002, "gap at which certified stops"), time_limit=(20.0, "seconds a search"),
    )  # fmt: skip
    command = results_table.command_of("search_quality", arguments)
    search = Search(options.tolerance, options.time_limit)
    search.warm_up(options.models)
    wanted = large_tasks(options) if options.large else small_tasks(options)
    of_model = (
        len(options.tails) * len(options.sizes) * options.seeds if options.large else options.tasks * len(PAPER_DEVICES)
    )
    total = len(options.models) * of_model
    outcomes = []
    for done, (group, task) in enumerate(wanted, start=1):
        outcomes.append(search.outcome(group, task))
        print(f"{done}/{total} {outcomes[-1].line}", file=sys.stderr, flush=True)
    (write_large if options.large else write_paper)(outcomes, options, command)


def small_tasks(options: Options) -> Iterator[tuple[str, Task]]:
    """Yield NeuroShard's tasks, alternating between settings so that a slow hour affects all of them alike."""
    settings = [(model, devices) for model in options.models for devices in PAPER_DEVICES]
    drawn = [
        paper_tasks(options.tasks, devices=devices, batch_size=BATCH[model], device=model, seed=2026)
        for model, devices in settings
    ]
    for number in range(options.tasks):
        for (model, devices), tasks in zip(settings, drawn, strict=True):
            yield f"{model}, {devices} devices", tasks[number]


def large_tasks(options: Options) -> Iterator[tuple[str, Task]]:
    """Yield tasks on clusters, small clusters first."""
    for (tables, devices), model, tail in product(options.sizes, options.models, options.tails):
        for seed in range(options.seeds):
            size = {"tables": tables, "devices": devices, "batch_size": BATCH[model]}
            task = cluster_task(seed, **size, device=model, heavy_tail=tail == "heavy")
            yield f"{model}, {tables} × {devices}, {tail}", task


def write_paper(outcomes: list[Outcome], options: Options, command: str) -> None:
    caption = (
        f"{options.tasks} tasks of each setting (T in [10, 60) on 4 devices, [20, 120) on 8; max dim 128; 4 GB a device). `certified` with "
        f"tolerance {options.tolerance:.1%} and at most {options.time_limit:g} s. A gap is (step − bound) / bound. "
        f"`block_times.py` explains when a table binds or is costly to cut; the limit in both is at least {HALF:.0%} of the step."
    )
    write(
        "search_quality",
        "Quality of the searches on the paper's tasks",
        (caption, *paper_table(outcomes)),
        outcomes,
        command,
    )


def write_large(outcomes: list[Outcome], options: Options, command: str) -> None:
    caption = (
        f"{options.seeds} tasks of each size, tables as in the pool or with a heavy tail (`cluster_tasks.py`), hosts of 8 devices. "
        f"`certified` with tolerance {options.tolerance:.1%} and at most {options.time_limit:g} s. Removed: share of `neuroshard`'s "
        f"excess over the bound that `certified` removes, 1 − (certified − bound) / (neuroshard − bound); of all: the same "
        "of the sums over the tasks, each in units of its bound."
    )
    title = "Quality of the searches on large clusters"
    write("search_quality_large", title, (caption, *large_table(outcomes)), outcomes, command)


def write(
    name: str, title: str, first: tuple[str, tuple[str, ...], Rows], outcomes: list[Outcome], command: str
) -> None:
    """Write the page with its first table and every task as a row of `results/<name>.csv`."""
    tables = [
        first,
        ("Step of `certified` divided by that of others, and the excess of each over `certified`'s bound.", *above_bound_table(outcomes)),
        ("Tasks not placed, and median seconds of a search.", *strategy_table(outcomes)),
        (PROOFS, *proof_table(outcomes)),
        ("The ten widest gaps.", *worst_table(outcomes)),
    ]  # fmt: skip
    results_table.write_results(name, title, tables, command)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(outcomes[0].columns)
    writer.writerows(outcome.values for outcome in outcomes)
    write_atomically(results_table.RESULTS / f"{name}.csv", text.getvalue())


if __name__ == "__main__":
    main()
