"""The page of `neuroshard-production`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.entrants import TORCHREC
from experiments.experiment import Page, ResultTable, Row, Value
from experiments.neuroshard.comparisons import CASE, compared, failure_table, gaps, success, with_cases
from experiments.neuroshard.worlds import DEVICES_PER_HOST, FILL, HOSTS, MAX_DIM, WORLDS
from experiments.rows import VERSION
from experiments.summaries import NOTHING, REDESIGNS, cell, conditions, grouped, in_order, mean_interval, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = {
    "random": (118.3, None), "size": (107.6, 4.0), "dim": (90.8, 13.9), "lookup": (102.4, 11.9), "size_lookup": (109.2, 12.8),
    "autoshard": (86.6, 32.4), "dreamshard": (61.6, 45.3), "torchrec": (86.4, 34.6), "neuroshard": (55.2, 54.9),
}  # fmt: skip
"""The paper's figures for the production model: embedding cost in ms, and gain in training throughput over random in %."""

_COST = "embedding_cost_ms"


def made_page(rows: Sequence[Row], wanted: Sequence[str]) -> Page:
    """Make the page of the rows found so far.

    Args:
        rows: one row for each world, seed and strategy.
        wanted: the strategies in the order of the page.
    """
    cases = with_cases(rows, ("world",), "seed")
    worlds = {world.name: [row for row in cases if row["world"] == world.name] for world in WORLDS}
    names = in_order([*PUBLISHED, *(str(row["strategy"]) for row in rows)], wanted)
    ratios = {world: ratios_to_random(of_world, names) for world, of_world in worlds.items()}
    tables = [
        _beside_paper(names, worlds, ratios),
        *(_of_world(world, of_world, names) for world, of_world in worlds.items() if of_world),
        *filter(None, [failure_table(cases, names)]),
    ]
    batches = " and ".join(f"{world.batch_size:,} (`{world.name}`)" for world in WORLDS)
    text = _text([*filter(None, map(_whole_tables, worlds, worlds.values()))])
    return Page(
        "NeuroShard's production comparison", text, tables, {"": _figure(names, ratios)}, conditions(rows, batches)
    )


def ratios_to_random(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float]]:
    """For each strategy, embedding costs divided by those of `random`, seed by seed, over the seeds that all strategies placed.

    TorchRec's planner is not tried on all seeds; its ratios are over the seeds that it and `random` placed.
    """
    others = [name for name in names if name != TORCHREC]
    values = compared(rows, _COST, others)
    ratios = {
        name: _divided(values[name], values["random"]) for name in others if name in values and "random" in values
    }
    both = compared(rows, _COST, ("random", TORCHREC))
    return ratios | ({TORCHREC: _divided(both[TORCHREC], both["random"])} if len(both) == 2 else {})


def _divided(own: Mapping[Value, float], other: Mapping[Value, float]) -> list[float]:
    return [value / other[case] for case, value in own.items()]


def _beside_paper(
    names: Sequence[str], worlds: Mapping[str, list[Row]], ratios: Mapping[str, Mapping[str, list[float]]]
) -> ResultTable:
    cells = []
    for name in names:
        ms, gained = PUBLISHED.get(name, (None, None))
        paper = (
            cell(ms, ".1f"),
            cell(None if ms is None else ms / PUBLISHED["random"][0], ".3f"),
            cell(gained, "+.1f"),
        )
        own = [_ratio(of_world, ratios[world].get(name, []), name) for world, of_world in worlds.items()]
        cells.append((name, *paper, *own))
    caption = (
        "Embedding cost (the slowest device's four phases) as the paper gives it, in ms and divided by that of `random`, with the training "
        "throughput it gained over `random`; then our ratios to `random`: means over the tasks with 95% bootstrap intervals."
    )
    heads = ("strategy", "paper, ms", "paper, ratio", "paper, throughput %", *(f"{world}, ratio" for world in worlds))
    return ResultTable(caption, heads, cells)


def _ratio(rows: Sequence[Row], ratios: Sequence[float], name: str) -> str:
    """The mean ratio, or the reason why there is none."""
    if ratios:
        return with_interval(ratios, ".3f")
    failed = [row for row in rows if row["strategy"] == name and row["failure"] is not None]
    return f"{failed[0]['failure']} ({float(failed[0]['search_s'] or 0):.0f} s)" if failed else NOTHING


def _of_world(world: str, rows: Sequence[Row], names: Sequence[str]) -> ResultTable:
    """A table of the strategies' results in a world."""
    others = [name for name in names if name != TORCHREC]
    costs, steps, above = compared(rows, _COST, others), compared(rows, "step_ms", others), gaps(rows, others)
    cells = []
    by_name = grouped(rows, "strategy")
    for name in names:
        tried = by_name.get((name,), [])
        if not tried:
            continue
        placed = [row for row in tried if row["failure"] is None]
        own = [
            with_interval([*costs[name].values()]) if name in costs else NOTHING,
            cell(_mean(steps[name].values()) if name in steps else None), cell(_mean(above[name]) if above.get(name) else None, ".1%"),
            cell(_mean(float(row["balance"] or 0.0) for row in placed) if placed else None),
            cell(_mean(float(row["cut"] or 0) for row in placed) if placed else None, ".0f"),
            cell(float(np.median([float(row["search_s"] or 0.0) for row in tried])), ".2g"),
        ]  # fmt: skip
        cells.append((name, len(tried), success(tried, name), *own))
    about = next(each.about for each in WORLDS if each.name == world)
    caption = (
        f"`{world}`: {about}; cost model {_priced_by(rows)}. Embedding cost and step in ms over the tasks that all placed, with `torchrec` "
        "apart; gap: (step − bound) / "
        "bound; balance: cheapest over costliest device; cut: tables in several blocks; means. Search: median seconds."
    )
    heads = ("strategy", "tried", "placed", "embedding cost", "step", "gap", "balance", "cut", "search")
    return ResultTable(caption, heads, cells)


def _priced_by(rows: Sequence[Row]) -> str:
    """The cost model of the rows, by their versions: learned from kernels, made of published figures, or bytes over stated bandwidth."""
    versions = " ".join(str(row.get(VERSION, "")) for row in rows)
    kinds = {
        "model ": "learned from kernels",
        "published ": "of published figures",
        "analytic ": "bytes over stated bandwidth",
    }
    return " and ".join(text for mark, text in kinds.items() if mark in versions)


def _whole_tables(world: str, rows: Sequence[Row]) -> str | None:
    """A sentence on the least time of plans that keep whole tables, beside the cost that `certified` found; None without rows."""
    alone = {row[CASE]: float(row["heaviest_ms"] or 0.0) for row in rows}
    costs = compared(rows, _COST, ("certified",)).get("certified")
    if not alone or not costs:
        return None
    return (
        f"In `{world}`, of the tables that fit a device, the one whose kernels take longest needs {_mean(alone.values()):.1f} ms by itself "
        "(mean): plans that keep it whole cannot take less. The whole embedding cost of `certified`'s plans is "
        f"{_mean(costs.values()):.1f} ms."
    )


def _text(whole_tables: Sequence[str]) -> list[str]:
    terabytes = " and ".join(
        f"{FILL * sum(world.topology.memory_bytes) / 1e12:.1f} TB in `{world.name}`" for world in WORLDS
    )
    return [
        f"All 856 tables of the pool, each with one of the dims 4, 8, … {MAX_DIM}, drawn anew for each seed, on {HOSTS} hosts of "
        f"{DEVICES_PER_HOST} devices. Hash sizes are multiplied so that the weights take {FILL:.0%} of all memory ({terabytes}); pooling "
        "factors and the skew of accesses are the pool's.",
        "The paper's figures are of another model, of Meta's production, on 128 GPUs whose kernels and links were measured. Here the "
        "tables are synthetic and all times are predicted. So only the ratios to `random` are comparable, and they need not agree. The "
        "throughput of a training step with its dense part is not predicted here.",
        "`autoshard`, `dreamshard` and `dreamshard+` place by policies learned for CPUs; there are none for A100s, so `a100` leaves "
        "them out. Strategies that place whole tables cut one that fits no device, as few times as possible. `neuroshard` has the "
        "paper's N, K, L and M, with at most 10 column splits. Tables that fit no device are cut before these and not counted, which the "
        "paper's search does not do; [neuroshard-published](neuroshard-published.md) runs it without such cuts.",
        REDESIGNS,
        *whole_tables,
    ]


def _figure(names: Sequence[str], ratios: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    """Bars of the ratio to `random`, in the paper and here."""
    from experiments.pages import COLOURS, panels

    figure, axes = panels([["embedding cost / random"]], width=8.4, height=3.2)
    axis, width = axes[0][0], 0.8 / (1 + len(ratios))
    paper = {name: [ms / PUBLISHED["random"][0]] for name, (ms, _) in PUBLISHED.items()}
    for number, (label, of_name) in enumerate({"paper": paper, **ratios}.items()):
        there = [(position, *mean_interval(of_name[name])) for position, name in enumerate(names) if of_name.get(name)]
        if not there:
            continue
        position, mean, low, high = np.array(there).T
        colours = ["white" if label == "paper" else COLOURS[names[int(place)]] for place in position]
        axis.bar(
            position + (number - len(ratios) / 2) * width, mean, 0.92 * width, yerr=np.stack([mean - low, high - mean]),
            color=colours, alpha=1.0 if number < 2 else 0.55, edgecolor="#444444", linewidth=0.4, error_kw={"linewidth": 0.8}, label=label,
        )  # fmt: skip
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.grid(visible=False, axis="x")
    axis.set_axisbelow(True)
    axis.set_xlabel("left to right: the paper, " + ", ".join(ratios))
    return figure


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
