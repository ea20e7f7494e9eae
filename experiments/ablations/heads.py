"""The convex and the mlp head: training on samples of this machine, and their plans on its kernels. Needs torch and FBGEMM.

For comparison, the same searches run under the bundled model.
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
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.modelling.dataset import Samples

HEADS: tuple[Head, ...] = ("convex", "mlp")
BATCH_SIZE = 1024
_FEWEST = 60  # fewest sets of tables from which a model can be learned
_PLANNERS = (FusedGreedy(), NeuroShard(), Certified(tolerance=0.002))


@dataclass(frozen=True)
class HeadBench:
    """The samples and models of a comparison of heads, kept in a folder.

    Attributes:
        folder: folder of the sample store and the models; an interrupted run resumes with them.
        samples: number of samples that the complete store holds; part of its name.
        time_limit: seconds per search.
    """

    folder: Path
    samples: int
    time_limit: float

    def collect(self, samples: int, seconds: float | None) -> Row:
        """Collect samples until the store holds this number, or the time is up.

        Raises:
            InvalidInput: the store also holds samples of other hardware; remove it.
            MeasurementFailed: a kernel could not run.
        """
        begin = time.monotonic()
        self._collect(samples, seconds)
        return {"sets": len(self._samples()), "seconds": time.monotonic() - begin}

    def train(self, head: Head, seed: int) -> Row:
        """Train and keep a model; return its errors on a held-out tenth of the samples, and the repeat noise of all samples."""
        from shardwright.modelling.training import TrainingOptions, train
        from shardwright.threads import one_thread

        begin, samples = time.monotonic(), self._samples()
        with one_thread():
            result = train(samples, TrainingOptions(head=head, seed=seed), {"device": "cpu"})
        save_model(result.model, self._model_file(head, seed, samples))
        errors = result.accuracy
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
        """Plan a task under both heads, and under the bundled model for the first seed; measure the plans in interleaved rounds.

        Returns:
            One row per plan, with `predicted_ms` (by the model of the search) and `measured_ms`; each is the slowest forward plus the
            slowest backward kernel. A plan that was not found, or that this machine cannot measure, gets a row without these figures.
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
        """The samples in the store; if it holds fewer than `_FEWEST`, that number is collected first."""
        from shardwright.measure.samples import read_samples
        from shardwright.modelling.dataset import samples_of

        if not self._store.exists() or read_samples(self._store).num_rows < _FEWEST:
            self._collect(_FEWEST, None)
        return samples_of(read_samples(self._store))

    def _collect(self, samples: int, seconds: float | None) -> None:
        from shardwright.measure.collect import collect

        collect(self._store, samples=samples, batch_sizes=(BATCH_SIZE,), sequence_share=0.0, seconds=seconds)

    def _model_file(self, head: Head, seed: int, samples: Samples) -> Path:
        """The file of a model; its name includes the number of samples, as more samples make another model."""
        return self.folder / f"{head}-{seed}-of-{len(samples)}.safetensors"

    def _models(self, seeds: Sequence[int]) -> Iterator[tuple[str, int, CostModel]]:
        """Head, seed and model of all searches."""
        for seed, head in product(seeds, HEADS):
            yield head, seed, self._model(head, seed)
        yield BUNDLED, seeds[0], cost_model_for("cpu")

    def _model(self, head: Head, seed: int) -> ComputeModel:
        """The trained model; trained now if its file is missing."""
        path = self._model_file(head, seed, self._samples())
        if not path.exists():
            self.train(head, seed)
        model = load_model(path)
        assert isinstance(model, ComputeModel)
        return model


def _times(measured: MeasuredPlan) -> Row:
    assert measured.plan.cost is not None
    return {"predicted_ms": measured.plan.cost.compute_ms, "measured_ms": measured.compute_ms}
