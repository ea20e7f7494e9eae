"""Convex head against mlp head: both trained on samples of this machine, their plans measured on its kernels. Needs torch and FBGEMM.

Beside them, the same searches under the bundled model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.ablations.pieces import BUNDLED, digest_of
from experiments.entrants import Entrant
from experiments.experiment import Row
from experiments.outcomes import planned
from shardwright.cost.choice import cost_model_for
from shardwright.cost.files import load_model, save_model
from shardwright.cost.model import ComputeModel, CostModel, Head
from shardwright.errors import MeasurementFailed
from shardwright.search.baselines import FusedGreedy
from shardwright.search.certified import Certified
from shardwright.search.neuroshard import NeuroShard
from shardwright.sharding.plan import Plan
from shardwright.task import Task

if TYPE_CHECKING:
    from shardwright.cost.dataset import Samples
    from shardwright.measure.measuring import MeasuredPlan

HEADS: tuple[Head, ...] = ("convex", "mlp")
BATCH_SIZE = 1024
_FEWEST = 60  # sets: below, nothing can be learned
_PLANNERS = (FusedGreedy(), NeuroShard(), Certified(tolerance=0.002))


@dataclass(frozen=True)
class HeadBench:
    """Samples and models of a comparison of heads, kept in a folder.

    Attributes:
        folder: store and models lie here; an interrupted run goes on with them.
        samples: how many samples the store is to hold.
        time_limit: seconds of a search.
    """

    folder: Path
    samples: int
    time_limit: float

    def collect(self, samples: int, seconds: float | None) -> Row:
        """Collect until the store holds so many samples, or the time is up.

        Raises:
            InvalidInput: the store holds samples of other hardware too; remove it.
            MeasurementFailed: a kernel could not be run.
        """
        begin = time.monotonic()
        self._collect(samples, seconds)
        return {"sets": len(self._samples()), "seconds": time.monotonic() - begin}

    def train(self, head: Head, seed: int) -> Row:
        """Train a model and keep it; its errors on a tenth of the samples that it has not seen, beside the repeat noise of all."""
        from shardwright.cost.training import TrainingOptions, train
        from shardwright.threads import one_thread

        begin, samples = time.monotonic(), self._samples()
        with one_thread():
            found = train(samples, TrainingOptions(head=head, seed=seed), {"device": "cpu"})
        save_model(found.model, self._model_file(head, seed, samples))
        errors = found.accuracy
        return {
            "head": head,
            "seed": seed,
            "sets": errors.sets,
            "mean_error": errors.mean_error,
            "median_error": errors.median_error,
            "spearman": errors.spearman,
            "repeat_error": errors.repeat_error,
            "seconds": time.monotonic() - begin,
        }

    def measure(self, task: Task, seeds: Sequence[int], rounds: int) -> list[Row]:
        """Plans of a task under both heads, and under the bundled model for the first seed, measured in interleaved rounds.

        Returns:
            A row a plan, with `predicted_ms` by the model that it was searched with and `measured_ms`, each the slowest forward plus
            the slowest backward kernel; a row without figures for a task that was not placed, or does not fit this machine.
        """
        from shardwright.measure.measuring import measure_plans

        rows: list[Row] = []
        plans: list[Plan] = []
        for head, seed, model in self._models(seeds):
            for strategy in _PLANNERS:
                row, plan = planned(task, Entrant(strategy, time_limit=self.time_limit), seed=seed, model=model)
                shards = digest_of(plan) if plan else None
                rows.append({"strategy": strategy.name, "head": head, "seed": seed, "shards": shards, **row})
                plans += [plan] if plan else []
        try:
            measured = iter(measure_plans(plans, rounds=rounds))
        except MeasurementFailed as error:
            return [
                {**row, "failure": row["failure"] or "not measured", "why": row["why"] or str(error)} for row in rows
            ]
        return [row if row["failure"] else {**row, **_times(next(measured))} for row in rows]

    @property
    def _store(self) -> Path:
        return self.folder / f"samples-{self.samples}"

    def _samples(self) -> Samples:
        """What is in the store; a few are collected where there is next to nothing."""
        from shardwright.cost.dataset import samples_of
        from shardwright.measure.samples import read_samples

        if not self._store.exists() or read_samples(self._store).num_rows < _FEWEST:
            self._collect(_FEWEST, None)
        return samples_of(read_samples(self._store))

    def _collect(self, samples: int, seconds: float | None) -> None:
        from shardwright.measure.collect import collect

        collect(self._store, samples=samples, batch_sizes=(BATCH_SIZE,), sequence_share=0.0, seconds=seconds)

    def _model_file(self, head: Head, seed: int, samples: Samples) -> Path:
        """Named by the number of measurements too: more samples make another model."""
        return self.folder / f"{head}-{seed}-of-{len(samples)}.safetensors"

    def _models(self, seeds: Sequence[int]) -> Iterator[tuple[str, int, CostModel]]:
        """Head, seed and model."""
        for seed, head in product(seeds, HEADS):
            yield head, seed, self._model(head, seed)
        yield BUNDLED, seeds[0], cost_model_for("cpu")

    def _model(self, head: Head, seed: int) -> ComputeModel:
        """The trained model, trained now where it is not there."""
        path = self._model_file(head, seed, self._samples())
        if not path.exists():
            self.train(head, seed)
        found = load_model(path)
        assert isinstance(found, ComputeModel)
        return found


def _times(measured: MeasuredPlan) -> Row:
    assert measured.plan.cost is not None
    return {"predicted_ms": measured.plan.cost.compute_ms, "measured_ms": measured.compute_ms}
