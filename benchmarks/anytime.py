"""Step time against search time: what `certified` has found after each of some time limits, and when it ends by itself.

    python -m benchmarks.anytime --rows rows.jsonl --engine native
    python -m benchmarks.anytime --rows rows.jsonl --page

Every size is a process of its own, which plans a small task first, so that libraries are loaded. Rows of another engine or release that
this program measured on the same machine go into the same file; the page compares each engine with the first in it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

SIZES = {"100 x 8": (100, 8), "200 x 16": (200, 16), "500 x 64": (500, 64), "1000 x 128": (1000, 128)}
LIMITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="where rows are kept, a line each")
    parser.add_argument("--engine", help="what to call what is measured")
    parser.add_argument("--tasks", type=int, default=4, help="tasks a size")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--longest", type=float, default=math.inf, help="seconds: limits above are left out")
    parser.add_argument("--page", action="store_true", help="write the page from the rows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options)
    elif options.page:
        page(options.rows)
    else:
        for size in options.sizes:
            subprocess.run([sys.executable, "-m", "benchmarks.anytime", *sys.argv[1:], "--one", size], check=True)


def measure(options: argparse.Namespace) -> None:
    """Plan the tasks of one size under every limit, and keep a row each."""
    import shardwright as sw
    from shardwright.cost.choice import cost_model_for
    from shardwright.workload import random_task

    tables, devices = SIZES[options.one]
    model = cost_model_for("cpu")
    for seed in range(options.tasks):
        task = random_task(seed, tables=tables, devices=devices, device="cpu", batch_size=1024 * devices)
        if not seed:
            sw.plan(
                random_task(1, tables=20, devices=4, device="cpu"),
                strategy="certified",
                cost_model=model,
                time_limit=3.0,
            )
        for limit in (one for one in LIMITS if one is None or one <= options.longest):
            began = time.perf_counter()
            plan = sw.plan(task, strategy="certified", cost_model=model, seed=seed, time_limit=limit)
            row = {
                "engine": options.engine,
                "size": options.one,
                "seed": seed,
                "limit": limit,
                "seconds": time.perf_counter() - began,
                "step_ms": plan.cost.step_ms,
                "bound_ms": plan.bound_ms,
            }
            with options.rows.open("a") as rows:
                rows.write(json.dumps(row) + "\n")


def page(path: Path) -> None:
    """Two tables a size: steps after each limit, and searches that end by themselves."""
    from benchmarks.results_table import write_results

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    found = defaultdict(dict)
    for row in rows:
        found[row["engine"], row["size"], row["limit"]][row["seed"]] = row
    tables = []
    for size in SIZES:
        base = found[engines[0], size, None]
        lines = []
        for limit in LIMITS:
            cells = [_against(found[engine, size, limit], base) for engine in engines]
            if any(cells):
                lines.append(("its own end" if limit is None else f"{limit:g} s", *(cell or "–" for cell in cells)))
        if lines:
            tables.append(
                (
                    f"{size}: step over that of {engines[0]} at its own end (seconds that it took)",
                    ("limit", *engines),
                    lines,
                )
            )
    rows_of_gaps = [
        (size, *(_gap(found[engine, size, None]) or "–" for engine in engines))
        for size in SIZES
        if found[engines[0], size, None]
    ]
    tables.append(("Gap to each engine's bound where a search ends by itself, mean", ("size", *engines), rows_of_gaps))
    write_results(
        "anytime",
        "Step time against search time",
        tables,
        "python -m benchmarks.anytime --rows rows.jsonl --engine NAME, then --page",
    )


def _against(rows: dict[int, dict[str, float]], base: dict[int, dict[str, float]]) -> str:
    """Geometric mean of steps over those of other rows, and mean seconds."""
    seeds = [seed for seed in rows if seed in base]
    if not seeds:
        return ""
    ratio = math.exp(sum(math.log(rows[seed]["step_ms"] / base[seed]["step_ms"]) for seed in seeds) / len(seeds))
    return f"{ratio:.3f} ({sum(rows[seed]['seconds'] for seed in seeds) / len(seeds):.2f})"


def _gap(rows: dict[int, dict[str, float]]) -> str:
    gaps = [100 * (row["step_ms"] / row["bound_ms"] - 1) for row in rows.values() if row["bound_ms"]]
    return f"{sum(gaps) / len(gaps):.2f}%" if gaps else ""


if __name__ == "__main__":
    main()
