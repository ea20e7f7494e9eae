"""The page of `ablations`: what each part of the searches is worth, and what the convex head costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.ablations.figure import draw
from experiments.ablations.found import Beside, beside, geometric, searches
from experiments.ablations.heads_found import HeadPairs, beside_bundled, beside_greedy, head_pairs
from experiments.ablations.parts import BUNDLED, TRAINED
from experiments.ablations.text import paragraphs
from experiments.ablations.variants import CERTIFIED, FULL, NEUROSHARD, VARIANTS
from experiments.experiment import Page, ResultTable, Row
from experiments.summaries import NOTHING, cell, conditions, grouped


def page_of(rows: Sequence[Row]) -> Page:
    """The page of any part of the rows."""
    tables = [
        *(of_system(rows, system) for system in (NEUROSHARD, CERTIFIED)),
        by_setting(rows),
        errors(rows),
        measured(rows),
        strategies(rows),
    ]
    return Page(
        "What each part is worth (ablations)",
        paragraphs(rows),
        [table for table in tables if table.rows],
        {"": draw(rows)} if rows else {},
        conditions(rows),
    )


def of_system(rows: Sequence[Row], system: str) -> ResultTable:
    """A line for each variant of a system."""
    heads = [
        "without", "what is left", "tasks", "step, geometric mean", "longer", "equal", "shorter", "worst", "embedding cost",
        "search time", "not placed, without and with", "gap, median", "same plans",
    ]  # fmt: skip
    cells: list[list[object]] = []
    for name, variant in VARIANTS[system].items():
        found = beside(rows, system, name, FULL)
        if found.tried:
            cells.append([name, variant.what, *figures(found)])
    caption = (
        f"`{system}` without one part at a time, divided by `{system}` as it is, on the same tasks: under 1 is better without the part. "
        "Geometric means over the tasks that both placed, with 95% intervals by bootstrap; search time: median of the ratios. Gap: to the "
        "bound of the variant's own search, which under constraints speaks of plans under these."
    )
    return ResultTable(caption, heads, cells)


def figures(found: Beside) -> list[object]:
    """The cells of a variant."""
    failures = f"{found.own_failures}, {found.full_failures}"
    if not found.pairs:
        return [0, *[NOTHING] * 7, failures, NOTHING, NOTHING]
    gaps = [step / bound - 1 for _, row in found.pairs if (step := row["step_ms"]) and (bound := row["bound_ms"])]  # type: ignore[operator]
    return [
        len(found.pairs), ratio_cell(found.ratios()), *(f"{share:.0%}" for share in found.shares), cell(max(found.ratios()), ".3f"),
        cell(geometric(found.ratios("embedding_cost_ms"))[0], ".4f"), cell(float(np.median(found.ratios("search_s")))) + "×", failures,
        cell(float(np.median(gaps)) if gaps else None, ".2%"), f"{found.same_plans} of {len(found.pairs)}",
    ]  # fmt: skip


def ratio_cell(ratios: Sequence[float]) -> str:
    """Geometric mean and its interval."""
    mean, low, high = geometric(ratios)
    return f"{mean:.4f} ({low:.4f} to {high:.4f})" if ratios else NOTHING


def by_setting(rows: Sequence[Row]) -> ResultTable:
    """Geometric means by setting."""
    found = [row for system in VARIANTS for row in searches(rows, system)]
    settings = sorted(grouped(found, "devices", "max_dim"), key=lambda key: (int(key[0] or 0), int(key[1] or 0)))
    cells = []
    for system, variants in VARIANTS.items():
        for name in list(variants)[1:]:
            each = [
                beside([row for row in found if (row["devices"], row["max_dim"]) == setting], system, name, FULL)
                for setting in settings
            ]
            if any(one.pairs for one in each):
                means = [cell(geometric(one.ratios())[0] if one.pairs else None, ".4f") for one in each]
                cells.append(
                    [system, name, *(f"{mean} ({len(one.pairs)})" for mean, one in zip(means, each, strict=True))]
                )
    heads = ["system", "without", *(f"{devices} devices, max dim {dim}" for devices, dim in settings)]
    return ResultTable(
        "The same ratios of steps by setting: geometric means, in brackets the number of tasks.", heads, cells
    )


def errors(rows: Sequence[Row]) -> ResultTable:
    """Held-out errors of both heads."""
    cells = []
    for (head,), group in grouped([row for row in rows if row["part"] == TRAINED], "head").items():
        noise = [float(row["repeat_error"]) for row in group if row["repeat_error"] is not None]
        columns = [[float(row[name] or 0.0) for row in group] for name in ("mean_error", "median_error", "spearman")]
        cells.append(
            [head, len(group), span([float(row["sets"] or 0) for row in group], ",.0f"), *(span(each, ".2%") for each in columns[:2]),
             span(columns[2], ".4f"), cell(noise[0] if noise else None, ".2%")]
        )  # fmt: skip
    caption = (
        "Both heads, trained on the same samples of one machine: relative errors on the tenth of the samples that a training has not "
        "seen, means over seeds with least and most; repeat noise: how much measuring a set of tables twice differs (mean)."
    )
    heads = ["head", "seeds", "held-out sets", "mean error", "median error", "Spearman", "repeat noise"]
    return ResultTable(caption, heads, cells)


def measured(rows: Sequence[Row]) -> ResultTable:
    """Plans found under either head, on real kernels."""
    cells = [line(strategy, pairs) for strategy, pairs in head_pairs(rows).items()]
    caption = (
        "Plans found under the mlp head divided by plans found under the convex head, same task, strategy and seed: slowest forward plus "
        "slowest backward kernel, geometric means with 95% intervals. Predicted: each by its own head. Difference: predicted / measured − "
        "1 of the plans of each head, median; below 0 the head promised more than the plan held."
    )
    heads = [
        "strategy", "pairs", "same plans", "measured, mlp / convex", "mlp faster", "predicted, mlp / convex", "difference, convex",
        "difference, mlp",
    ]  # fmt: skip
    return ResultTable(caption, heads, cells)


def line(strategy: str, pairs: HeadPairs) -> list[object]:
    """A line of `measured`."""
    ratios = pairs.ratios("measured_ms")
    return [
        strategy, len(ratios), pairs.same_plans, ratio_cell(ratios), f"{np.mean(np.array(ratios) < 1):.0%}",
        ratio_cell(pairs.ratios("predicted_ms")),
        *(cell(pairs.optimism(index), "+.1%") for index in range(2)),
    ]  # fmt: skip


def strategies(rows: Sequence[Row]) -> ResultTable:
    """Strategies beside `greedy`, under models that were learned on the machine that measures, and under the bundled one."""
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
        "Measured plans divided by `greedy`'s under the same model: what a search is worth under a model that was learned on the machine "
        "that measures (convex, mlp), and under the bundled one. Geometric means over tasks, each the mean of its seeds; 95% intervals."
    )
    heads = [
        "strategy",
        "model",
        "tasks",
        "measured",
        "faster on",
        "predicted",
        "worst task",
        "over its plans under the bundled model",
    ]
    return ResultTable(caption, heads, cells)


def span(values: Sequence[float], spec: str) -> str:
    """Mean, with least and most where they differ."""
    mean = format(float(np.mean(values)), spec)
    return mean if len(set(values)) == 1 else f"{mean} ({min(values):{spec}} to {max(values):{spec}})"
