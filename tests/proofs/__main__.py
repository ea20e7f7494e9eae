"""Run the proofs against brute force: see the package."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.proofs.verdict import judged

HEADS = (
    "tables", "tasks", "with a plan", "all plans priced", "plans priced", "plain bounds", "tightened bounds", "optima of `exact`",
    "bounds too high", "wrong optima", "wrongly infeasible",
)  # fmt: skip
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "proofs.md"
TOLD_EVERY = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if something was found."""
    options = _parsed(arguments)
    if options.case is not None:
        record = judged(options.case, options.seed)
        print(json.dumps(record, indent=1))
        return int(bool(record["findings"]))
    start, records = time.monotonic(), []
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for record in pool.imap_unordered(partial(judged, seed=options.seed), range(options.tasks), chunksize=20):
            records.append(record)
            if record["findings"]:
                print(json.dumps(record, indent=1), file=sys.stderr, flush=True)
            if len(records) % TOLD_EVERY == 0:
                print(f"{len(records)}/{options.tasks} tasks, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return _told(records, time.monotonic() - start, options)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs", description=__doc__)
    parser.add_argument("--tasks", type=int, default=2_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", type=int, help="only this one, and say everything about it")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} among the results")
    return parser.parse_args(arguments)


def _row(name: str, records: Sequence[dict[str, Any]]) -> list[object]:
    findings = [finding.partition(":")[0] for record in records for finding in record["findings"]]
    tightened = sum("tightened" in record["bounds"] for record in records)
    return [
        name, len(records), *(sum(record[key] for record in records) for key in ("possible", "complete", "plans")), len(records),
        tightened, sum(record["exact"] for record in records), *(findings.count(kind) for kind in ("bound", "exact", "infeasible")),
    ]  # fmt: skip


def _told(records: list[dict[str, Any]], seconds: float, options: argparse.Namespace) -> int:
    from experiments.experiment import ResultTable
    from experiments.pages import markdown

    from shardwright.files import write_atomically

    kinds = {kind: [record for record in records if record["kind"] == kind] for kind in ("pooled", "sequence", "mixed")}
    rows = [_row(kind, of_kind) for kind, of_kind in kinds.items()] + [_row("all", records)]
    caption = (
        f"{len(records):,} tasks of seed {options.seed} in {seconds / 60:.0f} minutes, {options.workers} at once. They have 1 to 3 tables "
        "on 1 to 4 devices; memory that is equal or not, ample or too small; constraints, colocated and separated tables, sharding "
        "groups; and ten kinds of cost models, with a GPU's gates among them. If there are too many plans, some thousand are drawn. "
        "Every third task has its bound tightened by a known plan of 1, 1.05 or 2 times the best step. `exact` solves tasks of up to 500 "
        "plans among another third."
    )
    command = " ".join(["python -m tests.proofs", *sys.argv[1:]])
    text = markdown("Proofs against brute force", (), [ResultTable(caption, HEADS, rows)], command, None)
    print(text)
    if options.page:
        write_atomically(PAGE, text)
    return int(any(record["findings"] for record in records))


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:  # read when the libraries are loaded
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, "-m", "tests.proofs", *sys.argv[1:]])
    sys.exit(main())
