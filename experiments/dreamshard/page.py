"""The page of `dreamshard-tables`: its text and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from experiments.dreamshard.distances import Costs, Floats, above_bound_picture, closed, closed_interval, halves_picture
from experiments.entrants import SORTED
from experiments.experiment import Page, ResultTable, Row, Value
from experiments.learned.tasks import BATCH, DIM, MEMORY, NAMES, POOL, RNN, TEST_SEED, Setting
from experiments.rows import VERSION
from experiments.summaries import NOTHING, REDESIGNS, cell, conditions, grouped, in_order, ratio_of_means, with_interval

Groups: TypeAlias = dict[tuple[Setting, str], list[Row]]
"""Rows by setting and half of the pool."""
_PLAIN = ("random", *SORTED)


def summary_table(groups: Groups, names: Sequence[str]) -> ResultTable:
    """A table over all settings together, by strategy and half."""
    heads = ("strategy", "tables", "tasks", "placed", "step over the best heuristic's", "tasks with a shorter step", "closed, step",
             "closed, kernels", "above the bound, median", "search, median s")  # fmt: skip
    body = []
    for name in names:
        for half in dict.fromkeys(half for _, half in groups):
            chosen = [rows for (_, of), rows in groups.items() if of == half]
            own = [row for rows in chosen for row in rows if row["strategy"] == name]
            if own:
                body.append(
                    (name, half, len(own), *_placed(own), *_against_heuristics(chosen, name), _median_search(own))
                )
    caption = (
        "All settings together. Step over the best heuristic's: sum over tasks, over that of the heuristic with the lowest mean of each "
        "setting; shorter: more than 0.1% below that heuristic's."
    )
    return ResultTable(caption, heads, body)


def _placed(own: Sequence[Row]) -> tuple[str]:
    return (f"{np.mean([row['step_ms'] is not None for row in own]):.0%}",)


def _against_heuristics(settings: Sequence[Sequence[Row]], name: str) -> tuple[str, ...]:
    """Ratio to the best heuristic, tasks won, both shares closed, median distance to the bound."""
    steps = [Costs(rows, "step_ms") for rows in settings]
    own, best = [], []
    for costs in steps:
        heuristic = costs.best_heuristic
        tasks = costs.common([name, heuristic]) if heuristic else []
        own += list(costs.at(name, tasks))
        best += list(costs.at(heuristic, tasks)) if heuristic else []
    ratio = np.sum(own) / np.sum(best) if own else float("nan")
    won = float(np.mean(np.array(own) < 0.999 * np.array(best))) if own else float("nan")
    shares = []
    for kind in ("step_ms", "compute_ms"):
        gains = [Costs(rows, kind).from_best_heuristic(name) for rows in settings]
        shares.append(_share(name, *(np.concatenate(each) for each in zip(*gains, strict=True))))
    above = np.concatenate([costs.above_bound(name) for costs in steps])
    return cell(ratio, ".3f"), cell(won, ".0%"), *shares, _percentiles(above, (50,))[0]


def search_seconds(own: Sequence[Row]) -> list[float]:
    """Seconds of the timed searches that placed their task."""
    return [float(seconds) for row in own if row["step_ms"] is not None and (seconds := row["search_s"]) is not None]


def _median_search(own: Sequence[Row]) -> str:
    times = search_seconds(own)
    return f"{np.median(times):.4f}" if times else NOTHING


def closed_matrix(groups: Groups, names: Sequence[str], kind: str, what: str) -> ResultTable:
    """A table of the share of the distance to the bound that each strategy closes, by setting."""
    shown = [name for name in names if name not in _PLAIN]
    body = []
    for (setting, half), rows in groups.items():
        costs = Costs(rows, kind)
        shares = (_percent(closed(*costs.from_best_heuristic(name))) for name in shown)
        body.append((setting.name, half, costs.best_heuristic or NOTHING, *shares))
    caption = f"Closed, {what}: part of the distance between the best heuristic and the bound."
    return ResultTable(caption, ("setting", "tables", "best heuristic", *shown), body)


def _common(costs: Costs, names: Sequence[str]) -> list[Value]:
    """Tasks that all strategies but `rnn` placed; `rnn` may have been tried on some tasks only, and must not exclude the others."""
    return costs.common([name for name in names if name != RNN and name in costs.of])


def mean_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """A table of the mean step and the mean kernels of each strategy, over the same tasks."""
    body = []
    for kind, what in (("step_ms", "step"), ("compute_ms", "kernels")):
        for (setting, of), rows in groups.items():
            if of != half:
                continue
            costs = Costs(rows, kind)
            tasks = _common(costs, names)
            means = [_mean([costs.of.get(name, {}).get(task) for task in tasks]) for name in names]
            bound = _mean([costs.bound.get(task) for task in tasks])
            tried = len({row["task"] for row in rows})
            body.append((what, setting.name, tried, len(tasks), *means, bound))
    caption = (
        f"Mean step, and mean of the kernels of the slowest device, ms; {half} tables. (of n): a mean over n of these tasks only, not "
        f"comparable with the others."
    )
    return ResultTable(caption, ("cost", "setting", "tasks", "of them in the means", *names, "bound"), body)


def paper_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """A table of embedding costs in the paper's form: mean, standard deviation, and speed-up over random placement."""
    body = []
    for (setting, of), rows in groups.items():
        if of != half:
            continue
        costs = Costs(rows, "embedding_cost_ms").of
        tasks = _common(Costs(rows, "embedding_cost_ms"), names)
        cells = []
        for name in names:
            chosen = [task for task in tasks if task in costs.get(name, {})]
            values = [costs[name][task] for task in chosen]
            faster = ratio_of_means(costs["random"], costs[name], chosen) if "random" in costs and chosen else None
            speed = "" if faster is None else f", {faster - 1:+.1%}"
            cells.append(f"{np.mean(values):.2f} ± {np.std(values):.2f}{speed}" if values else NOTHING)
        body.append((setting.name, len(tasks), *cells))
    caption = (
        f"As the paper's tables: embedding cost, ms, mean ± standard deviation over tasks, and how much faster than random placement; "
        f"{half} tables. {RNN}'s are over its own tasks."
    )
    return ResultTable(caption, ("setting", "tasks", *names), body)


def detail_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """A table of all other figures by setting and strategy."""
    heads = ("setting", "strategy", "tasks", "placed", "mean step, ms (95% interval)", "closed", "its 95% interval",
             "closed, from each task's best heuristic", "above the bound, median", "90th percentile", "worst", "search, median s",
             "longest s")  # fmt: skip
    body: list[tuple[object, ...]] = []
    for (setting, of), rows in groups.items():
        costs = Costs(rows, "step_ms")
        for name in names if of == half else ():
            own = [row for row in rows if row["strategy"] == name]
            if not own:
                continue
            gains = costs.from_best_heuristic(name)
            low, high = closed_interval(*gains)
            times = search_seconds(own)
            body.append(
                (
                    setting.name, name, len(own), *_placed(own), with_interval(list(costs.of[name].values()), ".3f"),
                    _share(name, *gains), NOTHING if name in _PLAIN else f"{_percent(low)} to {_percent(high)}",
                    _share(name, *costs.from_best_heuristic(name, each=True)),
                    *_percentiles(costs.above_bound(name), (50, 90, 100)), _median_search(own), cell(max(times, default=None), ".4f"),
                )
            )  # fmt: skip
    caption = (
        f"By setting and strategy, {half} tables: each over the tasks it placed itself. Seconds are by the clock, and {RNN} trains within "
        "them. Intervals are bootstrapped over tasks."
    )
    return ResultTable(caption, heads, body)


def _mean(values: Sequence[float | None]) -> str:
    """The mean of the known values; with their number if some are unknown."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    return f"{np.mean(known):.3f}" + ("" if len(known) == len(values) else f" (of {len(known)})")


def _share(name: str, gained: Floats, possible: Floats) -> str:
    """The share closed; a dash for strategies that it is measured from."""
    return NOTHING if name in _PLAIN else _percent(closed(gained, possible))


def _percent(share: float) -> str:
    return NOTHING if np.isnan(share) else f"{share:.1%}"


def _percentiles(values: Floats, percentiles: Sequence[int]) -> list[str]:
    return [f"{np.percentile(values, p):.2%}" if values.size else NOTHING for p in percentiles]


def page(rows: Sequence[Row], tasks: int) -> Page:
    """Make the page of the rows.

    Args:
        rows: rows planned so far.
        tasks: number of tasks of each setting and half in a complete run.
    """
    groups = by_setting(rows)
    names = in_order((row["strategy"] for row in rows), NAMES)
    halves = list(dict.fromkeys(half for _, half in groups))
    tables = [
        summary_table(groups, names), closed_matrix(groups, names, "step_ms", "step"),
        closed_matrix(groups, names, "compute_ms", "kernels of the slowest device"),
        *(mean_table(groups, names, half) for half in halves), *(paper_table(groups, names, half) for half in halves),
        *(detail_table(groups, names, half) for half in halves),
    ]  # fmt: skip
    figures = {
        "": above_bound_picture(groups, "step_ms"),
        "compute": above_bound_picture(groups, "compute_ms"),
        "halves": halves_picture(groups),
    }
    return Page("Learned placement on DreamShard's tasks", text(rows, groups, tasks), tables, figures, conditions(rows))


def by_setting(rows: Sequence[Row]) -> Groups:
    """Group rows by setting and half; few devices and tables come first, and unseen before seen tables."""
    groups = {
        (Setting(int(tables or 0), int(devices or 0)), str(half)): own
        for (tables, devices, half), own in grouped(rows, "tables", "devices", "half").items()
    }
    return dict(
        sorted(groups.items(), key=lambda group: (group[0][0].devices, group[0][0].tables, group[0][1] != "unseen"))
    )


def text(rows: Sequence[Row], groups: Groups, tasks: int) -> list[str]:
    """Paragraphs on the setting, and on the limits of its figures."""
    made_with = {str(row["strategy"]): str(row.get(VERSION, "")) for row in rows}
    versions = "; ".join(f"{name}: {made}" for name, made in made_with.items())
    return [
        f"Tasks of so many tables of dim {DIM} in fp32, each drawn at most once from the pool {POOL}, on 4 or 8 devices of {MEMORY}, batch "
        f"{BATCH:,}, every table whole; seed {TEST_SEED}. The bundled policies were trained on half of the pool's tables (seen), never "
        "on the other half (unseen), and no task was part of a training. A full run plans "
        f"{tasks} tasks of each half and setting; {RNN} trains anew on every task and gets only the first ones. "
        f"{versions}.",
        "**What differs from the paper.** The paper measures on GPUs. Costs here are those of the CPU cost model bundled then, so "
        "milliseconds compare only with each other. The paper trains a policy for each setting; here one bundled policy of each "
        "strategy, which reads the prices of the cost model, places all. "
        f"{REDESIGNS} "
        "The papers compare embedding costs, the slowest device's sum over the phases; `step` adds up the slowest device of each phase, "
        "the time of a synchronous step and the objective of `dreamshard` and `certified`. "
        "It is also the objective of the bundled policy of `autoshard`; the paper's is the kernels of the slowest device.",
        "**How to read it.** `certified` proves the bound: no plan of whole tables has a shorter step. The bound on kernels is the "
        "larger of an even share of everything and of the costliest table alone. *Closed* is the part of the distance between the best "
        "sorted heuristic and the bound that a strategy closes: (heuristic − strategy) / (heuristic − bound), of the sums over tasks; "
        "whole tables cannot reach all of it, and `certified` shows the part that a search reaches. Means are over tasks that all "
        f"strategies but {RNN} placed." + _untimed(groups),
        _finding(groups),
    ]


def _untimed(groups: Groups) -> str:
    """A sentence on plans without a search time, whose rows come from another machine; empty without such plans."""
    rows = [row for own in groups.values() for row in own]
    count = sum(row["step_ms"] is not None and row["search_s"] is None for row in rows)
    return f" {count:,} of the plans were made on another machine and have no search time here." if count else ""


def _finding(groups: Groups) -> str:
    """The sentence on the paper's claim: how policies fare against heuristics, on both halves."""
    parts = []
    for name in ("dreamshard", "autoshard"):
        kind, of = ("step_ms", "step") if name == "dreamshard" else ("compute_ms", "kernels")
        for half in ("unseen", "seen"):
            shares = [each for _, each in _closed_by_setting(groups, name, kind, half)]
            if shares:
                spread = f"{min(shares):.0%} to {max(shares):.0%} of the distance, over {len(shares)} settings"
                parts.append(f"`{name}` closes {spread} ({of}, {half} tables)")
    return "**Found.** " + ("; ".join(parts) if parts else "nothing yet") + "."


def _closed_by_setting(groups: Groups, name: str, kind: str, half: str) -> list[tuple[Setting, float]]:
    each = [
        (setting, closed(*Costs(rows, kind).from_best_heuristic(name)))
        for (setting, of), rows in groups.items()
        if of == half
    ]
    return [(setting, share) for setting, share in each if not np.isnan(share)]
