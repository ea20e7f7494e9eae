"""Measure plans of learned strategies and all others on real kernels of this machine.

    python -m benchmarks.learned_measured --settings 40x4 80x8 --tasks 5 --rounds 5

The tasks are the first ones of `python -m experiments dreamshard-tables` with unseen tables. Links are not measured. Every device of every
plan takes one visit a round, at about two visits a second; --estimate prints the number of visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from experiments.entrants import SORTED
from experiments.learned.tasks import Setting, draw_tasks

import shardwright as sw
from benchmarks import learned_strategies, results_table
from benchmarks.learned_strategies import entrants
from benchmarks.measured_tables import HeadsAndRows, Measurement, Rows, by_strategy, main_table, order_of
from benchmarks.plans_measured import measured_plans
from benchmarks.program import Options, options_of
from shardwright.errors import InfeasibleTask
from shardwright.sharding import Plan
from shardwright.task import Task

NAME = "learned_measured"


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, settings=([Setting(40, 4), Setting(80, 8)], "", {"metavar": "TxD", "type": Setting.of}),
        tasks=(5, "tasks of each setting"), rounds=5, estimate=(False, "only plan, and print how long measuring would take"),
        **learned_strategies.asked(),
    )  # fmt: skip
    placed = [
        (setting, number, plan)
        for setting in options.settings
        for number, task in enumerate(draw_tasks(setting, options.tasks))
        for plan in plans(task, number, options)
    ]
    if (measured := measured_plans([plan for *_, plan in placed], options)) is None:
        return
    by_setting: dict[Setting, list[Measurement]] = {setting: [] for setting in options.settings}
    for (setting, number, _), result in zip(placed, measured, strict=True):
        by_setting[setting].append(Measurement(setting.devices, number, result))
    write_page(by_setting, options, results_table.command_of(NAME, arguments))


def plans(task: Task, number: int, options: Options) -> list[Plan]:
    """Return the plans of all strategies that place a task, under the strategies' names."""
    placed = []
    for entrant in entrants(options):
        try:
            plan = sw.plan(task, strategy=entrant.strategy, seed=number, time_limit=entrant.time_limit)
        except InfeasibleTask:
            continue
        placed.append(replace(plan, strategy=entrant.name))
    return placed


def write_page(by_setting: dict[Setting, list[Measurement]], options: Options, command: str) -> None:
    versions = ", ".join(f"{entrant.name}: {entrant.version}" for entrant in entrants(options) if entrant.version)
    tables = []
    for setting, measurements in by_setting.items():
        caption = (
            f"{options.tasks} tasks {setting.name}: slowest forward plus slowest backward kernel, ms, means over the tasks that a strategy "
            f"placed. Measured in {options.rounds} interleaved rounds on fresh batches. Floor: the smallest measured total of any plan "
            f"of the task, over the devices. Cost model: {measurements[0].result.plan.cost_model}. "
            f"Within a task, predicted and measured order of the strategies correlate by {order_of(measurements):.3f} (mean). {versions}."
        )
        gains = "Measured times of a strategy over those of the heuristic with the lowest measured mean, task by task."
        tables += [(caption, *main_table(measurements)), (gains, *against_heuristic(measurements))]
    results_table.write_results(NAME, "Learned placement on real CPU kernels", tables, command)


def against_heuristic(measurements: list[Measurement]) -> HeadsAndRows:
    """Return measured ratios to the best heuristic, and the predicted ratios."""
    heads = ("strategy", "heuristic", "tasks", "measured ratio, median", "range", "faster", "predicted ratio, median")
    groups = by_strategy(measurements)
    means = {name: np.mean([plan.measured_ms for plan in groups[name].values()]) for name in SORTED if name in groups}
    rows: Rows = []
    if not means:
        return heads, rows
    best = min(means, key=lambda name: float(means[name]))
    for name, own in groups.items():
        pairs = [(own[number], groups[best][number]) for number in sorted(own.keys() & groups[best].keys())]
        if name == best or not pairs:
            continue
        measured = np.array([mine.measured_ms / theirs.measured_ms for mine, theirs in pairs])
        predicted = np.array([mine.predicted_ms / theirs.predicted_ms for mine, theirs in pairs])
        rows.append(
            (
                name, best, str(len(pairs)), f"{np.median(measured):.3f}", f"{measured.min():.3f} to {measured.max():.3f}",
                f"{(measured < 1).mean():.0%}", f"{np.median(predicted):.3f}",
            )
        )  # fmt: skip
    return heads, rows


if __name__ == "__main__":
    main()
