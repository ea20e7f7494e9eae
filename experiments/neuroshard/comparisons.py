"""Comparison tables of settings × strategies, from the rows of `outcomes`.

Means are over the tasks that every compared strategy placed, so that a strategy gains nothing by failing at hard tasks. Strategies that
were not tried on all tasks are compared separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from experiments.entrants import SORTED, WHOLE
from experiments.experiment import ResultTable, Row, Value
from experiments.outcomes import FAILURES
from experiments.summaries import NOTHING, cell, common_tasks, grouped, values_by_task, with_interval

Settings = Mapping[tuple[Value, ...], list[Row]]
CASE = "case"
"""Column that identifies a task across all settings; `with_cases` adds it."""


def with_cases(rows: Sequence[Row], setting: Sequence[str], task: str = "task") -> list[Row]:
    """The rows with an added column `CASE`, made of the columns of the setting and the task's number."""
    return [row | {CASE: "/".join(str(row[column]) for column in (*setting, task))} for row in rows]


def settings_of(rows: Sequence[Row], columns: Sequence[str]) -> dict[tuple[Value, ...], list[Row]]:
    """Group rows by setting; settings are sorted by their values."""
    return dict(sorted(grouped(rows, *columns).items(), key=lambda item: tuple(map(str_or_number, item[0]))))


def str_or_number(value: Value) -> tuple[int, float, str]:
    """A sort key for values of different types: numbers first."""
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def compared(rows: Sequence[Row], column: str, names: Sequence[str]) -> dict[str, dict[Value, float]]:
    """Values of a column by strategy and case, for named strategies that placed anything, over the cases that all of them placed."""
    values = values_by_task(rows, column, task=CASE)
    some = {name: values[name] for name in names if values.get(name)}
    cases = common_tasks(some)
    return {name: {case: of_case[case] for case in cases} for name, of_case in some.items()}


def best_of(values: Mapping[str, Mapping[Value, float]], names: Sequence[str] = SORTED) -> dict[Value, float]:
    """The smallest value of these strategies for each case that any of them has."""
    cases = dict.fromkeys(case for name in names for case in values.get(name, {}))
    return {case: min(values[name][case] for name in names if case in values.get(name, {})) for case in cases}


def bounds_of(rows: Sequence[Row]) -> dict[Value, float]:
    """The largest proven bound on the step of each case, ms."""
    bounds: dict[Value, float] = {}
    for row in rows:
        if row["bound_ms"] is not None:
            bounds[row[CASE]] = max(bounds.get(row[CASE], 0.0), float(row["bound_ms"]))
    return bounds


def gaps(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float]]:
    """Excess of each strategy's steps over the bound, as shares of the bound, over the cases that all placed and that have a bound."""
    bounds = bounds_of(rows)
    steps = compared(rows, "step_ms", names)
    return {
        name: [value / bounds[case] - 1 for case, value in of_case.items() if case in bounds]
        for name, of_case in steps.items()
    }


def strategy_table(rows: Sequence[Row], names: Sequence[str], cost: str = "embedding_cost_ms") -> ResultTable:
    """A row for each strategy, over all settings."""
    values, of_strategy = compared(rows, cost, names), grouped(rows, "strategy")
    rivals, above = (values.get("random", {}), best_of(values)), gaps(rows, names)
    count = max((len(of_case) for of_case in values.values()), default=0)
    caption = (
        "All settings together, by column:\n\n"
        "- placed: share of the tasks tried; in brackets the share placed without cutting a table\n"
        f"- cost: mean ratio of the embedding costs of the {count:,} tasks that all of these strategies placed, with a 95% bootstrap "
        "interval; the divisor is `random`, or the best of the four sorted heuristics on the same task\n"
        "- gap: mean of (step − bound) / bound\n"
        "- search: seconds"
    )
    heads = (
        "strategy", "tried", "placed", "cost / random", "cost / best sorted", "gap", "search, median", "search, 90%",
    )  # fmt: skip
    cells = []
    for name in names:
        tried = of_strategy.get((name,), [])
        if tried:
            own = values.get(name, {})
            ratios = [with_interval([own[c] / rival[c] for c in own if c in rival], ".3f") for rival in rivals]
            gap = cell(float(np.mean(above[name])) if above.get(name) else None, ".1%")
            cells.append((name, len(tried), success(tried, name), *ratios, gap, *map(_seconds, _spread(tried))))
    return ResultTable(caption, heads, cells)


def success(tried: Sequence[Row], name: str) -> str:
    """Share of the tasks placed, for example "97% (89%)"; in brackets without cutting a table, for strategies of whole tables."""
    if not tried:
        return NOTHING
    placed = [row for row in tried if row["failure"] is None]
    whole = [row for row in placed if row["cut"] == 0]
    text = f"{len(placed) / len(tried):.0%}"
    return text if name not in WHOLE or len(whole) == len(placed) else f"{text} ({len(whole) / len(tried):.0%})"


def success_table(caption: str, heads: Sequence[str], settings: Settings, names: Sequence[str]) -> ResultTable:
    """Share of tasks that each strategy placed, by setting; with the numbers of tasks and of tasks with a table too large."""

    def tasks(rows: Sequence[Row]) -> tuple[str, ...]:
        oversize = {row[CASE]: row["oversize"] for row in rows}
        return str(len(oversize)), str(sum(bool(count) for count in oversize.values()))

    more = ("tasks", "with a table too large for a device")
    return _matrix(caption, (*heads, *more), settings, names, tasks, success)


def mean_table(
    caption: str, heads: Sequence[str], settings: Settings, names: Sequence[str], column: str, spec: str = ".2f"
) -> ResultTable:
    """Means of a column by setting and strategy over the tasks that all placed, with the number of these tasks."""
    rows = []
    for setting, of_setting in settings.items():
        values = compared(of_setting, column, names)
        count = max((len(of_case) for of_case in values.values()), default=0)
        means = [cell(_mean(values[name].values()) if values.get(name) else None, spec) for name in names]
        rows.append((*setting, count, *means))
    return ResultTable(caption, (*heads, "tasks", *names), rows)


def gap_table(caption: str, heads: Sequence[str], settings: Settings, names: Sequence[str]) -> ResultTable:
    """Mean gap to the bound by setting and strategy."""
    rows = []
    for setting, of_setting in settings.items():
        above = gaps(of_setting, names)
        rows.append((*setting, *(cell(_mean(above[name]) if above.get(name) else None, ".1%") for name in names)))
    return ResultTable(caption, (*heads, *names), rows)


def time_table(caption: str, heads: Sequence[str], settings: Settings, names: Sequence[str]) -> ResultTable:
    """Median seconds of a search by setting and strategy, over plans and failures alike."""
    return _matrix(
        caption, heads, settings, names, lambda rows: (), lambda tried, name: _seconds(_spread(tried)[0] if tried else None)
    )  # fmt: skip


def failure_table(rows: Sequence[Row], names: Sequence[str]) -> ResultTable | None:
    """Reasons why tasks were not placed, by strategy; None if all were placed."""
    counts = {name: Counter(row["failure"] for row in rows if row["strategy"] == name) for name in names}
    cells = [
        (name, *(counts[name][why] for why in FAILURES)) for name in names if any(counts[name][why] for why in FAILURES)
    ]
    caption = "Tasks that were not placed, by reason. *No plan exists* is proven; *in time* means within the strategy's time limit."
    return ResultTable(caption, ("strategy", *FAILURES), cells) if cells else None


def _matrix(
    caption: str,
    heads: Sequence[str],
    settings: Settings,
    names: Sequence[str],
    more: Callable[[Sequence[Row]], tuple[str, ...]],
    text: Callable[[Sequence[Row], str], str],
) -> ResultTable:
    """A table with a row for each setting and a column for each strategy; `text` makes the cells."""
    rows = []
    for setting, of_setting in settings.items():
        by_name = grouped(of_setting, "strategy")
        rows.append((*setting, *more(of_setting), *(text(by_name.get((name,), []), name) for name in names)))
    return ResultTable(caption, (*heads, *names), rows)


def _spread(tried: Sequence[Row]) -> tuple[float, float]:
    seconds = [float(row["search_s"] or 0.0) for row in tried]
    return float(np.median(seconds)), float(np.percentile(seconds, 90))


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
