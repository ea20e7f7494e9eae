"""Prediction errors on an unknown machine, before calibration and after calibrations of growing size.

    python -m benchmarks.cost_transfer
    python -m benchmarks.cost_transfer --gpu

Each file of a CPU in data/costs is held out in turn. A quarter of its sets is the test; the sets of a pair stay together. A calibration
measures n of the other sets. Models start from the other processors' files or from nothing; models of a GPU start from its published
figures. The first row shows the machine before calibration, the later rows after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost.files import device_type
from shardwright.cost.model import ComputeModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.hardware import COMMON_CACHES, cache_bytes
from shardwright.measure.samples import read_parquet
from shardwright.modelling.accuracy import accuracy, predict
from shardwright.modelling.adapting import recipes
from shardwright.modelling.dataset import Floats, Samples, join, pairs_of, samples_of
from shardwright.modelling.gpu_parts import Width
from shardwright.modelling.training import train
from shardwright.threads import one_thread

FOLDER = Path(__file__).parent.parent / "data" / "costs"
WIDTHS: tuple[Width, ...] = get_args(Width)
SIZES = (50, 100, 200, 400, 800)
TEST_SHARE = 0.25
COLUMNS = ("sets", "model", "mean error", "median error", "Spearman", "random", "plans", "pairs", "several calls")


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, gpu=(False, "the files of GPUs, on a separate page"),
        seeds=(2, "splits of each processor's sets, and trainings"), sizes=(SIZES, "sets that a calibration measured"),
    )  # fmt: skip
    kind, names = ("cuda", ("rowwise_adagrad",)) if options.gpu else ("cpu", ("fbgemm",))
    files = [file for file in sorted(FOLDER.glob("*/*.parquet")) if file.stem in names]
    held = {file: stored for file in files if (stored := read_parquet(file))[0]["device_kind"] == kind}
    tables = []
    for file, (hardware, table) in held.items():
        first = table.filter(pc.equal(table["repeat"], 0))
        others = [samples_of(other) for name, (_, other) in held.items() if name.parent != file.parent]
        with one_thread():
            if options.gpu:
                rows = list(_rows_of_gpu(first, device_type(hardware), options.sizes, options.seeds))
            else:
                starts = {"other processors": train(join(others), caches=COMMON_CACHES).model} if others else {}
                rows = list(_rows(first, starts, cache_bytes(), options.sizes, options.seeds))
        tables.append((f"{hardware['processor']}: {first.num_rows} sets, {file.name}", COLUMNS, rows))
    command = command_of("cost_transfer", arguments)
    page = "cost_transfer_gpu" if options.gpu else "cost_transfer"
    write_results(page, "Costs on a machine unknown to all models", tables, command)


def _rows_of_gpu(table: pa.Table, device: str, sizes: Sequence[int], seeds: int) -> Iterator[list[object]]:
    """Yield the rows of a GPU: models start from its published figures; each table is priced at the call's width, and at its own."""
    samples, cache = samples_of(table), int(GPUS[device].cache)
    told = replace(samples, times=predict(PublishedModel(device), samples))
    for width in WIDTHS:
        learned = recipes(None, (cache, cache), width)["from nothing"](told, 0, 3.0)
        starts = {"published figures": learned}
        for count, model, *figures in _rows(table, starts, (cache, cache), sizes, seeds, width):
            yield [count, f"{model}, {width} width", *figures]


def _rows(
    table: pa.Table,
    starts: Mapping[str, ComputeModel],
    caches: tuple[int, int],
    sizes: Sequence[int],
    seeds: int,
    width: Width = "own",
) -> Iterator[list[object]]:
    """Yield a row for each number of sets and each way to obtain a model, with medians of the errors over the seeds."""
    samples, kinds = samples_of(table), np.array(table["kind"].to_pylist())
    for size in [0, *(size for size in sizes if size <= (1 - TEST_SHARE) * len(samples))]:
        for origin, start in [*starts.items(), *([("nothing", None)] if size else [])]:
            ways = recipes(start, caches, width) if size else {"as it is": None}
            for name, recipe in ways.items():
                if start is not None and name == "from nothing":
                    continue
                errors = []
                for seed in range(seeds):
                    test, rest = _split(samples, size, seed)
                    model = recipe(samples.select(rest), seed, 1.0) if recipe else start
                    errors.append(_figures(predict(model, samples), samples, kinds, test))
                count = int(rest.sum())
                yield [count, f"{origin}, {name}" if start is not None else name, *_texts(np.nanmedian(errors, axis=0))]


def _split(samples: Samples, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `(n,)` whether a set is for testing, and whether it is for learning; the sets of a pair stay together."""
    group = pairs_of(list(samples.labels)).group
    names, member = np.unique(group, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(names))[member]
    test = place < TEST_SHARE * len(names)
    counted = np.cumsum(np.bincount(place[~test], minlength=len(names)))
    return test, ~test & (counted[place] <= size)


def _figures(predicted: Floats, samples: Samples, kinds: np.ndarray, test: np.ndarray) -> list[float]:
    result = accuracy(predicted[test], samples.select(test), samples)
    error = np.abs(predicted.sum(axis=1) / samples.times.sum(axis=1) - 1)
    calls = np.bincount(samples.calls[1], minlength=len(samples))
    groups = (
        test & (kinds == "random"), test & np.isin(kinds, ("policy", "neighbour")), test & (kinds == "pair"), test & (calls > 1),
    )  # fmt: skip
    parts = [float(error[each].mean()) if each.any() else float("nan") for each in groups]
    return [result.mean_error, result.median_error, result.spearman, *parts]


def _texts(figures: np.ndarray) -> list[str]:
    texts = ["–" if np.isnan(figure) else f"{figure:.1%}" for figure in figures]
    return [*texts[:2], f"{figures[2]:.3f}", *texts[3:]]


if __name__ == "__main__":
    main()
