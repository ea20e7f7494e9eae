"""The page of `flexshard-traffic`: the paper's claims beside the results, in sentences and in a table for each part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.experiment import Page, ResultTable, Row
from experiments.flexshard.comparisons import Compared, Plans, draw, draw_sweep, gained, gap, some
from experiments.flexshard.sequence_models import (
    CLUSTERS,
    EVERY,
    EXCHANGES,
    FACTORS,
    LINES,
    MODELS,
    ONE_TABLE,
    PER_HOST,
    SHAPES,
    STRATEGIES,
    SWEEP,
)
from experiments.summaries import NOTHING, cell, grouped

CLAIMED_SAVED, CLAIMED_FASTER = 0.85, 6.0
_MEMORY = 1.25

_INTRODUCTION = (
    "The rows of a sequence table are not pooled, so every row that is looked up travels. `flexshard` keeps the hottest rows on every "
    "device and the next on every host, and deals out the rest. It chooses the boundaries of all tables together, within the memory of "
    "every device.\n\n"
    "Bytes and times are **predicted**: expected bytes on each link, with the stated latency and bandwidth. "
    "[flexshard_measured](flexshard_measured.md) compares the same counts with the kernel's counters and the clock on two hosts, "
    "[flexshard_measured_4x2](flexshard_measured_4x2.md) on four with slow links."
)
_DIFFERENCES = (
    "**Differences from the paper**\n\n"
    "- Models: neither the paper's code nor its models are public. The tables here are synthetic, with accesses by Zipf's law, and the "
    "formulation is ours.\n"
    "- Rival: `two_tiers` stands for the earlier state of the art. It keeps rows on every device or on one, without regard to hosts, with "
    "boundaries chosen by the same search. RecShard (ASPLOS 2022) is another program, which chooses device or host memory.\n"
    "- Scope: communication of sequence tables only, without pooled tables, kernels and the rest of a step."
)


def paragraphs(plans: Plans) -> Sequence[str]:
    """The text of the page."""
    parts = (claim(plans), _INTRODUCTION, main_finding(plans), where_tiers_pay(plans), _DIFFERENCES)
    return [part for part in parts if part]


def claim(plans: Plans) -> str:
    """The first paragraph: how far the paper's claim holds at equal memory, and what reaches it; empty without rows."""
    by_tiers, by_hosts = [], []
    for accesses in SHAPES:
        tiers, hosts = (
            _medians(plans, accesses, EVERY, other="two_tiers"),
            _medians(plans, accesses, PER_HOST, strategy="row_wise", memory=1.0),
        )
        if tiers is not None and hosts is not None:
            by_tiers.append(f"{tiers[0]:.0%} ({accesses})")
            by_hosts.append(f"{hosts[0]:.0%}")
    if not by_tiers:
        return ""
    return (
        f"**Tiers do not reach the paper's {CLAIMED_SAVED:.0%} less traffic in equal memory.** With {_MEMORY}× memory for both, "
        f"`flexshard` sends {' and '.join(by_tiers)} less than `two_tiers`. De-duplication by host reaches it without tiers: in the same "
        f"memory, `row_wise` then sends {' and '.join(by_hosts)} less than with every lookup sent."
    )


def where_tiers_pay(plans: Plans) -> str:
    """A paragraph on where tiers pay, by the sweep; empty without its rows."""
    own = plans.of(part=SWEEP, strategy="flexshard")
    lines = []
    for exchange, rival in ((PER_HOST, "row_wise"), (EVERY, "two_tiers")):
        gains = {
            (int(row["gbits"] or 0), str(row["accesses"]), int(row["batch"] or 0)): gain
            for row in own
            if row["exchange"] == exchange and (gain := gained(plans, row, rival)) is not None
        }
        if gains:
            most, least = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
            lines.append(
                f"- {'every lookup sent' if exchange == EVERY else 'rows de-duplicated by host'}, against `{rival}`: "
                f"{gains[least] - 1:+z.1%} ({_case(least)}) to {gains[most] - 1:+z.1%} ({_case(most)})"
            )
    if not lines:
        return ""
    heading = (
        "**Where tiers pay**, by the sweep of links, accesses and batch (second picture). Tiers pay if every lookup travels and a batch "
        "has many lookups of a row; slow links hardly matter. Gain in speed, least to most:"
    )
    return "\n".join([heading, "", *lines])


def _case(key: tuple[int, str, int]) -> str:
    gbits, accesses, batch = key
    return f"{gbits} Gbit/s, {accesses}, {batch:,} samples"


def main_finding(plans: Plans) -> str:
    """A paragraph on the gain of replicas that remains after de-duplication by host; empty without rows."""
    gains = [
        f"{gain[1] - 1:+.2%} ({accesses})"
        for accesses in SHAPES
        if (gain := _medians(plans, accesses, PER_HOST, other="row_wise"))
    ]
    if not gains:
        return ""
    return (
        "**If rows are de-duplicated by host, replicas gain next to nothing.** "
        "A host that reads a row must get its value and send its gradient once a step, whether it keeps a replica or not. "
        f"With {_MEMORY}× memory, `flexshard` is then {' and '.join(gains)} faster than `row_wise`. "
        "Tiers pay if rows are not de-duplicated, as in TorchRec's exchange."
    )


def _medians(
    plans: Plans,
    accesses: str,
    exchange: str,
    *,
    strategy: str = "flexshard",
    memory: float = _MEMORY,
    other: str | None = None,
) -> tuple[float, float] | None:
    """Medians over the models of bytes saved and speed, against `row_wise` with every lookup sent, or `other` with the same exchange."""
    rows = plans.of(part=MODELS, accesses=accesses, exchange=exchange, memory=memory, strategy=strategy)
    others = (exchange, 1.0 if other == "row_wise" else memory, other) if other else (EVERY, 1.0, "row_wise")
    compared = some(plans.against(row, *others) for row in rows)
    if not compared:
        return None
    return float(np.median([each.saved for each in compared])), float(np.median([each.faster for each in compared]))


BY_HAND = {"0.8": (-0.46, 1.8), "1": (-0.75, 3.8), "1.1": (-0.86, 6.7), "1.15": (-0.90, 9.3), "1.2": (-0.93, 13.0)}
"""Estimates by hand for tiers, by Zipf exponent: change of the bytes between hosts, and speed."""
_NO_FIT = "does not fit"
_WHAT = "Bytes between hosts and speed of communication against `row_wise` with every lookup sent"


def page_of(rows: Sequence[Row]) -> Page:
    """Make the page of all rows or of some."""
    plans = Plans(rows)
    tables = [
        claims(plans), by_hand(plans), one_table(plans), models(plans), clusters(plans), sweep(plans), placed(plans),
    ]  # fmt: skip
    return Page(
        "Tiers of sequence tables (FlexShard), predicted",
        paragraphs(plans),
        [table for table in tables if table.rows],
        {"": draw(plans), "sweep": draw_sweep(plans)} if rows else {},
        "4,096 samples a device except in the sweep; row-wise Adagrad except for the one table. Weights, optimizer state and buffers "
        "fit every device. The score is communication time. The paper's settings are not published.",
    )


def claims(plans: Plans) -> ResultTable:
    """A table of the paper's claims beside `flexshard` on the models."""
    heads = [
        "accesses", "exchange", "memory", "models", "less than `row_wise`", "times as fast", "less than `two_tiers`", "times as fast",
    ]  # fmt: skip
    cells = []
    own = plans.of(part=MODELS, strategy="flexshard")
    for (accesses, exchange, memory), group in grouped(own, "accesses", "exchange", "memory").items():
        row_wise = some(plans.against(row) for row in group)
        two_tiers = some(plans.against(row, str(exchange), float(memory or 0.0), "two_tiers") for row in group)
        if row_wise:
            cells.append([accesses, exchange, f"{memory}×", len(row_wise), *spans(row_wise), *spans(two_tiers)])
    caption = (
        f"The paper claims more than {CLAIMED_SAVED:.0%} less traffic between hosts and communication almost {CLAIMED_FASTER:g} times "
        "as fast, in no more memory than the state of the art before it. Here `flexshard` stands against `row_wise` with every lookup "
        "sent, in 1× the memory, and against `two_tiers` with the same exchange and memory. "
        "Medians over all models, in brackets least and most."
    )
    return ResultTable(caption, heads, cells)


def by_hand(plans: Plans) -> ResultTable:
    """A table for the part with one table, beside the estimates made by hand before the code was written."""
    cells = []
    for row in plans.of(part=ONE_TABLE, exchange=EVERY, memory=1.25, strategy="flexshard"):
        skew = str(row["accesses"]).removeprefix("Zipf ")
        estimate = BY_HAND.get(skew)
        shown = f"{estimate[0]:+.0%} · {estimate[1]:g}×" if estimate else NOTHING
        cells.append([
            skew, shown, cell_of(row, plans.against(row)), f"{row['hot_rows']:,}", f"{row['warm_rows']:,}", cell(gap(row), ".2%"),
            cell(gap(row, "plans_bound_ms"), ".2%"),
        ])  # fmt: skip
    caption = (
        "One table of 10 million rows × 128 with 200 lookups a sample, SGD, 1.25× memory, every lookup sent, whole gradients. "
        f"8 × 8 devices, 200 GB/s inside hosts and 12.5 GB/s between, no latency. {_WHAT}. The gaps are to the bounds over all choices of "
        "tiers and over all plans."
    )
    return ResultTable(
        caption, ["Zipf", "by hand", "flexshard", "hot rows", "warm rows", "gap, tiers", "gap, all plans"], cells
    )


def one_table(plans: Plans) -> ResultTable:
    """A table for the part with one table, by exchange, memory and strategy."""
    rows = plans.of(part=ONE_TABLE)
    skews = sorted({str(row["accesses"]).removeprefix("Zipf ") for row in rows}, key=float)
    caption = f"The same table with other memory and exchanges. {_WHAT}."
    columns: list[tuple[str, Row]] = [(f"Zipf {skew}", {"accesses": f"Zipf {skew}"}) for skew in skews]
    cells = [line for line in lines(plans, rows, columns) if set(line[3:]) - {_NO_FIT, NOTHING}]
    return ResultTable(caption, ["exchange", "memory", "strategy", *(head for head, _ in columns)], cells)


def models(plans: Plans) -> ResultTable:
    """A table for the models by Zipf exponents, exchange, memory, strategy and number of tables."""
    rows = plans.of(part=MODELS)
    counts = sorted({int(row["tables"] or 0) for row in rows})
    columns: list[tuple[str, Row]] = [(f"{count} tables", {"tables": count}) for count in counts]
    cells = [
        [accesses, *line]
        for (accesses,), group in grouped(rows, "accesses").items()
        for line in lines(plans, group, columns)
    ]
    seeds = len({row["seed"] for row in rows})
    caption = (
        "Models of tables with 1 to 30 million rows, dims 32, 64 and 128, and mean lengths of 50 to 1,000. 8 × 8 devices, 450 GB/s inside "
        f"hosts and 50 GB/s between, latency 0.02 and 0.04 ms. {_WHAT}; medians of up to {seeds} models."
    )
    return ResultTable(caption, ["accesses", "exchange", "memory", "strategy", *(head for head, _ in columns)], cells)


def lines(plans: Plans, rows: Sequence[Row], columns: Sequence[tuple[str, Row]]) -> list[list[object]]:
    """One line for each case: exchange, memory, strategy, and the median over the rows of each column."""
    cases = [(exchange, 1.0, "row_wise") for exchange in EXCHANGES]
    cases += [(exchange, factor, name) for exchange in EXCHANGES for factor in FACTORS for name in STRATEGIES[1:]]
    by_case = grouped(rows, "exchange", "memory", "strategy")
    ordered = [case for exchange in EXCHANGES for case in cases if case[0] == exchange and case in by_case]
    return [
        [
            *case,
            *(
                median_cell(plans, [row for row in by_case[case] if wanted.items() <= row.items()])
                for _, wanted in columns
            ),
        ]
        for case in ordered
    ]


def clusters(plans: Plans) -> ResultTable:
    """A table of communication time by number of hosts and speed of the links."""
    rows = plans.of(part=CLUSTERS)
    hosts = sorted({int(row["hosts"] or 0) for row in rows})
    cells: list[list[object]] = []
    for (accesses, gbits), group in sorted(
        grouped(rows, "accesses", "gbits").items(), key=lambda each: (str(each[0][0]), int(each[0][1] or 0))
    ):
        for name, (strategy, exchange) in LINES.items():
            by_hosts = {
                row["hosts"]: row for row in group if (row["strategy"], row["exchange"]) == (strategy, exchange)
            }
            cells.append(
                [accesses, f"{gbits} Gbit/s", name, *(time_cell(plans, by_hosts.get(count)) for count in hosts)]
            )
    tables = ", ".join(str(count) for count in sorted({int(row["tables"] or 0) for row in rows}))
    caption = (
        f"Communication, ms a step, and in brackets speed against `row_wise`: a model of {tables} tables on hosts of 8 devices, "
        "1.25× memory (`row_wise`: 1×). Every lookup is sent, with whole gradients, unless the line says otherwise. Each cluster has its "
        "own plan."
    )
    return ResultTable(
        caption, ["accesses", "NIC of a device", "strategy", *(f"{8 * count} GPUs" for count in hosts)], cells
    )


def sweep(plans: Plans) -> ResultTable:
    """A table of the gain of tiers by link, Zipf exponent and batch."""
    rows = plans.of(part=SWEEP, strategy="flexshard")
    batches = sorted({int(row["batch"] or 0) for row in rows})
    cells: list[list[object]] = []
    for (gbits, accesses), group in grouped(rows, "gbits", "accesses").items():
        for exchange, rival in ((PER_HOST, "row_wise"), (EVERY, "row_wise"), (EVERY, "two_tiers")):
            gains = {row["batch"]: gained(plans, row, rival) for row in group if row["exchange"] == exchange}
            cells.append([f"{gbits} Gbit/s", accesses, exchange, rival, *(cell(gains.get(batch)) for batch in batches)])
    cells.sort(key=lambda line: (int(str(line[0]).split()[0]), str(line[1])))
    caption = (
        "Gain of tiers: communication time of the other strategy over that of `flexshard` with the same exchange, by samples of a device "
        "(columns). `flexshard` and `two_tiers` have 1.25× memory, `row_wise` 1×. A model of 12 tables, 8 × 8 devices."
    )
    return ResultTable(caption, ["NIC of a device", "accesses", "exchange", "against", *map(str, batches)], cells)


def placed(plans: Plans) -> ResultTable:
    """A table of plans that fit, search times, and gaps to the bounds."""
    cells = []
    for (part, strategy), group in sorted(
        grouped(plans.rows, "part", "strategy").items(), key=lambda each: str(each[0][0])
    ):
        fits = [row for row in group if row["communication_ms"] is not None]
        seconds = [float(row["search_s"] or 0.0) for row in fits]
        median_s = cell(float(np.median(seconds)) if seconds else None)
        cells.append([
            part, strategy, f"{len(fits)} of {len(group)}", median_s, *gaps(fits, "bound_ms"), *gaps(fits, "plans_bound_ms"),
        ])  # fmt: skip
    caption = (
        "Plans that fit the memory, and the gaps between their communication and two proven bounds: over all choices of the strategy's "
        "tiers, and over all plans of the task. The second bound is lower if memory is tight, above all with few tables on many devices: "
        "a plan may save the buffers that a device needs for each table of which it holds rows."
    )
    heads = ["part", "strategy", "placed", "search s, median", "gap, tiers", "widest", "gap, all plans", "widest"]
    return ResultTable(caption, heads, cells)


def gaps(rows: Sequence[Row], bound: str) -> tuple[str, str]:
    """Median and widest gap to a bound."""
    known = [value for row in rows if (value := gap(row, bound)) is not None]
    return (cell(float(np.median(known)), ".2%"), cell(max(known), ".2%")) if known else (NOTHING, NOTHING)


def spans(compared: Sequence[Compared]) -> tuple[str, str]:
    """Medians with least and most, of bytes saved and of speed."""
    if not compared:
        return NOTHING, NOTHING
    saved, faster = [each.saved for each in compared], [each.faster for each in compared]
    return (
        f"{np.median(saved):.1%} ({min(saved):.1%} to {max(saved):.1%})",
        f"{np.median(faster):.2f}× ({min(faster):.2f} to {max(faster):.2f})",
    )


def median_cell(plans: Plans, rows: Sequence[Row]) -> str:
    """Medians over these models; if one model's plan does not fit the memory, the cell shows it."""
    if any(row["communication_ms"] is None for row in rows):
        return _NO_FIT
    compared = some(plans.against(row) for row in rows)
    if not compared:
        return NOTHING
    return f"{_change(float(np.median([each.saved for each in compared])))} · {np.median([each.faster for each in compared]):.2f}×"


def cell_of(row: Row, compared: Compared | None) -> str:
    """The cell of one plan: change of bytes and speed."""
    if row["communication_ms"] is None:
        return _NO_FIT
    return NOTHING if compared is None else f"{_change(compared.saved)} · {compared.faster:.2f}×"


def time_cell(plans: Plans, row: Row | None) -> str:
    """The cell of one plan: communication ms and speed."""
    if row is None or row["communication_ms"] is None:
        return NOTHING if row is None else _NO_FIT
    compared = plans.against(row)
    return f"{row['communication_ms']:.1f}" + (f" ({compared.faster:.1f}×)" if compared else "")


def _change(saved: float) -> str:
    """Change of bytes, for example "-12.3%"; "+0.0%" if nothing is saved."""
    return f"{0.0 - saved:+.1%}"
