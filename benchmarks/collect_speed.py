"""Speed of collecting samples, and difference between two measurements of one sample.

python -m benchmarks.collect_speed --samples 400
"""

from __future__ import annotations

import tempfile

import numpy as np

from benchmarks.program import options_of
from benchmarks.results_table import write_results
from shardwright.measure.collect import collect
from shardwright.measure.samples import read_samples


def main() -> None:
    options = options_of(__doc__, None, samples=400)
    with tempfile.TemporaryDirectory() as folder:
        summary = collect(folder, samples=options.samples)
        measured = read_samples(folder)
    times = np.asarray(measured["forward_ms"]) + np.asarray(measured["backward_ms"])
    rows = [
        ("measurements", summary.measured), ("measurements a second, everything included", f"{summary.measured / summary.seconds:.1f}"),
        ("time of a set, median and mean", f"{np.median(times):.2f} ms, {times.mean():.2f} ms"),
        ("visits to a set, mean", f"{np.asarray(measured['visits']).mean():.2f}"),
        ("measured while the machine was never quiet", f"{summary.disturbed:.1%}"),
        ("a set measured twice differs by, median and mean", f"{summary.repeat_median:.2%}, {summary.repeat_mean:.2%}"),
    ]  # fmt: skip
    caption = "Random sets of 1-15 tables, batch 1024, row-wise Adagrad, one pinned core."
    command = f"python -m benchmarks.collect_speed --samples {options.samples}"
    write_results("collect_speed", "Collecting CPU samples", [(caption, ("figure", "value"), rows)], command)


if __name__ == "__main__":
    main()
