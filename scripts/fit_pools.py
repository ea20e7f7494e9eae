"""Make the table pools shipped in `shardwright.workload.data`: tables whose reuse statistics match the published ones.

    python scripts/fit_pools.py [--check]

A pool is a sample from a prior over plausible tables, conditioned on the published totals and reuse histograms of a whole
batch. Metropolis moves change one table at a time, and the tolerance for deviations from the published figures shrinks
from 0.05 to 0.0002. Deterministic for a seed; about two minutes a pool. `--check` only prints how close the shipped pools are.
"""

from __future__ import annotations

import argparse
import csv
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.task import AccessProfile
from shardwright.workload.generators import POOLS, table_pool

Floats = npt.NDArray[np.float64]

MOVES = 200_000
TOLERANCE = (0.05, 0.0002)
JITTER = np.array([0.5, 0.5, 0.12])
DATA = Path(__file__).parents[1] / "src" / "shardwright" / "workload" / "data"

# The prior, over (log rows, log pooling, Zipf exponent). A fifth of the tables are small features (countries, buckets),
# the others are log-normal; larger tables tend to have longer lists.
SMALL_SHARE, SMALL_ROWS = 0.2, np.log([3, 3000])
LARGE_MEAN, LARGE_SPREAD = np.log(250_000), 1.9
POOLING_MEAN, POOLING_SLOPE, POOLING_SPREAD = np.log(3), 0.2, 1.6
EXPONENT_MEAN, EXPONENT_SPREAD = 0.9, 0.3
MOST_ROWS, POOLING_RANGE, MOST_EXPONENT = np.log(5e7), np.log([0.05, 200]), 1.6


def draw_table(rng: np.random.Generator) -> Floats:
    """Draw `(3,)` log rows, log pooling and exponent of a table from the prior."""
    while True:
        large = rng.random() >= SMALL_SHARE
        rows = rng.normal(LARGE_MEAN, LARGE_SPREAD) if large else rng.uniform(*SMALL_ROWS)
        pooling = rng.normal(POOLING_MEAN + POOLING_SLOPE * (rows - 11), POOLING_SPREAD)
        table = np.array([rows, pooling, rng.normal(EXPONENT_MEAN, EXPONENT_SPREAD)])
        if np.isfinite(log_prior(table)):
            return table


def log_prior(table: Floats) -> float:
    """Return a table's log density, up to a constant; minus infinity out of range (a sample looks up at most a third of the rows)."""
    rows, pooling, exponent = table
    in_range = SMALL_ROWS[0] <= rows <= MOST_ROWS and 0 <= exponent <= MOST_EXPONENT
    if not in_range or not POOLING_RANGE[0] <= pooling <= min(POOLING_RANGE[1], max(0, rows - np.log(3))):
        return -np.inf
    small = SMALL_SHARE / np.ptp(SMALL_ROWS) if rows < SMALL_ROWS[1] else 0.0
    large = (
        (1 - SMALL_SHARE)
        * np.exp(-(((rows - LARGE_MEAN) / LARGE_SPREAD) ** 2) / 2)
        / (LARGE_SPREAD * np.sqrt(2 * np.pi))
    )
    pooling_z = (pooling - POOLING_MEAN - POOLING_SLOPE * (rows - 11)) / POOLING_SPREAD
    exponent_z = (exponent - EXPONENT_MEAN) / EXPONENT_SPREAD
    return float(np.log(small + large) - (pooling_z**2 + exponent_z**2) / 2)


def written(table: Floats) -> tuple[int, float, float]:
    """Return rows, pooling and exponent rounded as in the file, so that the fit uses the shipped values."""
    rows, pooling, exponent = table
    return max(3, round(np.exp(rows))), float(f"{np.exp(pooling):.3g}"), round(round(exponent * 50) / 50, 2)


def statistics(rows: int, pooling: float, exponent: float, batch_size: int) -> Floats:
    """Return `(34,)` expected distinct rows, then expected lookups, by reuse bin, of one table in a batch."""
    return np.concatenate(AccessProfile.zipf(rows, exponent).reuse(pooling * batch_size))


def published(name: str) -> dict[str, Any]:
    """Return the published statistics of the data set that a pool stands for."""
    facts = json.loads((files("shardwright.workload") / "data" / "public_models.json").read_text())
    entry: dict[str, Any] = facts[name.replace("dlrm-", "dlrm_datasets_")]
    return entry


def targets(facts: dict[str, Any]) -> Floats:
    """Return `(34,)` distinct rows and lookups by reuse bin; shares are normalised, since they are published with three digits."""
    unique, hits = (np.array(facts[key]) / np.sum(facts[key]) for key in ("unique_row_share", "lookup_share"))
    return np.concatenate([unique * facts["unique_rows"], hits * facts["lookups"]])


def misfit(total: Floats, goal: Floats) -> float:
    """Return the sum of squared deviations: of each bin's share, and relative ones of both totals."""
    off = (total - goal).reshape(2, 17) / goal.reshape(2, 17).sum(axis=1, keepdims=True)
    return float((off**2).sum() + (off.sum(axis=1) ** 2).sum())


def fit(name: str, seed: int) -> list[tuple[int, float, float]]:
    """Fit a pool; returns rows, pooling and exponent of each table."""
    rng = np.random.default_rng(seed)
    facts = published(name)
    goal, batch_size = targets(facts), facts["batch_size"]
    tables = [draw_table(rng) for _ in range(facts["tables"])]
    stats = [statistics(*written(table), batch_size) for table in tables]
    total = np.sum(stats, axis=0)
    for move in range(MOVES):
        tolerance = TOLERANCE[0] * (TOLERANCE[1] / TOLERANCE[0]) ** (move / MOVES)
        place = rng.integers(len(tables))
        table = tables[place] + JITTER * rng.choice([1, 4], p=[0.8, 0.2]) * rng.normal(size=3)
        odds = log_prior(table) - log_prior(tables[place])
        if not np.isfinite(odds):
            continue
        moved = statistics(*written(table), batch_size)
        total_moved = total - stats[place] + moved
        gain = (misfit(total, goal) - misfit(total_moved, goal)) / (2 * tolerance**2)
        if np.log(rng.random()) < gain + odds:
            tables[place], stats[place], total = table, moved, total_moved
    return [written(table) for table in tables]


def report(name: str) -> None:
    """Print the totals and largest errors of the shipped pool."""
    facts = published(name)
    pool = table_pool(name)
    unique, hits = np.sum([table.access.reuse(table.pooling * facts["batch_size"]) for table in pool], axis=0)
    for what, values in (("lookups", hits), ("unique_rows", unique)):
        print(
            f"{name}: {len(pool)} tables, {values.sum():,.0f} {what}, published {facts[what]:,} ({values.sum() / facts[what] - 1:+.4%})"
        )
    for key, values in (("unique_row_share", unique), ("lookup_share", hits)):
        print(f"  {key}: largest error of a bin {np.abs(values / values.sum() - facts[key]).max():.5f}")
    columns: dict[str, list[float]] = {
        "rows": [t.rows for t in pool],
        "pooling": [t.pooling for t in pool],
        "exponent": [t.access.exponent or 0 for t in pool],
    }
    for what, column in columns.items():
        marks = "  ".join(f"{mark:,.2f}" for mark in np.quantile(column, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]))
        print(f"  {what}: mean {np.mean(column):,.2f}; quantiles 0, 10, 25, 50, 75, 90, 100%: {marks}")


def main() -> None:
    """Fit and write all pools, or check the written ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only print how well the shipped pools match")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in POOLS:
        if not arguments.check:
            tables = fit(name, arguments.seed)
            with (DATA / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["rows", "pooling", "zipf"])
                writer.writerows((rows, f"{pooling:g}", f"{exponent:g}") for rows, pooling, exponent in tables)
        report(name)


if __name__ == "__main__":
    main()
