"""Policies on tasks unlike those they learned from, without fine-tuning, beside policies trained on the target.

    python benchmarks/learned_transfer.py                                # numbers of tables, of devices, share of unseen tables
    python benchmarks/learned_transfer.py --parts tables --strategies dreamshard --seeds 3

Trained on tables of one half of the pool, tested on the other (`learned_tasks.py`). A cell is the mean cost of the policy of its row on the
tasks of its column over that of the policy trained on such tasks, minus 1. Policies are kept in --folder: a run that is stopped goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import plots
import results_table
from learned_tasks import TEST_SEED, TRAIN_SEED, Setting, draw_tasks
from learned_training import (
    FOLDER,
    LEARNERS,
    add_training_options,
    costs,
    heuristic_ms,
    learned,
    options_of,
    training_seconds,
)

from shardwright.cost import cost_model_for
from shardwright.task import Task

NAME = "learned_transfer"
TABLES = (10, 20, 40, 60, 80, 100)
DEVICES = (2, 4, 8, 16)
UNSEEN = (0.0, 0.25, 0.5, 0.75, 1.0)
PARTS = ("tables", "devices", "unseen")


@dataclass(frozen=True)
class Kind:
    """Tasks to train or to test on.

    Attributes:
        setting: numbers of tables and devices.
        unseen: probability of each table to be of the half for testing.
        label: in tables and figures.
    """

    setting: Setting
    unseen: float
    label: str


@dataclass(frozen=True)
class Matrix:
    """Losses of one strategy.

    Attributes:
        rows: what policies were trained on.
        columns: what they were tested on.
        loss: `(seeds, rows, columns)` loss against the policy trained on the column's kind, of the same seed.
        target_ms: `(columns,)` mean cost of the policies trained on the target.
        spread: `(columns,)` standard deviation over seeds of that, as a share of it; NaN with one seed.
        heuristic: `(columns,)` how far the best heuristic lies above the policies trained on the target.
    """

    rows: list[str]
    columns: list[str]
    loss: np.ndarray
    target_ms: np.ndarray
    spread: np.ndarray
    heuristic: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    matrices = {
        (strategy, part): matrix(strategy, part, options) for strategy in options.strategies for part in options.parts
    }
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    write_page(matrices, options, f"python benchmarks/{NAME}.py {given}".rstrip())
    for strategy in options.strategies:
        plot({part: matrices[strategy, part] for part in options.parts}, f"{NAME}_{strategy}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--tables", nargs="+", type=int, default=TABLES, help="numbers of tables, on 4 devices")
    parser.add_argument("--devices", nargs="+", type=int, default=DEVICES, help="numbers of devices")
    parser.add_argument("--unseen", nargs="+", type=float, default=UNSEEN, help="shares of unseen tables")
    parser.add_argument("--setting", type=Setting.of, default=Setting(50, 4), help="where the other parts stay")
    parser.add_argument("--training-tasks", type=int, default=60, help="tasks that a policy is trained on")
    parser.add_argument("--tasks", type=int, default=20, help="tasks it is tested on")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where policies are kept")
    add_training_options(parser)
    return parser.parse_args(arguments)


def kinds(part: str, options: argparse.Namespace) -> tuple[list[Kind], list[Kind], list[Kind]]:
    """Kinds of the rows, of the columns, and the target of each column, of which the policy is the measure."""
    base = options.setting
    if part == "unseen":
        rows = [Kind(base, 0.0, "no table tested on")]
        columns = [Kind(base, share, f"{share:.0%}") for share in options.unseen]
        return rows, columns, columns
    if part == "tables":
        settings = [(Setting(tables, base.devices), f"{tables} tables") for tables in options.tables]
    else:
        settings = [(Setting(base.tables, devices), f"{devices} devices") for devices in options.devices]
    trained, tested = ([Kind(setting, unseen, label) for setting, label in settings] for unseen in (0.0, 1.0))
    return trained, tested, trained


def matrix(strategy: str, part: str, options: argparse.Namespace) -> Matrix:
    """Train what is missing, test everything on everything."""
    rows, columns, targets = kinds(part, options)
    model = cost_model_for("cpu")
    tests = [draw_tasks(kind.setting, options.tasks, unseen=kind.unseen, seed=TEST_SEED) for kind in columns]
    loss, target_ms = [], []
    for seed in range(options.seeds):
        policies = {kind: policy(strategy, kind, seed, options) for kind in dict.fromkeys((*targets, *rows))}
        own = [costs(strategy, policies[target], tasks, model) for target, tasks in zip(targets, tests, strict=True)]
        found = [[costs(strategy, policies[kind], tasks, model) for tasks in tests] for kind in rows]
        loss.append([[compared(cell, base) for cell, base in zip(row, own, strict=True)] for row in found])
        target_ms.append([float(np.mean(list(base.values()))) if base else np.nan for base in own])
    best = [heuristic_ms(strategy, tasks) for tasks in tests]
    mean = np.mean(target_ms, axis=0)
    spread = np.std(target_ms, axis=0, ddof=1) / mean if options.seeds > 1 else np.full(len(columns), np.nan)
    labels = [[kind.label for kind in each] for each in (rows, columns)]
    return Matrix(labels[0], labels[1], np.array(loss), mean, spread, np.array(best) / mean - 1)


def policy(strategy: str, kind: Kind, seed: int, options: argparse.Namespace) -> Path:
    """The policy trained on tasks of a kind."""
    what = f"{kind.setting.tables}x{kind.setting.devices}-unseen{kind.unseen:g}"
    tasks = training(kind.setting, kind.unseen, options.training_tasks)
    return learned(strategy, what, tasks, options_of(strategy, seed, options), options.folder)


@cache
def training(setting: Setting, unseen: float, count: int) -> tuple[Task, ...]:
    """Training tasks."""
    return tuple(draw_tasks(setting, count, unseen=unseen, seed=TRAIN_SEED))


def compared(found: dict[int, float], base: dict[int, float]) -> float:
    """Mean cost over that of the base, minus 1, over the tasks that both placed."""
    both = sorted(found.keys() & base.keys())
    return float(sum(found[task] for task in both) / sum(base[task] for task in both) - 1) if both else float("nan")


def write_page(matrices: dict[tuple[str, str], Matrix], options: argparse.Namespace, command: str) -> None:
    tables = []
    for (strategy, part), found in matrices.items():
        fixed = f"{options.setting.devices} devices" if part == "tables" else f"{options.setting.tables} tables"
        fixed = options.setting.name if part == "unseen" else fixed
        worst = np.nanmax(found.loss.mean(axis=0)) if np.isfinite(found.loss).any() else np.nan
        caption = (
            f"{strategy}, {part} ({fixed}): loss in mean cost ({LEARNERS[strategy].cost_name}) of the policy trained on the row's tasks "
            f"against the one trained on the column's, {options.tasks} test tasks, {options.training_tasks} training tasks, "
            f"{options.seeds} seeds (mean ± standard deviation). Worst: {worst:+.1%}."
        )
        tables.append((caption, *table(found)))
    heads = ("strategy", "policies", "training, median s", "longest s")
    tables.append(("Training, one process, simulated costs.", heads, seconds_rows(options)))
    results_table.write_results(NAME, "Transfer of learned policies without fine-tuning", tables, command)


def table(found: Matrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A matrix as heads and rows."""
    heads = ("trained on", *(f"tested on {label}" for label in found.columns))
    rows = [
        (label, *(cell(found.loss[:, i, j]) for j in range(len(found.columns)))) for i, label in enumerate(found.rows)
    ]
    rows.append(("mean ms of the target's policy", *(f"{ms:.3f}" for ms in found.target_ms)))
    rows.append(
        ("its standard deviation over seeds", *("–" if np.isnan(each) else f"{each:.2%}" for each in found.spread))
    )
    rows.append(("best heuristic against it", *(f"{each:+.1%}" for each in found.heuristic)))
    return heads, rows


def cell(losses: np.ndarray) -> str:
    """Mean and spread over seeds."""
    return f"{losses.mean():+.1%}" + (f" ± {losses.std(ddof=1):.1%}" if losses.size > 1 else "")


def seconds_rows(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Training times of the policies on this page."""
    trained = {kind: None for part in options.parts for at in (0, 2) for kind in kinds(part, options)[at]}
    rows: list[tuple[str, ...]] = []
    for strategy in options.strategies:
        paths = {policy(strategy, kind, seed, options) for kind in trained for seed in range(options.seeds)}
        times = [training_seconds(strategy, path) for path in paths]
        rows.append((strategy, str(len(times)), f"{np.median(times):.0f}", f"{max(times):.0f}"))
    return rows


def plot(found: dict[str, Matrix], name: str) -> None:
    """A heat map a part."""
    figure, axes = plots.panels([list(found)], width=4.2, height=3.6)
    for axis, (part, each) in zip(axes[0], found.items(), strict=True):
        loss = 100 * each.loss.mean(axis=0)
        axis.imshow(loss, cmap="RdYlGn_r", vmin=-5, vmax=5, aspect="auto")
        axis.grid(visible=False)
        axis.set_xticks(range(len(each.columns)), each.columns, rotation=45, fontsize=7)
        axis.set_yticks(range(len(each.rows)), each.rows, fontsize=7)
        axis.set_xlabel("tested on" if part != "unseen" else "share of unseen tables")
        axis.set_ylabel("trained on")
        for i, row in enumerate(loss):
            for j, value in enumerate(row):
                axis.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=7)
    plots.save(figure, name)


if __name__ == "__main__":
    main()
