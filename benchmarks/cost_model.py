"""How well compute models predict held-out samples, by head and by the number of samples, beside repeat noise.

python benchmarks/cost_model.py samples/cpu
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from results_table import write_results

from shardwright.cost.accuracy import Accuracy, accuracy, repeat_noise
from shardwright.cost.dataset import Floats, Samples, samples_of
from shardwright.cost.features import scales
from shardwright.cost.training import TrainingOptions, split, train
from shardwright.measure.store import read_samples

SIZES = (1000, 2000, 4000, 8000)
HEADS = ("sets", "mean error", "median error", "forward", "backward", "Spearman", "1-3 tables", "4-7", "8-11", "12-15")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--seeds", type=int, default=2, help="splits and initial weights to try")
    options = parser.parse_args()
    samples = samples_of(read_samples(options.samples))
    measured = len(np.unique(samples.sample))

    by_head = [("linear in sizes", *row(linear_error(samples)))]
    for head in ("convex", "mlp"):
        for seed in range(options.seeds):
            result = train(samples, TrainingOptions(head=head, seed=seed))
            by_head.append((f"{head}, seed {seed}", *row(result.accuracy)))
    by_size = []
    for size in SIZES:
        if size < measured:
            part = samples.select(samples.sample < np.sort(np.unique(samples.sample))[size])
            by_size.append((f"convex, {size} samples", *row(train(part, TrainingOptions()).accuracy)))
    noise = repeat_noise(samples) or float("nan")
    caption = (
        f"{measured} samples; relative errors on held-out tenths. Measuring a set twice differs by {noise:.2%} (mean)."
    )
    tables = [(caption, ("model", *HEADS), by_head), ("By number of samples.", ("model", *HEADS), by_size)]
    write_results(
        "cost_model", "Compute model on held-out CPU samples", tables, "python benchmarks/cost_model.py samples/cpu"
    )


def row(result: Accuracy) -> tuple[str, ...]:
    by_tables = [
        f"{result.by_tables[key]:.2%}" if key in result.by_tables else "–" for key in ("1-3", "4-7", "8-11", "12-15")
    ]
    errors = (result.mean_error, result.median_error, result.forward_error, result.backward_error)
    return str(result.sets), *(f"{error:.2%}" for error in errors), f"{result.spearman:.4f}", *by_tables


def linear_error(samples: Samples) -> Accuracy:
    """A non-negative linear model of the sums of sizes, fitted to relative error: no encoder, no head."""
    from scipy.optimize import nnls

    parts, _, test = split(samples, 0)
    sums = sums_of_sizes(parts)
    unit = np.maximum(sums.max(axis=0), 1e-30)
    rates = [nnls(sums / unit / parts.times[:, [phase]], np.ones(len(parts)))[0] / unit for phase in range(2)]
    return accuracy(lambda sets: sums_of_sizes(sets) @ np.array(rates).T, test, samples)


def sums_of_sizes(samples: Samples) -> Floats:
    """`(n, len(SCALES))` sizes, summed over the shards of each set."""
    return np.add.reduceat(scales(samples.works), samples.starts[:-1], axis=0)


if __name__ == "__main__":
    main()
