"""A plan loader over saved sharding plans."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path

import torch
from torch import nn
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.types import ParameterConstraints, Perf, PlanLoader, ShardingOption, Storage
from torchrec.distributed.planner.types import Shard as TorchRecShard
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import ParameterSharding, ShardingType

from shardwright.integrations.torchrec.plan_files import load_saved_plan

_COLUMNS = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


class SavedPlanLoader(PlanLoader):
    """Hands a saved sharding plan to a planner, which takes it in place of a search.

    Where the plan was saved with a context hash, the planner refuses it if its own inputs hash differently. A plan without tables counts
    as none: the planner then searches.

    TorchRec's planner looks every table up by a hash of how its enumerator lists it: in column blocks as wide as the constraints say, and
    with their share of a cache. It finds plans with other blocks or caches where the loader knows the constraints. It takes blocks and
    ranks of a loaded plan, and all else from the constraints.

    Args:
        path: a file written by `save_sharding_plan`.
        constraints: those of TorchRec's planner, `{}` for none; not needed where our planner loads.
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
        """Hash of what the planner was given that made the plan; None if the file does not say."""
        return load_saved_plan(self._path).context_hash

    def get_plan_id(self) -> str:
        """What errors call the plan."""
        return str(self._path)


def _option(path: str, name: str, table: ParameterSharding) -> ShardingOption:
    """A file has no modules or weights: empty ones stand for them, as the planner takes nothing but the choices."""
    spec = table.sharding_spec
    extents = (
        [([0, 0], [0, 0], rank) for rank in table.ranks or []]
        if spec is None
        else [(list(s.shard_sizes), list(s.shard_offsets), s.placement.rank()) for s in spec.shards]
    )
    rows = max((size[0] + offset[0] for size, offset, _ in extents), default=0)
    columns = max((size[1] + offset[1] for size, offset, _ in extents), default=0)
    return ShardingOption(
        name=name,
        tensor=torch.empty((rows, columns), device="meta"),
        module=(path, nn.Module()),
        input_lengths=[],
        batch_size=0,
        sharding_type=table.sharding_type,
        partition_by=get_partition_by_type(table.sharding_type),
        compute_kernel=table.compute_kernel,
        shards=[
            TorchRecShard(size, offset, Storage(hbm=0, ddr=0), Perf(0, 0, 0, 0), rank) for size, offset, rank in extents
        ],
        cache_params=table.cache_params,
        enforce_hbm=table.enforce_hbm,
        stochastic_rounding=table.stochastic_rounding,
        bounds_check_mode=table.bounds_check_mode,
        is_pooled=True,
        output_dtype=table.output_dtype,
        key_value_params=table.key_value_params,
    )
