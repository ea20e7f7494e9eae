"""The page of `neuroshard-table`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.entrants import SORTED, TORCHREC, Limits
from experiments.experiment import Page, ResultTable, Row, Value
from experiments.neuroshard.comparisons import (
    CASE,
    Settings,
    best_of,
    compared,
    failure_table,
    gap_table,
    mean_table,
    settings_of,
    strategy_table,
    success_table,
    time_table,
    with_cases,
)
from experiments.neuroshard.plans_on_kernels import NOT_MEASURED, measured_table
from experiments.rows import HARDWARE
from experiments.summaries import (
    REDESIGNS,
    cell,
    conditions,
    grouped,
    in_order,
    models_of,
    ratio_of_means,
    values_by_task,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH_SIZE, SEED, ROUNDS = 1024, 2026, 3
LIMITS = Limits(seconds=5.0, torchrec_seconds=60.0)
PLANNED, MEASURED = "planned", "measured"
SETTING = ("devices", "max_dim")

_HEADS = ("devices", "max dim")
_BESIDE_TORCHREC = ("random", "neuroshard", "certified")
_DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (4, 1, 1, 1)), "-")
_COST, _STEP = "embedding_cost_ms", "step_ms"


def made_page(rows: Sequence[Row], wanted: Sequence[str]) -> Page:
    """Make the page of the rows found so far.

    Args:
        rows: rows of planned and of measured tasks.
        wanted: the strategies in the order of the columns.
    """
    of_part = {part: with_cases([row for row in rows if row["part"] == part], SETTING) for part in (PLANNED, MEASURED)}
    planned = of_part[PLANNED]
    names = in_order((row["strategy"] for row in planned), wanted)
    most = [name for name in names if name != TORCHREC]
    settings = settings_of(planned, SETTING)
    mean = "Mean {}, ms, over the tasks that all of these strategies placed."
    tables = [
        strategy_table(planned, most),
        success_table(
            "Share of the tasks that were placed; in brackets the share placed without cutting a table, if it differs.",
            _HEADS, settings, names,
        ),
        mean_table(mean.format("embedding cost (the papers' measure: the slowest device's four phases)"), _HEADS, settings, most, _COST),
        mean_table(mean.format("step (each phase as long as its slowest device)"), _HEADS, settings, most, _STEP),
        gap_table("Mean gap of the step to the largest proven bound, over the same tasks.", _HEADS, settings, most),
        time_table(_times_caption(planned), _HEADS, settings, names),
        *([_torchrec_table(settings)] if TORCHREC in names else []),
        *filter(None, [failure_table(planned, names)]),
        *_measured(of_part[MEASURED], wanted),
    ]  # fmt: skip
    return Page(
        "NeuroShard's benchmark",
        _text([*planned, *of_part[MEASURED]], names),
        tables,
        {"": _figure(planned, names)},
        conditions(rows),
    )


def _text(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    asked = {row[CASE] for row in rows if row["strategy"] == TORCHREC}
    about_torchrec = (
        f"`torchrec`, TorchRec's planner, takes seconds a task. So it was asked for only {len(asked)} tasks, each for at most "
        f"{LIMITS.torchrec_seconds:g} s, and has a separate table."
        if TORCHREC in names
        else "No row is of TorchRec's planner: it is not installed, or its tasks did not run yet."
    )
    tasks = len({row[CASE] for row in rows if row["part"] == PLANNED})
    return [
        f"The tasks are those of NeuroShard's paper (MLSys 2023); {tasks:,} tasks are here.\n\n"
        "- Tables: 10 to 59 on 4 devices and 20 to 119 on 8, drawn with replacement from the pool of 856.\n"
        "- Dims: drawn from 4, 8, … max dim.\n"
        f"- Memory: 4 GB a device; batch {BATCH_SIZE:,}.\n"
        f"- Time: `certified`, `neuroshard` and `dreamshard+` have {LIMITS.seconds:g} s a search; `certified` and `dreamshard+` stop at a "
        f"gap of {LIMITS.tolerance:.1%}.",
        "**Differences from the paper**\n\n"
        "- Tables: the pool has the published statistics of Meta's data set; its single tables are made up.\n"
        f"- Costs: predicted by the CPU model that was bundled then ({models_of(rows)}), learned from measured kernels. Links are priced "
        "by their bandwidth.\n"
        "- Tables that fit no device: `neuroshard` and the strategies that place whole tables cut them first; the papers' versions fail. "
        "`neuroshard`'s ten splits do not count these cuts.\n"
        "- Policies: `autoshard` and `dreamshard` use the bundled policies, which learned from one half of the pool's tables. The tasks "
        "draw from both halves. If memory is tight, both try other orders before they fail; the papers' versions do not.\n"
        "- Methods: " + REDESIGNS,
        about_torchrec,
        *_level(rows),
    ]


def _level(rows: Sequence[Row]) -> list[str]:
    """A paragraph that compares measured plans of `greedy` and `autoshard` with `neuroshard`'s; empty if none was measured."""
    times: dict[str, dict[Value, float]] = values_by_task(
        [row for row in rows if row["part"] == MEASURED and row["strategy"]], "measured_ms", task=CASE
    )
    own = times.get("neuroshard", {})
    said = [
        f"`{name}` {with_interval([of_task[case] / own[case] for case in own if case in of_task])}"
        for name in ("greedy", "autoshard")
        if (of_task := times.get(name))
    ]
    if not own or not said:
        return []
    return [
        f"**Measured kernel time** over that of `neuroshard`, {len(own)} tasks, mean and 95% interval: {', '.join(said)}. An "
        "interval that contains 1 shows no significant difference. All other tables are predicted. "
        "`python -m experiments papers-measured` measures 48 of these tasks."
    ]


def _times_caption(rows: Sequence[Row]) -> str:
    jobs = max((int(row.get("jobs") or 1) for row in rows), default=1)
    beside = "" if jobs == 1 else f" Up to {jobs} processes ran side by side, so a search alone takes less."
    return (
        "Median seconds of a search, without the loading of libraries and cost model. For `torchrec`: its whole process, loading "
        f"included.{beside}"
    )


def _torchrec_table(settings: Settings) -> ResultTable:
    """A table of TorchRec's planner beside others, on the tasks that it was tried on."""
    rows = []
    for setting, of_setting in settings.items():
        asked = {row[CASE] for row in of_setting if row["strategy"] == TORCHREC}
        there = [row for row in of_setting if row[CASE] in asked]
        values = compared(there, _COST, (TORCHREC, *SORTED, *_BESIDE_TORCHREC))
        own = values.get(TORCHREC, {})
        others = {name: values.get(name, {}) for name in _BESIDE_TORCHREC} | {"best sorted": best_of(values)}
        ratios = [
            cell(ratio_of_means(own, of_case, [c for c in own if c in of_case]), ".3f") for of_case in others.values()
        ]
        rows.append((*setting, len(asked), len(own), *ratios))
    caption = (
        "TorchRec's planner: its mean embedding cost over that of each other strategy, for the tasks that all of these placed. Above 1 "
        "the other's cost is lower. TorchRec's planner receives pooling factors, memory and bandwidths, but no access skew."
    )
    return ResultTable(
        caption, (*_HEADS, "asked for", "compared", *(f"/ {name}" for name in (*_BESIDE_TORCHREC, "best sorted"))), rows
    )


def _measured(rows: Sequence[Row], wanted: Sequence[str]) -> list[ResultTable]:
    there = [row for row in rows if row["failure"] != NOT_MEASURED]
    failed = {str(row["why"]) for row in rows if row["failure"] == NOT_MEASURED}
    tables = [measured_table(of_machine, wanted) for of_machine in grouped(there, HARDWARE).values()]
    how = f"{ROUNDS} interleaved rounds, the shortest per device."
    tables = [replace(table, caption=f"{table.caption} {how}") for table in tables]
    if failed:
        tables.append(
            ResultTable("Tasks whose plans could not be measured.", ("why",), [(why,) for why in sorted(failed)])
        )
    return tables


def _figure(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Mean embedding cost relative to `random`, plotted over the largest dim; one panel for each number of devices."""
    from experiments.pages import COLOURS, panels

    of_devices = settings_of(rows, SETTING[:1]) or {("–",): []}
    figure, axes = panels([[f"{devices} devices" for (devices,) in of_devices]], width=4.2, height=3.4)
    dashes = dict(zip(SORTED, _DASHES, strict=True))
    for axis, of_panel in zip(axes[0], of_devices.values(), strict=True):
        widths = settings_of(of_panel, SETTING[1:])
        for name in names:
            points = [(dims[0], _relative(of_width, names, name)) for dims, of_width in widths.items()]
            known = [(float(x), y) for x, y in points if y is not None and x is not None]
            if known:
                style = dashes.get(name, "--" if name == TORCHREC else "-")
                look: dict[str, Any] = {"marker": "o", "markersize": 2.5, "linewidth": 1.2, "linestyle": style}
                axis.plot(*zip(*known, strict=True), **look, color=COLOURS[name], label=name)
        axis.set_xscale("log", base=2)
        ticks = sorted({float(dims[0]) for dims in widths if dims[0] is not None})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xlabel("max dim")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("embedding cost / random")
    if grouped(rows, "strategy"):
        lines, labels, columns = *axes[0][0].get_legend_handles_labels(), 4 * len(axes[0])
        figure.legend(lines, labels, frameon=False, fontsize=7, ncols=columns, loc="outside lower center")
    return figure


def _relative(rows: Sequence[Row], names: Sequence[str], name: str) -> float | None:
    """A strategy's mean cost over that of `random`; for TorchRec's planner, over the tasks that it and `random` placed."""
    others = [other for other in names if other != TORCHREC] if name != TORCHREC else ["random", TORCHREC]
    values = compared(rows, _COST, others)
    if name not in values or "random" not in values:
        return None
    return ratio_of_means(values[name], values["random"], values[name])
