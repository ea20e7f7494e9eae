"""`dreamshard-tables`: the comparison of DreamShard's paper, on tasks of tables that the policies saw and of tables they did not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from experiments.entrants import Entrant, Limits, model_version
from experiments.experiment import Page, Piece, Row
from experiments.learned.tasks import NAMES, RNN, Setting, compute_bound, draw_task, learned_entrant, load_rnn
from experiments.outcomes import planned
from shardwright.cost.choice import cost_model_for

SETTINGS = tuple(
    Setting(tables, devices)
    for devices, sizes in ((4, (20, 40, 60, 80, 100)), (8, (20, 40, 80, 120, 160)))
    for tables in sizes
)
QUICK = (Setting(20, 4), Setting(60, 4), Setting(40, 8), Setting(120, 8))
_LIMITS = Limits()
UNSEEN, SEEN = "unseen", "seen"
HALVES = {UNSEEN: 1.0, SEEN: 0.0}
"""Halves of the pool, each with the probability that a table comes from the half for testing."""


@dataclass(frozen=True)
class DreamShardTables:
    """The experiment on DreamShard's tasks: tables of dim 16, all whole, on four and on eight devices.

    Attributes:
        settings: settings of the full experiment.
        tasks: number of tasks of each setting and half of the pool.
        rnn_tasks: number of these tasks that `rnn` plans, as it trains on each.
        quick_settings: settings of the quick experiment.
        quick_tasks: number of tasks of each setting and half in the quick experiment.
        strategies: names of the compared strategies.
        limits: limits of the searches.
        rnn_updates: number of updates of `rnn` on a task.
    """

    settings: tuple[Setting, ...] = SETTINGS
    tasks: int = 20
    rnn_tasks: int = 3
    quick_settings: tuple[Setting, ...] = QUICK
    quick_tasks: int = 4
    strategies: tuple[str, ...] = NAMES
    limits: Limits = _LIMITS
    rnn_updates: int = 120
    name: str = "dreamshard-tables"
    about: str = (
        "DreamShard (2022): learned placement beside heuristics, searches and a bound, on seen and unseen tables"
    )

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Task by task, each in all settings and both halves, by all strategies."""
        versions = {name: version(self.entrant(name)) for name in self.strategies}
        count, of_rnn = (self.quick_tasks, 1) if quick else (self.tasks, self.rnn_tasks)
        return [
            Piece({**asdict(setting), "half": half, "task": number, "strategy": name}, made_with)
            for number in range(count)
            for setting in (self.quick_settings if quick else self.settings)
            for half in HALVES
            for name, made_with in versions.items()
            if name != RNN or number < of_rnn
        ]

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by a strategy; if `certified` places it, `compute_bound_ms` bounds the slowest device's kernels."""
        setting = Setting(int(piece.key["tables"]), int(piece.key["devices"]))
        number, name = int(piece.key["task"]), str(piece.key["strategy"])
        task = draw_task(setting, number, unseen=HALVES[str(piece.key["half"])])
        if name == RNN:
            load_rnn()
        row, plan = planned(task, self.entrant(name), seed=number)
        proves = plan is not None and name == "certified"
        return [row | {"compute_bound_ms": compute_bound(task, cost_model_for("cpu")) if proves else None}]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """Means, closed shares of the distance to the bound, and search times."""
        from experiments.dreamshard.page import page

        return page(rows, self.quick_tasks if quick else self.tasks)

    def entrant(self, name: str) -> Entrant:
        """The entrant for a strategy name, with this experiment's limits."""
        return learned_entrant(name, self.limits, rnn_updates=self.rnn_updates)


def version(entrant: Entrant) -> str:
    """A text of everything that a strategy's plans depend on besides the task."""
    return ", ".join(part for part in (entrant.version, model_version("cpu")) if part)
