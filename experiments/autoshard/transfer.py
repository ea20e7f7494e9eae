"""`autoshard-transfer`: learned policies on tasks unlike their training tasks, beside policies trained on the target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from experiments.autoshard.kinds import FULL, QUICK, Kind, Scale
from experiments.autoshard.matrix import BALANCE, degree_of_balance
from experiments.entrants import SORTED, Entrant, Limits, digest, entrant, model_version
from experiments.experiment import Page, Piece, Row
from experiments.learned.policy_training import LEARNERS, learned, options_digest, training_seconds
from experiments.learned.tasks import TEST_SEED, TRAIN_SEED, compute_bound
from experiments.outcomes import planned
from shardwright.cost.choice import cost_model_for
from shardwright.task.task import Task

BUNDLED, NOTHING = "bundled", "nothing"
"""Training kinds outside the matrices: the tasks of the bundled policies, or nothing for a strategy that does not learn."""
UNTRAINED = ("random", *SORTED, "certified")
_LIMITS = Limits()


@dataclass(frozen=True)
class Transfer:
    """The matrices of AutoShard's and DreamShard's papers: trained on the row's tasks, tested on the column's, without fine-tuning.

    Attributes:
        full: scale of the full experiment.
        small: scale of the quick experiment.
        seeds: number of trainings of each policy, with seeds 0, 1, …
        folder: folder of the policies; missing policies are trained.
        limits: limits of `certified`.
    """

    full: Scale = FULL
    small: Scale = QUICK
    seeds: int = 1
    folder: Path = Path("out/experiments/policies")
    limits: Limits = _LIMITS
    name: str = "autoshard-transfer"
    about: str = (
        "AutoShard (2022) and DreamShard: policies on other numbers of tables, of devices, and on unseen tables"
    )

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """First the strategies that need no training, then policy by policy; both strategies and all parts take turns."""
        size, scale = ("quick", self.small) if quick else ("full", self.full)
        plain = [(name, NOTHING, 0) for name in UNTRAINED] + [(name, BUNDLED, 0) for name in LEARNERS]
        trained = [(name, kind.name, seed) for seed in range(self.seeds) for kind in scale.trained for name in LEARNERS]
        return [
            Piece(
                {"strategy": name, "trained": what, "seed": seed, "scale": size}, self._version(name, what, seed, scale)
            )
            for name, what, seed in (*plain, *trained)
        ]

    def run(self, piece: Piece) -> Sequence[Row]:
        """Train the policy if its file is missing, then place the test tasks of all kinds; one row for each task."""
        name, what, seed = str(piece.key["strategy"]), str(piece.key["trained"]), int(piece.key["seed"])
        scale = self.small if piece.key["scale"] == "quick" else self.full
        seconds: float | None = None
        policy: Path | None = None
        if what not in (BUNDLED, NOTHING):
            policy = self.policy(name, next(kind for kind in scale.trained if kind.name == what), seed, scale)
            seconds = training_seconds(name, policy)
        facts: Row = {"training_s": seconds, "policy": digest(policy) if policy else None}
        return [facts | row for row in _tested(entrant(name, self.limits, policy=policy), scale)]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """A matrix for each strategy and part."""
        from experiments.autoshard.page import page

        return page(rows, self.small if quick else self.full, self.seeds, quick)

    def policy(self, strategy: str, kind: Kind, seed: int, scale: Scale) -> Path:
        """The file of the policy trained on tasks of a kind; trained now if missing."""
        tasks = _training(kind, scale.training_tasks)
        return learned(
            strategy, f"{kind.name}-seed{seed}", tasks, replace(scale.options(strategy), seed=seed), self.folder
        )

    def _version(self, strategy: str, trained: str, seed: int, scale: Scale) -> str:
        """A text of everything that rows depend on besides the key."""
        kinds = hashlib.sha256(" ".join(kind.name for kind in scale.tested).encode()).hexdigest()[:8]
        made = [entrant(strategy, self.limits).version]
        if trained not in (BUNDLED, NOTHING):
            options = options_digest(replace(scale.options(strategy), seed=seed))
            made = [f"{scale.training_tasks} training tasks, options {options}"]
        return ", ".join(
            part for part in (*made, f"{scale.tasks} tasks of kinds {kinds}", model_version("cpu")) if part
        )


@cache
def _training(kind: Kind, count: int) -> tuple[Task, ...]:
    return tuple(kind.tasks(count, TRAIN_SEED))


def _tested(strategy: Entrant, scale: Scale) -> Iterator[Row]:
    """Plan all test tasks by a strategy, and yield the rows."""
    for kind in scale.tested:
        for number, task in enumerate(kind.tasks(scale.tasks, TEST_SEED)):
            row, plan = planned(task, strategy, seed=number)
            proves = plan is not None and strategy.name == "certified"
            bound = compute_bound(task, cost_model_for("cpu")) if proves else None
            about: Row = {"tested": kind.name, "task": number}
            yield about | row | {"compute_bound_ms": bound, BALANCE: degree_of_balance(plan)}
