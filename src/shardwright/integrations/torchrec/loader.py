"""Plan loaders: a loader of saved sharding plans, and the use of a loader's plan instead of a search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path

import torch
from torch import nn
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    Perf,
    PlanLoader,
    PlannerError,
    PlannerErrorType,
    ShardingOption,
    Storage,
)
from torchrec.distributed.planner.types import Shard as TorchRecShard
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingType

from shardwright.integrations.torchrec.options import choices_of, extents_of
from shardwright.integrations.torchrec.plan_files import load_saved_plan
from shardwright.integrations.torchrec.problem import TorchRecProblem

_COLUMNS = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


class SavedPlanLoader(PlanLoader):
    """Hands a saved sharding plan to a planner, which uses it instead of a search.

    If the plan was saved with a context hash, the planner refuses it unless its own inputs have the same hash. A plan without tables
    counts as none: the planner then searches.

    TorchRec's planner looks up each table by a hash of how its enumerator lists the table: with the column width and the cache share of
    the constraints. To find plans with other blocks or caches, it needs a loader that knows the constraints. It takes the blocks and
    ranks of a loaded plan, and everything else from the constraints.

    Args:
        path: a file written by `save_sharding_plan`.
        constraints: constraints of TorchRec's planner, `{}` for none; not needed if our planner loads.
    """

    def __init__(self, path: str | Path, constraints: Mapping[str, ParameterConstraints] | None = None) -> None:
        self._path, self._constraints = Path(path), constraints

    def load(self) -> dict[int, ShardingOption] | None:
        """Sharding options by `storage_hash()`; None for a plan without tables.

        Raises:
            InvalidInput: the file cannot be read or breaks a rule.
        """
        options = [
            _option(path, name, table)
            for path, of_module in load_saved_plan(self._path).plan.plan.items()
            for name, table in of_module.items()
        ]
        return {self._as_listed(option).storage_hash(): option for option in options} or None

    def _as_listed(self, option: ShardingOption) -> ShardingOption:
        """The option as TorchRec's enumerator lists it under the constraints."""
        if self._constraints is None:
            return option
        given, listed = self._constraints.get(option.name), copy(option)
        listed.cache_params = given.cache_params if given else None
        if option.sharding_type in _COLUMNS:
            least = given.min_partition if given else None
            listed.shards, _ = calculate_shard_sizes_and_offsets(option.tensor, 1, 1, option.sharding_type, least)
        return listed

    def plan_context_hash(self) -> str | None:
        """Hash of the inputs of the planner that made the plan; None if the file has none."""
        return load_saved_plan(self._path).context_hash

    def get_plan_id(self) -> str:
        """Name of the plan in errors."""
        return str(self._path)


def _option(path: str, name: str, table: ParameterSharding) -> ShardingOption:
    """The sharding option of a saved table.

    Modules and weights are empty stand-ins, because the planner reads only the sharding choices.
    """
    extents = extents_of(table, [0, 0], table.ranks or [])
    rows = max((size[0] + offset[0] for size, offset, _ in extents), default=0)
    columns = max((size[1] + offset[1] for size, offset, _ in extents), default=0)
    return ShardingOption(
        name=name,
        tensor=torch.empty((rows, columns), device="meta"),
        module=(path, nn.Module()),
        input_lengths=[],
        batch_size=0,
        shards=[
            TorchRecShard(size, offset, Storage(hbm=0, ddr=0), Perf(0, 0, 0, 0), rank) for size, offset, rank in extents
        ],
        is_pooled=True,
        **choices_of(table),
    )


def loaded_plan(
    loader: PlanLoader | None, problem: TorchRecProblem, context_hashes: Callable[[], Iterator[str]]
) -> ShardingPlan | None:
    """The plan that a loader has for a problem; None if it has none.

    Args:
        loader: a loader of TorchRec or ours.
        problem: the problem to plan.
        context_hashes: gives hashes of the planner's inputs, its own first, then other processes'; called only if the plan has a hash.

    Raises:
        PlannerError: the plan was made for other inputs, or its tables are not those of the problem.
    """
    if loader is None:
        return None
    of_plan = loader.plan_context_hash()
    if of_plan is not None:
        _check_context(loader, of_plan, context_hashes())
    options = loader.load()
    if not options:
        return None
    _check_tables(list(options.values()), problem)
    _warn_of_idle(loader, list(options.values()), problem.task.topology.devices)
    return to_sharding_plan(list(options.values()), problem.topology)


def _check_context(loader: PlanLoader, of_plan: str, hashes: Iterator[str]) -> None:
    own = next(hashes)
    if of_plan == own or of_plan in hashes:
        return
    raise PlannerError(
        f"planner input mismatch: {_name_of(loader)} was made for other inputs; its context hash is {of_plan}, the planner's {own}: plan "
        "anew, or load it with the topology, batch size, model, reservation and constraints it was made for",
        PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH,
    )


def _name_of(loader: PlanLoader) -> str:
    return str(getattr(loader, "get_plan_id", lambda: "the loaded plan")())


def _warn_of_idle(loader: PlanLoader, options: list[ShardingOption], ranks: int) -> None:
    """Warn if the last ranks hold nothing: a plan without a context hash does not state its number of ranks."""
    used = 1 + max((shard.rank or 0 for option in options for shard in option.shards), default=-1)
    if used < ranks:
        warnings.warn(
            f"{_name_of(loader)} puts tables on ranks 0 to {used - 1} only, the other {ranks - used} of {ranks} ranks hold none; if it "
            "was made for fewer ranks, plan anew",
            stacklevel=2,
        )


def _check_tables(options: list[ShardingOption], problem: TorchRecProblem) -> None:
    wanted = {place.fqn for place in problem.places.values()}
    planned = {option.fqn for option in options}
    if wanted != planned:
        parts = [("it lacks", wanted - planned), ("it has besides", planned - wanted)]
        said = "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in parts if names)
        raise PlannerError(
            f"the loaded plan is not for this model: {said}; plan anew", PlannerErrorType.PLAN_LOADING_FAILED
        )
