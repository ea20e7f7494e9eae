"""The page of `flexshard_measured.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from benchmarks import results_table
from benchmarks.flexshard_cases import Case

Rows: TypeAlias = list[tuple[str, ...]]
Found: TypeAlias = tuple[Case, list[dict[str, Any]]]

HEADS = (
    "strategy", "exchange", "memory", "rows held", "MB a host, counted", "by the meter", "predicted", "less than row_wise",
    "communication ms", "predicted ms", "difference", "model alone ms", "times row_wise's", "step ms", "loss, largest difference",
)  # fmt: skip
_MB = 1e6
_TERMS = (
    "In all tables: *exchange* is de-duplication / gradients of replicas. *Rows held* are weights and optimizer state of all devices over "
    "those of a single copy. Bytes are those that the busiest host sends in a step: by the kernel's counter of its link, by the runtime's "
    "meter, by the model. *Communication* is all exchanges of a step, each until the last rank has its part. *Predicted* adds to the model "
    "the latencies of exchanges beyond the one that it counts in each pass. *Step* is a whole step without barriers. Times are medians. "
    "*Loss* is the largest relative difference of any step from training without sharding."
)


def write_page(results: Sequence[Found], calibration: Mapping[str, Any] | None, command: str) -> None:
    """Write `results/flexshard_measured.md`; a bed other than two hosts of two has a name such as `flexshard_measured_4x2`."""
    assert calibration is not None
    hosts, devices, _ = calibration["setting"]
    name = "flexshard_measured" if (hosts, devices) == (2, 2) else f"flexshard_measured_{hosts}x{devices}"
    tables = [_summary(results), _links(calibration)]
    for case, rows in results:
        tables.append((_caption(case, rows), HEADS, _rows(rows)))
    title = f"Tiered sequence tables on slow links between {hosts} hosts of {devices} devices"
    results_table.write_results(name, title, tables, command)


def base_of(rows: Sequence[Mapping[str, Any]], exchange: str = "none/whole") -> Mapping[str, Any] | None:
    """Return the measured row of row_wise with an exchange; None if there is none."""
    return next(
        (row for row in rows if row["strategy"] == "row_wise" and row["exchange"] == exchange and measured(row)), None
    )


def measured(row: Mapping[str, Any]) -> bool:
    return "communication_ms" in row


def counted(row: Mapping[str, Any]) -> float:
    """Bytes that the busiest host's link sent in a step: every rank of a host reads the same counter."""
    return float(max(row["counted"]))


def metered(row: Mapping[str, Any], hosts: int) -> float:
    """Bytes that the busiest host's ranks sent to other hosts in a step, by the runtime's own meter."""
    return float(np.array(row["metered"]).reshape(hosts, -1).sum(axis=1).max())


def model_ms(row: Mapping[str, Any]) -> float:
    """Return the cost model's prediction, with one latency a pass."""
    return float(row["predicted_forward_ms"] + row["predicted_backward_ms"])


def predicted_ms(row: Mapping[str, Any]) -> float:
    """Add a latency for every further exchange of the runtime, which sends sizes, ids and rows one after the other."""
    return model_ms(row) + sum(count - 1 for count in row["exchanges"].values()) * float(row["latency_ms"])


def loss_difference(row: Mapping[str, Any]) -> float:
    """Largest relative difference from the losses without sharding."""
    ours, theirs = np.array(row["losses"]), np.array(row["reference"])
    return float(np.max(np.abs(ours / theirs - 1)))


def _rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    base = base_of(rows)
    result: Rows = []
    for row in rows:
        if not measured(row):
            continue
        took, foretold = row["communication_ms"], predicted_ms(row)
        result.append(
            (
                row["strategy"], row["exchange"], f"{row['memory']:g}×", f"{row['held']:.3f}×", f"{counted(row) / _MB:.3f}",
                f"{metered(row, row['hosts']) / _MB:.3f}", f"{row['predicted_bytes'] / _MB:.3f}",
                f"{1 - counted(row) / counted(base):.1%}" if base else "–",
                f"{took:.1f}", f"{foretold:.1f}", f"{foretold / took - 1:+.1%}",
                f"{model_ms(row):.1f}",
                f"{base['communication_ms'] / took:.2f}× faster" if base else "–",
                f"{row['step_ms']:.1f}", f"{loss_difference(row):.1e}",
            )
        )  # fmt: skip
    return result


def _caption(case: Case, rows: Sequence[Mapping[str, Any]]) -> str:
    curve = rows[0]["reference"] if rows else [float("nan")]
    return (
        f"{case.name}: dim {case.dim}, {case.batch} samples a device. Without sharding the loss goes from {curve[0]:.6g} to "
        f"{curve[-1]:.6g}."
    )


def _summary(by_case: Sequence[Found]) -> tuple[str, tuple[str, ...], Rows]:
    heads = (
        "case", "exchange", "memory", "traffic less than row_wise", "communication faster", "same, against two_tiers",
    )  # fmt: skip
    rows: Rows = []
    for case, results in by_case:
        base = base_of(results)
        for row in results:
            if row["strategy"] != "flexshard" or base is None or not measured(row):
                continue
            same = ("exchange", "memory")
            rival = [
                r for r in results if measured(r) and r["strategy"] == "two_tiers" and all(r[k] == row[k] for k in same)
            ]
            rows.append(
                (
                    case.name, row["exchange"], f"{row['memory']:g}×", f"{1 - counted(row) / counted(base):.1%}",
                    f"{base['communication_ms'] / row['communication_ms']:.2f}×",
                    f"{rival[0]['communication_ms'] / row['communication_ms']:.2f}×" if rival else "–",
                )
            )  # fmt: skip
    differences = np.array(
        [predicted_ms(r) / r["communication_ms"] - 1 for _, rs in by_case for r in rs if measured(r)]
    )
    losses = max((loss_difference(r) for _, rs in by_case for r in rs if measured(r)), default=float("nan"))
    caption = (
        f"flexshard against row_wise that sends every looked-up row (none/whole). Over all {differences.size} plans below, communication "
        f"predicted with fitted links and the latencies of all exchanges differs from measured by {np.median(np.abs(differences)):.1%} "
        f"(median), {np.abs(differences).max():.1%} at most; "
        f"{(np.abs(differences) <= 0.15).mean():.0%} of the plans are within 15%. Losses differ by at most {losses:.1e}. {_TERMS}"
    )
    return caption, heads, rows


def _links(calibration: Mapping[str, Any]) -> tuple[str, tuple[str, ...], Rows]:
    hosts, devices, rate = calibration["setting"]
    topology, errors = calibration["topology"], np.abs(calibration["errors"])
    caption = (
        f"The bed: {hosts} hosts × {devices} devices on one machine, every host's link limited to {rate} each way. Fitted: between hosts "
        f"{topology['inter_latency_ms']:.2f} ms + bytes / {topology['inter_bandwidth'] / _MB:.2f} MB/s a device, inside "
        f"{topology['intra_latency_ms']:.2f} ms + bytes / {topology['intra_bandwidth'] / _MB:.0f} MB/s. The all-to-alls of the fit, "
        f"medians; the fit differs by {np.median(errors):.1%} (median)."
    )
    rows: Rows = [
        (pattern, f"{size:,}", f"{ms:.2f}", f"{error:+.1%}")
        for (pattern, size, ms), error in zip(calibration["all_to_alls"], calibration["errors"], strict=True)
    ]
    return caption, ("all-to-all", "bytes a rank sends", "measured ms", "fit"), rows
