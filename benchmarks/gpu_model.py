"""Errors of the H100's model on the devices of plans that it did not learn from, and the gain of each of its parts.

    python -m benchmarks.gpu_model        # results/gpu_model.md, in seconds: nothing is measured or trained

The measured devices are in `data/costs/h100/plans.parquet`. `gpu_plans.parquet` names their plans and holds the predictions of the model
that made them. The other models learned from different tasks, in `data/costs/h100/rowwise_adagrad.parquet`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results_table import write_results
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.choice import cost_model_for
from shardwright.cost.features import PARTS
from shardwright.cost.model import ComputeModel
from shardwright.cost.published import GPUS
from shardwright.measure.samples import read_parquet
from shardwright.modelling.accuracy import predict
from shardwright.modelling.dataset import Samples, join, rates_of, samples_of
from shardwright.modelling.gpu_parts import part_sums

_HERE = Path(__file__).parent
COSTS = _HERE.parent / "data" / "costs" / "h100"
CACHE = GPUS["h100"].cache
ALIKE = 6e-4  # relative difference of a time in the two files, which round it to four digits or not at all
FOLDS = 8  # tasks are left out in so many parts
POOLED_TASKS = 16
"""Task t + 16 has the tables of task t, a third of them as sequences."""

WITHOUT = {
    "long runs of one row": ("long_runs", "long_runs_dim", "long_run_lookups"),
    "what misses each cache": ("missed_first", "missed_first_bytes", "missed_near", "missed_near_bytes", "missed_bytes"),
    "gradients beyond the cache": ("gradients",),
    "the kernel of narrow sequences": ("narrow_sequence_lookups", "narrow_sequence_bags"),
}  # fmt: skip
GATES = "the widest table of a call"


def main() -> None:
    learned, devices = (samples_of(read_parquet(COSTS / f"{name}.parquet")[1]) for name in ("rowwise_adagrad", "plans"))
    plans = read_plans(devices)
    model = cost_model_for("h100")
    assert isinstance(model, ComputeModel)
    old = np.zeros_like(devices.times)
    for row in plans:
        old[row["device"]] = row["predicted_forward_ms"], row["predicted_backward_ms"]
    tasks = np.zeros(len(devices), dtype=np.int64)
    tasks[[row["device"] for row in plans]] = [row["task"] % POOLED_TASKS for row in plans]
    sequences = np.isin(np.arange(len(devices)), devices.owner[devices.works.pooled == 0])
    new = predict(model, devices)
    rows = [
        errors(plans[0]["cost_model"], None, old, devices, sequences),
        errors("the same, rescaled on other tasks", None, rescaled(old, devices.times, tasks), devices, sequences),
        errors(model.name, float(_errors(predict(model, learned), learned.times).mean()), new, devices, sequences),
        *rows_of_parts(learned, devices, sequences, tasks),
    ]
    heads = ("model", "sets it learned from", "forward", "backward", "both", "pooled, forward", "pooled, backward",
             "sequences, forward", "sequences, backward")  # fmt: skip
    write_results(
        "gpu_model",
        "The H100's model on plans that it did not learn from",
        [
            (
                f"Mean errors on {len(devices)} devices of 224 plans. The first row is the model that made the plans, as recorded before "
                "they were measured. Rescaled: a factor and a constant for each phase, fitted to the devices of other tasks. The rows of "
                "parts are linear fits without a network. The parts were chosen by cross-validation on the sets of "
                "`rowwise_adagrad.parquet`, with the errors on these devices known.",
                heads,
                rows,
            ),
            (
                "Steps: slowest forward plus slowest backward kernel, measured over predicted, by the two models.",
                ("strategy", "tables", "plans", "before, median", "mean error", "now, median", "mean error"),
                list(rows_of_steps(plans, devices, old, new)),
            ),
        ],
        "python -m benchmarks.gpu_model",
        "rows of gpu_plans and data/costs/h100, measured on one NVIDIA H100 80GB HBM3",
    )


def read_plans(devices: Samples) -> list[dict[str, Any]]:
    """The rows of `gpu_plans.parquet`, each with the number of its device among the samples.

    Its two times identify a device. Plans share devices, so there are more rows than devices.
    """
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(_HERE / "results" / "gpu_plans.parquet").to_pylist()
    for row in rows:
        times = row["measured_forward_ms"], row["measured_backward_ms"]
        away = np.abs(devices.times / times - 1).max(axis=1)
        row["device"] = int(away.argmin())
        if away.min() > ALIKE:
            raise ValueError(f"task {row['task']}, {row['strategy']}, rank {row['rank']}: no device with these times")
    return rows


def rescaled(predicted: Floats, times: Floats, tasks: Ints) -> Floats:
    """`(n, 2)` predictions with a factor and a constant for each phase, fitted to the devices of other tasks by relative error."""
    result = np.zeros_like(predicted)
    for task in np.unique(tasks):
        held = tasks == task
        for phase in range(2):
            columns = np.stack([predicted[:, phase], np.ones(len(predicted))], axis=1)
            result[held, phase] = columns[held] @ rates_of(columns[~held], times[~held, phase])
    return result


def rows_of_parts(learned: Samples, devices: Samples, sequences: Bools, tasks: Ints) -> Iterator[list[str]]:
    """Rows of linear fits: of all parts, without some of them, and of all parts with other tasks' devices among the samples."""
    sums, tested = part_sums(learned, CACHE), part_sums(devices, CACHE)
    kept = {"": np.ones(sums.shape[1], dtype=bool)}
    for name, some in WITHOUT.items():
        of_part = [not part.removeprefix("pooled_").removeprefix("sequence_").startswith(some) for part in PARTS]
        kept[f" without {name}"] = np.append(np.tile(of_part, 4), True)
    kept[f" without {GATES}"] = np.append(np.arange(sums.shape[1] - 1) < len(PARTS), True)
    for name, keep in kept.items():
        rates = [rates_of(sums[:, keep], times) for times in learned.times.T]
        seen, unseen = (np.stack([some[:, keep] @ rate for rate in rates], axis=1) for some in (sums, tested))
        own = float(_errors(seen, learned.times).mean())
        yield errors(f"parts alone{name}", own, unseen, devices, sequences)
    predicted = np.zeros_like(devices.times)
    for fold in range(FOLDS):
        held = tasks % FOLDS == fold
        both, rest = np.vstack([sums, tested[~held]]), join([learned, devices.select(~held)])
        for phase, times in enumerate(rest.times.T):
            predicted[held, phase] = tested[held] @ rates_of(both, times)
    yield errors("parts alone, other tasks' plans learned too", None, predicted, devices, sequences)


def errors(name: str, own: float | None, predicted: Floats, devices: Samples, sequences: Bools) -> list[str]:
    off = _errors(predicted, devices.times)
    both = np.abs(predicted.sum(axis=1) / devices.times.sum(axis=1) - 1)
    figures = [*off.mean(axis=0), both.mean(), *off[~sequences].mean(axis=0), *off[sequences].mean(axis=0)]
    return [name, "–" if own is None else f"{own:.1%}", *(f"{figure:.1%}" for figure in figures)]


def _errors(predicted: Floats, measured: Floats) -> Floats:
    off: Floats = np.abs(predicted / measured - 1)
    return off


def rows_of_steps(
    plans: Sequence[dict[str, Any]], devices: Samples, old: Floats, new: Floats
) -> Iterator[list[object]]:
    of_plan: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in plans:
        of_plan[row["strategy"], row["task"]].append(row["device"])
    ratios: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for (strategy, task), some in of_plan.items():
        steps = [times[some].max(axis=0).sum() for times in (devices.times, old, new)]
        kind = "pooled" if task < POOLED_TASKS else "a third sequences"
        ratios[kind, strategy].append([steps[0] / steps[1], steps[0] / steps[2]])
    for (kind, strategy), pairs in sorted(ratios.items(), key=lambda item: (item[0][0] != "pooled", item[0][1])):
        before, now = np.array(pairs).T
        figures = [f for each in (before, now) for f in (f"{np.median(each):.3f}", f"{np.abs(each - 1).mean():.1%}")]
        yield [strategy, kind, len(pairs), *figures]


if __name__ == "__main__":
    main()
