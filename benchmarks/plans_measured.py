"""Plans of every strategy on real kernels: predicted against measured, over several tasks.

python benchmarks/plans_measured.py --tasks 10
"""

from __future__ import annotations

import argparse

import numpy as np
from results_table import write_results

import shardwright as sw
from shardwright.measure.plans import measure_plans
from shardwright.workload import paper_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tasks = paper_tasks(options.tasks, devices=4, tables=(20, 50), seed=11, batch_size=1024, device="cpu")
    names = sw.strategy_names()
    plans = [sw.plan(task, strategy=name) for task in tasks for name in names]
    measured = measure_plans(plans, rounds=options.rounds)
    shape = len(tasks), len(names)
    predicted = np.array([plan.cost.compute_ms for plan in plans if plan.cost]).reshape(shape)
    found = np.array([result.compute_ms for result in measured]).reshape(shape)
    to_random = found / found[:, [names.index("random")]]
    rows = [
        (
            name,
            f"{predicted[:, i].mean():.2f}",
            f"{found[:, i].mean():.2f}",
            f"{np.abs(predicted[:, i] / found[:, i] - 1).mean():.1%}",
            f"{np.median(to_random[:, i]):.3f}",
            f"{to_random[:, i].min():.3f} to {to_random[:, i].max():.3f}",
        )
        for i, name in enumerate(names)
    ]
    order = np.mean(
        [
            np.corrcoef(np.argsort(np.argsort(p)), np.argsort(np.argsort(f)))[0, 1]
            for p, f in zip(predicted, found, strict=True)
        ]
    )
    caption = (
        f"{options.tasks} tasks of 20-50 tables on 4 devices, batch 1024; slowest forward plus slowest backward kernel, ms. Measured in "
        f"{options.rounds} interleaved rounds, the shortest per device. Within a task, predicted and measured order of the strategies "
        f"correlate by {order:.3f} (mean)."
    )
    heads = ("strategy", "predicted", "measured", "mean difference", "measured / random, median", "range")
    command = f"python benchmarks/plans_measured.py --tasks {options.tasks}"
    write_results("plans_measured", "Strategies on real CPU kernels", [(caption, heads, rows)], command)


if __name__ == "__main__":
    main()
