"""The page of `ablations`: the worth of each part of the searches, and the price of the convex head, in tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.ablations.comparisons import (
    Beside,
    HeadPairs,
    beside,
    beside_bundled,
    beside_greedy,
    draw,
    geometric,
    head_pairs,
    searches,
)
from experiments.ablations.pieces import BUNDLED, MEASURED, SAMPLES, SEARCH, TRAINED
from experiments.ablations.variants import CERTIFIED, FULL, NEUROSHARD, VARIANTS
from experiments.experiment import Page, ResultTable, Row
from experiments.summaries import NOTHING, cell, conditions, grouped

_NOTABLE = 0.005  # share by which a step must become longer or shorter for a part to matter

_INTRODUCTION = (
    "The tasks are NeuroShard's: 10 to 59 tables on 4 devices or 20 to 119 on 8, max dim 32 or 128. They are priced by the model of CPU "
    "kernels that was bundled at the time. Each search runs complete, then without one part at a time; the same fused costs judge every "
    "plan. Costs are `step_ms`; the paper's cost, the largest device's sum, stands next to it."
)
_HEADS = (
    "**Convex against mlp head.** `certified`'s bound needs a convex head. Under the mlp head it searches in the same way but proves "
    "nothing, so no gap is known and no search ends early. To price this, both heads are trained on the same samples of one machine, and "
    "plans found under either run on its kernels."
)


def paragraphs(rows: Sequence[Row]) -> Sequence[str]:
    """The text of the page."""
    parts = [_INTRODUCTION, *(verdict(rows, system) for system in VARIANTS), cache(rows), heads(rows)]
    return [part for part in parts if part]


def verdict(rows: Sequence[Row], system: str) -> str:
    """A paragraph on which parts of a system matter; empty without rows."""
    matters: list[str] = []
    little: list[str] = []
    better: list[str] = []
    for name in list(VARIANTS[system])[1:]:
        change = beside(rows, system, name, FULL)
        if not change.pairs:
            continue
        mean, low, high = geometric(change.ratios())
        said = f"{name} ({mean - 1:+.2%}{_failures(change.own_failures - change.full_failures)})"
        sure = low > 1 or high < 1 or len(change.pairs) == 1
        (matters if mean > 1 + _NOTABLE and sure else better if mean < 1 - _NOTABLE and sure else little).append(said)
    if not (matters or little or better):
        return ""
    tasks = sum(row["part"] == SEARCH and (row["system"], row["variant"]) == (system, FULL) for row in rows)
    groups = {
        "longer": matters,
        f"changed by less than {_NOTABLE:.1%}, or not significantly": little,
        "shorter": better,
    }
    lines = [f"- {change}: {', '.join(parts)}" for change, parts in groups.items() if parts]
    heading = f"**`{system}`**, {tasks} tasks: geometric mean of the change of the step without a part"
    return "\n".join([heading, "", *lines])


def cache(rows: Sequence[Row]) -> str:
    """A paragraph on the cache and the time that it saves; empty without rows."""
    both = beside(rows, NEUROSHARD, "no cache", FULL)
    if not both.pairs:
        return ""
    return (
        "**The cache.** The paper's search keeps predictions for sets of tables, since its greedy asks a network at every step. The search "
        "here encodes every width of every table once, keeps the sums of encodings of the devices, and skips bounds of the grid that "
        "cannot change a placement. *No cache* turns off the first and the last of these. It finds the same plan for "
        f"{both.same_plans} of {len(both.pairs)} tasks and takes {np.median(both.ratios('search_s')):.0f} times the time (median)."
    )


def heads(rows: Sequence[Row]) -> str:
    """A paragraph on the convex against the mlp head, as far as rows exist; empty without rows."""
    if not any(row["part"] in (SAMPLES, TRAINED, MEASURED) for row in rows):
        return ""
    sentences = [_HEADS]
    collected = max((int(row["sets"] or 0) for row in rows if row["part"] == SAMPLES), default=0)
    if collected:
        sentences.append(f"The samples are {collected:,} sets of tables.")
    errors = {
        head: [float(row["mean_error"] or 0.0) for row in rows if (row["part"], row["head"]) == (TRAINED, head)]
        for head in ("convex", "mlp")
    }
    if all(errors.values()):
        convex, mlp = (float(np.mean(of_head)) for of_head in errors.values())
        sets = max(int(row["sets"] or 0) for row in rows if row["part"] == TRAINED)
        sentences.append(
            f"Held-out error: {convex:.1%} convex, {mlp:.1%} mlp (means over seeds, {sets} held-out sets)."
        )
    failed = sum(row["part"] == MEASURED and row["measured_ms"] is None for row in rows)
    sentences += [f"{failed} plans were not found or not measured."] if failed else []
    lines = []
    for strategy, pairs in head_pairs(rows).items():
        mean, low, high = geometric(pairs.ratios("measured_ms"))
        significance = "significant" if low > 1 or high < 1 else "not significant"
        lines.append(
            f"- `{strategy}`: {mean:.3f} ({low:.3f} to {high:.3f}), {significance}; {pairs.same_plans} of {len(pairs.pairs)} pairs are "
            "the same plan"
        )
    if lines:
        lines = ["", "Measured time of plans under mlp over that of plans under convex:", "", *lines]
    return "\n".join([" ".join(sentences), *lines])


def _failures(more: int) -> str:
    return f", {more} more not placed" if more > 0 else f", {-more} more placed" if more < 0 else ""


def page_of(rows: Sequence[Row]) -> Page:
    """Make the page of all rows or of some."""
    tables = [
        *(of_system(rows, system) for system in (NEUROSHARD, CERTIFIED)), by_setting(rows), errors(rows), measured(rows),
        strategies(rows),
    ]  # fmt: skip
    return Page(
        "The gain of each part (ablations)",
        paragraphs(rows),
        [table for table in tables if table.rows],
        {"": draw(rows)} if rows else {},
        conditions(rows),
    )


def of_system(rows: Sequence[Row], system: str) -> ResultTable:
    """A table with a line for each variant of a system."""
    heads = [
        "without", "what is left", "tasks", "step, geometric mean", "longer", "equal", "shorter", "worst", "embedding cost",
        "search time", "not placed, without and with", "gap, median", "same plans",
    ]  # fmt: skip
    cells: list[list[object]] = []
    for name, variant in VARIANTS[system].items():
        compared = beside(rows, system, name, FULL)
        if compared.tried:
            cells.append([name, variant.what, *figures(compared)])
    caption = (
        f"`{system}` without one part at a time over `{system}` as it is, on the same tasks: below 1 is better without the part. "
        "Costs are geometric means over the tasks that both placed, with 95% bootstrap intervals; search time is the median ratio. The gap "
        "is to the bound of the variant's own search, which under constraints covers only plans that keep them."
    )
    return ResultTable(caption, heads, cells)


def figures(both: Beside) -> list[object]:
    """The cells of a variant's line, from the number of tasks on."""
    failures = f"{both.own_failures}, {both.full_failures}"
    if not both.pairs:
        return [0, *[NOTHING] * 7, failures, NOTHING, NOTHING]
    gaps = [step / bound - 1 for _, row in both.pairs if (step := row["step_ms"]) and (bound := row["bound_ms"])]  # type: ignore[operator]
    return [
        len(both.pairs), ratio_cell(both.ratios()), *(f"{share:.0%}" for share in both.shares), cell(max(both.ratios()), ".3f"),
        cell(geometric(both.ratios("embedding_cost_ms"))[0], ".4f"), cell(float(np.median(both.ratios("search_s")))) + "×", failures,
        cell(float(np.median(gaps)) if gaps else None, ".2%"), f"{both.same_plans} of {len(both.pairs)}",
    ]  # fmt: skip


def ratio_cell(ratios: Sequence[float]) -> str:
    """The cell of a geometric mean and its interval."""
    mean, low, high = geometric(ratios)
    return f"{mean:.4f} ({low:.4f} to {high:.4f})" if ratios else NOTHING


def by_setting(rows: Sequence[Row]) -> ResultTable:
    """A table of the variants' geometric means by setting."""
    of_searches = [row for system in VARIANTS for row in searches(rows, system)]
    settings = sorted(grouped(of_searches, "devices", "max_dim"), key=lambda key: (int(key[0] or 0), int(key[1] or 0)))
    cells = []
    for system, variants in VARIANTS.items():
        for name in list(variants)[1:]:
            each = [
                beside([row for row in of_searches if (row["devices"], row["max_dim"]) == setting], system, name, FULL)
                for setting in settings
            ]
            if any(compared.pairs for compared in each):
                means = [cell(geometric(compared.ratios())[0] if compared.pairs else None, ".4f") for compared in each]
                cells.append(
                    [
                        system,
                        name,
                        *(f"{mean} ({len(compared.pairs)})" for mean, compared in zip(means, each, strict=True)),
                    ]
                )
    heads = ["system", "without", *(f"{devices} devices, max dim {dim}" for devices, dim in settings)]
    return ResultTable(
        "The same ratios of steps by setting: geometric means, in brackets the number of tasks.", heads, cells
    )


def errors(rows: Sequence[Row]) -> ResultTable:
    """A table of the held-out errors of both heads."""
    cells = []
    for (head,), group in grouped([row for row in rows if row["part"] == TRAINED], "head").items():
        noise = [float(row["repeat_error"]) for row in group if row["repeat_error"] is not None]
        columns = [[float(row[name] or 0.0) for row in group] for name in ("mean_error", "median_error", "spearman")]
        cells.append(
            [head, len(group), span([float(row["sets"] or 0) for row in group], ",.0f"), *(span(each, ".2%") for each in columns[:2]),
             span(columns[2], ".4f"), cell(noise[0] if noise else None, ".2%")]
        )  # fmt: skip
    caption = (
        "Relative errors of both heads on the tenth of the samples that a training has not seen: means over seeds, in brackets least and "
        "most. Repeat noise is the mean difference between two measurements of a set."
    )
    heads = ["head", "seeds", "held-out sets", "mean error", "median error", "Spearman", "repeat noise"]
    return ResultTable(caption, heads, cells)


def measured(rows: Sequence[Row]) -> ResultTable:
    """A table of plans found under either head, measured on real kernels."""
    cells = [line(strategy, pairs) for strategy, pairs in head_pairs(rows).items()]
    caption = (
        "Plans found under the mlp head over plans found under the convex head, same task, strategy and seed. Times are slowest forward "
        "plus slowest backward kernel; ratios are geometric means with 95% intervals. Each head predicts its own plans. Difference is the "
        "median of predicted / measured − 1: below 0 the plan was slower than predicted."
    )
    heads = [
        "strategy", "pairs", "same plans", "measured, mlp / convex", "mlp faster", "predicted, mlp / convex", "difference, convex",
        "difference, mlp",
    ]  # fmt: skip
    return ResultTable(caption, heads, cells)


def line(strategy: str, pairs: HeadPairs) -> list[object]:
    """The line of a strategy in the table of `measured`."""
    ratios = pairs.ratios("measured_ms")
    return [
        strategy, len(ratios), pairs.same_plans, ratio_cell(ratios), f"{np.mean(np.array(ratios) < 1):.0%}",
        ratio_cell(pairs.ratios("predicted_ms")),
        *(cell(pairs.optimism(index), "+.1%") for index in range(2)),
    ]  # fmt: skip


def strategies(rows: Sequence[Row]) -> ResultTable:
    """A table of strategies beside `greedy`, under models learned on the measuring machine and under the bundled model."""
    cells = []
    for strategy in (NEUROSHARD, CERTIFIED):
        for head in ("convex", "mlp", BUNDLED):
            times = beside_greedy(rows, strategy, head, "measured_ms")
            promised = beside_greedy(rows, strategy, head, "predicted_ms")
            if times:
                faster = f"{np.mean(np.array(times) < 1):.0%}"
                cells.append(
                    [strategy, head, len(times), ratio_cell(times), faster, ratio_cell(promised), cell(max(times), ".3f"),
                     ratio_cell(beside_bundled(rows, strategy, head))]
                )  # fmt: skip
    caption = (
        "Measured plans over `greedy`'s under the same model. The models convex and mlp were learned on the measuring machine. Ratios are "
        "geometric means over tasks with 95% intervals; a task counts with the mean of its seeds."
    )
    heads = [
        "strategy", "model", "tasks", "measured", "faster on", "predicted", "worst task", "over its plans under the bundled model",
    ]  # fmt: skip
    return ResultTable(caption, heads, cells)


def span(values: Sequence[float], spec: str) -> str:
    """Mean of the values, with least and most if they differ."""
    mean = format(float(np.mean(values)), spec)
    return mean if len(set(values)) == 1 else f"{mean} ({min(values):{spec}} to {max(values):{spec}})"
