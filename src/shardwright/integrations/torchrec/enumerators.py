"""The user's enumerator: the only source of constraints, batch size and search space, as for TorchRec's planner."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import Enumerator, ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.types import PipelineType

from shardwright.integrations.torchrec.modules import Kernels, ShardableTable, Sharder, kernels_where
from shardwright.task.topology import Pipeline

Listed: TypeAlias = Mapping[tuple[str, str], set[tuple[str, str]]]
"""Pairs of sharding type and compute kernel that an enumerator lists, by module path and parameter name."""

_PIPELINES: dict[PipelineType, Pipeline] = {
    PipelineType.TRAIN_SPARSE_DIST: "sparse_dist",
    PipelineType.TRAIN_PREFETCH_SPARSE_DIST: "prefetch",
}


@dataclass(frozen=True)
class Said:
    """The joint arguments of planner and enumerator.

    Attributes:
        constraints: constraints by name of the parameter: the enumerator's, and the planner's for all other tables.
        batch_size: samples of a step on each rank: the enumerator's, else the planner's, else TorchRec's default.
        pipeline: the training pipeline of the enumerator's storage estimator.
    """

    constraints: dict[str, ParameterConstraints] | None
    batch_size: int
    pipeline: Pipeline

    @classmethod
    def by(
        cls, enumerator: Enumerator | None, constraints: dict[str, ParameterConstraints] | None, batch_size: int | None
    ) -> Said:
        """Join the arguments of a planner and its enumerator, and warn of assumptions and contradictions."""
        own: dict[str, ParameterConstraints] | None = getattr(enumerator, "_constraints", None)
        size: int | None = getattr(enumerator, "_batch_size", None)
        if size is None and batch_size is None:
            warnings.warn(
                f"batch_size is not given: {BATCH_SIZE} samples on each rank are assumed, as TorchRec does; plans depend on it",
                stacklevel=4,
            )
        elif size is not None and batch_size is not None and size != batch_size:
            warnings.warn(
                f"batch_size is {batch_size} for the planner and {size} for its enumerator: {size} counts, as for TorchRec",
                stacklevel=4,
            )
        types = {getattr(estimator, "_pipeline_type", None) for estimator in getattr(enumerator, "_estimators", ())}
        pipelines = [name for kind, name in _PIPELINES.items() if kind in types]
        return cls(
            {**(constraints or {}), **own} if own else constraints,
            size or batch_size or BATCH_SIZE,
            pipelines[-1] if pipelines else "none",
        )


def listed_by(enumerator: Enumerator | None, module: nn.Module, sharders: Sequence[Sharder]) -> Listed | None:
    """The list of a user's own class of enumerators for a model; None for TorchRec's own class, which follows the constraints."""
    if enumerator is None or type(enumerator) is EmbeddingEnumerator:
        return None
    listed: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for option in enumerator.enumerate(module, list(sharders)):
        listed.setdefault((option.path, option.name), set()).add((option.sharding_type, option.compute_kernel))
    return listed


def kernels_listed(kernels: Kernels, table: ShardableTable, listed: Listed) -> dict[str, tuple[str, ...]]:
    """The kernels of each sharding type that an enumerator lists for a table.

    Raises:
        PlannerError: it lists none of them.
    """
    allowed = listed.get((table.path, table.name), set())
    left = kernels_where(lambda kind, kernel: (kind, kernel) in allowed, kernels)
    if not left:
        raise PlannerError(
            f"table '{table.path}.{table.name}': the enumerator lists {sorted(allowed) or 'nothing'} for it, but sharder and "
            f"constraints allow none of these; they allow {dict(kernels)}: let the enumerator list one of those",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    return left
