"""The cost model of GPUs from published figures: its fit, the worth of each part, and errors on unseen data.

    python -m benchmarks.published_costs

Reads data/published/kernels.csv. Rows are fitted by relative error; errors beyond 50% count less. A source that names no GPU counts as an
A100 with an own factor, so it contributes the growth of times, not their level.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from experiments import pages
from scipy.optimize import lsq_linear
from torchrec.distributed.planner.constants import BWD_COMPUTE_MULTIPLIER, HBM_MEM_BW
from torchrec.distributed.planner.estimator.estimator import compute_block_usage_penalty

from benchmarks.program import options_of
from benchmarks.results_table import RESULTS, write_results
from shardwright.cost.features import Floats, WorkArrays
from shardwright.cost.published import GPUS, PARTS, Gpu, PublishedModel, parts
from shardwright.cost.score import device_ms
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

TABLE = Path(__file__).parent.parent / "data" / "published" / "kernels.csv"
UNKNOWN = "a100"
SOFT = 0.5
SHOWN = ("rtx2080ti", "v100", "a100", "h100")
COUNTS = [1, 2, 5, 10, 20, 50]
VARIED = {
    "dim": [4, 8, 16, 32, 64, 128, 256],
    "rows": [10**power for power in range(3, 9)],
    "pooling": [1, 2, 5, 10, 20, 50, 100],
    "skew": [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5],
}
BYTES = ("cache", "memory", "outputs", "gradients", "updates")
WAYS = ("forward", "backward")
NAMES = tuple(f"{way} {name}" for way, names in zip(WAYS, PARTS, strict=True) for name in ("call", *names))
EXPECTED = np.array([10.0, 4.0, 16.0, 1.2, 1.2, 1.2, 60.0, 20.0, 1.2, 1.2])
"""Expected figures; `PULL` draws the fit to them if rows determine a figure poorly.

A kernel takes 5 us; forward runs two, backward a dozen. A lookup takes some 16 instructions and a bag 64; a multiprocessor starts
4 instructions a cycle. Sorting takes 20 cycles a pair. Bytes take a fifth more than stated.
"""
LEAST = np.array(
    [EXPECTED[n] if name.endswith("call") else float(name.split()[1] in BYTES) for n, name in enumerate(NAMES)]
)
"""Lower bounds: bytes take at least the time of the stated rates, and kernels 5 us."""
PULL = 0.2
OTHER_GPUS = {"h20": Gpu(4000e9, 60e6, 78, 1.98e9), "mi350": Gpu(8000e9, 256e6, 256, 2.4e9)}


@dataclass(frozen=True)
class Published:
    """A row of the table to which the model is fitted.

    Attributes:
        source: publication of the row.
        gpu: a key of `GPUS`, or "" if the source states none.
        direction: "forward", "backward" or "forward_backward".
        tables: number of equal tables in the call.
        work: work of each table.
        distinct: distinct rows looked up in all tables; None if the work decides it.
        optimizer: optimizer of the backward pass.
        output_bytes: bytes of an output value.
        launches: whether the time includes launches.
        time_us: measured time.
    """

    source: str
    gpu: str
    direction: str
    tables: int
    work: ShardWork
    distinct: float | None
    optimizer: str
    output_bytes: int
    launches: bool
    time_us: float

    @cached_property
    def parts(self) -> Floats:
        """`(10,)` us of the model's parts, at the stated rates."""
        arrays = WorkArrays.of([self.work])
        if self.distinct is not None:
            share = self.distinct / self.tables / arrays.distinct
            arrays = replace(arrays, reuse_rows=arrays.reuse_rows * share[:, None])
        forward, backward = (times[0] * 1e3 * self.tables for times in parts(arrays, self.known, self.optimizer))
        forward[-1] *= self.output_bytes / 4
        backward[1] *= self.output_bytes / 4
        times = np.concatenate([[float(self.launches)], forward, [float(self.launches)], backward])
        times[: forward.size + 1] *= "forward" in self.direction
        times[forward.size + 1 :] *= "backward" in self.direction
        return times

    @property
    def known(self) -> Gpu:
        """Figures that the vendor publishes for the GPU."""
        return (GPUS | OTHER_GPUS)[self.gpu or UNKNOWN]


def read_table(use: str = "fit", direction: str = "", note: str = "") -> list[Published]:
    """Return the rows of the table with this use; all rows used for fitting state enough."""
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["use"] == use and note in row["note"]]
    return [_row(row) for row in rows if direction in ("", row["direction"])]


def _row(row: dict[str, str]) -> Published:
    rows, dim, bags, pooling = (int(row["rows"]), int(row["dim"]), int(row["bags"]), float(row["pooling"]))
    access = (
        AccessProfile.zipf(rows, float(row["access"].split()[1]))
        if row["access"].startswith("zipf")
        else AccessProfile.uniform(rows)
    )
    work = ShardWork(rows, dim, bags, bags * pooling, row["pooled"] == "1", access, row["weights"])  # type: ignore[arg-type]
    distinct = float(row["distinct"]) if row["distinct"] else None
    return Published(
        row["source"], row["gpu"], row["direction"], int(row["tables"]), work, distinct, row["optimizer"] or "rowwise_adagrad",
        2 if row["outputs"] == "fp16" else 4, row["timed"] != "kernel", float(row["time_us"]),
    )  # fmt: skip


def fitted(
    rows: Sequence[Published], without: str | None = None, pull: float = PULL
) -> tuple[Floats, dict[str, float]]:
    """Return `(10,)` figures in the order of `NAMES` (calls in us), and the factor of each source that names no GPU."""
    parts_ = np.array([row.parts for row in rows])
    if without is not None:
        parts_[:, NAMES.index(without)] = 0.0
    times, sources = np.array([row.time_us for row in rows]), [row.source for row in rows]
    factors = {row.source: 1.0 for row in rows if not row.gpu}
    damped, pulled = np.ones_like(times), pull * np.eye(len(NAMES))
    for _ in range(40):
        own = np.array([factors.get(source, 1.0) for source in sources])
        relative = parts_ * (own / times)[:, None]
        equations = np.vstack([relative * EXPECTED * damped[:, None], pulled])
        wanted = np.concatenate([damped, pulled.sum(axis=1)])
        figures = lsq_linear(equations, wanted, bounds=(LEAST / EXPECTED, np.inf)).x * EXPECTED
        damped = 1 / np.sqrt(np.maximum(1.0, np.abs(relative @ figures - 1.0) / SOFT))
        for source in factors:
            mine = np.array([name == source for name in sources])
            factors[source] = _median_ratio(times[mine], parts_[mine] @ figures)
    return figures, factors


def _median_ratio(measured: Floats, predicted: Floats) -> float:
    return float(np.exp(np.median(np.log(measured / np.maximum(predicted, 1e-9)))))


def left_out(rows: Sequence[Published], group: str, pull: float = PULL) -> tuple[Floats, Floats, Floats]:
    """Return `(n,)` predicted / measured with each row's group unseen: by the model, by bytes over bandwidth and by TorchRec's formula.

    Args:
        rows: the table.
        group: "source" or "gpu".
        pull: as in `fitted`.
    """
    ratios = np.ones((3, len(rows)))
    keys = [getattr(row, group) for row in rows]
    for key in sorted(set(keys)):
        mine = [index for index, other in enumerate(keys) if other == key]
        figures, _ = fitted([row for row, other in zip(rows, keys, strict=True) if other != key], pull=pull)
        for which, formula in enumerate((lambda row: float(row.parts @ figures), bytes_us, torchrec_us)):  # noqa: B023
            ratios[which, mine] = [formula(rows[index]) / rows[index].time_us for index in mine]
    for source in {row.source for row in rows if not row.gpu}:
        mine = [index for index, row in enumerate(rows) if row.source == source]
        ratios[:, mine] /= np.exp(np.median(np.log(ratios[:, mine]), axis=1))[:, None]
    return ratios[0], ratios[1], ratios[2]


def errors(ratios: Floats) -> list[str]:
    """Return median, 90th percentile and worst of the factors by which ratios are off."""
    off = np.exp(np.abs(np.log(ratios)))
    return [f"{np.median(off):.2f}", f"{np.quantile(off, 0.9):.2f}", f"{off.max():.2f}"]


def by_group(rows: Sequence[Published], group: str) -> list[list[object]]:
    """Return rows of a table, with each source or GPU left out in turn."""
    by_formula = left_out(rows, group)
    keys = [getattr(row, group) or "not stated" for row in rows]
    table: list[list[object]] = []
    for key in [*sorted(set(keys)), "all"]:
        mine = np.array([key in (other, "all") for other in keys])
        gpus = ", ".join(sorted({row.gpu or "not stated" for row, own in zip(rows, mine, strict=True) if own}))
        off = [errors(ratios[mine]) for ratios in by_formula]
        table.append([
            key, *([] if group == "gpu" or key == "all" else [gpus]), int(mine.sum()), *off[0], *off[1][::2], *off[2][::2],
        ])  # fmt: skip
    if group == "source":
        table[-1].insert(1, "")
    return table


def halves(rows: Sequence[Published]) -> list[list[object]]:
    """Two halves of the columns over the whole: measured, by the model without the source, by bytes and by TorchRec's formula."""
    by_formula = left_out(rows, "source")
    table: list[list[object]] = []
    for number, whole in enumerate(rows):
        for other, half in enumerate(rows):
            alike = [(row.source, row.direction, row.tables, row.optimizer) for row in (half, whole)]
            same_work = replace(half.work, dim=whole.work.dim) == whole.work
            if same_work and 2 * half.work.dim == whole.work.dim and alike[0] == alike[1]:
                measured = 2 * half.time_us / whole.time_us
                told = [measured * ratios[other] / ratios[number] for ratios in by_formula]
                table.append([whole.source, whole.work.dim, f"{measured:.2f}", *(f"{ratio:.2f}" for ratio in told)])
    return table


def bytes_us(row: Published) -> float:
    """Predict us by bytes over 60% of the bandwidth, plus launches of 20 us."""
    arrays = WorkArrays.of([row.work])
    outputs = (row.work.samples if row.work.pooled else row.work.lookups) * row.work.dim
    distinct = row.distinct / row.tables if row.distinct else float(arrays.distinct[0])
    forward = row.work.lookups * (8 + float(arrays.row_bytes[0])) + 4 * outputs
    backward = row.work.lookups * (8 + 4 * row.work.dim) + distinct * (2 * float(arrays.row_bytes[0]) + 8)
    times = [
        20 * row.launches + moved * row.tables / (0.6 * row.known.bandwidth) * 1e6 for moved in (forward, backward)
    ]
    return sum(us for us, way in zip(times, WAYS, strict=True) if way in row.direction)


def torchrec_us(row: Published) -> float:
    """TorchRec's formula: ids, rows and outputs over its A100 bandwidth, scaled to the GPU. Narrow rows cost more, backward double."""
    outputs = (row.work.samples if row.work.pooled else row.work.lookups) * row.work.dim
    moved = row.work.lookups * (8 + float(WorkArrays.of([row.work]).row_bytes[0])) + row.output_bytes * outputs
    bandwidth = 1e3 * HBM_MEM_BW * row.known.bandwidth / GPUS["a100"].bandwidth
    forward = moved * compute_block_usage_penalty(row.work.dim) * row.tables / bandwidth * 1e6
    return forward * (("forward" in row.direction) + BWD_COMPUTE_MULTIPLIER * ("backward" in row.direction))


def picture(rows: Sequence[Published]) -> None:
    """Draw the papers' observations on their GPUs as the model predicts them: times of a call at batch 65,536, and halves over wholes."""
    titles = ["one call of k tables / k calls", "two halves of the columns / the whole"]
    figure, grid = pages.panels(
        [[*titles, "ms, by columns"], ["ms, by rows", "ms, by lookups a sample", "ms, by Zipf exponent"]]
    )
    fused, cut, *others = [axis for line in grid for axis in line]
    for name, colour in zip(SHOWN, ("#c1440e", "#b58900", "#4062bb", "#0b6e4f"), strict=True):
        model = PublishedModel(name)
        alone = _total(model, 1, batch=4096)
        fused.plot(
            COUNTS, [_total(model, count, batch=4096) / (count * alone) for count in COUNTS], color=colour, label=name
        )
        wholes = {dim: _total(model, 4, dim=dim) for dim in VARIED["dim"]}
        cut.plot(list(wholes)[1:], [2 * wholes[dim // 2] / wholes[dim] for dim in list(wholes)[1:]], color=colour)
        for axis, (key, values) in zip(others, VARIED.items(), strict=True):
            axis.plot(values, [_total(model, 1, **{key: value}) for value in values], color=colour)
    pairs = [row for row in halves(rows) if str(row[0]).endswith("#2365")]
    for column, symbol, told in ((2, "x", "published, forward"), (3, "_", "the same by the model, unseen")):
        cut.plot(
            [row[1] for row in pairs], [float(str(row[column])) for row in pairs], symbol, color="black", label=told
        )
    for axis in (fused, cut):
        axis.legend(fontsize=7)
    for axis, values in zip(
        (fused, cut, *others[:3]), (COUNTS, *list(VARIED.values())[:1], *list(VARIED.values())[:3]), strict=True
    ):
        axis.set_xscale("log")
        pages.mark(axis, values)
    for axis in others:
        axis.set_yscale("log")
    pages.save(figure, RESULTS / "published_costs.svg")


def _total(
    model: PublishedModel,
    tables: int,
    *,
    rows: float = 1e6,
    dim: float = 64,
    pooling: float = 10,
    skew: float = 1,
    batch: int = 65_536,
) -> float:
    work = ShardWork(int(rows), int(dim), batch, batch * pooling, True, AccessProfile.zipf(int(rows), skew))
    return sum(device_ms(model, [work] * tables))


_FINDING = "Rows in host memory, a cache on the device, forward: time of a lookup beyond the model of device memory, to find its row."


def main(arguments: Sequence[str] | None = None) -> None:
    options_of(__doc__, arguments)
    rows = read_table()
    figures, factors = fitted(rows)
    off = ("median", "90th percentile", "worst")
    bare = ("bytes: median", "bytes: worst", "TorchRec: median", "TorchRec: worst")
    unnamed = ", ".join(f"{source} {factor:.2f}" for source, factor in factors.items())
    free = errors(left_out(rows, "source", pull=0.0)[0])
    fit = f"Factor by which the model is off on the {len(rows)} rows it is fitted to. Sources that name no GPU, over an A100: {unnamed}."
    source = (
        "Leave one source out: factor by which the model is off on its rows. Rows of sources that name no GPU are scaled by their "
        "median ratio. Bytes: over "
        "60% of the stated bandwidth, and 20 us a call. TorchRec: its planner's formula. Without the pull to round figures, all rows: "
        f"median {free[0]}, 90th percentile {free[1]}, worst {free[2]}."
    )
    cut = "Two halves of the columns over the whole, the source left out."
    tables = [
        (fit, ("parts", "figure", *off), worth(rows, figures, factors)),
        (source, ("source", "GPU", "rows", *off, *bare), by_group(rows, "source")),
        ("Leave one GPU out.", ("GPU", "rows", *off, *bare), by_group(rows, "gpu")),
        ("By kind of row, the row's source left out.", ("rows with", "rows", *off, *bare), by_kind(rows)),
        (
            _FINDING,
            ("source", "tables", "rows", "lookups", "measured, us", "without a cache, us", "ns a lookup"),
            finding(figures),
        ),
        (cut, ("source", "columns of the whole", "measured", "model", "bytes", "TorchRec"), halves(rows)),
    ]
    title = "The cost model of GPUs against published times"
    write_results("published_costs", title, tables, "python -m benchmarks.published_costs")
    picture(rows)


def worth(rows: Sequence[Published], figures: Floats, factors: dict[str, float]) -> list[list[object]]:
    """Return rows of a table: each part's figure, and the errors of a fit without that part."""

    def told(fitted_figures: Floats, own: dict[str, float], kept: Floats) -> list[str]:
        return errors(
            np.array([row.parts * kept @ fitted_figures * own.get(row.source, 1.0) / row.time_us for row in rows])
        )

    table: list[list[object]] = [["all parts", "", *told(figures, factors, np.ones(len(NAMES)))]]
    for name, figure in zip(NAMES, figures, strict=True):
        kept = (np.array(NAMES) != name).astype(np.float64)
        shown = f"{figure:.3g}" + " us" * name.endswith("call")
        table.append([f"without {name}", shown, *told(*fitted(rows, without=name), kept)])
    return table


def finding(figures: Floats) -> list[list[object]]:
    """Return rows of a table: time of cached forward passes beyond the model's time for the same in device memory."""
    cached = read_table("caching", "forward", "a cache of")
    table: list[list[object]] = []
    for row in cached:
        lookups, alone = row.tables * row.work.lookups, float(row.parts @ figures)
        beyond = 1e3 * (row.time_us - alone) / lookups
        table.append([
            row.source, row.tables, row.work.rows, f"{lookups:,.0f}", f"{row.time_us:.0f}", f"{alone:.0f}", f"{beyond:.2f}",
        ])  # fmt: skip
    return table


def by_kind(rows: Sequence[Published]) -> list[list[object]]:
    """Return rows of a table: errors by direction, columns and lookups a sample."""
    by_formula = left_out(rows, "source")
    kinds: dict[str, Floats] = {
        **{
            way: np.array([row.direction == way for row in rows]) for way in ("forward", "backward", "forward_backward")
        },
        "under 32 columns": np.array([row.work.dim < 32 for row in rows]),
        "32 to 128 columns": np.array([32 <= row.work.dim <= 128 for row in rows]),
        "over 128 columns": np.array([row.work.dim > 128 for row in rows]),
        "unpooled": np.array([not row.work.pooled for row in rows]),
        "up to 20 lookups": np.array([row.work.pooled and row.work.pooling <= 20 for row in rows]),
        "over 20 lookups": np.array([row.work.pooled and row.work.pooling > 20 for row in rows]),
    }
    return [
        [
            kind,
            int(mine.sum()),
            *(off := [errors(ratios[mine]) for ratios in by_formula])[0],
            *off[1][::2],
            *off[2][::2],
        ]
        for kind, mine in kinds.items()
        if mine.any()
    ]


if __name__ == "__main__":
    main()
