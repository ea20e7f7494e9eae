"""Learned placement on tasks never seen, beside heuristics, searches and a proven bound, all on the bundled CPU cost model.

    python benchmarks/learned_quality.py                                    # DLRM-20/40/60/80 × 4, DLRM-40/80 × 8, 50 tasks each
    python benchmarks/learned_quality.py --settings 50x4 --tasks 5          # one setting
    python benchmarks/learned_quality.py --pages-only                       # the pages anew from the rows there are

Every plan is a row of `results/learned_quality.csv`, written as soon as it is found: a run that is stopped goes on where it was. A row
counts as long as its strategy's options and policy are the same. Tasks: `learned_tasks.py`; their numbers are the seeds of the searches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import learned_strategies
import plots
import results_table
from learned_journal import Journal, Row
from learned_outcome import COLUMNS, Outcome, key, line, planned
from learned_strategies import COLOURS, Entrant, entrants, model_version
from learned_tables import Costs, by_setting, closed_table, mean_table, search_table
from learned_tasks import SETTINGS, TEST_SEED, Setting, draw_task

from shardwright.cost import cost_model_for

NAME = "learned_quality"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    chosen = entrants(options)
    journal = Journal(results_table.RESULTS / f"{NAME}.csv", COLUMNS)
    if not options.pages_only:
        collect(journal, chosen, options)
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    rows = wanted_rows(journal.rows, chosen, options)
    write_page(rows, options, f"python benchmarks/{NAME}.py {given}".rstrip())


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", type=Setting.of, default=SETTINGS, metavar="TxD")
    parser.add_argument("--tasks", type=int, default=50, help="tasks of each setting")
    parser.add_argument("--rnn-tasks", type=int, default=10, help="of them so many for rnn, which trains on each")
    parser.add_argument(
        "--pages-only", action="store_true", help="plan nothing, write the page from the rows there are"
    )
    learned_strategies.add_options(parser)
    return parser.parse_args(arguments)


def collect(journal: Journal, chosen: list[Entrant], options: argparse.Namespace) -> None:
    """Add the rows that are missing, task by task, so that a slow hour touches all strategies alike."""
    model = cost_model_for("cpu")
    known = {key(row) for row in journal.rows}
    for entrant in chosen:  # no search pays for imports and compiled code
        if entrant.name != "rnn":
            planned(entrant, Setting(8, 2), 0, draw_task(Setting(8, 2), 0), model)
    for number in range(options.tasks):
        for setting in options.settings:
            task = draw_task(setting, number)
            for entrant in (one for one in chosen if one.name != "rnn" or number < options.rnn_tasks):
                about = (setting.tables, setting.devices, number, entrant.name, entrant.version)
                if tuple(map(str, about)) not in known:
                    journal.add(planned(entrant, setting, number, task, model))
                    print(line(journal.rows[-1]), file=sys.stderr, flush=True)


def wanted_rows(rows: list[Row], chosen: list[Entrant], options: argparse.Namespace) -> list[Outcome]:
    """The outcomes that the page is about, in the order of settings and strategies."""
    versions = {entrant.name: entrant.version for entrant in chosen}
    order = {name: place for place, name in enumerate(versions)}
    settings = {setting: place for place, setting in enumerate(options.settings)}
    current = [Outcome.of(row) for row in rows if versions.get(row["strategy"]) == row["version"]]
    found = [outcome for outcome in current if outcome.setting in settings and outcome.task < options.tasks]
    return sorted(found, key=lambda outcome: (settings[outcome.setting], order[outcome.strategy], outcome.task))


def write_page(found: list[Outcome], options: argparse.Namespace, command: str) -> None:
    versions = ", ".join(f"{entrant.name}: {entrant.made_with}" for entrant in entrants(options) if entrant.made_with)
    means = (
        f"Mean step, ms: the sum over the four phases of the slowest device. {options.tasks} tasks a setting, seed {TEST_SEED}, tables "
        f"from the half of the pool that no policy was trained on, all whole. {model_version()}; {versions}. The bound is `certified`'s. "
        "(of n): a mean over n tasks only, not comparable with those beside it; the next table compares on the same tasks."
    )
    share = (
        "What part of the distance between the best heuristic (lowest mean of the setting) and the bound a strategy closes: (heuristic − "
        "strategy) / (heuristic − bound), of the sums over tasks. That of `certified` is what searching reaches where tables stay whole."
    )
    compute = (
        "Kernels alone, what `autoshard` is made for: mean of the slowest device's forward + backward, ms. The bound (`learned_bound.py`) "
        "is the larger of an even share of everything and of the costliest table alone; the other strategies lower the step, not this."
    )
    embedding = "The papers' embedding cost, ms: the slowest device's sum of all four phases, means."
    tables = [
        (means, *mean_table(found, "step_ms")),
        (share, *closed_table(found, "step_ms")),
        (compute, *mean_table(found, "compute_ms")),
        ("The same distance for kernels alone.", *closed_table(found, "compute_ms")),
        (embedding, *mean_table(found, "embedding_cost_ms")),
        ("Tasks placed, and seconds of a search by the clock; `rnn` trains within it.", *search_table(found)),
    ]
    results_table.write_results(NAME, "Learned placement on unseen tasks", tables, command)
    plot(found, "step_ms", NAME)
    plot(found, "compute_ms", f"{NAME}_compute")


def plot(found: list[Outcome], kind: str, name: str) -> None:
    """Per setting: how far strategies lie above the bound, tasks sorted by that."""
    groups = by_setting(found)
    titles = [setting.name for setting in groups]
    figure, axes = plots.panels([titles[first : first + 3] for first in range(0, len(titles), 3)])
    for axis, outcomes in zip((axis for row in axes for axis in row), groups.values(), strict=False):
        costs = Costs(outcomes, kind)
        for strategy in (
            one for one in costs.names if one == costs.best_sorted or COLOURS[one] not in ("#999999", "#777777")
        ):
            label = "best heuristic" if strategy == costs.best_sorted else strategy
            axis.plot(sorted(100 * costs.above_bound(strategy)), label=label, color=COLOURS[strategy])
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_xlabel("tasks, sorted")
    for row in axes:
        row[0].set_ylabel(f"{kind.removesuffix('_ms')} above the bound, %")
    axes[0][0].legend(frameon=False, fontsize=6)
    plots.save(figure, name)


if __name__ == "__main__":
    main()
