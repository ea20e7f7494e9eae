"""Accuracy of compute models on held-out samples, by head, content and number of the samples, beside repeat noise.

python -m benchmarks.cost_model samples/cpu
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.program import options_of
from benchmarks.results_table import write_results
from shardwright.cost.features import scales
from shardwright.cost.model import ComputeModel
from shardwright.measure.samples import read_samples
from shardwright.modelling.accuracy import Accuracy, accuracy, predict, repeat_noise
from shardwright.modelling.dataset import Floats, Samples, join, rates_of, samples_of
from shardwright.modelling.training import TrainingOptions, split, train

SIZES = (1000, 2000, 4000, 8000)
FEWEST = 10  # fewest sets for which an error is stated
RANGES = ("1-3", "4-7", "8-11", "12-15", "16+")
HEADS = (
    "sets", "mean error", "median error", "forward", "backward", "Spearman", *(f"{tables} tables" for tables in RANGES),
)  # fmt: skip


def main() -> None:
    options = options_of(
        __doc__, None, samples=(None, "sample stores, used together", {"positional": True, "nargs": "+", "type": Path}),
        seeds=(2, "splits and initial weights to try"),
    )  # fmt: skip
    samples = join([samples_of(read_samples(folder)) for folder in options.samples])
    measured = np.unique(samples.sample)

    by_head = [("linear in sizes", *row(linear_error(samples)))]
    by_kind = []
    for head in ("convex", "mlp"):
        for seed in range(options.seeds):
            result = train(samples, TrainingOptions(head=head, seed=seed))
            by_head.append((f"{head}, seed {seed}", *row(result.accuracy)))
            if (head, seed) == ("convex", 0):
                by_kind = kinds(result.model, samples.select(split(samples.sample, seed)[2]))
    by_size = []
    shuffled = np.random.default_rng(0).permutation(measured)
    for size in SIZES:
        if size < len(measured):
            part = samples.select(np.isin(samples.sample, shuffled[:size]))
            by_size.append((f"convex, {size} samples", *row(train(part, TrainingOptions()).accuracy)))
    noise = repeat_noise(samples) or float("nan")
    caption = f"{len(measured)} samples; relative errors on held-out tenths. Measuring a set twice differs by {noise:.2%} (mean)."
    kind_caption = (
        "By content of the held-out set (convex, seed 0). Shards that see other parts of the batch, or are not pooled, run in a "
        "separate call; bias: median of predicted / measured - 1."
    )
    stores = " ".join(["STORE"] * len(options.samples)) if len(options.samples) > 1 else "samples/cpu"
    tables = [
        (caption, ("model", *HEADS), by_head),
        (kind_caption, ("sets of", "sets", "mean error", "median error", "bias"), by_kind),
        ("By number of samples.", ("model", *HEADS), by_size),
    ]
    write_results(
        "cost_model", "Compute model on held-out CPU samples", tables, f"python -m benchmarks.cost_model {stores}"
    )


def kinds(model: ComputeModel, samples: Samples) -> list[tuple[str, ...]]:
    """Errors by content of the sets."""
    samples = samples.select(samples.repeat == 0)
    error = predict(model, samples).sum(axis=1) / samples.times.sum(axis=1) - 1
    works, first = samples.works, samples.starts[:-1]
    most, fewest = (ufunc.reduceat(works.samples, first) for ufunc in (np.maximum, np.minimum))
    pooled = np.add.reduceat(works.pooled, first) / samples.shard_counts
    alike = most == fewest
    chosen = {f"pooled tables, batch {batch:.0f}": (pooled == 1) & alike & (most == batch) for batch in np.unique(most)}
    chosen |= {
        "pooled tables, some replicated": (pooled == 1) & ~alike,
        "sequences only": (pooled == 0) & alike,
        "pooled tables and sequences": (pooled > 0) & (pooled < 1) & alike,
    }
    return [
        (
            kind, str(inside.sum()), f"{np.abs(error[inside]).mean():.2%}", f"{np.median(np.abs(error[inside])):.2%}",
            f"{np.median(error[inside]):+.2%}",
        )
        for kind, inside in chosen.items()
        if inside.sum() >= FEWEST
    ]  # fmt: skip


def row(result: Accuracy) -> tuple[str, ...]:
    by_tables = [f"{result.by_tables[key]:.2%}" if key in result.by_tables else "–" for key in RANGES]
    errors = (result.mean_error, result.median_error, result.forward_error, result.backward_error)
    return (
        str(result.sets), *(f"{error:.2%}" for error in errors if error is not None), f"{result.spearman:.4f}", *by_tables,
    )  # fmt: skip


def linear_error(samples: Samples) -> Accuracy:
    """Accuracy of a non-negative linear model of the sums of sizes, fitted to relative error, without encoder and head."""
    parts, _, test = split(samples, 0)
    sums = sums_of_sizes(parts)
    rates = np.array([rates_of(sums, times) for times in parts.times.T])
    return accuracy(sums_of_sizes(test) @ rates.T, test, samples)


def sums_of_sizes(samples: Samples) -> Floats:
    """`(n, len(SCALES))` sizes, summed over the shards of each set."""
    return np.add.reduceat(scales(samples.works), samples.starts[:-1], axis=0)


if __name__ == "__main__":
    main()
